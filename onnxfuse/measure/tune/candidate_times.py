"""Time candidates on a GPU: each as an ONNX Runtime session, interleaved with the others.

A session repeats the task many times, like a model of many layers: each repetition has weights of its own, which are
read from memory, while inputs and outputs are at the same addresses, and cached as far as they fit. The time of a
replayed CUDA graph is divided by the number of repetitions.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onnxfuse import cuda, ops
from onnxfuse.cuda.dispatch.measurements import Machine, Timed
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.files.io import tensor_bytes
from onnxfuse.measure.timing.binding import (
    ON_GPU,
    REFUSALS,
    DeviceBinding,
    Values,
    opened,
    ort_values,
    outputs_of,
    warmed,
)
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, Setting
from onnxfuse.measure.timing.stopwatch import interleaved
from onnxfuse.measure.tune.candidates import Candidate
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
from onnxfuse.runtime.kernels.variants import machine_of
from onnxfuse.runtime.sessions.opening import reason
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import ValueType, value_types
from onnxfuse.support.errors import KernelError
from onnxfuse.verification.run import sessions

Arrays = dict[str, npt.NDArray[Any]]

ROTATED = 2 * 60 * 2**20
"""Bytes of rotated weights in a session: twice the L2 cache of an H200.

Inputs do not rotate: the preceding kernel has just written them. With the variants that were fastest on inputs from
memory BERT-base 32x128 took 1729 us, by the rules 1660; ViT-B/16 with 32 images 2982 and 2881 (float16, H200, 2026-11).
"""
TRAFFIC = 4 * 2**30
"""Largest number of bytes that a run moves: a millisecond of an H200."""
FEWEST, MOST = 2, 64
"""Repetitions per run: enough that the 10 us of a replay count for little."""
ROUNDS, RUNS = 7, 8
"""Interleaved rounds, and timed runs of each candidate in a round."""
FAULT = 2**-6
"""Largest deviation of a candidate from the plain nodes, as a share of the largest value. Rounding stays below, also in
bfloat16 (2^-8); a missing or misplaced tile causes errors as large as the largest value."""


@dataclass(frozen=True)
class Stopwatch:
    """How and where times are measured; the interface between decisions and the GPU."""

    machine: Machine
    arch: Arch
    time: Callable[[TuningTask, Sequence[Candidate]], Sequence[Timed]]
    """Returns the time of each candidate, or why there is none."""


def on_gpu() -> Stopwatch:
    """Return the stopwatch of the first GPU; raises DeviceError if CUDA cannot be used."""
    fault = cuda_unusable()
    if fault is not None:
        raise sessions.no_cuda(fault)
    arch = cuda.arch_of(0)
    return Stopwatch(machine_of(0), arch, lambda work, candidates: time_on_gpu(work, candidates, arch))


def time_on_gpu(task: TuningTask, candidates: Sequence[Candidate], arch: Arch) -> list[Timed]:
    """Return the times of all candidates, interleaved; each must run and agree with the plain nodes."""
    broken = _compiled(task, candidates, arch)
    inputs = _inputs(task.plain)
    answers = [broken.get(n) or _answer(c, inputs) for n, c in enumerate(candidates)]
    reference = next((a for a in reversed(answers) if isinstance(a, dict)), {})
    failed = [a if isinstance(a, str) else _fault(a, reference) for a in answers]
    timed = iter(_race([c for c, why in zip(candidates, failed, strict=True) if not why], inputs))
    return [
        Timed(c.kind, c.tuning, failed=why) if why else next(timed) for c, why in zip(candidates, failed, strict=True)
    ]


def _compiled(task: TuningTask, candidates: Sequence[Candidate], arch: Arch) -> dict[int, str]:
    """Compile all variants in parallel; return why some have no kernel, by index."""
    if not cuda.is_template(task.op.template):
        return {}

    def compile_one(candidate: Candidate) -> str:
        try:
            plan = cuda.plan(task.op, task.shapes, True, arch, candidate.tuning)
            for launch in (plan, *plan.then):
                cuda.compile(launch.kernel, arch)
        except KernelError as error:
            return f"{error}"
        return ""

    indices = [n for n, c in enumerate(candidates) if c.kind == "fused"]
    with ThreadPoolExecutor() as pool:
        faults = pool.map(compile_one, [candidates[n] for n in indices])
        return {n: why for n, why in zip(indices, faults, strict=True) if why}


def _inputs(model: onnx.ModelProto) -> Arrays:
    """Return normally distributed numbers for the inputs; integers are 0 and 1, which are valid indices and masks."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2**20 + 7)
    types = value_types(model.graph)
    arrays: Arrays = {}
    for value in model.graph.input:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(types[value.name].dtype))
        shape = tuple(int(d) for d in types[value.name].shape or () if isinstance(d, int))
        in_range = noise > 0 if dtype.kind in "biu" else noise
        arrays[value.name] = np.resize(in_range.astype(dtype), shape)
    return arrays


def _answer(candidate: Candidate, inputs: Arrays) -> Arrays | str:
    """Return the candidate's outputs, or why there are none."""
    try:
        session = opened(candidate.model, DEFAULT, ON_GPU, fused=candidate.fused)
        why = _bodies(session) if candidate.fused else ""
        return why or sessions.run(session, inputs)
    except REFUSALS as error:
        return reason(error)


