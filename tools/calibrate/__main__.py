"""Measures the costs of this machine's GPU and writes its file:

    python -m tools.calibrate --arch sm_90a --out onnxfuse/cuda/costs/sm_90a.toml

Needs the GPU, CuPy and torch. Sweeps the tiles of the matrix products, fits their costs, and judges every template's
own choice on problems that no cost was fitted to (200 products, 60 attentions, 60 convolutions, 60 memory-bound ops):
the regret is the time of the choice over that of the fastest variant. Expected to take about 10 minutes on an H200 with
16 cores, most of it NVRTC; a second run finds the kernels in the cache and takes about 4. `--quick` takes a tenth of
the problems held out. Not yet run on a GPU.

Exits with 1 if the median regret of a kind exceeds 2%, or its 95th percentile 10%.
"""

import argparse
import datetime
from dataclasses import replace
from pathlib import Path

from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.runtime.kernels.variants import driver_version
from tools.calibrate.calibration import HELD_OUT, calibrate

MEDIAN, P95 = 0.02, 0.10
"""Regret up to which the costs are good."""


def main() -> int:
    """Run the command."""
    arches = [a.name for a in cuda.SUPPORTED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", required=True, choices=arches, help="the GPU's architecture")
    parser.add_argument("--out", required=True, type=Path, help="the file to write")
    parser.add_argument("--quick", action="store_true", help="take a tenth of the problems held out")
    options = parser.parse_args()

    from tools.calibrate.on_gpu import GpuStopwatch  # needs CuPy and torch

    arch = cuda.arch_of(0)
    if arch.name != options.arch:
        parser.error(f"this machine's GPU is {arch.name}, not {options.arch}")
    stopwatch = GpuStopwatch(arch)
    card = replace(
        tables.card(arch.name), name=stopwatch.name, driver=driver_version(), date=datetime.date.today(),
        multiprocessors=arch.sm_count, bandwidth=stopwatch.bandwidth(), clock=stopwatch.clock(),
    )  # fmt: skip
    held_out = {kind: (draw, count // 10 if options.quick else count) for kind, (draw, count) in HELD_OUT.items()}
    found = calibrate(
        arch, card, stopwatch, prepare=stopwatch.compile, held_out=held_out,
        progress=lambda line: print(line, flush=True),
    )  # fmt: skip
    options.out.write_text(found.text, encoding="utf-8")
    print(f"wrote {options.out}")
    bad = [kind for kind, one in found.regrets.items() if one.median > MEDIAN or one.p95 > P95]
    if bad:
        limits = f"median at most {MEDIAN:.0%}, 95th percentile {P95:.0%}"
        print(f"the choice is not good enough for {', '.join(bad)}: {limits}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
