"""Provenance of a fused node: the nodes that it replaced, as JSON in its metadata (untrusted on read)."""

from onnx import NodeProto

from onnxfuse.model.metadata import entry
from onnxfuse.support.bounded_text import read_json
from onnxfuse.support.errors import ModelError

DOMAIN = "onnxfuse"


def names(node: NodeProto, key: str) -> list[str] | None:
    """Return the names under `key`, None if absent: of original `nodes`, or of interior `values`.

    Raises ModelError for anything but a list of names.
    """
    text = entry(node, f"{DOMAIN}.{key}")
    if text is None:
        return None
    try:
        value = read_json(text)
    except ValueError as error:
        raise _wrong(node, key, str(error)) from None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong(node, key, "no list of names")
    return value


def _wrong(node: NodeProto, key: str, fact: str) -> ModelError:
    return ModelError(
        f"the metadata {DOMAIN}.{key} of {node.op_type} '{node.name}' is not as onnxfuse writes it: {fact}",
        "A tool that rewrote the file changed it; optimize the original model again.",
    )
