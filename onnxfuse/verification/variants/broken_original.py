"""Originals that ONNX Runtime's own optimizations break: their unoptimized results are then used for judging.

ONNX Runtime 1.31 folds a Pad of zeros into the following MaxPool, which is a different function for negative values:
the original is off by more than its largest value, and cannot serve to judge another file. Run without optimizations it
is right, and serves as the yardstick.

Nodes between DequantizeLinear and QuantizeLinear become operators of integers. On processors without VNNI, those of
uint8 and int8 saturate the sum of two products; with ONNX Runtime's option `session.x64quantprecision` they do not,
which tells this cause from others. Another is QLinearSoftmax, which gives 0 in place of 1 for a row of one element
(1.31.1, 2026-11). Of these others, the optimizer without which the original is right is searched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.verification.inputs.inputs import perturb
from onnxfuse.verification.reference.ort_reference import REFUSALS
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.output_error import Measure
from onnxfuse.verification.variants.perturbed import PERTURBATIONS

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

CLOSER = 100.0
"""How many times closer to the reference the unoptimized original must be: different rounding is not a break."""
ATTEMPTS = 3
"""Unsuccessful unoptimized runs before no more are tried."""


OPTIMIZERS = (
    "QDQSelectorActionTransformer", "Pad_Fusion", "ConstantFolding", "CommonSubexpressionElimination",
    "TransposeOptimizer", "QDQPropagationTransformer", "WeightBiasQuantization", "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit", "QDQS8ToU8Transformer", "QDQFinalCleanupTransformer", "ClipQuantRewrite",
    "ReluQuantRewrite", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion", "Avx2WeightS8ToU8Transformer",
    "DQMatMulNBitsFusion", "ConstantSharing", "EliminateIdentity", "EliminateSlice", "EliminateDropout",
    "UnsqueezeElimination", "ExpandElimination", "CastElimination", "CastChainElimination", "PreShapeNodeElimination",
    "NoopElimination", "DivMulFusion", "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion",
    "ConvAddFusion", "ConvMulFusion", "ConvBNFusion", "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion",
    "MatMulAddFusion", "ReshapeFusion", "GemmActivationFusion", "MatMulActivationFusion", "ConvActivationFusion",
    "ConvAddActivationFusion", "GeluFusionL1", "GeluFusionL2", "FastGeluFusion", "QuickGeluFusion", "BiasGeluFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "LayerNormFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "EmbedLayerNormFusion", "AttentionFusion", "GroupQueryAttentionFusion", "BiasSoftmaxFusion", "BiasDropoutFusion",
    "MatmulTransposeFusion", "MatMulScaleFusion", "MatMulNBitsFusion", "GatherSliceToSplitFusion",
    "GatherToSliceFusion", "IsInfReduceSumFusion", "SliceConcatToSpaceToDepthFusion", "PropagateCastOps",
    "RemoveDuplicateCastTransformer", "NchwcTransformer", "NhwcTransformer",
)  # fmt: skip
"""ONNX Runtime's names of its optimizers (1.31), as `disabled_optimizers` takes them; it ignores those that it has not.
Those that were found to break a model come first."""


class Unoptimized:
    """The unoptimized original, opened when the original is first far from the reference."""

    def __init__(
        self,
        open_session: Callable[[], Any],
        open_precise: Callable[[], Any] | None = None,
        open_without: Callable[[Sequence[str]], Any] | None = None,
    ) -> None:
        """Sessions are opened by `open_session`, by `open_precise` with exact products of integers, and by
        `open_without` without some of ONNX Runtime's optimizers."""
        self._open, self._session = open_session, None
        self._open_without, self._optimizers = open_without, dict[str, str]()
        self._open_precise, self._precise = open_precise, None
        self._attempts = ATTEMPTS
        self._saturating: dict[str, bool] = {}

    @property
    def saturating(self) -> tuple[str, ...]:
        """Outputs that were right wherever optimizations broke them, once no product of integers saturated."""
        return tuple(name for name, alone in self._saturating.items() if alone)

    @property
    def optimizers(self) -> Mapping[str, str]:
        """Outputs that are right in the first broken case without a single one of the optimizers, with its name."""
        return self._optimizers

    def right(self, inputs: dict[str, Array], expected: Arrays, reference: Arrays) -> dict[str, list[Array]]:
        """Return unoptimized runs for each output that is right without optimizations and far off with them: the first
        on `inputs`, the others on perturbed ones, so that its own error is not small by chance."""
        far = [n for n, x in expected.items() if error_budget.exceeds_rounding(x, reference[n])]
        if not far or not self._attempts:
            return {}
        try:
            self._session = self._session or self._open()
            perturbed = [perturb(inputs, seed) for seed in range(PERTURBATIONS)]
            runs = [
                sessions.tensors(self._session, one, far) for one in (inputs, *(m for m in perturbed if m is not None))
            ]
        except REFUSALS:
            self._attempts = 0  # the original does not run there without optimizations: inconclusive
            return {}
        right_runs = {
            n: values
            for n in far
            if _near(
                values := [run.get(n, MISSING) for run in runs],
                reference[n],
                error_budget.off(expected[n], reference[n]) / CLOSER,
            )
        }
        self._attempts -= not right_runs
        if right_runs and self._open_precise is not None:
            self._look_for_saturation(inputs, [*right_runs], reference)
        causeless = [name for name in right_runs if not self._saturating.get(name) and name not in self._optimizers]
        if causeless and self._open_without is not None:
            self._look_for_optimizer(inputs, causeless, reference)
        return right_runs

    def _look_for_optimizer(self, inputs: dict[str, Array], broken: list[str], reference: Arrays) -> None:
        """Halve the optimizers that are disabled as long as all broken outputs stay right."""
        assert self._open_without is not None

        def are_right(disabled: Sequence[str]) -> bool:
            assert self._open_without is not None
            try:
                values = sessions.tensors(self._open_without(disabled), inputs, broken)
            except REFUSALS:
                return False
            return not any(error_budget.exceeds_rounding(values.get(n, MISSING), reference[n]) for n in broken)

        suspects: Sequence[str] = OPTIMIZERS
        if are_right(suspects):
            while len(suspects) > 1:
                middle = len(suspects) // 2
                suspects = next((half for half in (suspects[:middle], suspects[middle:]) if are_right(half)), ())
        else:
            suspects = ()
        self._optimizers |= dict.fromkeys(broken, suspects[0] if suspects else "")

    def _look_for_saturation(self, inputs: dict[str, Array], broken: list[str], reference: Arrays) -> None:
        assert self._open_precise is not None
        try:
            self._precise = self._precise or self._open_precise()
            precise = sessions.tensors(self._precise, inputs, broken)
        except REFUSALS:
            precise = {}
        for name in broken:
            right = not error_budget.exceeds_rounding(precise.get(name, MISSING), reference[name])
            self._saturating[name] = self._saturating.get(name, True) and right


def _near(values: Sequence[Array], reference: Array, bound: float) -> bool:
    return all(
        not error_budget.exceeds_rounding(x, reference) and error_budget.off(x, reference) <= bound for x in values
    )


def measure_against_unoptimized(
    fused: Array, broken: Array, runs: Sequence[Array], reference: Array, **options: Any
) -> Measure:
    """Measure `fused` against the unoptimized runs of an original that comes out as `broken`.

    An output that follows the broken one, as closely as the right one may follow the reference, is what the original's
    own file yields.
    """
    share = error_budget.off(broken, reference)
    measure = error_budget.measure(fused, runs, reference, **options)
    if measure.fault:
        own = error_budget.measure(runs[0], runs, reference)
        exact = broken.astype(np.float64) if broken.dtype.kind in "fV" else broken
        like = error_budget.measure(fused, [broken], exact, **options)
        like = replace(like, own=own.own, own_typical=own.own_typical, own_off=share, follows=True)
        if not like.fault:
            return like
    return replace(measure, own_off=share)
