"""Growth step: extend a region to the reduced axes of its anchor, for reduction inputs and broadcast results."""

from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.steps.left_operand import is_computed
from onnxfuse.fusion.steps.pointwise import reduced_axes
from onnxfuse.fusion.steps.start import head_of
from onnxfuse.rules.match.match import Refusal


def run_over_input(attempt: Attempt) -> Refusal | None:
    """Let the kernel iterate over the shape of an anchor input that the anchor reduces.

    An input with other readers is written anyway: if the kernel before it can reduce it, it does, and this one reads
    the result. Squeeze and excite after a convolution and its bias: SE-ResNet, RegNetY.
    """
    graph, start, region = attempt.graph, attempt.start, attempt.region
    whole = attempt.input(Growth.WHOLE_INPUT)
    # Without known shapes, full-size values and reduced ones are indistinguishable.
    unknown = next((v for v in (whole, start.value) if graph.type(v).shape is None), None)
    if unknown is not None:
        return attempt.refusal(f"the rank of '{unknown}' is not known", "")
    region.work = graph.type(whole)
    region.reduced = [graph.type(start.value).shape]
    maker = graph.producer(whole)
    shared = graph.is_read_outside(whole, region.nodes)
    if maker is not None and shared and is_computed(graph, whole, attempt.around.host):
        head = head_of(graph, maker, attempt.around)
        if head is not None:
            region.left[maker] = f"computes '{whole}', which is read elsewhere, too, and which {head.op} can write"
    return None


def let_reductions_join(attempt: Attempt) -> None:
    """Allow other reductions over the anchor's axes to join, if the anchor is one Reduce node."""
    if len(attempt.start.seeds) == 1:
        attempt.region.axes = reduced_axes(attempt.graph, attempt.start.root)


def let_input_be_broadcast(attempt: Attempt) -> None:
    """Allow the producers of a smaller anchor input to join, recomputed per element."""
    attempt.region.broadcast = attempt.graph.type(attempt.input(Growth.BROADCAST_INPUT)).shape
