"""Benchmark without settings of the original that crash or hang: each is skipped, and reported.

If a setting crashes the child in which all of them are timed, breaks the GPU there or does not respond, the benchmark
is repeated without it, in another child; earlier measurements are preserved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from onnxfuse.measure.timing.settings import DEFAULT, ModelName, RefusedRun, Setting, cuda_settings
from onnxfuse.support.isolation import Crash, doing, isolated, within
from onnxfuse.support.progress import Progress

T = TypeVar("T")

SLOWER = 10.0
"""Minimum time limit as a multiple of the default setting's time: a large model takes long at each."""


@dataclass(frozen=True)
class Earlier:
    """Results of attempts that crashed."""

    left_out: Mapping[str, RefusedRun] = field(default_factory=dict)
    """Skipped settings, by name."""
    done: Sequence[Any] = ()
    """Work that is done already."""


def raced(race: Callable[[Progress, Earlier], T], progress: Progress) -> T | Crash:
    """Return the result of `race`, repeated without crashing settings; a crash that belongs to no such setting is
    returned.

    `race` calls `at` before it uses a session, and `done` with work that need not be repeated.
    """
    earlier = Earlier()
    while True:
        outcome = isolated(partial(_attempt, race, earlier), progress)
        if not isinstance(outcome, Crash):
            return outcome
        name = outcome.doing.get("setting", "")
        if outcome.doing.get("model") != "original" or not name or name in earlier.left_out:
            return outcome
        progress(f"once more, as original: {name} {outcome.how}", 0, 0)
        refused = {one.setting: one for one in _left_out(outcome, name)}
        earlier = Earlier({**refused, **earlier.left_out}, outcome.doing.get("done", earlier.done))


def _attempt(race: Callable[[Progress, Earlier], T], earlier: Earlier, tell: Progress) -> T:
    return race(tell, earlier)


def _left_out(crash: Crash, name: str) -> Iterator[RefusedRun]:
    """Yield the setting and, if it hangs, those that extend it: the same search would hang again."""
    yield RefusedRun("original", name, f"it {crash.how}", "hangs" if crash.hangs else "crashed")
    settings = {s.name: s for s in cuda_settings(convolutions=True)}
    for other in settings.values() if crash.hangs and name in settings else ():
        if other.name != name and settings[name].options.items() <= other.options.items():
            yield RefusedRun("original", other.name, f"not tried, as {name} {crash.how}", "hangs")


def at(model: ModelName, setting: Setting, **facts: Any) -> None:
    """Record what runs next, to attribute a crash to that setting; the default one has no name."""
    doing(model=model, setting="" if setting.name == DEFAULT.name else setting.name, **facts)


def done(found: Sequence[Any]) -> None:
    """Record work that need not be repeated."""
    doing(done=tuple(found))


@contextmanager
def patient(model: ModelName, setting: Setting, seconds: float) -> Iterator[None]:
    """Limit the block to so many seconds for a non-default setting of the original; others are not limited."""
    if model != "original" or setting.name == DEFAULT.name:
        yield
        return
    with within(seconds):
        yield
