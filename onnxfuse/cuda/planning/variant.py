"""Variants of kernels: the interface by which plans, measurements and benchmarks know what only a template understands.

A template declares its variants as frozen dataclasses derived from `Variant`, in its own folder. A field is an integer,
whose default is the plan's own choice, or a part: a frozen dataclass of integers such as a tile, None by default.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar, get_args, get_type_hints

from onnxfuse.support.integer_parts import part_of
from onnxfuse.support.json_fields import JsonObject

Tuned = TypeVar("Tuned", bound="Variant")

MOST = 2**20
"""Upper bound of a variant's constants: they count threads, bytes of a thread's registers, elements of a block."""


@dataclass(frozen=True)
class Variant:
    """Tunable constants of a template's plans. Equal variants make equal plans."""

    @property
    def changed(self) -> dict[str, Any]:
        """How it differs from the plan's own choice, by field."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @property
    def name(self) -> str:
        """Its name in kernel packs; equal only for equal variants."""
        return repr(sorted(self.changed.items()))

    def over(self, usual: Self) -> Self:
        """Return it with the constants of another one where it leaves them to the plan."""
        return replace(usual, **self.changed)

    def __str__(self) -> str:
        return " ".join(f"{field} {value}" for field, value in self.changed.items())

    def as_json(self) -> dict[str, Any]:
        """Return the changed fields as plain data for JSON."""
        parts = _parts(type(self))
        return {field: asdict(value) if field in parts else value for field, value in self.changed.items()}

    @classmethod
    def accepts(cls, names: Mapping[str, object]) -> bool:
        """Return whether all names are fields of this kind of variant."""
        return {*names} <= {f.name for f in fields(cls)}

    @classmethod
    def of_json(cls, facts: JsonObject) -> Self:
        """Return the variant in untrusted JSON, of integers only: its constants become part of a kernel's source.

        Raises ValueError that names the location.
        """
        facts.only(*(f.name for f in fields(cls)))
        parts = _parts(cls)
        return cls(**{
            name: _part_of_json(parts[name], facts, name) if name in parts else facts.integer(name, 0, MOST)
            for name in facts.all
        })  # fmt: skip

    def with_field(self, name: str, text: str) -> Self:
        """Return the variant with one field set to an integer, or a part, such as `128x64x1`, in `text`.

        Raises ValueError if there is no such field, or it is written otherwise.
        """
        names = [f.name for f in fields(self)]
        if name not in names:
            raise ValueError(f"no field {name!r}, expected one of {', '.join(names)}")
        part = _parts(type(self)).get(name)
        return replace(self, **{name: int(text) if part is None else part_of(part, text)})


def one_at_a_time(kind: type[Tuned], values: object) -> tuple[Tuned, ...]:
    """Return the variants with one field each set to one of its values, by a dataclass with a tuple for each field."""
    return tuple(kind(**{field: value}) for field, each in vars(values).items() for value in each)


def _parts(kind: type[Variant]) -> dict[str, type[Any]]:
    """Return the types of the fields that are parts, by name."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(kind).items()}
    return {name: next(t for t in options if t is not type(None)) for name, options in hints.items() if options}


def _part_of_json(kind: type[Any], facts: JsonObject, name: str) -> Any:
    if facts.all[name] is None:
        return None
    part, declared = facts.object(name), fields(kind)
    part.only(*(f.name for f in declared))
    present = [f.name for f in declared if f.name in part or f.default is MISSING]
    return kind(**{one: part.integer(one, 0, MOST) for one in present})