def _bodies(session: Any) -> str:
    return next((f"{p.op} runs as its body: {p.reason}" for p in session.fused if p.runs_as == "body"), "")


def _fault(answer: Arrays, reference: Arrays) -> str:
    """Return how `answer` differs from `reference` beyond rounding; "" if it does not."""
    for name, expected in reference.items():
        if expected.dtype.kind in "biu" or not expected.size:
            continue  # A comparison or an ArgMax may differ by one rounding step of its inputs.
        mine, theirs = answer[name].astype(np.float32), expected.astype(np.float32)
        finite = np.isfinite(theirs)
        largest = float(np.abs(theirs[finite]).max(initial=0))
        off = float(np.abs(mine[finite] - theirs[finite]).max(initial=0))
        if not off <= FAULT * largest:
            return f"computes something else: {off:.3g} off where the largest value is {largest:.3g}"
    return ""


def _race(candidates: Sequence[Candidate], inputs: Arrays) -> list[Timed]:
    """Return the times of the candidates: with a CUDA graph, or all without if one of them cannot be captured."""
    if not candidates:
        return []
    try:
        times = _times(candidates, inputs, CUDA_GRAPH)
    except REFUSALS:
        times = _times(candidates, inputs, DEFAULT)
    results = []
    for candidate, seconds in zip(candidates, times, strict=True):
        low, median, high = (float(p) * 1e6 for p in np.percentile(seconds, (10, 50, 90)))
        results.append(Timed(candidate.kind, candidate.tuning, median, (low, high)))
    return results


def _times(candidates: Sequence[Candidate], inputs: Arrays, setting: Setting) -> list[list[float]]:
    """Return the seconds per task in each run of each candidate."""
    plain = candidates[-1].model
    copies = _copies(plain, inputs)
    buffers = _on_device(inputs)
    results = outputs_of(opened(plain, DEFAULT, ON_GPU, fused=candidates[-1].fused), buffers, "measured")
    bounds: list[DeviceBinding] = []
    for candidate in candidates:
        model = replicated(candidate.model, copies)
        session = opened(model, setting, ON_GPU, fused=candidate.fused)
        bounds.append(warmed(session, _each(buffers, copies), _each(results, copies)))
    times = interleaved([bound.run for bound in bounds], ROUNDS, RUNS)
    return [[seconds / copies for seconds in one] for one in times]


def _each(values: Values, copies: int) -> Values:
    """Return the values under the names that they have in each copy: the same memory for all."""
    return {f"{name}.{n}": value for n in range(copies) for name, value in values.items()}


def _on_device(inputs: Arrays) -> Values:
    """Copy the arrays to GPU memory through ONNX Runtime, which supports any element type."""
    if not inputs:
        return {}
    values = ort_values(inputs)
    kinds = [(f"{n}.host", n, v.element_type(), v.shape()) for n, v in values.items()]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(ops.Identity, [host], [name]) for host, name, _, _ in kinds],
        "move",
        [onnx.helper.make_tensor_value_info(host, dtype, shape) for host, _, dtype, shape in kinds],
        [onnx.helper.make_tensor_value_info(name, dtype, shape) for _, name, dtype, shape in kinds],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    hosts = {f"{name}.host": value for name, value in values.items()}
    return outputs_of(opened(model, DEFAULT, ON_GPU, fused=False), hosts, "moving")


def _copies(model: onnx.ModelProto, inputs: Arrays) -> int:
    """Return the number of repetitions per run: until the weights exceed the cache, as far as is needed."""
    types = value_types(infer(model).graph)
    results = sum(_bytes(types[o.name]) for o in model.graph.output)
    weights = sum(tensor_bytes(w) for w in model.graph.initializer)
    bytes_per_run = results + weights + sum(x.nbytes for x in inputs.values())
    return max(min(-(-ROTATED // max(weights, 1)), TRAFFIC // max(bytes_per_run, 1), MOST), FEWEST)


def _bytes(kind: ValueType) -> int:
    size = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.dtype)).itemsize
    return size * math.prod(d for d in kind.shape or () if isinstance(d, int))


def replicated(model: onnx.ModelProto, copies: int) -> onnx.ModelProto:
    """Return `model` repeated in one model: value V of copy N is called V.N and belongs to it alone."""
    many = onnx.ModelProto()
    many.CopyFrom(model)
    many.graph.ClearField("node")
    for field in ("input", "output", "initializer"):
        many.graph.ClearField(field)
    many.graph.ClearField("value_info")
    for n in range(copies):
        for field in ("input", "output", "initializer"):
            for one in getattr(model.graph, field):
                copy = getattr(many.graph, field).add()
                copy.CopyFrom(one)
                copy.name = f"{one.name}.{n}"
        for node in model.graph.node:
            copy = many.graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{node.name}.{n}" if node.name else ""
            copy.input[:] = [f"{v}.{n}" if v else "" for v in node.input]
            copy.output[:] = [f"{v}.{n}" if v else "" for v in node.output]
    return many
