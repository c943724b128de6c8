"""Errors that a user can resolve: each states location, fact, and next step."""

MISMATCH, EXPECTATION_NOT_MET = 1, 4
"""Exit codes of the command line for what is a result and no error: wrong numbers, and less than was required."""


class OnnxfuseError(Exception):
    """A mistake in the input or the environment, told in one message without a traceback.

    `exit_code` is what the command line returns for it; `hint` is what to do next. As text it is the message with the
    hint in a line below; within an f-string the message alone, for those who put a place before it or tell both.
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
    """The call itself asks for something that does not exist or cannot be combined."""


class RequirementError(OnnxfuseError):
    """A fusion that was required is not there: names the rule, how often it applied, and why it did not."""

    exit_code = EXPECTATION_NOT_MET


class RuleError(OnnxfuseError):
    """A rule file is wrong: names the file, the line, what was expected and the nearest valid word."""


class ModelError(OnnxfuseError):
    """The model cannot be read, is not valid ONNX, or cannot be written."""

    exit_code = 3


class DeviceError(OnnxfuseError):
    """The environment lacks what was asked for: a CUDA provider, the engine, a CUDA library."""

    exit_code = 5


class DeviceLostError(DeviceError):
    """A kernel has broken the GPU's context: every later call of this process fails, whatever it asks for."""


class CrashError(OnnxfuseError):
    """A model ends the process that runs it, or breaks the GPU for it: names the op."""

    exit_code = 1


class KernelError(OnnxfuseError):
    """A fused kernel cannot be generated, compiled or launched: names op, shapes and CUDA's words."""

    exit_code = 5


class NoCompilerError(KernelError):
    """A kernel would have to be compiled, and there is no NVRTC here."""


class NoPlanError(KernelError):
    """No kernel of a fused op takes inputs of these shapes."""
