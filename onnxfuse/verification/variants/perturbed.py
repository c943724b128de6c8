"""Variants of the original with weights perturbed by one ulp: the effect of rounding where inputs cannot show it.

An index has no rounding, so for integer inputs the rows that they look up are perturbed instead: a reference of the
output's own type rounds as the original does, node by node, and their agreement does not bound the effect of rounding.
And where an addend outweighs the inputs, perturbing them changes nothing: all elements of the output are one number
then, whose error is chance (a text detector that sees no text: the sigmoid of its last bias).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.ops import Trait, named
from onnxfuse.verification.inputs.inputs import perturb
from onnxfuse.verification.reference.float64_reference import parameters
from onnxfuse.verification.variants import variant
from onnxfuse.verification.variants.variant import Arrays, with_weights

PERTURBATIONS = 8
"""Number of perturbed runs per case: the chance that all nine errors are below half of the fused model's is below 1 in
100."""
MOST_PARAMETERS = 200_000_000
"""Limit of weights held at once in perturbed originals; of a larger model there is one."""
EXACT_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE)
"""Types whose ulp is also the rounding of computing in them. For half types the float32 comparison (`wide`) is used
instead."""


SELECTING = named(Trait.CHOOSES)
"""Operators whose choice depends on rounding, and so does everything computed from it, such as the expert's result for
a routed token."""


def selects(model: onnx.ModelProto) -> bool:
    """Return whether the model selects by values that it computes."""
    return any(n.op_type in SELECTING and not n.domain for n in nodes_of(model.graph))


def on_perturbed_tables(
    load: Callable[[], onnx.ModelProto], providers: Sequence[str], cuda: Mapping[str, str]
) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield runners of a model with perturbed tables, different ones each time; nothing if it has none.

    Nor if it is too big for a second copy. Raises ModelError if it cannot be opened.
    """
    return _running(with_perturbed_tables, load, providers, cuda)


def on_perturbed_weights(
    load: Callable[[], onnx.ModelProto], providers: Sequence[str], cuda: Mapping[str, str]
) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield runners of a model with perturbed weights, different ones each time; nothing if it has none.

    Raises ModelError if it cannot be opened.
    """
    return _running(with_perturbed_weights, load, providers, cuda)


def _running(
    form: Callable[[onnx.ModelProto, int], onnx.ModelProto | None],
    load: Callable[[], onnx.ModelProto],
    providers: Sequence[str],
    cuda: Mapping[str, str],
) -> Iterator[Callable[[Arrays], Arrays]]:
    def opened(seed: int) -> Callable[[Arrays], Arrays] | None:
        model = load()  # freed again: the runs hold their own weights
        if seed and (seed + 1) * parameters(model) > MOST_PARAMETERS:
            return None
        return variant.running(lambda whole: form(whole, seed), model, providers, cuda)

    for run in map(opened, range(PERTURBATIONS)):
        if run is None:  # then there is no further variant either
            return
        yield run


def with_perturbed_tables(model: onnx.ModelProto, seed: int) -> onnx.ModelProto | None:
    """Return a copy with the float tables read by Gathers perturbed by one ulp; None if there are none."""
    tables = {node.input[0] for node in nodes_of(model.graph) if node.op_type == ops.Gather and not node.domain}
    return _with_perturbed(model, lambda name, _: name in tables, seed)


def with_perturbed_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto | None:
    """Return a copy with the float32 and wider matrices and filters perturbed by one ulp; None if there are none.

    Vectors are unchanged: scales of a Resize and bounds are intentional.
    """
    return _with_perturbed(model, lambda _, tensor: tensor.data_type in EXACT_TYPES, seed)


def _with_perturbed(
    model: onnx.ModelProto, chosen: Callable[[str, TensorProto], bool], seed: int
) -> onnx.ModelProto | None:
    perturbed_names: list[str] = []

    def moved(name: str, tensor: TensorProto) -> TensorProto:
        eligible = len(tensor.dims) > 1 and chosen(name, tensor)
        perturbed = perturb({name: numpy_helper.to_array(tensor)}, seed + len(perturbed_names)) if eligible else None
        if perturbed is None:
            return tensor
        perturbed_names.append(name)
        return numpy_helper.from_array(perturbed[name], tensor.name)

    copy = with_weights(model, moved)
    return copy if perturbed_names else None
