"""A launch with symbolic values: a leaf of the decision tree, convertible back to a plan."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, PackedParameters, PixelWindow, TensorMapSpec
from onnxfuse.symbolic.expressions import Expression
from onnxfuse.symbolic.traced_numbers import expression

Expressions = tuple[Expression, ...]


@dataclass(frozen=True)
class Map:
    """A tensor map with expressions in place of values."""

    pointer: int
    dtype: int
    to_tf32: bool
    extents: Expressions
    strides: Expressions
    box: Expressions
    offset: Expression
    window: tuple[Expressions, ...] | None


@dataclass(frozen=True)
class Leaf:
    """A launch plan with the fields of `LaunchPlan`, and expressions in place of values."""

    kernel: int
    grid: Expressions
    block: Expressions
    shared_bytes: Expression
    bits: int
    """Width of each parameter in bits."""
    parameters: Expressions
    output_shapes: tuple[Expressions, ...]
    tensor_maps: tuple[Map, ...]
    scratch_bytes: Expression
    counter_bytes: Expression
    then: tuple[Leaf, ...]

    def expressions(self) -> list[Expression]:
        """Return all expressions that the launch needs."""
        results = [*self.grid, *self.block, self.shared_bytes, *self.parameters, self.scratch_bytes, self.counter_bytes]
        results += [e for s in self.output_shapes for e in s]
        for m in self.tensor_maps:
            results += [*m.extents, *m.strides, *m.box, m.offset, *(e for part in m.window or () for e in part)]
        return results + [e for after in self.then for e in after.expressions()]


def of(plan: LaunchPlan, number: Callable[[KernelSource], int]) -> Leaf:
    """Convert a recorded plan; `number` assigns indices to its kernels."""

    def several(values: Sequence[Any]) -> Expressions:
        return tuple(map(expression, values))

    def tensor_map(m: TensorMapSpec) -> Map:
        w = m.window
        window = None if w is None else (several(w.lower), several(w.upper), several(w.strides))
        return Map(
            m.pointer,
            m.dtype,
            m.to_tf32,
            several(m.extents),
            several(m.strides),
            several(m.box),
            expression(m.offset),
            window,
        )

    packed: Any = plan.parameters
    if not isinstance(packed, PackedParameters):
        words = struct.unpack(f"<{len(packed) // 4}i", packed)
        packed = PackedParameters(words, 32)
    return Leaf(
        number(plan.kernel),
        several(plan.grid),
        several(plan.block),
        expression(plan.shared_bytes),
        packed.bits,
        several(packed.words),
        tuple(several(s) for s in plan.output_shapes),
        tuple(map(tensor_map, plan.tensor_maps)),
        expression(plan.scratch_bytes),
        expression(plan.counter_bytes),
        tuple(of(after, number) for after in plan.then),
    )


def mapped(leaf: Leaf, to: Callable[[Any], Any]) -> Leaf:
    """Return the leaf with each expression replaced."""

    def several(expressions: Expressions) -> Expressions:
        return tuple(map(to, expressions))

    def tensor_map(m: Map) -> Map:
        sides: dict[str, Any] = {name: several(getattr(m, name)) for name in ("extents", "strides", "box")}
        window = None if m.window is None else tuple(map(several, m.window))
        return replace(m, **sides, offset=to(m.offset), window=window)

    return replace(
        leaf,
        grid=several(leaf.grid),
        block=several(leaf.block),
        shared_bytes=to(leaf.shared_bytes),
        parameters=several(leaf.parameters),
        output_shapes=tuple(map(several, leaf.output_shapes)),
        tensor_maps=tuple(map(tensor_map, leaf.tensor_maps)),
        scratch_bytes=to(leaf.scratch_bytes),
        counter_bytes=to(leaf.counter_bytes),
        then=tuple(mapped(after, to) for after in leaf.then),
    )


def launch(leaf: Leaf, kernels: Sequence[KernelSource], value: Callable[[Any], Any]) -> LaunchPlan:
    """Return the plan for given values of its expressions."""
    plain: Any = mapped(leaf, value)
    maps = (
        TensorMapSpec(
            m.pointer, m.dtype, m.extents, m.strides, m.box, to_tf32=m.to_tf32, offset=m.offset,
            window=None if m.window is None else PixelWindow(*m.window),
        )
        for m in plain.tensor_maps
    )  # fmt: skip
    return LaunchPlan(
        kernels[leaf.kernel],
        plain.grid,
        plain.block,
        plain.shared_bytes,
        PackedParameters(plain.parameters, leaf.bits).data(),
        plain.output_shapes,
        tuple(maps),
        plain.scratch_bytes,
        plain.counter_bytes,
        then=tuple(launch(after, kernels, value) for after in leaf.then),
    )
