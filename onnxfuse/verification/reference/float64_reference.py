"""Reference results of the original model, with enough precision that rounding hardly matters, and how they were
computed.

Each operator is checked at its first occurrence: ONNX Runtime has to agree with it (`ort_reference`).

Float64 by onnx's reference operators, up to `FLOAT64_PARAMETERS` and `FLOAT64_FLOPS`; beyond, or if an operator is
missing there, float32 by ONNX Runtime's CPU provider without any graph optimization. ONNX Runtime itself cannot provide
float64: its CPU provider lacks Conv, Erf, Gelu, LeakyRelu, average pools and more in double (1.31, 2026-11).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from threadpoolctl import ThreadpoolController

from onnxfuse.graph.randomness import random_node
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import UsageError
from onnxfuse.verification.reference.float8_sums import float8_products
from onnxfuse.verification.reference.ort_reference import OrtReference
from onnxfuse.verification.reference.promoted import NARROWER_ARRAYS, is_narrower, promoted, rounded
from onnxfuse.verification.reference.reference import Float64, Tf32, float64_evaluator
from onnxfuse.verification.reference.reordered import Reordered
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.ml_types import in_carrier
from onnxfuse.verification.run.tensors import innermost, tensors_of, type_name

Arrays = dict[str, npt.NDArray[Any]]
Choice = Literal["auto", "float64", "float32"]

PRODUCTS, CONVOLUTIONS = named(Trait.MATRIX_PRODUCT), named(Trait.CONVOLUTION)

FLOAT64_PARAMETERS = 400_000_000
"""Float64 weights of this many parameters take 3.2 GB."""
FLOAT64_FLOPS = 300_000_000_000
"""Operations per case: about ten seconds on two cores, at 30 GFLOP/s in float64 (BERT-base at 1700 tokens)."""
FLOAT64_SECONDS = 30.0
"""Seconds of one thread's work per case: three times what FLOAT64_FLOPS take. Beyond, an operator is a Python loop:
NonMaxSuppression of a detector with random weights keeps 27,000 boxes, and compares each with each."""
ONE_THREAD_FLOPS = 30_000_000_000
"""Operations per case up to which one thread computes the products: about two seconds.

