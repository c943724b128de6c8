"""Input sizes to run a model at: those given, and 1 for other dynamic dimensions."""

from collections.abc import Sequence

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.inputs.inputs import Case, InputSpec, Shapes, cases, shape_sets


def unsaid(specs: Sequence[InputSpec], shapes: Shapes) -> tuple[str, ...]:
    """Return the dynamic dimensions that `shapes` fixes neither by name nor by an input's shape."""
    stated = {*shapes, *(name for s in specs if s.name in shapes for name, _ in dynamic(s))}
    return tuple(dict.fromkeys(name for s in specs for name, _ in dynamic(s) if name not in stated))


def check_bindable(specs: Sequence[InputSpec], purpose: str) -> None:
    """Raise UsageError for an input that ONNX Runtime binds to no device; `purpose` is the command."""
    for spec in specs:
        if spec.sequence or spec.type_.startswith("map("):
            raise UsageError(
                f"input '{spec.name}' is of type {spec.type_}: {purpose} binds its inputs, which must be tensors",
                "onnxfuse verify runs it.",
            )


def cases_per_shape(specs: Sequence[InputSpec], shapes: Shapes, seed: int) -> list[Case]:
    """Return one case of normally distributed inputs, with valid ids and masks, for each set of shapes."""
    normal = [c for c in cases(specs, [seed], shapes) if c.name == "normal"]
    return normal[: len(shape_sets(specs, shapes))]


def dynamic(spec: InputSpec) -> list[tuple[str, int]]:
    """Return name and axis of each dynamic dimension, with the names that `verification.inputs` generates for unnamed
    ones."""
    return [(d or f"{spec.name}[{axis}]", axis) for axis, d in enumerate(spec.shape) if not isinstance(d, int)]
