"""Evaluate a model in float64 with onnx's reference operators, freeing each value after its last reader.

Some of onnx's operators (1.23) are wrong, incomplete or round internally: `operators` has ours. Its pools,
ConvTranspose, Resize and NonMaxSuppression are Python loops, its Conv copies the input once per kernel position:
`windows`, `resizing` and `operators` have vectorized NumPy versions.
"""

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse import ops
from onnxfuse.graph.graph import captured
from onnxfuse.graph.meanings import reference_operators
from onnxfuse.ops import ENTRIES, Trait, named
from onnxfuse.verification.reference import (
    attention,
    cached_attention,
    control_flow,
    defined,
    operators,
    packed,
    recurrent,
    resizing,
    sequences,
    windows,
)
from onnxfuse.verification.reference.factors import Multiplying, rounding
from onnxfuse.verification.reference.float8_sums import Float8Product
from onnxfuse.verification.reference.ort_reference import OrtReference
from onnxfuse.verification.reference.promoted import promote_tensor, promoted
from onnxfuse.verification.run import custom_operators
from onnxfuse.verification.run.tensors import input_types, values_of

Array = npt.NDArray[Any]


class OutOfTime(RuntimeError):  # noqa: N818 - it names what was found, no mistake in this program
    """A run stopped by its time limit; the text says how far it got."""


class OutOfRange(Exception):  # noqa: N818 - it names what was found, no mistake in this program
    """A run in which a value came too close to the maximum of its type; the text says where."""


