"""Default cases of a model: real inputs, or each kind of generated inputs at sizes that the model accepts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.cases.planning import RealInputs, plan_of
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import COMPOSITE, Array, Case, InputSpec, cases, shape_sets
from onnxfuse.verification.inputs.size_search import search_sizes
from onnxfuse.verification.run import sessions


def default_cases(
    original: onnx.ModelProto,
    inputs: Sequence[RealInputs] | None,
    providers: Sequence[str],
    option: str,
    *,
    half: bool = False,
) -> list[Case]:
    """Return the real inputs, else each kind of generated inputs at the first set of shapes that the original accepts.

    If it accepts none of the default sizes, a size search follows. With `half` float32 inputs are generated within the
    range of float16. Raises UsageError, which names `option`, if the original runs on none.
    """
    specs = input_specs(original)
    if inputs is not None:
        return plan_of(specs, inputs, (), None)
    if half:
        specs = as_half(specs)
    session = sessions.low_memory_session(original, providers)
    reason = ""

    def runs(case: Case) -> bool:
        nonlocal reason
        reason = sessions.refusal(session, float32_case(case, half=half).make())
        return not reason

    accepted = next((c for c in (cases(specs, (0,), shapes) for shapes in shape_sets(specs, {})) if runs(c[0])), None)
    if accepted is None:
        limits = Limits()
        sizes = search_sizes(original, specs, {}, runs, lambda: limits.over)
        accepted = cases(specs, (0,), shape_sets(specs, sizes)[0]) if sizes else []
    if not accepted:
        raise UsageError(
            f"{option}: the original runs on none of the generated inputs: {reason}",
            f"Give real ones with {option}-inputs." if option == "--guard" else "Give real ones with --inputs.",
        )
    return [float32_case(case, half=half) for case in accepted if case.name not in COMPOSITE or runs(case)]


def as_half(specs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the input specs with float16 in place of float32, so that generated values are in its range."""
    return tuple(replace(s, dtype=TensorProto.FLOAT16) if s.dtype == TensorProto.FLOAT else s for s in specs)


def float32_case(case: Case, *, half: bool) -> Case:
    """Return a case generated in float16 with its arrays converted to float32; without `half` the case itself."""
    return replace(case, make=partial(_in_float32, case.make)) if half else case


def _in_float32(make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    return {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in make().items()}
