"""What callers of the library give: taken where it is what was asked for, else told with what was expected."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.model.errors import UsageError
from onnxfuse.model.facts import shown

if TYPE_CHECKING:
    from onnxfuse.verification import RealInputs


def wrong(name: str, value: object, expected: str) -> UsageError:
    """Return the error for an argument that is something else."""
    return UsageError(f"{name} is {shown(value)}, a {type(value).__name__}; expected {expected}")


def texts(name: str, given: object) -> tuple[str, ...]:
    """Return names; one alone is a mistake, because a text is a sequence of letters."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(g, str) for g in given):
        raise wrong(name, given, "a list of texts")
    return tuple(given)


def paths(name: str, given: object) -> tuple[Path, ...]:
    """Return paths; one alone is a mistake, too."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(g, str | Path) for g in given):
        raise wrong(name, given, "a list of paths")
    return tuple(Path(g) for g in given)


def path(name: str, given: object) -> Path:
    """Return a path."""
    if not isinstance(given, str | Path):
        raise wrong(name, given, "a path")
    return Path(given)


def flag(name: str, given: object) -> bool:
    """Return True or False."""
    if not isinstance(given, bool):
        raise wrong(name, given, "True or False")
    return given


def number(name: str, given: object) -> float:
    """Return a number."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise wrong(name, given, "a number")
    return float(given)


def shapes(name: str, given: object) -> dict[str, tuple[int, ...]]:
    """Return sizes by the names of dimensions, and shapes by those of inputs."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise wrong(name, given, "a dict of sizes by name, such as {'batch': 8}")
    found = {key: tuple(size) if isinstance(size, Sequence) else (size,) for key, size in given.items()}
    for key, sizes in found.items():
        if not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in sizes):
            raise wrong(f"{name}: {key}", given[key], "a whole number of at least 0, or an input's shape")
    return found


def given_inputs(name: str, given: object) -> tuple["RealInputs", ...]:
    """Return files, and arrays by the names of inputs."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise wrong(name, given, "a list of paths, or of dicts of arrays by input")
    for one in given:
        if not isinstance(one, str | Path | Mapping):
            raise wrong(name, one, "paths, or dicts of arrays by input")
    return tuple(Path(one) if isinstance(one, str) else one for one in given)
