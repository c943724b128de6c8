"""Time models before and after fusion on the GPU: `python -m models.speed bert_base vit_b_16 resnet50`.

The original runs at each of ONNX Runtime's settings that make a difference, the fused model with a CUDA graph; all with
IO binding, interleaved in one process, on the same signed random inputs. Figures are medians in microseconds per run.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from onnxfuse.model import io

ROUNDS, RUNS = 10, 20
"""Each setting is timed RUNS times in each of ROUNDS interleaved rounds."""

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "graph": {"enable_cuda_graph": "1"},
    "nhwc": {"prefer_nhwc": "1"},
    "nhwc + graph": {"prefer_nhwc": "1", "enable_cuda_graph": "1"},
    "nhwc + conv bias + graph": {"prefer_nhwc": "1", "fuse_conv_bias": "1", "enable_cuda_graph": "1"},
}
"""The original model's provider options; the NHWC ones are tried where there are convolutions."""


@dataclass
class Bound:
    """A session with its inputs and outputs bound to the device."""

    session: Any
    binding: Any
    times: list[float]

    def run(self) -> None:
        """Run once; ONNX Runtime waits for the device."""
        self.session.run_with_iobinding(self.binding)


def bind(session: Any, feeds: dict[str, np.ndarray]) -> Bound:
    """Return `session` with `feeds` on the device, and outputs that stay there."""
    import onnxruntime

    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for output, array in zip(session.get_outputs(), _shapes(session, feeds), strict=True):
        binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    return Bound(session, binding, [])


def _shapes(session: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    sizes = {d: n for i in session.get_inputs() for d, n in zip(i.shape, feeds[i.name].shape, strict=True)}
    types = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
    return [
        np.empty([d if isinstance(d, int) else sizes[d] for d in o.shape], types[o.type]) for o in session.get_outputs()
    ]


def originals(path: Path, feeds: dict[str, np.ndarray], convolutions: bool) -> dict[str, Bound]:
    """Return the original model's sessions by setting; a setting that ONNX Runtime refuses is left out with a note."""
    import onnxruntime

    found = {}
    for name, options in SETTINGS.items():
        if "nhwc" in name and not convolutions:
            continue
        try:
            session = onnxruntime.InferenceSession(str(path), providers=[("CUDAExecutionProvider", options)])
            bound = bind(session, feeds)
            bound.run()
        except (RuntimeError, onnxruntime.capi.onnxruntime_pybind11_state.Fail) as error:
            click.echo(f"{path.stem}: ONNX Runtime refuses '{name}': {str(error).splitlines()[0][:160]}", err=True)
            continue
        found[name] = bound
    return found


def time_interleaved(bounds: dict[str, Bound]) -> None:
    """Fill the times of all sessions, in microseconds."""
    for bound in bounds.values():
        for _ in range(10):
            bound.run()
    for _ in range(ROUNDS):
        for bound in bounds.values():
            for _ in range(RUNS):
                start = time.perf_counter()
                bound.run()
                bound.times.append((time.perf_counter() - start) * 1e6)


def launches(run: Callable[[], None]) -> dict[str, tuple[int, float]] | None:
    """Return what one call puts on the device as {kernel: (launches, microseconds)}; None without torch's profiler."""
    try:
        from torch.profiler import ProfilerActivity, profile
    except ImportError:
        return None
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    return {e.key: (e.count, e.self_device_time_total) for e in profiler.key_averages() if e.self_device_time_total > 0}


def compare(name: str, dtype: str, batch: int, sequence: int, kernels: int) -> dict[str, Any]:
    """Time one model; return its row of the table. `kernels`: how many of the slowest kernels to print."""
    model = models.build(name, dtype=dtype, batch=batch, sequence=sequence)
    feeds = {
        k: np.asarray(v) for k, v in models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path, fused_path = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.fused.onnx"
        io.save(model, path)
        convolutions = sum(n.op_type == "Conv" for n in model.graph.node) > 1
        onnx.save(onnxfuse.optimize(model), fused_path)
        bounds = originals(path, feeds, convolutions)
        cuda_graph = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]
        fused = onnxfuse.session(fused_path, providers=cuda_graph)
        bodies = [f"{p.op}: {p.reason}" for p in fused.fused if p.runs_as != "kernel"]
        bounds["fused"] = bind(fused, feeds)
        time_interleaved(bounds)
        plain = onnxruntime_session(path)
        before = launches(bind(plain, feeds).run)
        after = launches(bind(onnxfuse.session(fused_path, providers=["CUDAExecutionProvider"]), feeds).run)
    if kernels and before is not None and after is not None:
        for title, found in (("before", before), ("after", after)):
            click.echo(f"--- {name} {title}: {sum(c for c, _ in found.values())} launches")
            for key, (count, spent) in sorted(found.items(), key=lambda item: -item[1][1])[:kernels]:
                click.echo(f"{spent:8.0f} us {count:4d} x {key[:120]}")
    medians = {k: statistics.median(b.times) for k, b in bounds.items()}
    best = min((k for k in medians if k != "fused"), key=lambda k: medians[k])
    spread = np.percentile(bounds["fused"].times, [10, 90])
    return {
        "model": f"{name} {dtype} {batch}" + (f"x{sequence}" if name in ("bert_base", "minilm") else ""),
        "medians": medians,
        "best": best,
        "spread": spread,
        "launches": (None if f is None else sum(c for c, _ in f.values()) for f in (before, after)),
        "bodies": bodies,
    }


def onnxruntime_session(path: Path) -> Any:
    """Return the original model's session at ONNX Runtime's default settings."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CUDAExecutionProvider"])


@click.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(models.ARCHITECTURES)))
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
@click.option("--kernels", default=0, help="Print so many of the slowest kernels before and after.")
def main(names: tuple[str, ...], dtype: str, batch: int, sequence: int, kernels: int) -> None:
    """Time models before and after fusion on the GPU and print a table."""
    rows = [compare(name, dtype, batch, sequence, kernels) for name in names]
    table = Table("model", "ORT, us", "fused, us", "10-90%", "over best", "over graph", "launches", box=None)
    for row in rows:
        medians, best = row["medians"], row["best"]
        settings = ", ".join(f"{k} {v:.0f}" for k, v in medians.items() if k != "fused")
        table.add_row(
            row["model"], settings, f"{medians['fused']:.0f}", "-".join(f"{p:.0f}" for p in row["spread"]),
            f"{medians[best] / medians['fused']:.2f}x", f"{medians.get('graph', np.nan) / medians['fused']:.2f}x",
            " -> ".join(str(n) for n in row["launches"]),
        )  # fmt: skip
    Console(width=170).print(table)
    for row in rows:
        for line in row["bodies"]:
            click.echo(f"{row['model']}: runs as its body: {line}")


if __name__ == "__main__":
    main()
