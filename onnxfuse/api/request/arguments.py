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


def parse_arguments(function: Callable[..., Any], given: Mapping[str, Any], **readers: Reader) -> dict[str, Any]:
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


def _reader(
    expected: str, accepts: Callable[[Any], bool], convert: Callable[[Any], Any] = lambda value: value
) -> Reader:
    """Return a reader of the values that `accepts` recognizes; the error for any other says what was `expected`."""

    def read(name: str, value: Any) -> Any:
        if not accepts(value):
            raise wrong(name, value, expected)
        return convert(value)

    return read


def _is_list(value: object) -> bool:
    """Return whether it is a sequence; a single string is a mistake, because a string is a sequence of letters."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_named(value: object) -> bool:
    """Return whether it is a mapping with strings as keys."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


strings = _reader("a list of strings", lambda v: _is_list(v) and all(isinstance(x, str) for x in v), tuple)
string = _reader("a string", lambda v: isinstance(v, str))
paths = _reader(
    "a list of paths",
    lambda v: _is_list(v) and all(isinstance(x, str | Path) for x in v),
    lambda v: tuple(map(Path, v)),
)
path = _reader("a path", lambda v: isinstance(v, str | Path), Path)
flag = _reader("True or False", lambda v: isinstance(v, bool))
number = _reader("a number", _is_number, float)
positive = _reader("a number above 0", lambda v: _is_number(v) and float(v) > 0, float)
sizes = _reader(
    "a dict of integers by name, such as {'batch': 8}",
    lambda v: _is_named(v) and all(_is_integer(size, 0) for size in v.values()),
    lambda v: {key: int(size) for key, size in v.items()},
)
"""One size per dimension."""
option_dicts = _reader(
    "a list of dicts of options, one for each provider", lambda v: _is_list(v) and all(map(_is_named, v)), list
)
pack_file = _reader("the path of a kernel pack, or False", lambda v: v is False or isinstance(v, str | Path))
progress = _reader("True, False, or a function", lambda v: isinstance(v, bool) or callable(v))
profile = _reader(
    "what onnxfuse.profile returned, or a path", lambda v: isinstance(v, str | Path) or hasattr(v, "as_dict")
)


def integer(least: int) -> Reader:
    """Return a reader of integers of at least `least`."""
    return _reader(f"an integer of at least {least}", lambda v: _is_integer(v, least), int)


def integers(least: int) -> Reader:
    """Return a reader of non-empty lists of such integers."""
    return _reader(
        f"a list of integers of at least {least}",
        lambda v: _is_list(v) and len(v) > 0 and all(_is_integer(x, least) for x in v),
        lambda v: tuple(map(int, v)),
    )


def one_of(words: Collection[str]) -> Reader:
    """Return a reader of one of these words."""
    expected = f"one of {', '.join(words)}"

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong(name, value, expected)
        if value not in words:
            raise UsageError(f"{name} is {value!r}, expected {expected}")
        return value

    return read


def shapes(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    """Parse sizes by dimension name, and shapes by input name."""
    if not _is_named(value):
        raise wrong(name, value, "a dict of sizes by name, such as {'batch': 8}")
    by_name = {key: tuple(size) if _is_list(size) else (size,) for key, size in value.items()}
    for key, extents in by_name.items():
        if not all(_is_integer(s, 0) for s in extents):
            raise wrong(f"{name}: {key}", value[key], "an integer of at least 0, or an input's shape")
    return {key: tuple(map(int, extents)) for key, extents in by_name.items()}


def size_sets(name: str, value: Any) -> tuple[dict[str, int], ...]:
    """Parse several sets of sizes."""
    if not _is_list(value):
        raise wrong(name, value, "a list of dicts of integers by name, such as [{'batch': 8}]")
    return tuple(sizes(name, one) for one in value)


def ranges(name: str, value: Any) -> dict[str, tuple[int, int]]:
    """Parse the least and the greatest size of each dimension."""
    expected = "a dict of integers, or of (least, greatest), by name, such as {'batch': (1, 32)}"
    if not _is_named(value):
        raise wrong(name, value, expected)
    by_name = {key: tuple(size) if _is_list(size) else (size, size) for key, size in value.items()}
    if not all(len(ends) == 2 and all(_is_integer(s, 0) for s in ends) for ends in by_name.values()):
        raise wrong(name, value, expected)
    return {key: (int(ends[0]), int(ends[1])) for key, ends in by_name.items()}


def input_sets(name: str, value: Any) -> tuple["RealInputs", ...]:
    """Parse input files, or arrays by input name."""
    if not _is_list(value):
        raise wrong(name, value, "a list of paths, or of dicts of arrays by input")
    for one in value:
        if not isinstance(one, str | Path) and not _is_named(one):
            raise wrong(name, one, "paths, or dicts of arrays by input")
    return tuple(Path(one) if isinstance(one, str) else one for one in value)


def one_or_more_inputs(name: str, value: Any) -> tuple["RealInputs", ...]:
    """Parse one or more of those; a single one becomes a list."""
    return input_sets(name, [value] if isinstance(value, str | Path | Mapping) else value)


def tolerances(name: str, value: Any) -> float | dict[str, float]:
    """Parse one number for every output, or numbers by output or element type."""
    if _is_named(value):
        return {key: number(f"{name}: {key}", one) for key, one in value.items()}
    if not _is_number(value):
        raise wrong(name, value, "a number, or a dict of numbers by output or element type")
    return float(value)


def providers_with_options(name: str, value: Any) -> list[Any]:
    """Parse ONNX Runtime providers, by name or with options."""
    expected = "a list of ONNX Runtime's providers, such as ['CUDAExecutionProvider']"
    if not _is_list(value) or not value:
        raise wrong(name, value, expected)
    for one in value:
        pair = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping)
        if not isinstance(one, str) and not pair:
            raise wrong(name, one, expected)
        _check_provider(name, one if isinstance(one, str) else one[0])
    return list(value)


