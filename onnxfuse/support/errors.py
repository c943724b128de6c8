"""Errors that a user can resolve: each states location, fact, and next step."""

MISMATCH, EXPECTATION_NOT_MET = 1, 4
"""Exit codes of the command line for results that are not errors: numerical mismatch, and an unmet requirement."""


class OnnxfuseError(Exception):
    """An error in the input or the environment, reported as one message without a traceback.

    `exit_code` is the command line's exit code for it; `hint` is the next step for the user. `str()` gives the message
    with the hint on a second line; an f-string gives the message alone, for callers that add a location or print both.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self}\n{self.hint}" if self.hint else f"{self}"

    def __format__(self, spec: str) -> str:
        return format(super().__str__(), spec)


class UsageError(OnnxfuseError):
    """The call requests something that does not exist or cannot be combined."""


class RequirementError(OnnxfuseError):
    """A required fusion is missing: names the rule, how often it applied, and why it did not."""

    exit_code = EXPECTATION_NOT_MET


class RuleError(OnnxfuseError):
    """A rule file is invalid: names the file, the line, what was expected and the nearest valid word."""


class ModelError(OnnxfuseError):
    """The model cannot be read, is not valid ONNX, or cannot be written."""

    exit_code = 3


class DeviceError(OnnxfuseError):
    """The environment lacks a requirement: a CUDA provider, the engine, a CUDA library."""

    exit_code = 5


class DeviceLostError(DeviceError):
    """A kernel corrupted the GPU's context: every later CUDA call of this process fails."""


class MemoryLimitError(DeviceError):
    """A session needs more of the GPU's memory than its `memory_limit`: says how much would do."""


class CrashError(OnnxfuseError):
    """A model crashes the process that runs it, or its GPU context: names the op."""

    exit_code = 1


class KernelError(OnnxfuseError):
    """A fused kernel cannot be generated, compiled or launched: names op, shapes and CUDA's message."""

    exit_code = 5


class NoCompilerError(KernelError):
    """A kernel must be compiled, and NVRTC is not available."""


class NoPlanError(KernelError):
    """No kernel of a fused op supports inputs of these shapes."""


def gravest(codes: list[int]) -> int:
    """Return the exit code of several results: that of the gravest; 0 if none failed."""
    order = (DeviceError, ModelError, UsageError, CrashError, RequirementError)
    return next((one.exit_code for one in order if one.exit_code in codes), 0)
