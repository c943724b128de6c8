"""The model's TF32 setting: file metadata on whether float32 products may be rounded to TF32."""

from onnx import ModelProto

METADATA = "onnxfuse.use_tf32"
"""Key in `metadata_props`, named after ONNX Runtime's CUDA option; 0 in files made with `--strict-fp32`."""


def is_strict_fp32(model: ModelProto) -> bool:
    """Return whether CUDA sessions of `model` use `use_tf32` 0 by default."""
    return any(p.key == METADATA and p.value == "0" for p in model.metadata_props)


def set_strict_fp32(model: ModelProto, *, strict: bool = True) -> None:
    """Set or clear the model's request for unrounded float32 products."""
    for entry in [p for p in model.metadata_props if p.key == METADATA]:
        model.metadata_props.remove(entry)
    if strict:
        model.metadata_props.add(key=METADATA, value="0")
