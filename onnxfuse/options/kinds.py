"""Kinds of option values: the type that callers see, how a value is checked, and how a word of a flag is parsed.

An alias such as `Strings` is the type of an option for type checkers; its `Kind` reads a value that a Python caller or
`onnxfuse.toml` gives, and says how the command line parses one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from onnxfuse.options.types import Limits, convert, is_list, is_mapping
from onnxfuse.support.errors import UsageError
from onnxfuse.support.shown import shown


@dataclass(frozen=True)
class Kind:
    """How values of one kind are read."""

    type: Any
    """What a value is converted to; Any leaves the check to `accepts`."""
    expected: str
    """What is expected, for a message about any other value."""
    parser: str = "text"
    """How the command line parses one word: text, path, folder, integer, number, switch, choice, size, tolerance, or
    list, whose words are separated by commas."""
    many: bool = False
    """Whether a flag may be repeated."""
    collect: Callable[[Any], Any] = tuple
    """What becomes of the values of a repeated flag."""
    accepts: Callable[[Any], Any] = lambda value: True
    """A further check, for what types do not say."""
    values: "Kind | None" = None
    """The kind of a mapping's values; an error names the key of the wrong one."""
    finish: Callable[[Any], Any] = lambda value: value
    """Converts the checked value further."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other words for those of a choice."""
    limits: Limits = field(default_factory=Limits)
    """Limits of a number, or of each of a list."""

    def read(self, name: str, value: Any, wrong: "Wrong | None" = None) -> Any:
        """Return the value of the option `name`, converted. Raises what `wrong` makes of the fact, else UsageError."""
        if self.values is not None and is_mapping(value):
            return self.finish({key: self.values.read(f"{name}: {key}", one, wrong) for key, one in value.items()})
        value = self.aliases.get(value, value) if isinstance(value, str) else value
        try:
            read = convert(value, self.type)
        except ValueError:
            raise (wrong or unexpected)(name, value, self) from None
        if not self.accepts(value):
            raise (wrong or unexpected)(name, value, self)
        return self.finish(read)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a choice."""
        return tuple(get_args(self.type)) if get_origin(self.type) is Literal else ()


Wrong = Callable[[str, Any, Kind], UsageError]
"""Makes an error of an option's name, its value, and the kind that was expected."""


def unexpected(name: str, value: Any, kind: Kind) -> UsageError:
    """Return the error for an argument of a Python function."""
    if kind.words and isinstance(value, str):
        return UsageError(f"{name} is {value!r}, expected {kind.expected}")
    return UsageError(f"{name} is {shown(value)} ({type(value).__name__}); expected {kind.expected}")


def integer(least: int, most: int | None = None) -> Kind:
    """Return the kind of integers from `least` to `most`."""
    expected = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    limits = Limits(least, most)
    return Kind(Annotated[int, limits], expected, "integer", limits=limits)


def number(*, above: float | None = None, below: float | None = None, least: float | None = None) -> Kind:
    """Return the kind of finite numbers within limits."""
    words = {"of at least": least, "above": above, "below": below}
    text = " and ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)
    limits = Limits(least, None, above, below)
    return Kind(Annotated[float, limits], f"a number {text}".rstrip(), "number", limits=limits)


def integers(least: int) -> Kind:
    """Return the kind of non-empty lists of integers of at least `least`."""
    limits = Limits(least)
    kind = Annotated[tuple[Annotated[int, limits], ...], Limits(items=1)]
    return Kind(kind, f"a list of integers of at least {least}", "integer", many=True, limits=limits)


def one_of(choice: Any, aliases: Mapping[str, str] | None = None) -> Kind:
    """Return the kind of the words of a Literal; `aliases` are other words, with those of the Literal they mean."""
    words = get_args(choice)
    others = {other: word for other, word in (aliases or {}).items() if word in words}
    return Kind(choice, f"one of {', '.join(words)}", "choice", aliases=others)


STRING = Kind(str, "a string")
STRINGS = Kind(tuple[str, ...], "a list of strings", many=True)
PATH = Kind(Path, "a path", "path")
FOLDER = Kind(Path, "a path", "folder")
PATHS = Kind(tuple[Path, ...], "a list of paths", "path", many=True)
BOOLEAN = Kind(bool, "True or False", "switch")
FINITE = number()
Size = Annotated[int, Limits(least=0)]
SIZE = integer(0)
EXTENTS = Kind(
    Size | tuple[Size, ...],
    "an integer of at least 0, or an input's shape",
    "size",
    finish=lambda size: size if isinstance(size, tuple) else (size,),
)
BY_NAME = "by name, such as {'batch': 8}"
SHAPES = Kind(dict, f"a dict of sizes {BY_NAME}", "size", many=True, collect=dict, values=EXTENTS)
SIZES = Kind(dict, f"a dict of integers {BY_NAME}", values=SIZE)
SIZE_SETS = Kind(
    tuple[dict, ...],  # type: ignore[type-arg]  # as `convert` takes it
    "a list of dicts of integers by name, such as [{'batch': 8}]",
    finish=lambda sets: tuple(SIZES.read("sizes", one) for one in sets),
)
RANGES = Kind(
    dict,
    "a dict of integers, or of (least, greatest), by name, such as {'batch': (1, 32)}",
    "size",
    many=True,
    collect=dict,
    values=Kind(
        Size | tuple[Size, Size],
        "an integer of at least 0, or (least, greatest)",
        finish=lambda size: size if isinstance(size, tuple) else (size, size),
    ),
)
TOLERANCES = Kind(
    Any,
    "a number, or a dict of numbers by output or element type",
    "tolerance",
    many=True,
    collect=dict,
    accepts=lambda value: is_mapping(value) or (isinstance(value, Real) and not isinstance(value, bool)),
    values=FINITE,
    finish=lambda value: value if isinstance(value, Mapping) else float(value),
)


