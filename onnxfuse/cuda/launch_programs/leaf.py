"""A launch with symbolic values: a leaf of the decision tree, convertible back to a plan."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, PackedParameters, PixelWindow, TensorMapSpec
from onnxfuse.symbolic import traced_numbers
from onnxfuse.symbolic.expressions import ExpressionGraph, UnansweredError

Expressions = tuple[int, ...]


@dataclass(frozen=True)
class Map:
    """A tensor map with expression indices in place of values."""

    pointer: int
    dtype: int
    to_tf32: bool
    extents: Expressions
    strides: Expressions
    box: Expressions
    offset: int
    window: tuple[Expressions, Expressions, Expressions] | None


@dataclass(frozen=True)
class Leaf:
    """A launch plan with the fields of `LaunchPlan`, and expression indices in place of values."""

    kernel: int
    grid: Expressions
    block: Expressions
    shared_bytes: int
    bits: int
    """Width of each parameter in bits."""
    parameters: Expressions
    output_shapes: tuple[Expressions, ...]
    tensor_maps: tuple[Map, ...]
    scratch_bytes: int
    passing: bool
    then: tuple[Leaf, ...]

    def expressions(self) -> list[int]:
        """Return all expressions that the launch needs."""
        found = [*self.grid, *self.block, self.shared_bytes, *self.parameters, self.scratch_bytes]
        found += [e for s in self.output_shapes for e in s]
        for m in self.tensor_maps:
            found += [*m.extents, *m.strides, *m.box, m.offset, *(e for part in m.window or () for e in part)]
        return found + [e for after in self.then for e in after.expressions()]


def of(plan: LaunchPlan, graph: ExpressionGraph, number: Callable[[KernelSource], int]) -> Leaf:
    """Convert a recorded plan; `number` assigns indices to its kernels."""

    def one(value: Any) -> int:
        found = traced_numbers.operand(graph, value)[0]
        constant = graph.constant(found)
        if constant is not None and not -(2**63) <= constant < 2**63:
            raise UnansweredError
        return found

    def several(values: Sequence[Any]) -> Expressions:
        return tuple(map(one, values))

    def tensor_map(m: TensorMapSpec) -> Map:
        w = m.window
        window = None if w is None else (several(w.lower), several(w.upper), several(w.strides))
        return Map(
            m.pointer, m.dtype, m.to_tf32, several(m.extents), several(m.strides), several(m.box), one(m.offset), window
        )

    given: Any = plan.parameters
    if not isinstance(given, PackedParameters):
        words = struct.unpack(f"<{len(given) // 4}i", given)
        given = PackedParameters(words, 32)
    return Leaf(
        number(plan.kernel),
        several(plan.grid),
        several(plan.block),
        one(plan.shared_bytes),
        given.bits,
        several(given.words),
        tuple(several(s) for s in plan.output_shapes),
        tuple(map(tensor_map, plan.tensor_maps)),
        one(plan.scratch_bytes),
        plan.passing,
        tuple(of(after, graph, number) for after in plan.then),
    )


def launch(leaf: Leaf, kernels: Sequence[KernelSource], value: Callable[[int], Any]) -> LaunchPlan:
    """Return the plan for given values of its expressions."""

    def several(expressions: Expressions) -> tuple[int, ...]:
        return tuple(value(e) for e in expressions)

    def tensor_map(m: Map) -> TensorMapSpec:
        made = TensorMapSpec(
            m.pointer, m.dtype, several(m.extents), several(m.strides), several(m.box), to_tf32=m.to_tf32
        )
        window = None if m.window is None else PixelWindow(*(several(part) for part in m.window))
        return replace(made, window=window, offset=value(m.offset))

    return LaunchPlan(
        kernels[leaf.kernel],
        cast("tuple[int, int, int]", several(leaf.grid)),
        cast("tuple[int, int, int]", several(leaf.block)),
        value(leaf.shared_bytes),
        PackedParameters(several(leaf.parameters), leaf.bits).data(),
        tuple(several(s) for s in leaf.output_shapes),
        tuple(map(tensor_map, leaf.tensor_maps)),
        value(leaf.scratch_bytes),
        leaf.passing,
        tuple(launch(after, kernels, value) for after in leaf.then),
    )
