"""The page that the survey writes."""

from typing import Any

from models.survey.report import kind, written


def row(subject: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"subject": subject, "family": subject.replace(":", " "), "way": "trace 17 float16 dynamic", "stage": "gpu",
            "verdict": verdict, "step": "", "error": ""} | more  # fmt: skip


def test_what_is_slower_and_what_failed_is_on_the_page() -> None:
    """Counts, the failures of one cause in one line, rows below ONNX Runtime's best, and each family."""
    timed = {"best": "NHWC", "best_us": 90.0, "fused_us": 100.0, "over": 0.9, "fused": 3}
    page = written([
        row("timm:a", "right", **timed), row("timm:b", "right", **timed | {"over": 2.0}),
        row("timm:c", "failed", step="planned", error="op_1: no kernel for input shapes 2x3"),
        row("timm:d", "failed", step="planned", error="op_2: no kernel for input shapes 4x5"),
        row("timm:e", "no export", step="export", error="ValueError: | in it"),
    ])  # fmt: skip
    assert "5 exports of 5 models: 2 right, 2 failed, 1 no export." in page
    assert "2 were timed: 1.34x ONNX Runtime's best in the geometric mean, 1 slower than it." in page
    assert "| timm:a | trace 17 float16 dynamic | 90.0 (NHWC) | 100.0 | 0.90x |" in page
    assert "| 2 | planned | timm:c, trace 17 float16 dynamic | op_1: no kernel for input shapes 2x3 |" in page
    assert "ValueError: \\| in it" in page
    assert "| timm | trace 17 float16 | 4 of 5 | 2 |" in page
    assert "| timm b | 1 | 1 | 3-3 | 2.00x-2.00x |" in page
    assert "compiled" not in page
    assert "batch 1" not in page
    without_gpu = [row("timm:a", "right", compiled=5) | {"stage": "cpu"}, row("timm:b", "right") | {"stage": "cpu"}]
    assert "\n5 kernels were compiled;" in written(without_gpu)


def test_each_run_has_its_section() -> None:
    """With its command, and what it took of what exporters do by default; both are on one page."""
    mine, theirs = "`python -m models.survey --first`, 2026-11-29, commit abc, 2 H200", "`python -m models.survey`"
    page = written([
        row("timm:a", "right", run=theirs), row("timm:a", "right", run=mine, way="dynamo default float32 static"),
        row("timm:b", "failed", run=mine, way="dynamo default float32 static", step="planned", error="no"),
    ])  # fmt: skip
    other, first = page.split("## Stage gpu, as exporters write them by default")
    assert "## Stage gpu\n\n`python -m models.survey`.\n\n1 exports of 1 models: 1 right." in other
    assert first.startswith(f"\n\n{mine}.\n\n2 exports of 2 models: 1 right, 1 failed.")


def test_one_alone_is_told_beside_the_larger_batch() -> None:
    timed = {"best": "NHWC", "best_us": 90.0, "fused_us": 45.0, "over": 2.0, "fused": 3}
    slow = {"best": "default", "best_us": 9.0, "fused_us": 10.0, "over": 0.9}
    page = written([row("timm:a", "right", **timed, alone=slow), row("timm:b", "right", **timed)])
    assert "2 were timed: 2.00x ONNX Runtime's best in the geometric mean, 0 slower than it." in page
    assert "1 of them at batch 1, too: 0.90x, 1 slower." in page
    assert "| timm:a | trace 17 float16 dynamic, batch 1 | 9.0 (default) | 10.0 | 0.90x |" in page


def test_torch_compile_stands_beside_it_where_it_was_timed() -> None:
    """The better layout counts; a row that torch does not compile is none of the mean."""
    timed = {"best": "NHWC", "best_us": 90.0, "fused_us": 100.0, "over": 0.9, "fused": 3}
    page = written([
        row("timm:a", "right", **timed, compiled_us={"compile": 400.0, "compile, channels_last": 200.0}),
        row("timm:b", "right", **timed, compiled_us={"compile": 50.0}),
        row("timm:c", "right", **timed, not_compiled="no"),
    ])  # fmt: skip
    assert "2 of them were timed under torch.compile, too" in page
    assert "1.00x it in the geometric mean, 1 slower than it." in page


def test_messages_of_one_cause_are_one_kind() -> None:
    """Names, numbers and shapes do not part them; words do."""
    assert kind("gemm_1: no kernel for 2x3") == kind("gemm_77: no kernel for 9x9")
    assert kind("no kernel for it") != kind("no plan for it")
