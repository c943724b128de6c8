"""`python -m tests.verification.alarms`: optimize and verify every sample model, float32 and float16: all must pass.

`--seeds 20` is the whole of it; `--provider cuda` on a GPU. `--size layers=2` makes every model that has such a size
smaller; `--model` and `--dtype` choose, so that several processes can share the work.
"""

import time

import click

import models
from onnxfuse.model.errors import DeviceError
from onnxfuse.rewrite import pipeline
from onnxfuse.verification import Report, verify

DTYPES = ("float32", "float16")
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
SHAPES = {name: {"batch": (1, 2)} for name in ("resnet50", "efficientnet_b0", "convnext_tiny", "vit_b_16")}
"""Images of 224 x 224 by the thousand operations: small batches, that a case takes a second and not a minute."""


def report_of(name: str, dtype: str, seeds: range, provider: str, sizes: dict[str, int]) -> Report:
    """Return the verification of a sample model against its optimized self; `sizes` that it does not have are left."""
    own = {size: n for size, n in sizes.items() if size in models.ARCHITECTURES[name].__dataclass_fields__}
    plain, fused = (models.build(name, dtype=dtype, **own) for _ in range(2))
    pipeline.run(fused)
    return verify(plain, fused, seeds=seeds, providers=PROVIDERS[provider], shapes=SHAPES.get(name))


@click.command(help=__doc__)
@click.option("--seeds", default=20, show_default=True)
@click.option("--provider", type=click.Choice(list(PROVIDERS)), default="cpu", show_default=True)
@click.option("--size", "sizes", metavar="NAME=N", multiple=True)
@click.option("--model", "chosen", type=click.Choice(list(models.ARCHITECTURES)), multiple=True)
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, default=DTYPES)
def main(seeds: int, provider: str, sizes: tuple[str, ...], chosen: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    """Print a row per model and type; leave with 1 if any of them failed."""
    failed, smaller = 0, {size: int(n) for size, _, n in (one.partition("=") for one in sizes)}
    print(f"| model | type | {seeds} seeds on {provider} | cases | budget used | s |\n|---|---|---|---|---|---|")
    for name in chosen or models.ARCHITECTURES:
        for dtype in dtypes:
            began = time.perf_counter()
            try:
                report = report_of(name, dtype, range(seeds), provider, smaller)
            except DeviceError as error:
                print(f"| {name} | {dtype} | not here: {error} | | | |", flush=True)
                continue
            failed += not report.ok
            used = max(row.severity for row in report.outputs)
            seconds = time.perf_counter() - began
            verdict = "passes" if report.ok else report.summary
            print(f"| {name} | {dtype} | {verdict} | {len(report.cases)} | {used:.0%} | {seconds:.0f} |", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
