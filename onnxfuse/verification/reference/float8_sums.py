"""Products of float8 numbers as tensor cores add them up: with fewer bits than float32 (`MatrixInstruction.sum_bits`).

The instruction aligns its terms, and the sum before them, to the largest of them, and cuts off what lies below its last
bit. The kernels add such sums in float32 after `FactorType.promoted_after` terms. Where that rounding is allowed, it is
part of what the original's own error may be, as the rounding of factors to TF32 is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.cuda.isa.factors import E4M3
from onnxfuse.cuda.isa.sm_90 import SM_90A
from onnxfuse.model.nested import constants_of
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types
from onnxfuse.shapes.value_facts import attribute

Array = npt.NDArray[Any]

MOVES = named(Trait.KEEPS_ELEMENTS, Trait.CASTS)
"""Operators between a DequantizeLinear and a product whose results are the elements of their first input."""
CASTS = named(Trait.CASTS)
PRODUCTS = named(Trait.MATRIX_PRODUCT)
ELEMENTS = 4_000_000
"""Terms of sums that are held at once."""


@dataclass(frozen=True)
class Float8Product:
    """A product of two factors of float8 numbers, times a scale each."""

    left: Array
    """The scale of the left factor, of one element."""
    right: Array
    """That of the right one: of one element, or of one for each column."""
    transposed: bool = False
    """Whether the right factor has a row for each column of the result."""
    alpha: float = 1.0
    """What the sums are multiplied by, besides."""

    def lost(self, a: Array, b: Array) -> Array:
        """Return by how much the product of `a` [..., m, k] and `b` [k, n] is off, [..., m, n]."""
        columns = _numbers((b.T if self.transposed else b) / self.right)
        rows = _numbers(a.reshape(-1, a.shape[-1]) / self.left)
        off = kept_sums(rows, columns) - rows @ columns
        return np.asarray(off * self.left * self.right * self.alpha).reshape(*a.shape[:-1], -1)


def _numbers(x: Array) -> Array:
    """Return the float8 numbers that quotients of dequantized ones by their scale are, up to rounding."""
    return np.asarray(x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64))


def kept_sums(a: Array, b: Array, promoted_after: int = E4M3.promoted_after) -> Array:
    """Return the sums of the products of float8 numbers, [m, k] by [k, n], as Hopper's tensor cores add them up.

    Those of `promoted_after` terms are added without loss.
    """
    instruction = SM_90A.wgmma(E4M3)
    assert instruction is not None
    total = np.zeros((a.shape[0], b.shape[1]))
    rows = max(1, ELEMENTS // (instruction.k * max(1, b.shape[1])))
    for first in range(0, a.shape[0], rows):
        part = slice(first, first + rows)
        for step in range(0, a.shape[1], promoted_after):
            sums = np.zeros_like(total[part])
            for k in range(step, min(step + promoted_after, a.shape[1]), instruction.k):
                terms = a[part, k : k + instruction.k, None] * b[None, k : min(k + instruction.k, b.shape[0])]
                sums = _added(sums, terms, instruction.sum_bits)
            total[part] += sums
    return total


def _added(sums: Array, terms: Array, bits: int) -> Array:
    """Return the sums and the terms, [m, k, n], of an instruction added up in so many bits."""
    largest = np.maximum(np.abs(sums), np.abs(terms).max(axis=1))
    last = _last_bit(largest, bits)
    exact: Array = np.trunc(sums / last) * last + (np.trunc(terms / last[:, None]) * last[:, None]).sum(axis=1)
    last = _last_bit(np.abs(exact), bits)
    return np.asarray(np.trunc(exact / last) * last)


def _last_bit(x: Array, bits: int) -> Array:
    """Return the value of the last of so many bits of each number, 1 for 0."""
    return np.where(x == 0, 1.0, np.ldexp(1.0, np.frexp(x)[1] - bits))


def float8_products(model: onnx.ModelProto) -> Mapping[str, Float8Product]:
    """Return the products of the main graph whose factors both are dequantized float8 numbers, by their results."""
    if not any(n.op_type == ops.DequantizeLinear for n in model.graph.node):
        return {}
    typed = infer(model).graph
    makers = {value: node for node in typed.node for value in node.output if value}
    graph = _Factors(makers, constants_of(typed), value_types(typed))
    products = {n.output[0]: graph.product(n) for n in typed.node if n.op_type in PRODUCTS and not n.domain}
    return {name: product for name, product in products.items() if product is not None}


@dataclass(frozen=True)
class _Scale:
    """The scales of a factor, and the axis of its matrix that has one for each index; None if that is not known."""

    numbers: Array
    axis: int | None = None


@dataclass(frozen=True)
class _Factors:
    """Where the factors of a graph's products come from."""

    makers: Mapping[str, NodeProto]
    constants: Mapping[str, TensorProto]
    types: Mapping[str, ValueType]

    def product(self, node: NodeProto) -> Float8Product | None:
        """Return what a product multiplies; None if that is not float8, or not rows by a matrix."""
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        left, right = (self._scale(v) for v in node.input[:2])
        if left is None or right is None or left.numbers.size != 1 or attributes.get("transA", 0):
            return None
        matrix, transposed = self.types.get(node.input[1], UNKNOWN), bool(attributes.get("transB", 0))
        columns = 0 if transposed else 1
        if matrix.rank != 2 or matrix.shape is None:
            return None
        if right.numbers.size != 1 and (right.numbers.size, right.axis) != (matrix.shape[columns], columns):
            return None
        return Float8Product(left.numbers.ravel(), right.numbers.ravel(), transposed, attributes.get("alpha", 1.0))

    def _scale(self, value: str) -> _Scale | None:
        """Return the constant scale of float8 numbers, 1 if they are only cast; None if the value is anything else."""
        node = self.makers.get(value)
        if node is None or node.domain:
            return None
        if self.types.get(node.input[0], UNKNOWN).dtype == TensorProto.FLOAT8E4M3FN:
            if node.op_type == ops.Cast:
                return _Scale(np.ones(1))
            scale = self.constants.get(node.input[1]) if node.op_type == ops.DequantizeLinear else None
            axis = int(attribute(node, "axis", 1)) % 2
            return None if scale is None else _Scale(numpy_helper.to_array(scale).astype(np.float64), axis)
        before = self._scale(node.input[0]) if node.op_type in MOVES else None
        if before is None or before.axis is None or node.op_type in CASTS:
            return before
        return replace(before, axis=1 - before.axis if node.op_type == ops.Transpose else None)
