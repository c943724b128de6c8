"""The original with its weights one rounding step away: how far rounding brings it, where its inputs do not tell.

An index has no rounding, so where the inputs are whole numbers the rows that they look up are moved instead: a truth of
the output's own type rounds as the original does, node by node, and that they agree says nothing of how far rounding
brings either. And where what is added to the inputs outweighs them, to move them moves nothing: all elements of the
output are one number then, whose error is luck (a text detector that sees no text: the sigmoid of its last bias).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse.model.nested import nodes_of
from onnxfuse.verification.inputs.inputs import nudge
from onnxfuse.verification.reference.float64_reference import parameters
from onnxfuse.verification.variants import variant
from onnxfuse.verification.variants.variant import Arrays, with_weights

NUDGES = 8
"""Times that the original is run anew for one case: the chance that all nine errors are below half of the fused model's
is below 1 in 100."""
HELD = 200_000_000
"""Weights that are there at once, in originals with nudged ones; of a larger model there is one."""
WHOLE = (TensorProto.FLOAT, TensorProto.DOUBLE)
"""Types one rounding step of which is what computing with them rounds, too. What a step of a half type does, its
comparison in float32 tells (`wide`)."""


CHOOSING = frozenset({"ArgMax", "ArgMin", "Hardmax", "NonMaxSuppression", "TopK"})
"""Operators that choose among numbers: which of two all but equal ones hangs on a rounding, and with it all that is
computed of the choice, such as what the expert makes of a token that a router sends to it."""


def chooses(model: onnx.ModelProto) -> bool:
    """Return whether the model chooses among numbers that it computes."""
    return any(n.op_type in CHOOSING and not n.domain for n in nodes_of(model.graph))


def on_perturbed_tables(
    load: Callable[[], onnx.ModelProto], providers: Sequence[str], cuda: Mapping[str, str]
) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield what runs a model whose tables are nudged, each time otherwise; nothing where it has none.

    Nor where it is too big to be there twice. Raises ModelError where it cannot be opened.
    """
    return _running(with_perturbed_tables, load, providers, cuda)


def on_perturbed_weights(
    load: Callable[[], onnx.ModelProto], providers: Sequence[str], cuda: Mapping[str, str]
) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield what runs a model whose weights are nudged, each time otherwise; nothing where it has none.

    Raises ModelError where it cannot be opened.
    """
    return _running(with_perturbed_weights, load, providers, cuda)


def _running(
    nudged: Callable[[onnx.ModelProto, int], onnx.ModelProto | None],
    load: Callable[[], onnx.ModelProto],
    providers: Sequence[str],
    cuda: Mapping[str, str],
) -> Iterator[Callable[[Arrays], Arrays]]:
    def opened(seed: int) -> Callable[[Arrays], Arrays] | None:
        model = load()  # and let go again: the runs hold their own weights
        if seed and (seed + 1) * parameters(model) > HELD:
            return None
        return variant.running(lambda whole: nudged(whole, seed), model, providers, cuda)

    for run in map(opened, range(NUDGES)):
        if run is None:  # nor is there another
            return
        yield run


def with_perturbed_tables(model: onnx.ModelProto, seed: int) -> onnx.ModelProto | None:
    """Return a copy whose float tables, of which Gathers take rows, are moved by one rounding step; None without."""
    tables = {node.input[0] for node in nodes_of(model.graph) if node.op_type == "Gather" and not node.domain}
    return _nudged(model, lambda name, _: name in tables, seed)


def with_perturbed_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto | None:
    """Return a copy whose matrices and filters in float32 and wider are moved by one rounding step; None without.

    What has one axis stays: scales of a Resize and bounds are meant as they are.
    """
    return _nudged(model, lambda _, tensor: tensor.data_type in WHOLE, seed)


def _nudged(model: onnx.ModelProto, chosen: Callable[[str, TensorProto], bool], seed: int) -> onnx.ModelProto | None:
    found: list[str] = []

    def moved(name: str, tensor: TensorProto) -> TensorProto:
        wanted = len(tensor.dims) > 1 and chosen(name, tensor)
        nudged = nudge({name: numpy_helper.to_array(tensor)}, seed + len(found)) if wanted else None
        if nudged is None:
            return tensor
        found.append(name)
        return numpy_helper.from_array(nudged[name], tensor.name)

    copy = with_weights(model, moved)
    return copy if found else None
