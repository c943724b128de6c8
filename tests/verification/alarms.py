"""`python -m tests.verification.alarms`: optimize and verify every sample model, float32 and float16: all must pass.

`--seeds 20` is the whole of it; `--provider cuda` on a GPU. `--layers` cuts the transformers to so many.
"""

import time

import click

import models
from onnxfuse.model.errors import DeviceError
from onnxfuse.rewrite import pipeline
from onnxfuse.verification import Report, verify

PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
LAYERED = ("bert_base", "vit_b_16", "gpt2")
SHAPES = {name: {"batch": (1, 2)} for name in ("resnet50", "efficientnet_b0", "convnext_tiny", "vit_b_16")}
"""Images of 224 x 224 by the thousand operations: small batches, that a case takes a second and not a minute."""


def report_of(name: str, dtype: str, seeds: range, provider: str, layers: int | None) -> Report:
    """Return the verification of a sample model against its optimized self."""
    sizes = {"layers": layers} if layers is not None and name in LAYERED else {}
    plain, fused = (models.build(name, dtype=dtype, **sizes) for _ in range(2))
    pipeline.run(fused)
    return verify(plain, fused, seeds=seeds, providers=PROVIDERS[provider], shapes=SHAPES.get(name))


@click.command(help=__doc__)
@click.option("--seeds", default=20, show_default=True)
@click.option("--provider", type=click.Choice(list(PROVIDERS)), default="cpu", show_default=True)
@click.option("--layers", type=int)
@click.option("--model", "chosen", type=click.Choice(list(models.ARCHITECTURES)), multiple=True)
def main(seeds: int, provider: str, layers: int | None, chosen: tuple[str, ...]) -> None:
    """Print a row per model and type; leave with 1 if any of them failed."""
    failed = 0
    print(f"| model | type | {seeds} seeds on {provider} | cases | budget used | s |\n|---|---|---|---|---|---|")
    for name in chosen or models.ARCHITECTURES:
        for dtype in ("float32", "float16"):
            began = time.perf_counter()
            try:
                report = report_of(name, dtype, range(seeds), provider, layers)
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
