"""Layout, charts, Markdown, JUnit and annotations, each by itself."""

import random
import time
from itertools import pairwise
from xml.etree import ElementTree

import onnx

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options, lowering
from onnxfuse.reporting.annotations import annotations
from onnxfuse.reporting.charts import LETTER, WIDTH, Bar, Spot, bars, histogram, roofline
from onnxfuse.reporting.checks import Check, checks
from onnxfuse.reporting.graph import graph_of
from onnxfuse.reporting.graph_drawing import GAP, layout
from onnxfuse.reporting.junit import junit
from onnxfuse.reporting.markdown import ROWS, markdown
from onnxfuse.reporting.page import page
from tests.support.precision import model_of

NASTY = 'a<b>&"c"|d`e`\x00\x1b]]>\n::error::% ,'


def random_graph(nodes: int, seed: int) -> list[tuple[int, int]]:
    """Return edges of a deep graph with branches, joins, and some very long edges."""
    rng = random.Random(seed)
    edges = {(max(0, i - rng.choice((1, 1, 1, 2, 3, 8))), i) for i in range(1, nodes)}
    edges |= {(rng.randrange(i), i) for i in range(1, nodes) if rng.random() < 0.2}
    return sorted(edges, key=lambda e: e[1])


def test_nothing_overlaps_and_every_edge_goes_down() -> None:
    """The two laws of a layered drawing; lines begin and end at their nodes."""
    for seed in range(20):
        edges = random_graph(60, seed)
        widths = [random.Random(seed + i).uniform(30, 200) for i in range(60)]
        drawn = layout(widths, edges)
        for (start, end), line in zip(edges, drawn.lines, strict=True):
            assert drawn.places[start][1] < drawn.places[end][1]
            assert (line[0], line[-1]) == (drawn.places[start], drawn.places[end])
        rows: dict[float, list[int]] = {}
        for node, (_, y) in enumerate(drawn.places):
            rows.setdefault(y, []).append(node)
        for row in rows.values():
            row.sort(key=lambda n: drawn.places[n][0])
            for left, right in pairwise(row):
                room = drawn.places[right][0] - drawn.places[left][0] - (widths[left] + widths[right]) / 2
                assert room >= GAP - 1e-6
        assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in drawn.places)


def test_a_chain_is_a_straight_line() -> None:
    """All in one column."""
    drawn = layout([50.0] * 9, [(i, i + 1) for i in range(8)])
    assert len({x for x, _ in drawn.places}) == 1


def test_an_empty_graph_has_no_size() -> None:
    """Nothing to draw is no error."""
    assert (layout([], []).places, layout([], []).width) == ((), 0.0)


def test_two_thousand_nodes_are_laid_out_in_a_second() -> None:
    """A page is written while a person waits; measured: 0.2 s. Of the processor: other tests run beside this one."""
    edges = random_graph(2000, 1)
    start = time.process_time()
    layout([80.0] * 2000, edges)
    assert time.process_time() - start < 1.0


def test_the_graph_of_a_model_has_its_ends_and_no_constants() -> None:
    """Inputs and outputs are nodes; weights and Constant nodes are not."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}>
    { [c] k = Constant <value = float {2.0}> () [a] h = Add (x, w) [m] y = Mul (h, k) }"""
    graph = graph_of(onnx.parser.parse_model(text))
    assert [(n["op"], n["name"]) for n in graph["nodes"]] == [
        ("input", "x"), ("Add", "a"), ("Mul", "m"), ("output", "y"),
    ]  # fmt: skip
    assert graph["edges"] == [[0, 1], [1, 2], [2, 3]]
    assert graph["nodes"][1]["outputs"] == ["h: float[2,3]"]


def test_charts_are_well_formed_whatever_the_names() -> None:
    """Names are escaped; values that are not finite fill the bar."""
    charts = [
        bars([Bar("a<b>&c", 1.5, "<i>"), Bar("b", float("inf"), "inf", "bad"), Bar("c", 0.0, "0")], limit=1.0),
        bars([]),
        histogram([("0", 1000000), ("1", 3), ("2-3", 0)]),
        histogram([]),
        roofline([Spot("a<b", 50.0, 1e12, "good"), Spot("c", 0.01, 1e9, "")], 4e12, 9e14),
    ]
    for chart in charts:
        ElementTree.fromstring(chart)
    assert chart.count("<circle") == 2


def test_what_stands_in_a_chart_stands_inside_it_and_beside_its_neighbours() -> None:
    """The longest bar's text ends before the edge does; the labels of two columns do not touch."""
    long = "6543 times the error allowed, and more than that"
    svg = ElementTree.fromstring(bars([Bar("y", 10.0, long), Bar("z", 1.0, "1")]))
    behind = next(t for t in svg.iter("text") if t.text == long)
    assert float(behind.attrib["x"]) + len(long) * LETTER <= WIDTH + 6
    columns = ElementTree.fromstring(histogram([("257-1024", 1), ("1025-65536", 2), (">=65537", 3)]))
    labels = [(float(t.attrib["x"]), len(t.text or "")) for t in columns.iter("text") if "-" in (t.text or "")]
    (left, few), (right, many) = labels
    assert right - left >= (few + many) / 2 * LETTER