class Float64(ReferenceEvaluator):
    """The evaluator, with the operators below in place of onnx's, in function bodies and subgraphs too."""

    cross_check: OrtReference | None = None
    """Cross-check of the operators; None to trust them all."""
    own: tuple[type[OpRun], ...] = ()
    """Operators of the user's libraries."""
    multiplying: tuple[type[Multiplying], ...] = (*cached_attention.OPERATORS, *packed.OPERATORS)
    """Operators whose products are of what they have computed themselves."""
    until: float = math.inf
    """Deadline of a run, by `time.perf_counter`; shared, as the cross-check is, by all evaluators of one model."""

    bound: float = math.inf
    """Largest allowed magnitude of a value, for all evaluators of one model: beyond it a run raises OutOfRange."""

    def __init__(self, proto: Any, **options: Any) -> None:
        by_meaning = reference_operators(BY_MEANING)
        options["new_ops"] = [
            *OPERATORS,
            *self.multiplying,
            *sequences.OF_MAPS,
            *by_meaning,
            *defined.operators(type(self)),
            *self.own,
            *(options.get("new_ops") or []),
        ]
        super().__init__(proto, **options)
        self.limit = math.inf
        """Seconds of this thread's CPU time that a run may take, including bodies of If and Loop."""
        self._last_readers = _last_readers(list(self.nodes_), self.output_names)
        self._types = input_types(proto.graph) if isinstance(proto, onnx.ModelProto) else {}

    def run(  # type: ignore[override]  # Its other options serve debugging, and are passed as their defaults.
        self,
        output_names: Sequence[str] | None,
        feed_inputs: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> list[Any]:
        """Return the outputs in order, freeing each value after its last reader.

        Raises RuntimeError if that takes longer than `limit`, OutOfTime after `until`, OutOfRange if a value exceeds
        `bound`.
        """
        start = time.thread_time()
        results: dict[str, Any] = {"": None, **self.rt_inits_, **values_of(feed_inputs, self._types)}
        for node, finished in zip(self.rt_nodes_, self._last_readers, strict=True):
            options: dict[str, Any] = {}
            if node.has_linked_attribute and attributes:
                options["linked_attributes"] = attributes
            if node.need_context():
                options["context"] = results
            values = [results[name] for name in node.input]
            inputs = self.read(node.onnx_node, values)
            outputs = node.run(*inputs, **options)
            if self.cross_check is not None:
                outputs = self.cross_check.trusted(node, attributes, inputs, outputs)
            outputs = self.written(node, values, outputs)
            if self.bound < math.inf and any(_exceeds(x, self.bound) for x in outputs):
                raise OutOfRange(f"a value beyond {self.bound:.0e} at {node.op_type}")
            results.update(zip(node.output, outputs, strict=False))
            for name in finished:
                results.pop(name, None)
            if time.thread_time() - start > self.limit:
                raise RuntimeError(f"a case takes more than {self.limit:g} s, as far as {node.op_type}")
            if time.perf_counter() > self.until:
                raise OutOfTime(f"the time for it is used up at {node.op_type} (--time)")
        return [results[name] for name in (output_names or self.output_names)]

    def read(self, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        """Return the values of a node's inputs."""
        return inputs

    def written(self, node: OpRun, inputs: list[Any], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values of a node's outputs."""
        return outputs


def to_tf32(x: Array) -> Array:
    """Return float64 numbers rounded to the eleven significant bits of TF32."""
    fraction, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(fraction * 2048) / 2048, exponent))


class Tf32(Float64):
    """Evaluator that rounds the factors of matrix products to TF32 and the sums of products of float8 numbers, as a GPU
    may do, and nothing else."""

    multiplying = rounding(Float64.multiplying, to_tf32)
    float8: Mapping[str, Float8Product] = MappingProxyType({})
    """The products of float8 numbers in the main graph, by their results."""

    def read(self, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        """Return the inputs, rounded where they are factors."""
        factors = () if node.domain else FACTORS.get(node.op_type, ())
        return [to_tf32(x) if i in factors and x is not None else x for i, x in enumerate(inputs)]

    def written(self, node: OpRun, inputs: list[Any], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs, off by what sums of float8 numbers lose."""
        product = self.float8.get(node.output[0])
        return outputs if product is None else (outputs[0] + product.lost(inputs[0], inputs[1]),)


PRODUCTS = named(Trait.CONTRACTION)
"""Operators that ONNX Runtime's CUDA provider computes from TF32 factors unless its option `use_tf32` is 0."""
FACTORS = dict.fromkeys(PRODUCTS, (0, 1)) | {str(ops.Attention): (0, 1, 2, 4, 5)}
"""The inputs of ONNX's operators that are factors; of Attention not the mask."""


def float64_evaluator(
    model: onnx.ModelProto,
    kind: type[Float64] = Float64,
    cross_check: OrtReference | None = None,
    to: int = TensorProto.DOUBLE,
    *,
    stand_in: bool = False,
) -> Float64:
    """Return an evaluator of `model` in float64. Raises onnx's error if an operator is not implemented.

    `cross_check` cross-checks its operators, those in function bodies and subgraphs too. `to` is another type for a
    model too big for float64: FLOAT. With `stand_in` ONNX Runtime runs, in float32, what onnx does not implement.
    """
    # onnx creates evaluators of the same class for function bodies and subgraphs: attach the cross-check to the class.
    custom = custom_operators.operators(model) + (custom_operators.in_runtime(model) if stand_in else ())
    attached = type(kind.__name__, (kind,), {"cross_check": cross_check, "own": custom})
    evaluator: Float64 = attached(promoted(model, to, weights=False))
    for tensor in model.graph.initializer:
        evaluator.rt_inits_[tensor.name] = numpy_helper.to_array(promote_tensor(tensor, to))
    return evaluator


MASK_MAGNITUDES = (65504.0, 3.4028234663852886e38)
"""The largest numbers of float16 and float32: mask constants stand for infinity, and remain so after additions."""


def _exceeds(x: Any, bound: float) -> bool:
    """Return whether a magnitude in `x` exceeds `bound`, ignoring infinity and mask constants."""
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or not x.size:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        exceeding = np.abs(x[np.abs(x) > bound])
    exceeding = exceeding[np.isfinite(exceeding)]
    is_mask = np.any([np.abs(exceeding / one - 1) < 1e-3 for one in MASK_MAGNITUDES], axis=0)
    return bool((~is_mask).any())


def _last_readers(nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> list[list[str]]:
    """Return, per node, the values that are dead after it."""
    live = {"", *outputs}
    finished: list[list[str]] = []
    for node in reversed(nodes):
        names = dict.fromkeys((*node.input, *node.output, *captured(node)))
        finished.append([name for name in names if name not in live])
        live.update(names)
    return finished[::-1]


OPERATORS: tuple[type[OpRun], ...] = (
    *operators.OPERATORS, *resizing.OPERATORS, *recurrent.OPERATORS, *windows.OPERATORS,
    *attention.OPERATORS,
    *control_flow.OPERATORS,
    *sequences.OPERATORS,
)  # fmt: skip
BY_MEANING = tuple(
    entry for entry in ENTRIES.values() if (entry.domain or not defs.has(entry)) and (entry.meaning or entry.rows)
)
"""Operators that ONNX does not define, and has no reference for: computed by the meanings of their entries."""

for _operator in OPERATORS:
    _operator.op_domain = ""
