"""Set attributes on a node under construction."""

from onnx import NodeProto
from onnx.helper import make_attribute

from onnxfuse.model.schema import AttributeValue


def set_attribute(node: NodeProto, name: str, value: AttributeValue | None) -> None:
    """Set an attribute of a node, replacing any previous value; None removes it."""
    others = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(others if value is None else [*others, make_attribute(name, value)])
