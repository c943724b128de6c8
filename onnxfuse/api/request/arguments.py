"""Validate the arguments of the public functions, and report unexpected ones with what was expected.

`KINDS` maps every argument name of the public functions to its kind: a name has the same kind everywhere.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.model.precision_record import PRECISIONS, TYPES
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.json_fields import shown

if TYPE_CHECKING:
    from onnxfuse.verification import RealInputs

Reader = Callable[[str, Any], Any]
"""Takes the name of an argument and its value, returns the parsed value; raises UsageError."""


def taken(function: Callable[..., Any], given: Mapping[str, Any], **readers: Reader) -> dict[str, Any]:
    """Parse the arguments of a public function's call by kind; defaults are passed through.

    `given` are the function's locals at entry; `readers` override the kind of an argument for this function. Raises
    UsageError that names the first invalid argument.
    """
    expected = inspect.signature(function).parameters
    return {
        name: value if value is expected[name].default else (readers.get(name) or KINDS[name])(name, value)
        for name, value in given.items()
    }


def wrong(name: str, value: object, expected: str) -> UsageError:
    """Return the error for an argument of another kind."""
    return UsageError(f"{name} is {shown(value)} ({type(value).__name__}); expected {expected}")


def _listed(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def texts(name: str, given: Any) -> tuple[str, ...]:
    """Parse a list of names; a single string is a mistake, because a string is a sequence of letters."""
    if not _listed(given) or not all(isinstance(g, str) for g in given):
        raise wrong(name, given, "a list of texts")
    return tuple(given)


def text(name: str, given: Any) -> str:
    """Parse a string."""
    if not isinstance(given, str):
        raise wrong(name, given, "a text")
    return given


def paths(name: str, given: Any) -> tuple[Path, ...]:
    """Parse a list of paths; a single path is a mistake, too."""
    if not _listed(given) or not all(isinstance(g, str | Path) for g in given):
        raise wrong(name, given, "a list of paths")
    return tuple(Path(g) for g in given)


def path(name: str, given: Any) -> Path:
    """Parse a path."""
    if not isinstance(given, str | Path):
        raise wrong(name, given, "a path")
    return Path(given)


def flag(name: str, given: Any) -> bool:
    """Parse a bool."""
    if not isinstance(given, bool):
        raise wrong(name, given, "True or False")
    return given


def number(name: str, given: Any) -> float:
    """Parse a number."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise wrong(name, given, "a number")
    return float(given)


def amount(name: str, given: Any) -> float:
    """Parse a positive number."""
    if isinstance(given, bool) or not isinstance(given, Real) or not float(given) > 0:
        raise wrong(name, given, "a number above 0")
    return float(given)


def whole(least: int) -> Reader:
    """Return a reader of integers of at least `least`."""

    def read(name: str, given: Any) -> int:
        if not _is_whole(given, least):
            raise wrong(name, given, f"a whole number of at least {least}")
        return int(given)

    return read


def wholes(least: int) -> Reader:
    """Return a reader of non-empty lists of such integers."""

    def read(name: str, given: Any) -> tuple[int, ...]:
        if not _listed(given) or not given or not all(_is_whole(g, least) for g in given):
            raise wrong(name, given, f"a list of whole numbers of at least {least}")
        return tuple(map(int, given))

    return read


def _is_whole(given: Any, least: int) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= least


def one_of(known: Collection[str]) -> Reader:
    """Return a reader of one of these words."""

    def read(name: str, given: Any) -> str:
        expected = f"one of {', '.join(known)}"
        if not isinstance(given, str):
            raise wrong(name, given, expected)
        if given not in known:
            raise UsageError(f"{name} is {given!r}, expected {expected}")
        return given

    return read