If other work shares the cores, the threads of BLAS wait for each other at every product: on two cores with three more
jobs, MobileViT's reference took 34 s with two threads and 7 s with one. On idle cores the difference is small.
"""

REFERENCE_GAPS = (
    NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError,
)  # fmt: skip
"""Exceptions of the reference operators for missing features; onnx has no dedicated one."""


@dataclass(frozen=True)
class Float64Reference:
    """An evaluator of the original model in higher precision."""

    kind: str
    """`float64` or `float32`."""
    how: str
    """The implementation that computes it."""
    reason: str
    """Why not float64; empty for float64."""
    evaluate: Callable[[Arrays], Arrays]
    """Evaluate the tensors of the outputs (`tensors_of`) for inputs by name; floats in at least the precision of
    `kind`."""
    cross_check: OrtReference | None = None
    """Cross-check of the float64 operators against ONNX Runtime."""
    evaluator: Float64 | None = None
    """The float64 evaluator."""

    @property
    def why(self) -> str:
        """Why not all of it is float64 by the reference: `reason`, or the operators found to be untrustworthy
        so far."""
        return self.reason or (self.cross_check.text if self.cross_check else "")

    def end(self, at: float) -> None:
        """Make evaluation raise OutOfTime after this time, by `time.perf_counter`, if float32 is available as a
        fallback."""
        if self.evaluator is not None and math.isfinite(self.evaluator.limit):
            type(self.evaluator).until = at

    @contextmanager
    def within(self, bound: float) -> Iterator[None]:
        """Make evaluation raise OutOfRange inside the block if a value exceeds `bound`; float32 does not check."""
        if self.evaluator is not None:
            type(self.evaluator).bound = bound
        try:
            yield
        finally:
            if self.evaluator is not None:
                type(self.evaluator).bound = math.inf

    def wider_than(self, dtype: np.dtype[Any]) -> bool:
        """Return whether the reference has more precision than a value of `dtype`."""
        itemsize = 4 if self.kind == "float32" else 8
        return dtype.itemsize < min(itemsize, itemsize if self.cross_check is None else self.cross_check.itemsize)

    def again(self, inputs: Arrays) -> Arrays:
        """Evaluate the outputs again; in float64 each operator is checked again, on these very inputs."""
        if self.cross_check is None:
            return self.evaluate(inputs)
        self.cross_check.again = True
        try:
            return self.evaluate(inputs)
        finally:
            self.cross_check.again = False


def reference_for(
    model: onnx.ModelProto,
    choice: Choice,
    shapes: list[Mapping[str, tuple[int, ...]]],
    file: sessions.Model | None = None,
) -> Float64Reference:
    """Return the reference for `model` on inputs of `shapes`. Raises UsageError if `choice` or the model allows none.

    `file` is the model as sessions open it: float32 runs it directly if nothing in it is narrower.
    """
    random = random_node(model)
    if random is not None:
        raise UsageError(
            f"{random.op_type} '{random.name or random.output[0]}' draws random numbers: no two runs are the same",
            "Export the model for inference, or cut it before that node.",
        )
    operations = flops(model, max(shapes, key=_elements)) if shapes and choice != "float32" else 0
    reason = "asked for" if choice == "float32" else _too_big(model, operations) if choice == "auto" else ""
    if not reason:
        try:
            return _float64(model, operations, seconds=FLOAT64_SECONDS if choice == "auto" else math.inf)
        except REFERENCE_GAPS as error:
            reason = no_float64(error)
            if choice == "float64":
                raise UsageError(f"the truth is {reason}", "Leave out --truth float64.") from error
    return float32_reference(model, reason, file)


def float32_reference(model: onnx.ModelProto, why: str, file: sessions.Model | None = None) -> Float64Reference:
    """Return the float32 reference, from ONNX Runtime without graph optimization; `why` is the reason against float64.

    `file` is the model as sessions open it, which is run directly if nothing in it is narrower than float32.
    """
    return Float64Reference("float32", "ONNX Runtime on CPU, no graph optimization", why, in_float32(model, file))


def in_float32(model: onnx.ModelProto, file: sessions.Model | None = None) -> Callable[[Arrays], Arrays]:
    """Return what runs a model node by node in ONNX Runtime with every narrower type promoted to float32, inputs too.

    `file` is the model as sessions open it, which is run directly if nothing in it is narrower than float32.
    """
    if file is None or is_narrower(model, TensorProto.FLOAT):
        file = promoted(model, TensorProto.FLOAT)
    return _node_by_node(file)


def _node_by_node(model: sessions.Model) -> Callable[[Arrays], Arrays]:
    """Return what runs a float32 model without optimization, converting half-precision inputs to float32."""
    session = sessions.unoptimized(model)

    def evaluate(inputs: Arrays) -> Arrays:
        return sessions.tensors(session, in_type(inputs, np.float32))

    return evaluate


def no_float64(error: Exception) -> str:
    """Return the reason for float32 after the reference operators raised `error`."""
    return f"not possible in float64: {first_line(error)[:200]}"


def flops(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Estimate the floating-point operations of the matrix products and convolutions of one run.

    `shapes` are those of the graph inputs. Unknown extents count as 1.
    """
    typed = infer(with_shapes(model, shapes))
    extents = {n: [d if isinstance(d, int) else 1 for d in t.shape or ()] for n, t in value_types(typed.graph).items()}
    total = 0
    for node in typed.graph.node:
        output = math.prod(extents.get(node.output[0], ()))
        if node.op_type in PRODUCTS and extents.get(node.input[0]):
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            total += 2 * output * extents[node.input[0]][0 if transposed else -1]
        elif node.op_type in CONVOLUTIONS:
            weight = extents.get(node.input[1], [1])
            total += 2 * output * math.prod(weight[1:])
    return total


def as_tf32(model: onnx.ModelProto) -> Callable[[Arrays], Arrays]:
    """Return what evaluates `model` in float64 with products rounded as CUDA sessions may do: factors to TF32, sums of
    float8 numbers to the bits that tensor cores keep."""
    reference = _float64(model, 0, Tf32)
    assert isinstance(reference.evaluator, Tf32)
    reference.evaluator.float8 = float8_products(model)
    return reference.evaluate


