"""The inputs of a model that are fed: tensors, sequences and optionals of them, and maps."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx
from onnx import TensorProto, helper

from onnxfuse.model.nested import nodes_of
from onnxfuse.model.overridable import required_inputs
from onnxfuse.shapes.types import DeclaredExtent, declared_shape, type_of
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification.inputs.input_roles import InputRole, roles, unnamed, unnamed_extent
from onnxfuse.verification.inputs.inputs import Case, InputSpec, cases
from onnxfuse.verification.inputs.size_search import search_sizes
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import KEYS, LENGTH, innermost, is_composite, output_of, type_name

RANKS = (2, 1, 3, 4, 0, 5)
"""Ranks tried for the entries of a sequence, and for an optional, that declare none."""

MAP_KEYS: Mapping[int, str] = {TensorProto.INT64: "int64_vocabulary", TensorProto.STRING: "string_vocabulary"}
"""Types of keys that ONNX Runtime feeds, and the attribute in which a reader lists those that it knows."""

MOST_KEYS = 64
"""Largest number of integers below a reader's bound that are taken for keys."""

ATTEMPTS = 24
"""Largest number of sizes tried for each rank."""


def input_specs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return the inputs to feed to `model`, in graph-input order, without those that have an initializer.

    A map is two: its numbers, and its keys. Where a sequence or an optional declares no rank, it is the first of RANKS
    with which ONNX Runtime runs the model. Raises UsageError for a tensor of unknown rank, and for an input that cannot
    be fed.
    """
    roles_by_name = roles(model)
    values = required_inputs(model.graph)
    specs = [s for v in values for s in _specs(v, roles_by_name[v.name], model)]
    _check_names(values)
    unranked = {v.name for v in values if is_composite(type_name(v.type)) and declared_shape(_tensor(v.type)) is None}
    return _ranked(model, specs, unranked) if unranked else tuple(specs)


def _check_names(values: Sequence[onnx.ValueInfoProto]) -> None:
    """Raise UsageError for an input whose name is that of a part of another."""
    names = {v.name: type_name(v.type) for v in values}
    composite = [name for name, type_ in names.items() if is_composite(type_)]
    for name in names:
        owner = output_of(name, [c for c in composite if c != name])
        if owner != name:
            raise UsageError(
                f"input '{name}' has the name of a part of input '{owner}', of type {names[owner]}",
                "Give one of them another name.",
            )


def _specs(value: onnx.ValueInfoProto, role: InputRole, model: onnx.ModelProto) -> Iterator[InputSpec]:
    name, type_ = value.name, type_name(value.type)
    if not is_composite(type_):
        tensor, shape = type_of(value.type), declared_shape(value.type)
        if shape is None:
            raise UsageError(
                f"input '{name}' is not a tensor of known rank ({tensor})", "Declare its shape in the model."
            )
        yield InputSpec(name, tensor.dtype, shape, role)
        return
    inner = type_.removeprefix("optional(")
    tensor, shape = type_of(_tensor(value.type)), declared_shape(_tensor(value.type))
    if type_.startswith("map(") and value.type.map_type.key_type in MAP_KEYS and tensor.dtype == TensorProto.FLOAT:
        keys, count = value.type.map_type.key_type, f"{name}{LENGTH}"
        yield InputSpec(name, tensor.dtype, (count,), role, type_)
        yield InputSpec(f"{name}{KEYS}", keys, (count,), InputRole("keys"), known_keys=_known_keys(model, name, keys))
    elif inner.startswith(("tensor(", "seq(tensor(")):
        yield InputSpec(name, tensor.dtype, _entries(value, shape or ()), role, type_)
    else:
        raise UsageError(
            f"input '{name}' is of type {type_}: which ONNX Runtime's Python interface cannot feed",
            "It can feed tensors, sequences and optionals of them, and maps from int64 or string to float.",
        )


def _tensor(type_: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type of the tensors within a type; empty if it has none."""
    tensor = innermost(type_)
    return onnx.TypeProto() if tensor is None else onnx.TypeProto(tensor_type=tensor)


def _entries(value: onnx.ValueInfoProto, shape: Sequence[DeclaredExtent]) -> tuple[DeclaredExtent, ...]:
    """Return the shape of an input whose tensors have this one; the number of a sequence's entries comes first."""
    named = (unnamed_extent(value, axis) if dim is None else dim for axis, dim in enumerate(shape))
    return (*((f"{value.name}{LENGTH}",) if "seq(" in type_name(value.type) else ()), *named)


def _known_keys(model: onnx.ModelProto, name: str, type_: int) -> tuple[int | str, ...]:
    """Return the keys that the readers of a map know."""
    keys: dict[int | str, None] = {}
    for node in nodes_of(model.graph):
        if name not in node.input:
            continue
        facts = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        words = facts.get(MAP_KEYS[type_], ())
        keys |= dict.fromkeys(w.decode("utf-8", "replace") if isinstance(w, bytes) else int(w) for w in words)
        if type_ == TensorProto.INT64 and facts.get("map_form") == b"SPARSE":
            keys |= dict.fromkeys(range(min(int(facts.get("max_map", 1)), MOST_KEYS)))
    return tuple(keys)


def _ranked(model: onnx.ModelProto, specs: Sequence[InputSpec], unranked: set[str]) -> tuple[InputSpec, ...]:
    """Return the specs with a rank for these inputs: the first one with which the model runs, else the first of all."""
    runs = _runner(model)
    if runs is None:
        return _with_rank(specs, unranked, RANKS[0])
    for rank in RANKS:
        ranked, tries = _with_rank(specs, unranked, rank), itertools.count()
        accepted = any(runs(case) for case in cases(ranked, (0,)) if case.name == "normal")
        if accepted or search_sizes(model, ranked, {}, runs, partial(_over, tries)):
            return ranked
    return _with_rank(specs, unranked, RANKS[0])


def _over(tries: Iterator[int]) -> bool:
    return next(tries) >= ATTEMPTS


def _with_rank(specs: Sequence[InputSpec], unranked: set[str], rank: int) -> tuple[InputSpec, ...]:
    return tuple(
        replace(s, shape=(*s.shape, *(unnamed(f"{s.name}[]" if s.sequence else s.name, n) for n in range(rank))))
        if s.name in unranked
        else s
        for s in specs
    )


def _runner(model: onnx.ModelProto) -> Callable[[Case], bool] | None:
    """Return what tells whether the model runs a case on the CPU; None if ONNX Runtime does not open it there."""
    try:
        session = sessions.low_memory_session(model, [sessions.CPU])
    except ModelError:
        return None
    return lambda case: not sessions.refusal(session, case.make())
