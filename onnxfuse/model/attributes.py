"""Set attributes on a node under construction."""

from onnx import NodeProto
from onnx.helper import make_attribute

from onnxfuse.model.schema import AttributeValue


def set_attribute(node: NodeProto, name: str, value: AttributeValue | None) -> None:
    """Set an attribute of a node, replacing any previous value; None removes it."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept if value is None else [*kept, make_attribute(name, value)])