def test_what_guard_took_back_and_what_bisect_found_are_told_everywhere() -> None:
    """Beside the page in Markdown and JUnit: a check that holds for what was mended, one that does not for a fault."""
    undone = {"rule": "linear", "op": "AddTanh_1", "node": "t0", "nodes": ["Add a0"], "fault": "error 2, allowed 1"}
    optimized = {"source": "in.onnx", "nodes": {"before": 5, "after": 4}, "fused_nodes": 1, "distinct_kernels": 1,
                 "seconds": 0.1, "not_met": [], "rules": {"linear": 1},
                 "guard": {"checked": 7, "undone": [undone], "left_out": []}}  # fmt: skip
    text = markdown("optimize", optimized)
    assert "AddTanh\\_1" in text
    assert [(c.name, c.ok, c.text) for c in checks("optimize", optimized)][1:] == [
        ("guard", True, "7 windows checked, 1 reverted")
    ]
    row = {"output": "y", "error": 2.0, "budget": 1.0, "verdict": "mismatch", "fault": "error 2, allowed 1"}
    verified = {
        "outputs": [row],
        "problems": [],
        "seconds": 2.5,
        "bisection": {"text": "fused op AddTanh_1 of rule linear"},
    }
    assert [(c.name, c.ok, c.text) for c in checks("verify", verified)] == [
        ("output y", False, "error 2, allowed 1"),
        ("bisect", False, "fused op AddTanh_1 of rule linear"),
    ]


def test_what_lower_precision_left_is_told_in_every_report() -> None:
    """How near the outputs are, and each node that stays, with the reason; and what else is to be known of it."""
    text = "g (float[2,8] x) => (float[2,8] y) { [up] b = Sin(x) [root] a = Abs(b) [out] y = Cos(a) }"
    asked = Options(precision=lowering("float16", keep_fp32=("root",)))
    facts = optimize(model_of(text), asked).as_dict("in.onnx", "out.onnx")
    facts["notes"].append("a <note>")
    html = page("optimize", facts, {}, "onnxfuse optimize", {})
    assert "Lower precision</h2><p>float16: relative RMS error" in html
    assert "<td>Abs</td><td>root</td><td>float32</td><td>--keep-fp32 root says so</td>" in html
    assert "<p>note: a &lt;note&gt;</p>" in html
    text = markdown("optimize", facts)
    assert "| float16: relative RMS error" in text
    assert "| Abs | root | float32 | --keep-fp32 root says so |" in text
    assert "a \\<note\\>" in text
    assert "Lower precision" not in markdown("optimize", {k: v for k, v in facts.items() if k != "precision"})


def test_the_times_of_junit_add_up() -> None:
    """A suite takes what the command took, however many promises it holds."""
    row = {"output": "y", "error": 1.0, "budget": 2.0, "verdict": "ok", "fault": ""}
    verified = {"outputs": [row, {**row, "output": "z"}], "problems": [], "seconds": 2.5}
    blocks = [{"dimensions": {"n": n}, "speedup": 2.0, "verdict": "2.00x over default"} for n in (1, 2)]
    benched = {"blocks": blocks, "seconds": 3.0}
    for command, facts, seconds in (("verify", verified, "2.500"), ("bench", benched, "3.000")):
        suite = ElementTree.fromstring(junit(checks(command, facts)).encode())[0]
        assert suite.attrib["time"] == seconds


def test_junit_is_xml_whatever_the_text() -> None:
    """What XML cannot hold becomes a question mark."""
    root = ElementTree.fromstring(junit([Check(NASTY, NASTY, False, NASTY), Check("b", "c", True, NASTY)]).encode())
    (failure,) = root.findall(".//failure")
    assert failure.text is not None
    assert failure.text.startswith('a<b>&"c"|d`e`??]]>')


def test_an_annotation_is_one_line_whatever_the_text() -> None:
    """No text can end the command or begin another."""
    (line,) = annotations([Check("g", NASTY, False, NASTY, file="a,b.toml", line=3), Check("g", "fine", True, "")])
    assert "\n" not in line
    assert line.startswith("::error file=a%2Cb.toml,line=3,title=onnxfuse g%3A a<b>")
    assert line.endswith("%0A::error::%25 ,")


def test_markdown_keeps_to_its_tables_and_below_a_mebibyte() -> None:
    """Names cannot break a row; a model with ten thousand outputs gets the first rows and a count."""
    row = {"output": NASTY * 20, "dtype": "float32", "error": 1.0, "budget": 2.0, "max_abs": 1.0, "max_rel": "inf",
           "verdict": "ok", "fault": ""}  # fmt: skip
    facts = {"ok": False, "summary": "x", "seconds": 1.0, "outputs": [row] * 10_000, "problems": [NASTY] * 10_000}
    text = markdown("verify", facts)
    assert len(text.encode()) < 2**20
    assert f"{10_000 - ROWS} more rows" in text
    table = [line for line in text.splitlines() if line.startswith("| a")]
    assert table
    assert {line.replace("\\|", "").count("|") for line in table} == {10}


def test_names_in_a_roofline_do_not_lie_on_each_other() -> None:
    """Before and after at nearly one place have a line each; the spots stay where they are."""
    same = [Spot("before", 10.0, 1e12, ""), Spot("after", 10.0, 1.01e12, "good")]
    svg = ElementTree.fromstring(roofline(same, 4e12, 9e14))
    rows = {t.text: float(t.attrib["y"]) for t in svg.iter("text") if t.text in ("before", "after")}
    heights = [float(c.attrib["cy"]) for c in svg.iter("circle")]
    assert abs(heights[0] - heights[1]) < 2
    assert rows["before"] - rows["after"] >= 12
