"""The model's TF32 setting: file metadata on whether float32 products may be rounded to TF32."""

from onnx import ModelProto

from onnxfuse.model.metadata import entry, set_entry

METADATA = "onnxfuse.use_tf32"
"""Key in `metadata_props`, named after ONNX Runtime's CUDA option; 0 in files made with `--strict-fp32`."""


def is_strict_fp32(model: ModelProto) -> bool:
    """Return whether CUDA sessions of `model` use `use_tf32` 0 by default."""
    return entry(model, METADATA) == "0"


def set_strict_fp32(model: ModelProto, *, strict: bool = True) -> None:
    """Set or clear the model's request for unrounded float32 products."""
    set_entry(model, METADATA, "0" if strict else None)
