"""`python -m tests.support.verification.alarms`: optimize and verify every sample model, in both types: all must pass.

`--seeds 20` is the whole of it; `--provider cuda` on a GPU. `--size layers=2` makes every model that has such a size
smaller; `--model` and `--dtype` choose. Each row runs in a process of its own, `--jobs` of them at a time; `--log`
keeps what was found, row by row, and lets a later call begin with the rows that it has no verdict of.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import models
from onnxfuse.passes import pipeline
from onnxfuse.support.errors import DeviceError
from onnxfuse.verification import VerifyReport, verify

DTYPES = ("float32", "float16")
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
SHAPES = {name: {"batch": (1, 2)} for name in ("resnet50", "efficientnet_b0", "convnext_tiny", "vit_b_16")}
"""Images of 224 x 224 by the thousand operations: small batches, that a case takes a second and not a minute."""
LAST_WORDS = 200
"""Letters of what a process said last, where it ended without a verdict."""


@dataclass(frozen=True)
class Row:
    """One sample model in one type on one provider."""

    model: str
    dtype: str
    provider: str
    verdict: str
    """`passes`, the first line of the report, or why there is none."""
    judged: bool
    """Whether a verification ended: what is `not here` or crashed is no verdict."""
    ok: bool
    cases: int = 0
    used: float = 0.0
    """The largest part of its budget that an output took."""
    kernels: int = 0
    """Fused ops that ran as kernels."""
    seconds: float = 0.0

    def __str__(self) -> str:
        numbers = (str(self.cases), f"{self.used:.0%}", str(self.kernels)) if self.judged else ("", "", "")
        return f"| {' | '.join((self.model, self.dtype, self.verdict, *numbers, f'{self.seconds:.0f}'))} |"


def crash_report(name: str, dtype: str, seeds: range, provider: str, sizes: dict[str, int]) -> VerifyReport:
    """Return the verification of a sample model against its optimized self; `sizes` that it does not have are left."""
    own = {size: n for size, n in sizes.items() if size in models.ARCHITECTURES[name].__dataclass_fields__}
    plain, fused = (models.build(name, dtype=dtype, **own) for _ in range(2))
    pipeline.run(fused)
    return verify(plain, fused, seeds=seeds, providers=PROVIDERS[provider], shapes=SHAPES.get(name))


def row_of(name: str, dtype: str, seeds: range, provider: str, sizes: dict[str, int]) -> Row:
    """Return the row of one model, found in this process."""
    began = time.perf_counter()
    try:
        report = crash_report(name, dtype, seeds, provider, sizes)
    except DeviceError as error:  # no GPU, or the wheel of the trained model is not installed
        return Row(name, dtype, provider, f"not here: {error}", judged=False, ok=True)
    return Row(
        name, dtype, provider, "passes" if report.ok else report.summary, judged=True, ok=report.ok,
        cases=len(report.cases), used=max(row.severity for row in report.outputs),
        kernels=sum(k.runs_as == "kernel" for k in report.kernels), seconds=time.perf_counter() - began,
    )  # fmt: skip


def in_a_process(name: str, dtype: str, seeds: int, provider: str, sizes: Sequence[str]) -> Row:
    """Return the row of one model, found in a process of its own: a crash there is a row that failed here."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.support.verification.alarms", "--json", "--seeds", str(seeds)]
    command += ["--provider", provider, "--model", name, "--dtype", dtype, *(f"--size={size}" for size in sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return Row(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        words = (done.stderr.strip().splitlines() or ["nothing"])[-1][:LAST_WORDS]
        verdict = f"ended with {done.returncode}, saying: {words}"
        return Row(name, dtype, provider, verdict, judged=False, ok=False, seconds=time.perf_counter() - began)


def longest_unseen_first(rows: Iterable[tuple[str, str]], seen: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the (model, type) pairs in the order to run them: those without a verdict in `seen`, then the oldest."""
    last = {(row.model, row.dtype): n for n, row in enumerate(seen) if row.judged}
    return sorted(rows, key=lambda row: last.get(row, -1))


@click.command(help=__doc__)
@click.option("--seeds", default=20, show_default=True)
@click.option("--provider", type=click.Choice(list(PROVIDERS)), default="cpu", show_default=True)
@click.option("--size", "sizes", metavar="NAME=N", multiple=True)
@click.option("--model", "chosen", type=click.Choice(list(models.ARCHITECTURES)), multiple=True)
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, default=DTYPES)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Rows at a time.")
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), help="File of rows, a JSON object per line.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON objects, found in this very process.")
def main(
    seeds: int,
    provider: str,
    sizes: tuple[str, ...],
    chosen: tuple[str, ...],
    dtypes: tuple[str, ...],
    jobs: int,
    log: Path | None,
    as_json: bool,
) -> None:
    """Print a row per model and type as they end; leave with 1 if any of them failed."""
    wanted = [(name, dtype) for name in chosen or models.ARCHITECTURES for dtype in dtypes]
    if as_json:
        smaller = {size: int(n) for size, _, n in (one.partition("=") for one in sizes)}
        for name, dtype in wanted:
            print(json.dumps(asdict(row_of(name, dtype, range(seeds), provider, smaller))), flush=True)
        return
    seen = [Row(**json.loads(line)) for line in log.read_text().splitlines()] if log and log.exists() else []
    order = longest_unseen_first(wanted, [row for row in seen if row.provider == provider])
    print(f"| model | type | {seeds} seeds on {provider} | cases | budget used | kernels | s |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(in_a_process, *row, seeds, provider, sizes) for row in order]):
            row = ended.result()
            failed += not row.ok
            print(row, flush=True)
            if log is not None:
                with log.open("a") as stream:
                    stream.write(json.dumps(asdict(row)) + "\n")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
