"""Charts are well formed, and nothing in them overlaps."""

from xml.etree import ElementTree

from onnxfuse.reporting.charts import LETTER, WIDTH, Bar, Spot, bars, histogram, roofline


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


def test_names_in_a_roofline_do_not_lie_on_each_other() -> None:
    """Before and after at nearly one place have a line each; the spots stay where they are."""
    same = [Spot("before", 10.0, 1e12, ""), Spot("after", 10.0, 1.01e12, "good")]
    svg = ElementTree.fromstring(roofline(same, 4e12, 9e14))
    rows = {t.text: float(t.attrib["y"]) for t in svg.iter("text") if t.text in ("before", "after")}
    heights = [float(c.attrib["cy"]) for c in svg.iter("circle")]
    assert abs(heights[0] - heights[1]) < 2
    assert rows["before"] - rows["after"] >= 12
