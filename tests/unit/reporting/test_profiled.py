"""The sections of a profile: traffic, times and kernels, of one model or of two."""

from typing import Any

from onnxfuse.reporting.profiled import CHART, parts, time_rows, traffic_rows

ROW = {"count": 2, "after": "Relu", "before": "", "bytes_before": 2_000_000, "bytes_after": 50_000, "flops": 3e9}
KIND = {"kind": "Relu", "us": 5.0, "count": 2, "bytes_per_second": 4e9}
KERNEL = {
    "name": "k<int>", "kinds": ["Relu"], "count": 1, "us": 4.0, "share": 0.5, "gap_us": 1.0, "bytes": None,
    "bytes_per_second": None,
}  # fmt: skip
RUN = {"launches": 2, "span": 9.0, "busy": 6.0, "idle": 3.0}
SIDE = {"us": 10.0, "kinds": [KIND], "kernels": None, "run": None, "note": ""}


def profile(**more: Any) -> dict[str, Any]:
    """Return the facts of a profile of two models without times."""
    return {
        "rows": [ROW], "removed": {"count": 1, "of": 3, "bytes": 1_000_000}, "before": SIDE, "after": SIDE,
        "untimed": "", "provider": "", **more,
    }  # fmt: skip


def sections(**more: Any) -> dict[str, str]:
    """Return the sections by name."""
    return dict(parts(profile(**more)))


def test_traffic_of_two_models_has_both_columns() -> None:
    """Bytes in megabytes, small ones with more digits; an absent count or work is empty."""
    gone = {"count": 0, "after": "", "before": "Neg", "bytes_before": 0, "bytes_after": 0, "flops": 0}
    titles, rows = traffic_rows(profile(rows=[ROW, gone]))
    assert titles == ("count", "node", "in place of", "MB before", "MB after", "GFLOP")
    assert rows == [(2, "Relu", "", "2.0", "0.050", "3.00"), ("", "nothing", "Neg", "0", "0", "")]
    titles, rows = traffic_rows(profile(after=None))
    assert titles == ("count", "node", "MB", "GFLOP")
    assert rows == [(2, "Relu", "0.050", "3.00")]


def test_times_have_share_and_bandwidth() -> None:
    """Of the whole; a model of no time has no share to speak of."""
    assert time_rows(SIDE) == [("Relu", "5.0", 2, "50%", "4")]
    assert time_rows({**SIDE, "us": None, "kinds": [{**KIND, "us": 0.0, "bytes_per_second": None}]}) == [
        ("Relu", "0.0", 2, "0%", "")
    ]


def test_charts_show_the_first_rows_that_move_anything() -> None:
    """Two bars for two models; the table has every row."""
    still = {**ROW, "after": "View", "bytes_before": 0, "bytes_after": 0}
    text = sections(rows=[still, *[ROW] * (CHART + 1)])["Device memory"]
    assert text.count("<rect") == 2 * CHART
    assert text.count("<tr>") == CHART + 3
    assert "1 of 3 intermediate values no longer exists: 1.0 MB." in text
    single = sections(after=None, rows=[ROW, {**ROW, "after": "", "before": "Neg"}])["Device memory"]
    assert single.count("<rect") == 2
    assert "intermediate" not in single
    assert "nothing, in place of Neg" in single
    assert "MB before" not in single


def test_only_sections_with_content_are_there() -> None:
    """Times are, with a provider, or why there are none."""
    assert list(sections()) == ["Device memory"]
    assert sections(untimed="no <GPU>", provider="CUDA")["Times"] == "<p>not timed: no &lt;GPU&gt;</p>"
    both = sections(provider="CPU")["Times"]
    assert "<h3>before: 10.0 us</h3>" in both
    assert "<h3>after: 10.0 us</h3>" in both
    assert "good" in both
    single = sections(provider="CPU", after=None)["Times"]
    assert "<h3>10.0 us</h3>" in single
    assert "good" not in single


def test_kernels_are_a_section_for_each_model() -> None:
    """Whose name is that of the model where there are two."""
    traced = {**SIDE, "kernels": [KERNEL, {**KERNEL, "bytes": 2_000_000, "bytes_per_second": 5e11}]}
    found = sections(provider="CUDA", before=traced, after={**traced, "run": RUN, "note": "a <note>"})
    assert list(found) == ["Device memory", "Times", "Kernels before", "Kernels after"]
    assert "from the first kernel" not in found["Kernels before"]
    assert (
        "2 launches; 9.0 us from the first kernel to the last, 6.0 us at work, 3.0 us in gaps" in found["Kernels after"]
    )
    assert found["Kernels after"].endswith("<p>a &lt;note&gt;</p>")
    assert "<td>500</td>" in found["Kernels before"].replace(' class="number"', "")
    assert list(sections(provider="CUDA", before=traced, after=None)) == ["Device memory", "Times", "Kernels"]
