"""A setting of the original that crashes or hangs is left out, and the benchmark is run again without it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from onnxfuse.measure.benchmark import leaving_out
from onnxfuse.measure.benchmark.leaving_out import Earlier, at, done, patient, raced
from onnxfuse.measure.timing.settings import DEFAULT, Setting
from onnxfuse.support.isolation import Crash
from onnxfuse.support.progress import Progress, silent

NHWC = "NHWC, conv bias"


def crash(setting: str, *, model: str = "original", hangs: bool = False, **facts: Any) -> Crash:
    """Return the crash of a setting."""
    how = "does not answer" if hangs else "ends with SIGSEGV"
    return Crash(how, "timing", {"setting": setting, "model": model, **facts}, hangs)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[Earlier], list[str]]]:
    """Return a function that races with these outcomes, and what each attempt was given and told."""

    def run(*outcomes: Any) -> tuple[Any, list[Earlier], list[str]]:
        given, told, left = list[Earlier](), list[str](), list(outcomes)

        def isolated(task: Callable[[Progress], Any], progress: Progress) -> Any:
            task(silent)
            return left.pop(0)

        def race(_: Progress, earlier: Earlier) -> None:
            given.append(earlier)

        monkeypatch.setattr(leaving_out, "isolated", isolated)
        result = raced(race, lambda step, *_: told.append(step))
        assert not left
        return result, given, told

    return run


def test_a_result_ends_it(attempts: Callable[..., Any]) -> None:
    """In the first attempt nothing is left out."""
    assert attempts("times") == ("times", [Earlier()], [])


def test_a_setting_that_crashes_is_left_out(attempts: Callable[..., Any]) -> None:
    """And what was done is not done again; that of an earlier crash is left out, too."""
    result, given, told = attempts(crash(NHWC, done=("a",)), crash("NHWC"), "times")
    assert result == "times"
    assert [sorted(one.left_out) for one in given] == [[], [NHWC], ["NHWC", NHWC]]
    assert [one.done for one in given] == [(), ("a",), ("a",)]
    refused = given[2].left_out[NHWC]
    assert (refused.model, refused.kind, refused.reason) == ("original", "crashed", "it ends with SIGSEGV")
    assert told[0] == f"once more, as original: {NHWC} ends with SIGSEGV"


def test_settings_that_extend_one_that_hangs_are_not_tried(attempts: Callable[..., Any]) -> None:
    """The same search would hang again."""
    _, given, _ = attempts(crash("NHWC", hangs=True), "times")
    left = given[1].left_out
    assert sorted(left) == ["NHWC", "NHWC, CUDA graph", NHWC, f"{NHWC}, CUDA graph"]
    assert {one.kind for one in left.values()} == {"hangs"}
    assert left["NHWC"].reason == "it does not answer"
    assert left[NHWC].reason == "not tried, as NHWC does not answer"
    _, given, _ = attempts(crash("of the user's", hangs=True), "times")
    assert sorted(given[1].left_out) == ["of the user's"]


@pytest.mark.parametrize("one", [crash("NHWC", model="fused"), crash(""), Crash("ends", "open", {})])
def test_other_crashes_are_the_result(attempts: Callable[..., Any], one: Crash) -> None:
    """Of the fused model, of the default setting, of no setting."""
    result, given, _ = attempts(one)
    assert (result, len(given)) == (one, 1)


def test_a_setting_that_crashes_though_left_out_is_the_result(attempts: Callable[..., Any]) -> None:
    """It would be run for ever."""
    result, given, _ = attempts(crash("NHWC"), crash("NHWC"))
    assert isinstance(result, Crash)
    assert len(given) == 2


def test_what_runs_next_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default setting has no name: what crashes there is no setting's."""
    facts = list[dict[str, Any]]()
    monkeypatch.setattr(leaving_out, "doing", lambda **given: facts.append(given))
    at("original", Setting("NHWC"), case=1)
    at("fused", DEFAULT)
    done(["a"])
    assert facts == [
        {"model": "original", "setting": "NHWC", "case": 1}, {"model": "fused", "setting": ""}, {"done": ("a",)},
    ]  # fmt: skip


def test_only_other_settings_of_the_original_are_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have no limit."""
    limits = list[float]()

    @contextmanager
    def within(seconds: float) -> Iterator[None]:
        limits.append(seconds)
        yield

    monkeypatch.setattr(leaving_out, "within", within)
    cases: Sequence[tuple[Any, Setting]] = [
        ("original", Setting("NHWC")),
        ("original", DEFAULT),
        ("fused", Setting("NHWC")),
    ]
    for seconds, (model, setting) in enumerate(cases):
        with patient(model, setting, seconds):
            pass
    assert limits == [0]
