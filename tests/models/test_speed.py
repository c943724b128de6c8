"""`python -m models.speed`: what it adds to `onnxfuse bench`, on the CPU."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from models.speed import add_row, compare


def test_the_row_of_a_model() -> None:
    """One row: the settings of the original, the fused model's time; no launches without a GPU."""
    report, kernels = compare("mlp", "float32", 4, 1, providers=["CPUExecutionProvider"])
    assert kernels == [None, None]
    table = Table(*"abcdefg")
    add_row(table, "mlp", report, kernels)
    shown = StringIO()
    Console(width=200, file=shown).print(table)
    text = shown.getvalue()
    assert f"default {report.blocks[0].rows[0].timing.p50:.0f}" in text
    assert f"{report.speedup:.2f}x" in text
    assert "? -> ?" in text
