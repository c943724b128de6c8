"""Entries of the metadata of a model or node (`metadata_props`)."""

from onnx import ModelProto, NodeProto


def entry(owner: ModelProto | NodeProto, key: str) -> str | None:
    """Return the text under `key`; None if there is none."""
    return next((p.value for p in owner.metadata_props if p.key == key), None)


def set_entry(model: ModelProto, key: str, value: str | None) -> None:
    """Set the text under `key`; None removes it."""
    for old in [p for p in model.metadata_props if p.key == key]:
        model.metadata_props.remove(old)
    if value is not None:
        model.metadata_props.add(key=key, value=value)
