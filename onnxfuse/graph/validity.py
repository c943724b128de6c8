"""Decide whether a model is valid: by ONNX's checker, and where that rejects it, by ONNX Runtime.

ONNX Runtime accepts more than the checker: its own operators without an opset import, older operators under a newer
domain version, declarations that contradict the operators.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import ModelProto

from onnxfuse.files import io
from onnxfuse.model import custom_ops
from onnxfuse.model.functions import called, functions_of
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.inference import inferred, shell
from onnxfuse.shapes.inference_process import NOT_VALID
from onnxfuse.shapes.stand_ins import StandIns, insert_in_functions
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError


@dataclass(frozen=True)
class Refused:
    """Reason for which ONNX Runtime does not load a model."""

    why: str
    """ONNX Runtime's message."""
    lacking: bool
    """Whether an operator or a kernel is missing that another provider or a custom-op library may supply: the model may
    well be valid.
    """

    @property
    def next_step(self) -> str:
        """Advice to the user. Exporters leave float32 next to half types, and half types for which no kernel exists."""
        if any(f"tensor({half})" in self.why for half in ("float16", "bfloat16")):
            return (
                "ONNX Runtime rejects it: export the module in float32, and convert the file with "
                "--precision float16 or bfloat16."
            )
        return "ONNX Runtime rejects it: fix the export."


NO_SHAPES: Mapping[str, onnx.TypeProto] = {}

Opens = Callable[[ModelProto], Refused | None]
"""Returns why ONNX Runtime does not load a model, None if it does."""


class Judge:
    """Decides whether a derived model is valid, with the checkers that accepted the original model."""

    def __init__(self, model: ModelProto, opens: Opens | None) -> None:
        """Raises ModelError if the original model is invalid: by `opens`, or without it by ONNX's checker."""
        self.opens = opens
        self.said = complaint(model)
        """Complaint of ONNX's checker about the original model; if any, the checker is not used on derived models."""
        if self.said is not None and opens is None:
            raise ModelError(f"the model is not valid: {self.said}", "Check it with onnx.checker.")
        refused = opens(model) if self.said is not None and opens is not None else None
        if refused is not None and not refused.lacking:
            raise ModelError(f"the model is not valid: {refused.why}", refused.next_step)
        self._source = shell(model)
        self._shapes = {o.name: o.type for o in inferred(model, self._source).graph.output if self.said is None}
        """Inferred shapes of the original model's outputs that it does not declare."""
        self.neither = False
        """Whether, at the last check, ONNX Runtime loaded neither the original nor the derived model."""

    def wrong(self, made: ModelProto) -> str | None:
        """Return what is wrong with a derived model, None if nothing is."""
        found = unreadable(made) or (complaint(made, self._shapes) if self.said is None else None)
        if found is not None or self.opens is None:
            return found
        refused = self.opens(made)
        self.neither = refused is not None and self.unopened is not None
        return None if refused is None or self.neither else refused.why

    def notes(self) -> list[str]:
        """Return notes about the model for the user."""
        found = []
        if self.said is not None:
            found.append(
                f"ONNX's checker rejects the model ({self.said}), but ONNX Runtime accepts it: nodes without a "
                "known type are left as they are"
            )
        functions = functions_of(self._source)
        strange = (n for n in self._source.graph.node if n.domain not in custom_ops.KNOWN_DOMAINS)
        own = [n for n in strange if called(n) not in functions]
        if self.neither and own and not custom_ops.libraries():
            found.append(
                f"ONNX Runtime opens neither the model nor the optimized one: operator {own[0].op_type} of domain "
                f"'{own[0].domain}' is not one of its own. {custom_ops.NAME_IT}"
            )
        return found

    @cached_property
    def unopened(self) -> Refused | None:
        """Why ONNX Runtime does not load the original model, such as for custom operators."""
        return None if self.opens is None else self.opens(self._source)


def unreadable(model: ModelProto) -> str | None:
    """Return why a file with `model` could not be read back, None if it could."""
    try:
        io.check(model)
    except ModelError as error:
        return f"{error}"
    return None


def complaint(model: ModelProto, shapes: Mapping[str, onnx.TypeProto] = NO_SHAPES) -> str | None:
    """Return the message of `onnx.checker` with its full check on `model`, without loading its weights.

    Outputs that the file declares without a shape have those of `shapes`: the checker requires them, and inference may
    know an operator's shape but not that of the function that replaced it. Operators that ONNX's own inference fails on
    are not checked: for a MeanVarianceNormalization next to a model-local function it reports a Constant without a
    value.
    """
    try:
        checked = ModelProto()
        checked.CopyFrom(inferred(model))
        for declared, output in zip(model.graph.output, checked.graph.output, strict=True):
            if not declared.type.tensor_type.HasField("shape") and output.name in shapes:
                output.type.CopyFrom(shapes[output.name])
        StandIns(checked.graph, opset_of(checked), of_onnx=True)
        insert_in_functions(checked)
        onnx.checker.check_model(checked, full_check=True)
    except NOT_VALID as error:
        return first_line(error)
    return None
