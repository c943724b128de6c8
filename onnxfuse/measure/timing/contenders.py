"""What is timed against what: the original at each of ONNX Runtime's settings, the fused model at its own."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import onnx

from onnxfuse import ops
from onnxfuse.graph.graph import bodies
from onnxfuse.measure.timing.binding import REFUSALS
from onnxfuse.measure.timing.settings import (
    CUDA_GRAPH,
    DEFAULT,
    ModelName,
    RefusedRun,
    Setting,
    cpu_settings,
    cuda_settings,
)
from onnxfuse.runtime.sessions.opening import reason
from onnxfuse.support import process_pool
from onnxfuse.verification.run.sessions import Model, raise_if_lost


@dataclass(frozen=True)
class Contender:
    """A session to be opened and timed."""

    name: ModelName
    model: Model
    setting: Setting


def convolves(model: onnx.ModelProto) -> bool:
    """Return whether a model has convolutions: ONNX Runtime's settings for channels last affect these alone."""

    def within(nodes: Sequence[onnx.NodeProto]) -> bool:
        return any(n.op_type == ops.Conv or any(within(b.node) for b in bodies(n)) for n in nodes)

    return within(model.graph.node) or any(within(f.node) for f in model.functions)


def contenders_of(
    before: Model, after: Model, default: Setting, *, on_cuda: bool, convolutions: bool
) -> list[Contender]:
    """Return the original at every setting, and the fused model: on CUDA with and without a CUDA graph, on the CPU at
    every setting.

    `default` has the options and rules that all have in common.
    """
    originals = cuda_settings(convolutions=convolutions) if on_cuda else cpu_settings(process_pool.cores())
    ours = (DEFAULT, CUDA_GRAPH) if on_cuda else originals
    both: tuple[tuple[ModelName, Model, Sequence[Setting]], ...] = (
        ("original", before, originals),
        ("fused", after, ours),
    )
    common = [(name, model, replace(s, rules=default.rules)) for name, model, settings in both for s in settings]
    return [Contender(name, model, s.with_options(default.options)) for name, model, s in common]


@contextmanager
def refusals(contender: Contender, refused: list[RefusedRun]) -> Iterator[None]:
    """Add to `refused` why ONNX Runtime refuses the contender, where it does in this block; the block ends there.

    Raises DeviceError if the GPU is lost.
    """
    try:
        yield
    except REFUSALS as error:
        raise_if_lost(error)
        refused.append(RefusedRun(contender.name, contender.setting.name, reason(error)))


def absent(
    contenders: Collection[Contender], ready: Collection[Contender], refused: Sequence[RefusedRun]
) -> RefusedRun | None:
    """Return why a model runs at none of its settings, the first refusal of it; None if each of them runs."""
    missing = {c.name for c in contenders} - {c.name for c in ready}
    return next((one for one in refused if one.model in missing), None)
