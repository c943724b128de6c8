"""The kernel for all shapes beside the one for these, op by op of a model: `python -m bench.kernels.general --help`

Each row: nodes of the op, launches of both plans, megabytes of scratch memory, microseconds of one node by either
kernel, how many times longer the general one takes, and the seconds that NVRTC takes for each. The last row: a whole
run by each. What a server gains by the general kernel while a special one is compiled is the seconds of that less this.
"""

import argparse
from functools import partial

import cupy

import models
import onnxfuse
from bench.cases import ops
from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda import LaunchPlan
from onnxfuse.cuda.build import nvrtc
from onnxfuse.graph import concrete_shapes
from onnxfuse.measure.timing.stopwatch import seconds
from onnxfuse.model.fused import fused_ops
from onnxfuse.shapes.inference import infer

LAUNCHES = 20
"""Of each kernel, in a CUDA graph."""


def compiled(plan: LaunchPlan, arch: cuda.Arch) -> float:
    """Return the seconds that the kernels of a plan take to compile, past the cache."""
    return sum(seconds(partial(nvrtc.build, kernel, arch)) for kernel in {p.kernel for p in (plan, *plan.then)})


def main() -> None:
    """Print the table of one model at one size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert_base")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    given = parser.parse_args()
    made = onnxfuse.optimize(models.build(given.model, dtype="float16", layers=given.layers))
    light, _ = concrete_shapes.with_sizes(made, {"batch": given.batch, "sequence": given.sequence})
    graph = infer(light).graph
    types, nodes = concrete_shapes.every_type(graph), concrete_shapes.fused_nodes(graph)
    arch = cuda.arch_of(0)
    sums = [0.0, 0.0]
    print(f"{'op':44}{'nodes':>6}{'launches':>10}{'MB':>8}{'special':>10}{'general':>12}{'times':>8}{'NVRTC s':>14}")
    for name, op in fused_ops(made).items():
        if not cuda.is_template(op.template) or cuda.supports(op, lambda: arch) is not None:
            continue
        shapes = [s for n in nodes[name] if (s := concrete_shapes.input_shapes(n, types)) is not None]
        for shape in dict.fromkeys(shapes):
            plans = cuda.plan(op, shape, True, arch), cuda.general(op, shape, arch)
            tensors = [
                (s, t) for s, t in zip((*shape, *plans[0].output_shapes), (*op.inputs, *op.outputs), strict=True)
            ]
            held = [cupy.zeros(s, ops.NUMPY[t]) for s, t in tensors]
            works = [timing.launcher(plan, [x.data.ptr for x in held]) for plan in plans]
            times = timing.microseconds([[work] * LAUNCHES for work in works])
            compiling = [compiled(plan, arch) for plan in plans]
            count = shapes.count(shape)
            sums = [total + count * mine for total, mine in zip(sums, times, strict=True)]
            print(
                f"{name[:43]:44}{count:6}{1 + len(plans[0].then):7} {1 + len(plans[1].then):2}"
                f"{plans[1].scratch_bytes / 1e6:8.1f}{times[0]:10.1f}{times[1]:12.1f}{times[1] / times[0]:8.1f}"
                f"{compiling[0]:7.2f}{compiling[1]:7.2f}",
                flush=True,
            )
    print(f"{'a run':68}{sums[0]:10.1f}{sums[1]:12.1f}{sums[1] / sums[0]:8.1f}")


if __name__ == "__main__":
    main()
