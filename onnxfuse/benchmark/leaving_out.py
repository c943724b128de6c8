"""A race without the settings of the original that end the process or hang: each is left out, and said.

A setting is ONNX Runtime's own to run. Where it crashes the child in which all of them are timed, breaks the GPU there
or gives no answer, the race is run again without it, in another child; of what was timed before nothing is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from onnxfuse.benchmark.report import RefusedRun
from onnxfuse.profiling.settings import DEFAULT, ModelName, Setting, cuda_settings
from onnxfuse.support.isolation import Crash, Progress, doing, isolated, within

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a setting of the original may take to be opened and warmed up, where nothing else is asked for."""

SLOWER = 10.0
"""It may take so many times what the default setting took in any case: a large model takes long at each."""


@dataclass(frozen=True)
class Earlier:
    """What is known from attempts that crashed."""

    left_out: Mapping[str, RefusedRun] = field(default_factory=dict)
    """By the name of the setting."""
    done: Sequence[Any] = ()
    """What the race said was done already."""


def raced(race: Callable[[Progress, Earlier], T], progress: Progress) -> T | Crash:
    """Return what `race` returns, run again without what crashes; a crash that is of no such setting is returned.

    `race` calls `at` before it does something with a session, `done` with what need not be done again.
    """
    earlier = Earlier()
    while True:
        found = isolated(partial(_attempt, race, earlier), progress)
        if not isinstance(found, Crash):
            return found
        name = found.doing.get("setting", "")
        if found.doing.get("model") != "original" or not name or name in earlier.left_out:
            return found
        progress(f"once more, as original: {name} {found.how}", 0, 0)
        more = {one.setting: one for one in _left_out(found, name)}
        earlier = Earlier({**more, **earlier.left_out}, found.doing.get("done", earlier.done))


def _attempt(race: Callable[[Progress, Earlier], T], earlier: Earlier, tell: Progress) -> T:
    return race(tell, earlier)


def _left_out(crash: Crash, name: str) -> Iterator[RefusedRun]:
    """Yield the setting and, where it hangs, those that add to it: the same search would hang once more."""
    yield RefusedRun("original", name, f"it {crash.how}", "hangs" if crash.hangs else "crashed")
    settings = {s.name: s for s in cuda_settings(convolutions=True)}
    for other in settings.values() if crash.hangs and name in settings else ():
        if other.name != name and settings[name].options.items() <= other.options.items():
            yield RefusedRun("original", other.name, f"not tried, as {name} {crash.how}", "hangs")


def at(model: ModelName, setting: Setting, **facts: Any) -> None:
    """Say what runs next: a crash is that setting's; the default one has no name in it."""
    doing(model=model, setting="" if setting.name == DEFAULT.name else setting.name, **facts)


def done(found: Sequence[Any]) -> None:
    """Say what need not be done again."""
    doing(done=tuple(found))


@contextmanager
def patient(model: ModelName, setting: Setting, seconds: float) -> Iterator[None]:
    """Give one of the original's other settings so many seconds for the block; all else is waited for."""
    if model != "original" or setting.name == DEFAULT.name:
        yield
        return
    with within(seconds):
        yield