def shapes(name: str, given: Any) -> dict[str, tuple[int, ...]]:
    """Parse sizes by dimension name, and shapes by input name."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise wrong(name, given, "a dict of sizes by name, such as {'batch': 8}")
    found = {key: tuple(size) if _listed(size) else (size,) for key, size in given.items()}
    for key, sizes in found.items():
        if not all(_is_whole(s, 0) for s in sizes):
            raise wrong(f"{name}: {key}", given[key], "a whole number of at least 0, or an input's shape")
    return {key: tuple(map(int, sizes)) for key, sizes in found.items()}


def sizes(name: str, given: Any) -> dict[str, int]:
    """Parse one size per dimension."""
    if not isinstance(given, Mapping) or not all(isinstance(k, str) and _is_whole(s, 0) for k, s in given.items()):
        raise wrong(name, given, "a dict of whole numbers by name, such as {'batch': 8}")
    return {key: int(size) for key, size in given.items()}


def size_sets(name: str, given: Any) -> tuple[dict[str, int], ...]:
    """Parse several sets of sizes."""
    if not _listed(given):
        raise wrong(name, given, "a list of dicts of whole numbers by name, such as [{'batch': 8}]")
    return tuple(sizes(name, one) for one in given)


def ranges(name: str, given: Any) -> dict[str, tuple[int, int]]:
    """Parse the least and the greatest size of each dimension."""
    expected = "a dict of whole numbers, or of (least, greatest), by name, such as {'batch': (1, 32)}"
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise wrong(name, given, expected)
    found = {key: tuple(size) if _listed(size) else (size, size) for key, size in given.items()}
    if not all(len(of) == 2 and all(_is_whole(s, 0) for s in of) for of in found.values()):
        raise wrong(name, given, expected)
    return {key: (int(of[0]), int(of[1])) for key, of in found.items()}


def given_inputs(name: str, given: Any) -> tuple["RealInputs", ...]:
    """Parse input files, or arrays by input name."""
    if not _listed(given):
        raise wrong(name, given, "a list of paths, or of dicts of arrays by input")
    for one in given:
        if not isinstance(one, str | Path) and not _are_arrays(one):
            raise wrong(name, one, "paths, or dicts of arrays by input")
    return tuple(Path(one) if isinstance(one, str) else one for one in given)


def one_or_more_inputs(name: str, given: Any) -> tuple["RealInputs", ...]:
    """Parse one or more of those; a single one becomes a list."""
    return given_inputs(name, [given] if isinstance(given, str | Path | Mapping) else given)


def _are_arrays(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(key, str) for key in given)


def tolerances(name: str, given: Any) -> float | dict[str, float]:
    """Parse one number for every output, or numbers by output or element type."""
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return {key: number(f"{name}: {key}", one) for key, one in given.items()}
    if isinstance(given, bool) or not isinstance(given, Real):
        raise wrong(name, given, "a number, or a dict of numbers by output or element type")
    return float(given)


def providers_with_options(name: str, given: Any) -> list[Any]:
    """Parse ONNX Runtime providers, by name or with options."""
    expected = "a list of ONNX Runtime's providers, such as ['CUDAExecutionProvider']"
    if not _listed(given) or not given:
        raise wrong(name, given, expected)
    for one in given:
        pair = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping)
        if not isinstance(one, str) and not pair:
            raise wrong(name, one, expected)
        _known_provider(name, one if isinstance(one, str) else one[0])
    return list(given)


def _known_provider(name: str, provider: str) -> None:
    """Raise UsageError for a name that no ONNX Runtime build knows; a provider missing from this build is reported
    elsewhere."""
    import onnxruntime  # ONNX Runtime is imported only when something is run.

    known = {*onnxruntime.get_all_providers(), *onnxruntime.get_available_providers()}
    if provider not in known:
        low = provider.lower().removesuffix("executionprovider")
        full = next((one for one in known if one.lower() == f"{low}executionprovider"), None)
        near = f" Did you mean {full}?" if full else did_you_mean(provider, known)
        has = ", ".join(sorted(known))
        raise UsageError(f"{name}: '{provider}' is no provider of ONNX Runtime.{near}", f"It has {has}.")


def provider_names(name: str, given: Any) -> list[str]:
    """Parse ONNX Runtime providers by name alone."""
    found = providers_with_options(name, given)
    for one in found:
        if not isinstance(one, str):
            raise wrong(name, one, "names of ONNX Runtime's providers alone")
    return found


def option_dicts(name: str, given: Any) -> list[Mapping[str, Any]]:
    """Parse provider options, in the order of the providers."""
    if not _listed(given) or not all(
        isinstance(one, Mapping) and all(isinstance(k, str) for k in one) for one in given
    ):
        raise wrong(name, given, "a list of dicts of options, one for each provider")
    return list(given)


def model(name: str, given: Any) -> Any:
    """Parse a model in any accepted form."""
    from onnxfuse.api.request.model_source import is_model  # ONNX is imported only when a model is examined.

    if not is_model(given):
        called = "model" if name == "model" else f"{name} model"
        raise UsageError(
            f"the {called} is of the type {type(given).__name__}; expected a ModelProto, a path, or an "
            "onnx-graphsurgeon Graph"
        )
    return given


def opened_model(name: str, given: Any) -> Any:
    """Parse a model for a session, which may also be bytes."""
    from onnx import ModelProto

    if not isinstance(given, str | Path | bytes | ModelProto):
        raise wrong(name, given, "a ModelProto, its bytes, or a path")
    return given


def options(name: str, given: Any) -> Any:
    """Parse an `Options`."""
    from onnxfuse.api.request.options import Options

    if not isinstance(given, Options):
        raise wrong(name, given, "an onnxfuse.Options")
    return given


def session_options(name: str, given: Any) -> Any:
    """Parse ONNX Runtime session options."""
    from onnxruntime import SessionOptions

    if not isinstance(given, SessionOptions):
        raise wrong(name, given, "an onnxruntime.SessionOptions")
    return given


def pack(name: str, given: Any) -> Any:
    """Parse the path of a kernel pack, or False."""
    if given is not False and not isinstance(given, str | Path):
        raise wrong(name, given, "the path of a kernel pack, or False")
    return given


def progress(name: str, given: Any) -> Any:
    """Parse a progress callback, or whether to show a bar."""
    if not isinstance(given, bool) and not callable(given):
        raise wrong(name, given, "True, False, or a function")
    return given


def measured(name: str, given: Any) -> Any:
    """Parse the result of `onnxfuse.profile`, or the path of a file of `onnxfuse profile --json`."""
    if not isinstance(given, str | Path) and not hasattr(given, "as_dict"):
        raise wrong(name, given, "what onnxfuse.profile returned, or a path")
    return given


KINDS: Mapping[str, Reader] = {
    **dict.fromkeys(("model", "original", "fused"), model),
    **dict.fromkeys(("rules", "custom_ops"), paths),
    **dict.fromkeys(("only", "skip", "also", "require", "names", "archs", "disabled_optimizers", "keep_fp32"), texts),
    **dict.fromkeys(
        ("guard", "strict_fp32", "freeze_initializers", "isolate", "alone", "time", "cuda_graph", "update", "locked",
         "bench", "use_tf32", "tf32", "ptx", "batch", "browser", "wait_for_kernels"), flag,
    ),
    **dict.fromkeys(
        ("tuning", "file", "folder", "target", "config", "save_inputs", "bisect", "plot", "trace", "dump"), path
    ),
    **dict.fromkeys(("arch", "at", "host"), text),
    **dict.fromkeys(("seconds", "patience"), amount),
    **dict.fromkeys(("runs", "rounds", "memory"), whole(1)),
    **dict.fromkeys(("rtol", "atol"), tolerances),
    **dict.fromkeys(("providers", "fused_providers"), provider_names),
    "precision": one_of(PRECISIONS),
    "io_precision": one_of(tuple(TYPES)),
    "truth": one_of(("auto", "float64", "float32")),
    "nan": one_of(("equal", "fail")),
    "inputs": given_inputs,
    "shapes": shapes,
    "sizes": size_sets,
    "tolerance": number,
    **dict.fromkeys(("seed", "port", "graphs"), whole(0)),
    "seeds": wholes(0),
    "top_k": wholes(1),
    "options": options,
    "session_options": session_options,
    "provider_options": option_dicts,
    "kernels": pack,
    "profile": measured,
    "progress": progress,
}  # fmt: skip
"""The reader of every argument by name."""