def as_reordered(model: onnx.ModelProto) -> Callable[[Arrays, int, float], Arrays]:
    """Return what evaluates a float32 `model` with its sums in a random order and random roundings, drawn by a seed.

    It raises OutOfTime after the time given, by `time.perf_counter`.
    """
    cross_check = OrtReference()
    evaluator = float64_evaluator(model, Reordered, cross_check)
    evaluate = _evaluation(model, evaluator, 0)

    def draw(inputs: Arrays, seed: int, until: float) -> Arrays:
        kind: Any = type(evaluator)
        kind.rng, kind.until = np.random.default_rng(seed), until
        return evaluate(inputs)

    return draw


def as_half(model: onnx.ModelProto, *, seed: int | None = None) -> Callable[[Arrays], Arrays]:
    """Return what evaluates `model` in float32 and rounds every half-precision value after its node, as ONNX defines
    it; with a `seed`, moves it within its rounding error (`promoted.rounded`)."""
    return _node_by_node(rounded(model, seed=seed))


def _float64(
    model: onnx.ModelProto, operations: int, kind: type[Float64] = Float64, *, seconds: float = math.inf
) -> Float64Reference:
    """Return the float64 reference; `operations` are the operations of one case, which decide the number of threads.

    Evaluation raises RuntimeError if a case takes more than `seconds`.
    """
    cross_check = OrtReference()
    evaluator = float64_evaluator(model, kind, cross_check)
    evaluator.limit = seconds
    evaluate = _evaluation(model, evaluator, operations)
    # A user who requests float64 explicitly waits for it: then there is no limit.
    return Float64Reference("float64", "onnx's reference operators", "", evaluate, cross_check, evaluator)


def _evaluation(model: onnx.ModelProto, evaluator: Float64, operations: int) -> Callable[[Arrays], Arrays]:
    names = [o.name for o in model.graph.output]
    optional = [o.name for o in model.graph.output if o.type.HasField("optional_type")]
    pools, threads = ThreadpoolController(), 1 if operations <= ONE_THREAD_FLOPS else None

    def evaluate(inputs: Arrays) -> Arrays:
        with np.errstate(all="ignore"), pools.limit(limits=threads, user_api="blas"):
            values = evaluator.run(names, in_type(inputs, np.float64))
        tensors = tensors_of(dict(zip(names, values, strict=True)), optional)
        return {n: in_carrier(v) for n, v in tensors.items()}

    return evaluate


def _too_big(model: onnx.ModelProto, operations: int) -> str:
    count = parameters(model)
    if count > FLOAT64_PARAMETERS:
        return f"{count / 1e6:.0f} M parameters, float64 up to {FLOAT64_PARAMETERS / 1e6:.0f} M"
    if operations > FLOAT64_FLOPS:
        return f"{operations / 1e9:.0f} GFLOP in one run, float64 up to {FLOAT64_FLOPS / 1e9:.0f}"
    return ""


def parameters(model: onnx.ModelProto) -> int:
    """Return the number of elements of all weights of the main graph."""
    return sum(math.prod(t.dims) for t in model.graph.initializer)


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes.values()))


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Return the model without weights, with these input shapes and without declared types of other values."""
    light = infer(model)
    del light.graph.value_info[:]
    for value in light.graph.input:
        tensor = innermost(value.type)
        if value.name in shapes and tensor is not None:
            shape = shapes[value.name][1:] if "seq(" in type_name(value.type) else shapes[value.name]
            fixed = onnx.helper.make_tensor_type_proto(tensor.elem_type, shape)
            tensor.CopyFrom(fixed.tensor_type)
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    return light


def in_type(inputs: Mapping[str, npt.NDArray[Any]], to: type[np.floating[Any]]) -> Arrays:
    """Convert narrower floats in the inputs to `to`."""
    narrow = NARROWER_ARRAYS[np.dtype(to)]
    return {n: x.astype(to) if x.dtype in narrow else x for n, x in inputs.items()}
