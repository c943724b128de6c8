"""Compare fused models served from C++ with the same in Python: `python -m bench.cpp`.

Latency: the exported folder in a C++ process (examples/cpp/worker.cpp) beside `onnxfuse.session` with the same kernel
pack in this one, inputs and outputs bound on the GPU, in turns; without and with a CUDA graph. Host: microseconds until
a node of one launch is enqueued, with ONNX Runtime's own share; the same node of no elements, which launches nothing;
and a session in which ONNX Runtime's kernels do the same nodes. Start: seconds from the start of a C++ process to its
first answer, fused beside the original. All are medians. Needs a GPU, g++ and cmake.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import models
import onnxfuse
from bench.worker import Worker, build
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import bind, ort_values, outputs_of
from onnxfuse.measure.timing.stopwatch import timed, warm

CASES = {"bert_base": ({"batch": 1, "sequence": 128},), "resnet50": ({"batch": 1}, {"batch": 32})}
ROUNDS, RUNS, WARM_UP = 15, 100, 30
NODES = (100, 300)
"""Of the chains from whose times the host's share of a node follows."""
FUSED, NO_LAUNCH, THEIRS = "fused", "fused, no elements", "ONNX Runtime's own"
STARTS = 5
LIBRARY, MODEL, PACK = "1/libonnxfuse.so", "1/model.onnx", "1/model.onnx.kernels"


def exported(model: onnx.ModelProto, folder: Path, shapes: Mapping[str, tuple[int, int]]) -> Path:
    """Write original.onnx, fused.onnx and the exported folder `served`, for the GPU that is here."""
    folder.mkdir()
    io.save(model, folder / "original.onnx")
    io.save(onnxfuse.optimize(model), folder / "fused.onnx")
    onnxfuse.export_library(folder / "fused.onnx", folder / "served", shapes=shapes, ptx=False)
    return folder


def in_turns(programs: Path, folder: Path, feeds: Mapping[str, Any], *, graph: bool) -> tuple[float, float, bool]:
    """Return the microseconds of a run in C++ and in Python, and whether their outputs are the same bytes."""
    served = folder / "served"
    cuda = ("CUDAExecutionProvider", {"enable_cuda_graph": "1" if graph else "0"})
    session = onnxfuse.session(folder / "fused.onnx", [cuda, "CPUExecutionProvider"], kernels=served / PACK)
    inputs = ort_values(feeds)
    names = [i.name for i in session.get_inputs()]
    with Worker(programs, served / MODEL, served / LIBRARY, *(["--graph"] if graph else [])) as worker:
        answers = worker.run([feeds[n] for n in names])
        bound = bind(session, inputs, outputs_of(session, inputs, folder.name))
        warm([bound.run], WARM_UP)
        worker.times(WARM_UP)
        same = all(
            a.tobytes() == b.numpy().tobytes() for a, b in zip(answers, bound.binding.get_outputs(), strict=True)
        )
        there: list[float] = []
        here: list[float] = []
        for _ in range(ROUNDS):
            there.append(float(np.median(worker.times(RUNS))))
            here += [one.p50 for one in timed([bound.run], 1, RUNS)]
    return statistics.median(there), statistics.median(here), same


def chain(nodes: int) -> onnx.ModelProto:
    """Return so many layer normalizations in a row, of `rows` x 64 elements: each is an op of one launch."""
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 64]) for n in ("v0", f"v{nodes}")]
    names = [f"v{n}" for n in range(nodes + 1)]
    norms = [helper.make_node("LayerNormalization", [a, "g", "b"], [b]) for a, b in itertools.pairwise(names)]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, [64], np.linspace(low, 1, 64, dtype=np.float32))
        for name, low in (("g", 0.5), ("b", -1))
    ]
    graph = helper.make_graph(norms, "chain", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def enqueued(programs: Path, folder: Path) -> dict[str, float]:
    """Return the microseconds of the host for a node: fused, fused without a launch, by ONNX Runtime's own kernels."""
    row = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    kinds = {FUSED: (True, row), NO_LAUNCH: (True, row[:0]), THEIRS: (False, row)}
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for nodes in NODES:
        place = exported(chain(nodes), folder / f"chain{nodes}", {"rows": (1, 1)})
        for kind, (fused, x) in kinds.items():
            model = place / "served" / MODEL if fused else place / "original.onnx"
            with Worker(programs, model, place / "served" / LIBRARY if fused else None) as worker:
                worker.run([x])
                worker.times(RUNS, waited=False)
                spent[kind].append(float(np.median(worker.times(10 * RUNS, waited=False))))
    return {kind: (mine[1] - mine[0]) / (NODES[1] - NODES[0]) for kind, mine in spent.items()}


def started(programs: Path, folder: Path, feeds: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds to the first answer of a process, of the fused and of the original model."""
    served = folder / "served"
    order = [i.name for i in onnx.load(folder / "original.onnx", load_external_data=False).graph.input]
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(STARTS):
        for fused, mine in spent.items():
            model = served / MODEL if fused else folder / "original.onnx"
            begun = time.perf_counter()
            with Worker(programs, model, served / LIBRARY if fused else None) as worker:
                worker.run([feeds[n] for n in order])
                mine.append(time.perf_counter() - begun)
    return statistics.median(spent[True]), statistics.median(spent[False])


def main() -> None:
    """Print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        programs = build(root / "built")
        host = enqueued(programs, root)
        print("host, a node: " + ", ".join(f"{kind} {us:.2f} us" for kind, us in host.items()), flush=True)
        print(f"\n{'model':32}{'C++':>10}{'Python':>10}{'C++ / Python':>14}  bit-equal", flush=True)
        for name in asked.models:
            cases = CASES[name]
            ranges = {d: (min(c[d] for c in cases), max(c[d] for c in cases)) for d in cases[0]}
            folder = exported(models.build(name, dtype=asked.dtype), root / name, ranges)
            for sizes in cases:
                feeds = models.example_inputs(name, dtype=asked.dtype, **sizes)
                shape = "x".join(map(str, sizes.values()))
                for graph in (False, True):
                    there, here, same = in_turns(programs, folder, feeds, graph=graph)
                    row = f"{name} {shape}{', CUDA graph' if graph else ''}"
                    print(f"{row:32}{there:>7.1f} us{here:>7.1f} us{there / here:>14.3f}  {same}", flush=True)
            feeds = models.example_inputs(name, dtype=asked.dtype, **cases[0])
            fused, original = started(programs, folder, feeds)
            print(f"{name}: first answer after {fused:.2f} s, the original's {original:.2f} s", flush=True)


if __name__ == "__main__":
    main()
