"""Measures the costs of this machine's GPU and writes its file:

    python -m tools.calibrate --arch sm_90a --out onnxfuse/cuda/costs/sm_90a.toml

Needs the GPU, CuPy and torch. Sweeps the tiles of the matrix products, fits their costs, and judges every template's
own choice on problems that no cost was fitted to: 200 products, and 60 each of products of few rows, attentions,
convolutions, depthwise convolutions and memory-bound ops. The regret is the time of the choice over that of the fastest
variant. On an H200 with 16 cores 5 minutes, a third of them NVRTC.

What was measured is kept in `--times`, a problem a line as it comes: the same command goes on where it stopped, after
an error or after `--seconds`. Parts may be measured at once, on several GPUs of a kind, and fitted together; fitting
needs no GPU:

    CUDA_VISIBLE_DEVICES=1 python -m tools.calibrate --arch sm_90a --part attention --times attention.jsonl
    python -m tools.calibrate --arch sm_90a --fit gemm.jsonl attention.jsonl --out onnxfuse/cuda/costs/sm_90a.toml

Exits with 1 if the median regret of a kind exceeds 2%, or its 95th percentile 10%, or if problems failed or remain;
with 3 if a kernel broke the GPU's context, so that the same command must go on in a new process.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import SUPPORTED
from tools.calibrate import times
from tools.calibrate.calibration import PARTS, DeadGpuError, calibrate, requests

MEDIAN, P95 = 0.02, 0.10
"""Regret up to which the costs are good."""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", required=True, choices=[a.name for a in SUPPORTED], help="the GPU's architecture")
    parser.add_argument("--out", type=Path, help="the cost file to write; without it nothing is fitted")
    parser.add_argument("--part", action="append", choices=[*PARTS], help="measure only this; may be repeated")
    parser.add_argument("--times", type=Path, help="where measured times are kept (default: ARCH.times.jsonl)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further problem after so long")
    parser.add_argument("--quick", action="store_true", help="take a tenth of the problems held out")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="TIMES", help="measure nothing, fit to these times")
    options = parser.parse_args()
    if options.fit:
        return _fit(options.arch, options.fit, options.out)
    path = options.times or Path(f"{options.arch}.times.jsonl")
    try:
        remaining = _measure(options.arch, options.part or [*PARTS], path, options.seconds, options.quick)
    except DeadGpuError as died:
        _say(f"{died}")
        return 3
    if remaining:
        _say(f"{remaining} problems remain: the same command goes on")
    return max(_fit(options.arch, [path], options.out), int(remaining > 0))


def _measure(arch: str, parts: Sequence[str], path: Path, seconds: float, quick: bool) -> int:
    """Measure parts, and return how many problems remain."""
    from tools.calibrate import on_gpu  # needs CuPy and torch

    found = cuda.arch_of(0)
    if found.name != arch:
        raise SystemExit(f"this machine's GPU is {found.name}, not {arch}")
    card = on_gpu.card(found)
    _say(f"{card}")
    wanted = [request for part in parts for request in requests(found, part, 0.1 if quick else 1.0)]
    return on_gpu.measure(wanted, found, times.Log(path, arch, card), _say, seconds)


def _fit(name: str, paths: Sequence[Path], out: Path | None) -> int:
    """Fit and judge costs by measured times; write them to `out`, if it is named."""
    record = times.read(paths)
    if record.arch != name:
        raise SystemExit(f"the times are of {record.arch}, not {name}")
    arch = next(a for a in SUPPORTED if a.name == name)
    found = calibrate(replace(arch, sm_count=record.card.multiprocessors), record.card, record.times, progress=_say)
    if out is not None:
        out.write_text(found.text, encoding="utf-8")
        _say(f"wrote {out}")
    for problem, reason in record.failures.items():
        _say(f"not measured: {problem}: {reason}")
    bad = [kind for kind, one in found.regrets.items() if one.median > MEDIAN or one.p95 > P95]
    if bad:
        _say(f"not good enough: {', '.join(bad)}; median at most {MEDIAN:.0%}, 95th percentile at most {P95:.0%}")
    return 1 if bad or record.failures else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