def _is_inputs(value: Any) -> bool:
    return isinstance(value, str | Path) or is_mapping(value)


def _inputs(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(Path(one) if isinstance(one, str) else one for one in values)


INPUTS = Kind(
    Any,
    "a list of paths, or of dicts of arrays by input",
    "path",
    many=True,
    accepts=lambda value: is_list(value) and all(map(_is_inputs, value)),
    finish=_inputs,
)
ONE_OR_MORE_INPUTS = Kind(
    Any,
    INPUTS.expected,
    "path",
    many=True,
    accepts=lambda value: _is_inputs(value) or INPUTS.accepts(value),
    finish=lambda value: _inputs([value] if _is_inputs(value) else value),
)
PROGRESS = Kind(Any, "True, False, or a function", accepts=lambda value: isinstance(value, bool) or callable(value))
PACK_FILE = Kind(
    Any, "the path of a kernel pack, or False", accepts=lambda value: value is False or isinstance(value, str | Path)
)
PROFILE = Kind(
    Any,
    "what onnxfuse.profile returned, or a path",
    "path",
    accepts=lambda value: isinstance(value, str | Path) or hasattr(value, "as_dict"),
)
OPTION_DICTS = Kind(
    Any,
    "a list of dicts of options, one for each provider",
    accepts=lambda value: is_list(value) and all(map(is_mapping, value)),
    finish=list,
)
PROVIDERS_EXPECTED = "a list of ONNX Runtime's providers, such as ['CUDAExecutionProvider']"


def _is_provider(value: Any, *, with_options: bool) -> bool:
    pair = with_options and isinstance(value, tuple) and len(value) == 2
    return isinstance(value, str) or (pair and isinstance(value[0], str) and isinstance(value[1], Mapping))


def _known_providers(providers: Sequence[Any]) -> list[Any]:
    """Return the providers. Raises UsageError for a name that no ONNX Runtime build knows; a provider missing from this
    build is reported elsewhere."""
    import onnxruntime  # ONNX Runtime is imported only when something is run.

    from onnxfuse.support.close_match import did_you_mean

    known = {*onnxruntime.get_all_providers(), *onnxruntime.get_available_providers()}
    for one in providers:
        name = one if isinstance(one, str) else one[0]
        if name not in known:
            low = name.lower().removesuffix("executionprovider")
            full = next((each for each in known if each.lower() == f"{low}executionprovider"), None)
            suggestion = f" Did you mean {full}?" if full else did_you_mean(name, known)
            raise UsageError(
                f"providers: '{name}' is not a provider of ONNX Runtime.{suggestion}",
                f"It has {', '.join(sorted(known))}.",
            )
    return list(providers)


def _providers(*, with_options: bool) -> Kind:
    def accepts(value: Any) -> bool:
        return is_list(value) and bool(value) and all(_is_provider(v, with_options=with_options) for v in value)

    return Kind(Any, PROVIDERS_EXPECTED, "choice", accepts=accepts, finish=_known_providers)


PROVIDER_NAMES = _providers(with_options=False)
PROVIDERS = _providers(with_options=True)

Strings = Annotated[Sequence[str], STRINGS]
Paths = Annotated[Sequence[str | Path], PATHS]
OptionalFolder = Annotated[str | Path | None, FOLDER]
OptionalPath = Annotated[str | Path | None, PATH]
Text = Annotated[str, STRING]
OptionalText = Annotated[str | None, STRING]
Flag = Annotated[bool, BOOLEAN]
OptionalFlag = Annotated[bool | None, BOOLEAN]
AtLeastOne = Annotated[int, integer(1)]
AtLeastZero = Annotated[int, integer(0)]
OptionalCount = Annotated[int | None, integer(1)]
Positive = Annotated[float, number(above=0)]
OptionalPositive = Annotated[float | None, number(above=0)]
OptionalFraction = Annotated[float | None, number(above=0, below=1)]
OptionalFactor = Annotated[float | None, number(least=0)]


def extents(shapes: Mapping[str, int | Sequence[int]] | None) -> dict[str, Sequence[int]]:
    """Return sizes by name, each as a sequence."""
    return {name: (size,) if isinstance(size, int) else size for name, size in (shapes or {}).items()}


Inputs = str | Path | Mapping[str, Any]
"""Inputs of a model: a file or folder, or arrays by name."""
InputSets = Annotated[Sequence[Inputs], INPUTS]
Shapes = Annotated[Mapping[str, int | Sequence[int]] | None, SHAPES]
OptionalSizes = Annotated[Mapping[str, int] | None, SIZES]
Ranges = Annotated[Mapping[str, int | tuple[int, int]] | None, RANGES]
Tolerances = Annotated[float | Mapping[str, float] | None, TOLERANCES]
Providers = Annotated[Sequence[str] | None, PROVIDER_NAMES]
PackFile = Annotated[str | Path | Literal[False] | None, PACK_FILE]
Steps = Annotated[Callable[[str], Any] | bool | None, PROGRESS]
Progress = Annotated[Callable[[str, int, int], Any] | bool | None, PROGRESS]
