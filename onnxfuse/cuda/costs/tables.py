"""Typed access to the measured costs of an architecture, `costs/ARCH.toml`.

A template declares a section as a frozen dataclass: fields are numbers, tuples of numbers, other such dataclasses, or
mappings from integers, or from a part of a variant written as its integers, to one of these. A file says
`like = "sm_90a"` for all that it lacks itself, a table of rows `like = "float16"` for all rows that it lacks.

What a file lacks is scaled from the card of the other file to its own, by what limits it: a field says that by its
type, such as `ProductTime`. Other numbers, sizes above all, are those of the other card.
"""

import dataclasses
import datetime
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from onnxfuse.cuda.isa.capabilities import capability
from onnxfuse.support.integer_parts import part_of

Section = TypeVar("Section")

REFERENCE = "sm_90a"
"""The architecture whose costs decide where the GPU is not known: while a model is optimized for any."""
LIKE = "like"


class Rate(Enum):
    """What a time depends on, as far as data sheets tell."""

    CLOCK = "clock"
    PRODUCTS = "tensor cores of a multiprocessor"
    PRODUCTS_PER_CYCLE = "tensor cores of a multiprocessor, per cycle"
    ALL_PRODUCTS = "tensor cores of all multiprocessors"
    INSTRUCTIONS = "lanes of a multiprocessor"
    BANDWIDTH = "memory bandwidth"
    BYTES_PER_INSTRUCTION = "memory bandwidth over that of all lanes"


@dataclass(frozen=True)
class Scaled:
    """How a number of one card becomes that of another one."""

    rate: Rate
    grows: bool
    """Whether it is larger where the rate is: a speed, not a time."""

    def factor(self, measured: "Card", card: "Card") -> float:
        """Return by what a number of the measured card is multiplied."""
        ratio = card.rate(self.rate) / measured.rate(self.rate)
        return ratio if self.grows else 1 / ratio


ClockTime = Annotated[float, Scaled(Rate.CLOCK, grows=False)]
"""Microseconds of latency: of instructions, barriers and caches."""
ProductTime = Annotated[float, Scaled(Rate.PRODUCTS, grows=False)]
"""Microseconds of tensor-core products on one multiprocessor."""
ProductCycles = Annotated[float, Scaled(Rate.PRODUCTS_PER_CYCLE, grows=False)]
"""Cycles of the same."""
InstructionTime = Annotated[float, Scaled(Rate.INSTRUCTIONS, grows=False)]
"""Microseconds of other instructions on one multiprocessor."""
InstructionSpeed = Annotated[float, Scaled(Rate.INSTRUCTIONS, grows=True)]
"""Instructions of lanes per microsecond on one multiprocessor."""
OperationSpeed = Annotated[float, Scaled(Rate.ALL_PRODUCTS, grows=True)]
"""Floating-point operations of all tensor cores per second."""
Bandwidth = Annotated[float, Scaled(Rate.BANDWIDTH, grows=True)]
"""Memory bandwidth."""
InstructionBytes = Annotated[float, Scaled(Rate.BYTES_PER_INSTRUCTION, grows=True)]
"""Instructions as bytes of memory traffic that take as long."""


@dataclass(frozen=True)
class Card:
    """The GPU on which the costs of a file were measured, or for which they stand."""

    name: str
    multiprocessors: int
    bandwidth: float
    """Memory bandwidth in TB/s: of a copy where it was measured, else the data sheet's."""
    clock: float
    """Boost clock in GHz, by the data sheet."""
    products: int
    """Multiply-adds per cycle of a multiprocessor's tensor cores, of float16 with float32 sums, by instructions of
    single warps."""
    lanes: int
    """Float32 multiply-adds per cycle of a multiprocessor."""
    driver: str = ""
    """Version of the driver; empty if it was not recorded, or nothing was measured."""
    date: datetime.date | None = None
    """Date of the last measurement; None if nothing was measured."""

    @property
    def measured(self) -> bool:
        """Whether any cost was measured on it."""
        return self.date is not None

    def rate(self, rate: Rate) -> float:
        """Return how fast it is by the data sheet, in whatever unit: of two cards only the ratio counts."""
        return {
            Rate.CLOCK: self.clock,
            Rate.PRODUCTS: self.clock * self.products,
            Rate.PRODUCTS_PER_CYCLE: float(self.products),
            Rate.ALL_PRODUCTS: self.clock * self.products * self.multiprocessors,
            Rate.INSTRUCTIONS: self.clock * self.lanes,
            Rate.BANDWIDTH: self.bandwidth,
            Rate.BYTES_PER_INSTRUCTION: self.bandwidth / (self.clock * self.lanes * self.multiprocessors),
        }[rate]


class CostError(Exception):
    """A cost file is not as its readers declare it: a mistake in the package, not in a model."""


def card(arch: str) -> Card:
    """Return the GPU of an architecture's cost file."""
    name = file_of(arch)
    if (table := _text(name).get("card")) is None:
        raise CostError(f"{name}.toml: no section card")
    return cast(Card, read(table, Card, f"{name}.toml: card"))


def measured_card(arch: str) -> Card:
    """Return the GPU whose measured costs an architecture has: its own, or that of the file that its file is like."""
    file = file_of(arch)
    while not card(file).measured and LIKE in _text(file):
        file = _base(file, ())
    return card(file)


def section(arch: str, name: str, kind: type[Section]) -> Section:
    """Return the section `name`, such as `gemm.wgmma`, of the costs of an architecture; raises CostError."""
    if (known := _SECTIONS.get((arch, name))) is None:
        known = _SECTIONS[arch, name] = _section(arch, name, kind)
    return cast(Section, known)