def _check_provider(name: str, provider: str) -> None:
    """Raise UsageError for a name that no ONNX Runtime build knows; a provider missing from this build is reported
    elsewhere."""
    import onnxruntime  # ONNX Runtime is imported only when something is run.

    providers = {*onnxruntime.get_all_providers(), *onnxruntime.get_available_providers()}
    if provider not in providers:
        low = provider.lower().removesuffix("executionprovider")
        full = next((one for one in providers if one.lower() == f"{low}executionprovider"), None)
        suggestion = f" Did you mean {full}?" if full else did_you_mean(provider, providers)
        raise UsageError(
            f"{name}: '{provider}' is no provider of ONNX Runtime.{suggestion}",
            f"It has {', '.join(sorted(providers))}.",
        )


def provider_names(name: str, value: Any) -> list[str]:
    """Parse ONNX Runtime providers by name alone."""
    providers = providers_with_options(name, value)
    for one in providers:
        if not isinstance(one, str):
            raise wrong(name, one, "names of ONNX Runtime's providers alone")
    return providers


def model(name: str, value: Any) -> Any:
    """Parse a model in any accepted form."""
    from onnxfuse.api.request.model_source import is_model  # ONNX is imported only when a model is examined.

    if not is_model(value):
        called = "model" if name == "model" else f"{name} model"
        raise UsageError(
            f"the {called} is of the type {type(value).__name__}; expected a ModelProto, a path, or an "
            "onnx-graphsurgeon Graph"
        )
    return value


def opened_model(name: str, value: Any) -> Any:
    """Parse a model for a session, which may also be bytes."""
    from onnx import ModelProto

    if not isinstance(value, str | Path | bytes | ModelProto):
        raise wrong(name, value, "a ModelProto, its bytes, or a path")
    return value


def options(name: str, value: Any) -> Any:
    """Parse an `Options`."""
    from onnxfuse.api.request.options import Options

    if not isinstance(value, Options):
        raise wrong(name, value, "an onnxfuse.Options")
    return value


def session_options(name: str, value: Any) -> Any:
    """Parse ONNX Runtime session options."""
    from onnxruntime import SessionOptions

    if not isinstance(value, SessionOptions):
        raise wrong(name, value, "an onnxruntime.SessionOptions")
    return value


KINDS: Mapping[str, Reader] = {
    **dict.fromkeys(("model", "original", "fused"), model),
    **dict.fromkeys(("rules", "custom_ops"), paths),
    **dict.fromkeys(("only", "skip", "also", "require", "names", "archs", "disabled_optimizers", "keep_fp32"), strings),
    **dict.fromkeys(
        ("guard", "strict_fp32", "freeze_initializers", "isolate", "alone", "time", "cuda_graph", "update", "locked",
         "bench", "use_tf32", "tf32", "ptx", "batch", "browser", "wait_for_kernels"), flag,
    ),
    **dict.fromkeys(
        ("tuning", "file", "folder", "target", "config", "save_inputs", "bisect", "plot", "trace", "dump"), path
    ),
    **dict.fromkeys(("arch", "at", "host"), string),
    **dict.fromkeys(("seconds", "patience"), positive),
    **dict.fromkeys(("runs", "rounds", "memory"), integer(1)),
    **dict.fromkeys(("rtol", "atol"), tolerances),
    **dict.fromkeys(("providers", "fused_providers"), provider_names),
    "precision": one_of(PRECISIONS),
    "io_precision": one_of(tuple(TYPES)),
    "truth": one_of(("auto", "float64", "float32")),
    "nan": one_of(("equal", "fail")),
    "inputs": input_sets,
    "shapes": shapes,
    "sizes": size_sets,
    "tolerance": number,
    **dict.fromkeys(("seed", "port", "graphs"), integer(0)),
    "seeds": integers(0),
    "top_k": integers(1),
    "options": options,
    "session_options": session_options,
    "provider_options": option_dicts,
    "kernels": pack_file,
    "profile": profile,
    "progress": progress,
}  # fmt: skip
"""The reader of every argument by name."""
