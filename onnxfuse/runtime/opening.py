"""Whether ONNX Runtime opens a model: what is asked of every model that is written, and of one that ONNX's checker
does not take.

A file can make ONNX Runtime end the process while it opens it: 1.31.1 does for a function that calls LayerNormalization
below opset 17. So a command asks in a child.
"""

import re
from collections.abc import Callable

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from onnxfuse.model import io, isolation
from onnxfuse.model.errors import ModelError
from onnxfuse.model.types import first_line, shell
from onnxfuse.model.valid import Refused

ORT_ERRORS: tuple[type[Exception], ...] = (
    errors.EPFail, errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf, errors.NoModel,
    errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException,
)  # fmt: skip
"""What ONNX Runtime raises; the classes have no base of their own."""

UNREGISTERED = "is not a registered function/op"
"""What ONNX Runtime says of an operator for which a library of the user's would have to be loaded."""

PATIENCE = 120.0
"""Seconds that the opening may take: 2 GB of weights take ten."""

SILENT = 4
"""ONNX Runtime's severity for nothing, not even errors: what goes wrong is raised and told by us."""


def reason(error: BaseException) -> str:
    """Return what ONNX Runtime says in its first line, without the code in front."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))


def refusal(model: onnx.ModelProto) -> Refused | None:
    """Return why ONNX Runtime does not open `model` on the CPU, None where it does. Its optimizations are off.

    Weights are left out of what it gets, so this takes no memory for them; one that it wants to see is there the second
    time, in a model that fits a protobuf message.
    """
    light = shell(model)
    refused = _refusal(light)
    if (
        refused is None
        or len(light.graph.initializer) == len(model.graph.initializer)
        or io.size(model) > io.PROTOBUF_LIMIT
    ):
        return refused
    return _refusal(model)


def require(model: onnx.ModelProto) -> Callable[[onnx.ModelProto], None]:
    """Return what raises ModelError for a model that was made of `model` and does not open, though `model` does."""
    source = shell(model)

    def check(made: onnx.ModelProto) -> None:
        refused = refusal(made)
        if refused is not None and refusal(source) is None:
            raise ModelError(
                f"ONNX Runtime does not open what was made: {refused.why}", "Please report it: the fault is onnxfuse's."
            )

    return check


def _refusal(model: onnx.ModelProto) -> Refused | None:
    """Return ONNX Runtime's answer, in its words or in those of its end."""
    found = isolation.isolated(lambda _: _opened(model), patience=PATIENCE)
    return Refused(f"ONNX Runtime {found.how} when it opens it", False) if isinstance(found, isolation.Crash) else found


def _opened(model: onnx.ModelProto) -> Refused | None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = SILENT
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except ORT_ERRORS as error:
        why = first_line(error)
        return Refused(why, isinstance(error, errors.NotImplemented) or UNREGISTERED in why)
    return None