_SECTIONS: dict[tuple[str, str], object] = {}
"""Sections that were read, by architecture and name."""


def _section(arch: str, name: str, kind: type[Any]) -> object:
    file = file_of(arch)
    if (table := _table(file, name, kind)) is None:
        raise CostError(f"{file}.toml: no section {name}")
    return read(table, kind, f"{file}.toml: {name}")


def _table(file: str, name: str, kind: type[Any], readers: tuple[str, ...] = ()) -> Any:
    """Return a section of a file, completed by the scaled one of the file that it is like; None if both lack it."""
    own: Any = _text(file)
    for word in name.split("."):
        own = own.get(word) if isinstance(own, Mapping) else None
    if LIKE not in _text(file):
        return own
    base = _base(file, readers)
    inherited = _table(base, name, kind, (*readers, file))
    if not isinstance(inherited, dict):
        return own
    scaled = _scaled(inherited, kind, card(base), card(file))
    return scaled if own is None else _merged(scaled, own)


def _base(file: str, readers: tuple[str, ...]) -> str:
    """Return the file that a file is like; `readers` are those that are like this one."""
    base = _text(file)[LIKE]
    if base not in arches() or base in (*readers, file):
        raise CostError(f"{file}.toml is like {base!r}, expected the file of another architecture that is not like it")
    return cast(str, base)


def _scaled(value: Any, kind: Any, measured: Card, of: Card) -> Any:
    """Return a value of a file, as a field of type `kind`, scaled from one card to another."""
    if get_origin(kind) is Annotated:
        (scale,) = kind.__metadata__
        return value * scale.factor(measured, of)
    if not isinstance(value, dict):
        return value
    if get_origin(kind) is Mapping:
        each = dict.fromkeys(value, get_args(kind)[1])
    else:
        each = get_type_hints(kind, include_extras=True)
    return {name: _scaled(one, each.get(name), measured, of) for name, one in value.items()}


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `base`, in its order, with the values of `own`; tables are merged."""
    both = {key: _merged(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(own[key], dict)}
    return {**base, **own, **both}


@cache
def file_of(arch: str) -> str:
    """Return the name of an architecture's file, else of the next lower compute capability's, else of the lowest."""
    files = sorted(arches(), key=capability)
    if arch in files:
        return arch
    return next((f for f in reversed(files) if capability(f) <= capability(arch)), files[0])


@cache
def arches() -> tuple[str, ...]:
    """Return the architectures that have a file, by name."""
    folder = resources.files("onnxfuse.cuda.costs")
    files = {f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")}
    return tuple(sorted(files | {*_SUBSTITUTES}))


@contextmanager
def substituted(arch: str, text: str) -> Iterator[None]:
    """Let plans read `text` in place of an architecture's file meanwhile: costs that were just measured."""
    before = _SUBSTITUTES.get(arch)
    _SUBSTITUTES[arch] = text
    _forget()
    try:
        yield
    finally:
        del _SUBSTITUTES[arch]
        if before is not None:
            _SUBSTITUTES[arch] = before
        _forget()


_SUBSTITUTES: dict[str, str] = {}


def _forget() -> None:
    _SECTIONS.clear()
    for cached in (_text, file_of, arches):
        cached.cache_clear()


def source(arch: str) -> str:
    """Return the text of an architecture's own file; empty if it has none."""
    if arch in _SUBSTITUTES:
        return _SUBSTITUTES[arch]
    file = resources.files("onnxfuse.cuda.costs") / f"{arch}.toml"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@cache
def _text(file: str) -> dict[str, Any]:
    return tomllib.loads(source(file))


def read(value: object, kind: Any, place: str) -> Any:
    """Return a value of a cost file as the type that its reader declares; raises CostError with its place."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _row(value, kind, place)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    if get_origin(kind) is tuple and isinstance(value, list):
        (each, *_) = get_args(kind)
        return tuple(read(one, each, f"{place}[{n}]") for n, one in enumerate(value))
    if datetime.date in get_args(kind) and isinstance(value, datetime.date):
        return value
    if get_origin(kind) is Mapping and isinstance(value, dict):
        part, row = get_args(kind)
        return {_key(part, key, place): read(one, row, f"{place}.{key}") for key, one in value.items()}
    raise CostError(f"{place} is {value!r}, expected {kind}")


def _key(kind: type[Any], text: str, place: str) -> Any:
    if kind is str:
        return text
    try:
        return int(text) if kind is int else part_of(kind, text)
    except ValueError as error:
        raise CostError(f"{place}: {error}") from None


def _row(value: object, kind: type[Any], place: str) -> Any:
    if not isinstance(value, dict):
        raise CostError(f"{place} is {value!r}, expected a table")
    hints = get_type_hints(kind)
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    tables = {name: _with_base(name, value, place) for name in value}
    unknown, missing = {*value} - {*hints}, required - {*value}
    if unknown or missing:
        raise CostError(f"{place}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    return kind(**{name: read(table, hints[name], f"{place}.{name}") for name, table in tables.items()})


def _with_base(name: str, tables: Mapping[str, object], place: str) -> object:
    """Return a table with the rows of the one that it is like, in that one's order."""
    table = tables[name]
    if not isinstance(table, dict) or LIKE not in table:
        return table
    base = tables.get(cast(str, table[LIKE]))
    if not isinstance(base, dict) or base is table:
        raise CostError(f"{place}.{name} is like {table[LIKE]!r}, which is no table beside it")
    return {**base, **{key: row for key, row in table.items() if key != LIKE}}
