"""Commands that a result suggests: what decided about the model is named again, so that they are about the same one."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfuse.options.commands import GROUPS
from onnxfuse.options.schema import Field, fields, is_chosen


def next_command(name: str, *words: str | Path, given: Mapping[str, Any]) -> str:
    """Return `onnxfuse NAME WORDS` as a shell takes it, with the options of the call `given` that it has to repeat.

    The command that is suggested decides which these are: those that it declares as `repeated`, unless the option that
    they need is absent. `given` has options by name, as the schema reads them.
    """
    group = fields(GROUPS[name])
    options: list[str] = []
    for one in group.values():
        needed = [group[other] for other in one.option.needs if other in group]
        if one.option.repeated and is_chosen(one, given) and (not needed or any(is_chosen(n, given) for n in needed)):
            options += _flags(one, given[one.name])
    return shlex.join(["onnxfuse", name, *map(str, words), *options])


def _flags(one: Field, value: Any) -> Iterator[str]:
    """Yield the flags and values that give an option its value."""
    if isinstance(value, bool):
        yield one.spelled if value or "/" not in one.option.flag else one.flags[-1]
        return
    if one.option.words:
        value = next(word for word, meaning in one.option.words.items() if meaning == value)
    values: Sequence[Any] = value if isinstance(value, tuple | list) else (value,)
    if isinstance(value, Mapping):
        values = [f"{name}={_sizes(sizes)}" for name, sizes in value.items()]
    for item in values:
        yield from (one.spelled, str(item))


def _sizes(sizes: int | Sequence[int]) -> str:
    if isinstance(sizes, range):
        return f"{sizes[0]}..{sizes[-1]}"
    return str(sizes) if isinstance(sizes, int) else ",".join(map(str, sizes))
