"""Random models against their originals and their bodies: `python tests/gpu/fuzz.py --cases 1000 --seed 1 --shard 0/4`

Each case is a model of tests/support/kernels/random_models.py, optimized. Each of its fused kernels is launched by
hand, with aligned and unaligned tensors between guards, and held against its body in float64; then the whole model runs
in a session, and `onnxfuse.verify` judges it beside the original. Prints a line for each failure with the call that
repeats it, and counts. Exit 1 where something failed, 3 where the GPU did: the case is the last one named. Memcheck:
`compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/fuzz.py --cases 500`.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cupy
import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnxfuse
from bench.cases import ops
from bench.kernels.launching import launcher
from onnxfuse import cuda
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import OnnxfuseError
from tests.gpu.test_kernels import DeviceBuffer
from tests.support.kernels import fuzz, random_models
from tests.support.kernels.random_models import KINDS, Case

CUDA = ("CUDAExecutionProvider", "CPUExecutionProvider")
GPU_FAILED = 3


def launched(op: FusedOp, inputs: list[np.ndarray], aligned: bool) -> None:
    """Launch the kernel on guarded tensors; AssertionError: a stray write, a changed input, a wrong number."""
    plan = cuda.plan(op, tuple(x.shape for x in inputs), aligned, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, op.outputs, strict=True)]
    if plan.grid[0]:
        launcher(plan, [b.address for b in (*sources, *results)])()
        cupy.cuda.Device(0).synchronize()
    got = [r.read() for r in results]
    for source, given in zip(sources, inputs, strict=True):
        assert source.read().tobytes() == given.tobytes(), "an input was changed"
    if fuzz.checks_numbers(op):
        ops.within_budget(op, inputs, got, fuzz.summed(op))


def failures(case: Case, counts: Counter[str], *, sessions: bool) -> Iterator[str]:
    """Yield what is wrong with a case: a class, and what it says."""
    for op, inputs in fuzz.called(case):
        refused = cuda.supports(op, lambda: cuda.arch_of(0))
        counts[f"{op.template}: {'body' if refused else 'kernel'}"] += 1
        for aligned in (True, False) if refused is None else ():
            how = f"{op.template} {[list(x.shape) for x in inputs]}{'' if aligned else ' unaligned'}"
            try:
                launched(op, inputs, aligned)
            except AssertionError as error:
                yield f"wrong: {how}: {error}"
            except OnnxfuseError as error:
                yield f"no plan: {how}: {error}"
    if sessions and _runs(case, counts):
        report = onnxfuse.verify(
            case.model, onnxfuse.optimize(case.model), inputs=case.feeds, providers=CUDA, isolate=False
        )
        undecided = not report.problems and all(r.verdict != "mismatch" for r in report.outputs)
        counts["undecided by verify"] += undecided and not report.ok
        if not report.ok and not undecided:
            yield f"verify: {report.summary} {'; '.join(map(str, report.problems))}"


def _runs(case: Case, counts: Counter[str]) -> bool:
    """Return whether ONNX Runtime runs the original: it has no kernel for some operators and types."""
    try:
        onnxruntime.InferenceSession(case.model.SerializeToString(), providers=CUDA, isolate=False).run(
            None, case.feeds
        )
    except Exception as error:  # ONNX Runtime's errors have no class of their own
        counts[f"not run by ONNX Runtime: {type(error).__name__}"] += 1
        return False
    return True


def main() -> int:
    """Run the cases of this shard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th case from the i-th on")
    parser.add_argument("--start", type=int, default=0, help="the first case: to go on after one that ended the GPU")
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--no-sessions", action="store_true", help="kernels by hand alone, which is much faster")
    parser.add_argument("--small", action="store_true", help="plans of small tensors, as they are; else of large ones")
    arguments = parser.parse_args()
    first, step = map(int, arguments.shard.split("/"))
    numbers = range(first, arguments.cases, step) if arguments.only is None else [arguments.only]
    if not arguments.small:
        launch_plan.small_costs = lambda arch: launch_plan.SmallCosts(0, 128)
    counts, failed, began = Counter[str](), Counter[str](), time.perf_counter()
    for number in (n for n in numbers if n >= arguments.start or arguments.only is not None):
        case = random_models.model(f"{arguments.seed} {number}", kind=arguments.kind)
        print(f"case {number}", end="\r", file=sys.stderr, flush=True)  # one that ends the process leaves its number
        counts[case.kind] += 1
        again = f"python tests/gpu/fuzz.py --seed {arguments.seed} --only {number}"
        again += f" --kind {arguments.kind}" * bool(arguments.kind) + " --small" * arguments.small
        try:
            for what in failures(case, counts, sessions=not arguments.no_sessions):
                failed[what.split(":")[0]] += 1
                print(f"{what[:400]}\n  {again}", flush=True)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            print(f"the GPU: {error}\n  {again}", flush=True)
            return GPU_FAILED
        except Exception as error:  # one case that ends in a traceback is counted, and the others are judged
            failed[f"{type(error).__name__}"] += 1
            print(f"{type(error).__name__}: {str(error)[:300]}\n  {again}", flush=True)
    print(f"{sum(counts[k] for k in KINDS)} cases in {time.perf_counter() - began:.0f} s: {dict(counts.most_common())}")
    print(f"failed: {dict(failed.most_common()) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
