"""Compare `onnxfuse.runner` with `bench`'s CUDA graph row of the same fused model: a replay with everything bound.

The runner's bound graph copies nothing; called with NumPy arrays it copies inputs and outputs. Medians, in turns.
"""

import argparse
from pathlib import Path

import onnxfuse
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import ON_GPU, bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import CUDA_GRAPH
from onnxfuse.measure.timing.shapes import cases_per_shape, unsaid
from onnxfuse.measure.timing.stopwatch import timed, warm
from onnxfuse.model.fused import fused_ops
from onnxfuse.verification.inputs.input_specs import input_specs


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files; what is not fused yet is optimized")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    print(f"{'model':32} {'bench graph':>12} {'bound':>10} {'of it':>7} {'from NumPy':>11}   us, medians")
    for path in given.models:
        model = io.load(path)
        fused = model if fused_ops(model) else onnxfuse.optimize(model)
        specs = input_specs(fused)
        arrays = cases_per_shape(specs, dict.fromkeys(unsaid(specs, {}), (1,)), 0)[0].make()
        session = opened(fused, CUDA_GRAPH, ON_GPU, fused=True)
        values = ort_values(arrays)
        graph = bind(session, values, outputs_of(session, values, "fused"))
        run = onnxfuse.runner(fused)
        bound = run.bind(arrays)
        calls = (graph.run, bound, lambda run=run, arrays=arrays: run(arrays))
        warm(calls)
        theirs, ours, numpy = (one.p50 for one in timed(calls, given.rounds, given.runs))
        print(f"{path.stem[:32]:32} {theirs:12.1f} {ours:10.1f} {ours / theirs:7.3f} {numpy:11.1f}", flush=True)


if __name__ == "__main__":
    main()
