"""Flags and values of other tools that callers try here, and what takes their place."""

import difflib
from collections.abc import Mapping

import click

FLAGS: Mapping[str, str] = {
    "--fp16": "Use --precision float16.",
    "--bf16": "Use --precision bfloat16.",
    "--int8": "Quantize the model first, with ONNX Runtime's tool or ModelOpt: onnxfuse docs quantized.",
    "--fp8": "Quantize the model first, with ONNX Runtime's tool or ModelOpt: onnxfuse docs quantized.",
    "--best": "Use --precision float16; quantize the model first for int8: onnxfuse docs quantized.",
    "--batch": "Use --shape batch=8, with the name of the dimension; a fused file takes every size.",
    "--minShapes": "A fused file takes every shape; onnxfuse compile --shape batch=1..32 compiles a range.",
    "--optShapes": "A fused file takes every shape; onnxfuse compile --shape batch=1..32 compiles a range.",
    "--maxShapes": "A fused file takes every shape; onnxfuse compile --shape batch=1..32 compiles a range.",
    "--workspace": "Nothing to set: kernels take what they need; a session has memory_limit (onnxfuse docs python).",
    "--noTF32": "Use --strict-fp32 of optimize.",
    "--onnx": "The model is the first argument: onnxfuse optimize IN.onnx OUT.onnx.",
    "--saveEngine": "The file to write is the last argument: onnxfuse optimize IN.onnx OUT.onnx.",
    "--useCudaGraph": "Use onnxfuse.runner in Python; bench times with and without a CUDA graph.",
}
"""What to use in place of the flags of trtexec; all of them are on the page from-trtexec."""

PRECISION = "fp16 and bf16 mean float16 and bfloat16. For int8, quantize the model first: onnxfuse docs quantized."


def answered(error: click.ClickException) -> tuple[click.ClickException, str]:
    """Return the error with the closest option alone, of those that click takes for alike, and what to use in place of
    another tool's option or value, "" if nothing is known."""
    if isinstance(error, click.NoSuchOption):
        hint = FLAGS.get(error.option_name, "")
        closest = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1)
        return click.NoSuchOption(error.option_name, possibilities=[] if hint else closest, ctx=error.ctx), hint
    of_precision = isinstance(error, click.BadParameter) and error.param is not None and error.param.name == "precision"
    return error, PRECISION if of_precision else ""
