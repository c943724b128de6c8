"""The report as a person meets it: in headless Chromium, clicked through, without errors and requests."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxfuse
from onnxfuse.reporting import graph_of, page

READY = "body[data-ready]"


def layers(count: int) -> onnx.ModelProto:
    """Return a model of `count` nodes: layers of five, each with a residual."""
    nodes, last = [], "x"
    for i in range(count // 5):
        nodes += [f"m{i} = MatMul ({last}, w)", f"a{i} = Add (m{i}, b)", f"e{i} = Erf (a{i})", f"t{i} = Tanh (e{i})"]
        nodes.append(f"r{i} = Add (t{i}, {last})")
        last = f"r{i}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] {last})
    <float[3,3] w = {{1,0,0,0,1,0,0,0,1}}, float[3] b = {{1,2,3}}> {{ {" ".join(nodes)} }}"""
    return onnx.parser.parse_model(text)


OUTPUT = {"output": "y", "dtype": "float32", "error": 1e-6, "budget": 2e-6, "own": 1e-6, "max_abs": 1e-6,
          "max_rel": 1e-5, "cosine": 1.0,
          "verdict": "ok", "fault": "", "difference": {"ulps": {"0": 900, "1": 90, "2": 3}}}  # fmt: skip
ROWS = [
    {"model": name, "setting": setting, "p50": us, "p90": us + 1, "p99": us + 2, "min": us - 1}
    for name, setting, us in (
        ("original", "default", 40.0),
        ("original", "CUDA graph", 30.0),
        ("fused", "CUDA graph", 20.0),
    )
]
WORK = {"original": {"bytes": 4e7, "flops": 4e9}, "fused": {"bytes": 2e7, "flops": 4e9}}


def facts() -> dict[str, Any]:
    """Return what `ci` finds of one model, with everything that a page can show."""
    near = {"rule": "linear", "root": "MatMul m1", "node": "m1", "reason": "'w' is not a constant",
            "hint": "make it one", "telling": True, "fused_otherwise": False}  # fmt: skip
    return {
        "ok": False,
        "config": "onnxfuse.toml",
        "locked": False,
        "lock_state": "read",
        "lock": "onnxfuse.lock",
        "accept": "",
        "models": [
            {
                "name": "small", "line": 1, "error": None,
                "optimize": {"source": "in.onnx", "nodes": {"before": 50, "after": 20}, "fused_nodes": 10,
                             "distinct_kernels": 4, "seconds": 0.1, "rules": {"linear": 10}, "not_met": [],
                             "near": [near]},
                "verify": {"ok": True, "summary": "same", "seconds": 1.0,
                           "outputs": [OUTPUT], "problems": [], "cases": [{"note": ""}],
                           "provider": "CPU", "truth": {"kind": "float64", "how": "numpy"}},
                "bench": {"seconds": 1.0,
                          "blocks": [{"dimensions": {"batch": 8}, "speedup": 1.5, "verdict": "1.50x over CUDA graph",
                                      "rows": ROWS, "work": WORK}], "min_speedup": 2.0, "not_met": ["min_speedup 2"],
                          "ceilings": {"bytes_per_second": 4e12, "flops_per_second": 9e14}},
                "not_met": [], "regressed": ["applications of linear: 12 -> 10"], "why": {}, "next_steps": {},
                "unchecked": {},
                "changed": ["exported Tanh: 9 -> 10"],
            }
        ],
    }  # fmt: skip


def write(path: Path, model: onnx.ModelProto) -> Path:
    """Write the report on `model` to `path`."""
    graphs = {"small": {"before": graph_of(model), "after": graph_of(onnxfuse.optimize(model))}}
    path.write_text(page("ci", facts(), graphs, "onnxfuse ci", {"onnxfuse": "0.1.0"}), encoding="utf-8")
    return path


def opened(browser: Any, path: Path) -> tuple[Any, list[str]]:
    """Open a page; returns it, and a list that collects its errors and its requests to anywhere else."""
    tab, wrong = browser.new_page(viewport={"width": 1400, "height": 1000}), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector(READY)
    return tab, wrong


def marked(tab: Any, side: str) -> list[str]:
    """Return the labels of the nodes that are marked in a graph."""
    found: list[str] = tab.evaluate(
        "side => [...document.querySelectorAll(`[data-side=${side}] .marks rect`)].map("
        "r => works.get('0').pane(side).graph.nodes[r.dataset.i].op)",
        side,
    )
    return found


def test_every_section_is_there_and_nothing_is_fetched(browser: Any, tmp_path: Path) -> None:
    """Verdict, graph, fusions, near misses, lock, errors with histogram, times with roofline, environment."""
    tab, wrong = opened(browser, write(tmp_path / "report.html", layers(50)))
    assert tab.inner_text("h1") == "onnxfuse ci: failed"
    assert tab.locator("section h2").all_inner_texts() == [
        "Verdict", "small: Graph", "small: Rules applied", "small: Nearly fused", "small: Against the lock",
        "small: Errors", "small: Times", "Environment",
    ]  # fmt: skip
    assert tab.locator("svg.chart").count() == 5
    assert "fused batch=8" in tab.locator("#s6 svg").last.text_content()
    assert "applications of linear: 12 -> 10" in tab.inner_text("#s0")
    assert "900" in tab.locator("#s5 svg.small").text_content()
    tab.screenshot(path=tmp_path / "report.png", full_page=True)
    assert (tmp_path / "report.png").stat().st_size > 20_000
    tab.locator("nav a", has_text="Errors").click()
    tab.wait_for_function("document.querySelector('#s5').getBoundingClientRect().top < 400")
    assert wrong == []


def test_a_node_shows_its_counterpart(browser: Any, tmp_path: Path) -> None:
    """Click a fused op: the nodes that it took are marked in the other graph, and named below."""
    tab, wrong = opened(browser, write(tmp_path / "report.html", layers(50)))
    tab.locator("[data-side=after] g.fused rect").first.click()
    assert marked(tab, "before") == ["Add", "Erf", "Tanh", "Add"]
    assert "linear\ncomputes\nAdd + Erf + Tanh + Add" in tab.inner_text(".details")
    tab.locator("[data-side=before] g.gone rect").first.click()
    assert len(marked(tab, "after")) == 1
    assert tab.locator("[data-side=before] .marks .chosen").count() == 1
    assert wrong == []


def test_a_node_of_a_channels_last_region_shows_its_counterpart(browser: Any, tmp_path: Path) -> None:
    """No value there has the original's name: the names of the nodes tell."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,32,9,9] x) => (float[2,32,9,9] y) {
      [first] a = Conv <pads = [1,1,1,1]> (x, w) [act] r = Relu (a) [second] c = Conv <pads = [1,1,1,1]> (r, v)
      [sum] s = Add (c, x) [last] y = Relu (s) }""")
    weight = np.ones((32, 32, 3, 3), np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weight, name) for name in ("w", "v"))
    fused = onnxfuse.optimize(model)
    assert not {o for n in fused.graph.node if "Conv" in n.op_type for o in n.output} & {"a", "r", "c", "s"}
    path = tmp_path / "report.html"
    graphs = {"small": {"before": graph_of(model), "after": graph_of(fused)}}
    path.write_text(page("ci", facts(), graphs, "onnxfuse ci", {}), encoding="utf-8")
    tab, wrong = opened(browser, path)
    op = tab.locator("[data-side=after] g.fused", has_text="Conv")
    op.first.locator("rect").click()
    assert "Conv" in marked(tab, "before")
    assert tab.locator("[data-side=before] g.gone", has_text="Conv").count() == 2
    assert wrong == []


def test_what_bisect_found_is_told_and_shown_in_the_graph(browser: Any, tmp_path: Path) -> None:
    """The fused op at fault, the original nodes, and how to see it; a button marks it in both graphs."""
    model = layers(50)
    fused = onnxfuse.optimize(model)
    node = next(n for n in fused.graph.node if n.domain == "onnxfuse")
    suspect = {"node": node.name, "op": node.op_type, "rule": "linear", "nodes": ["Add a0"], "output": node.output[0]}
    finding = {"text": f"fused op {node.op_type}: error 2, allowed 1", "guilty": suspect, "rules": ["linear"],
               "why": "nothing else differs there", "fault": "error 2, allowed 1", "inputs": ["m0"],
               "window": [suspect], "output": node.output[0], "replaced": ["Add a0", "Erf e0"], "checked": 3,
               "folder": "report"}  # fmt: skip
    verified = {**facts()["models"][0]["verify"], "ok": False, "bisection": finding}
    path = tmp_path / "report.html"
    graphs = {"": {"before": graph_of(model), "after": graph_of(fused)}}
    path.write_text(page("verify", verified, graphs, "onnxfuse verify", {}), encoding="utf-8")
    tab, wrong = opened(browser, path)
    told = tab.inner_text("#s1")
    assert tab.inner_text("#s1 h2") == "At fault"
    assert all(words in told for words in (finding["text"], "Add a0, Erf e0", "--inputs report/test_data_set_0"))
    assert finding["text"] in tab.inner_text("#s0")
    tab.click("[data-show]")
    assert tab.locator("[data-side=after] .marks .chosen").count() == 1
    assert len(marked(tab, "before")) == 4
    assert "rule\nlinear" in tab.inner_text(".details")
    assert wrong == []


def test_search_and_rules_mark_nodes(browser: Any, tmp_path: Path) -> None:
    """What is typed is found in both graphs; a click on a rule's row marks all its ops."""
    tab, wrong = opened(browser, write(tmp_path / "report.html", layers(50)))
    tab.fill("input[type=search]", "erf")
    assert marked(tab, "before") == ["Erf"] * 10
    assert tab.locator(".found li b").all_inner_texts()[:10] == ["Erf"] * 10
    tab.locator("tr[data-rule=linear]").first.click()
    assert len(marked(tab, "after")) == 10
    assert wrong == []


def test_the_graph_moves_and_zooms(browser: Any, tmp_path: Path) -> None:
    """The wheel zooms around the pointer, a drag moves, `fit` brings it back."""
    tab, wrong = opened(browser, write(tmp_path / "report.html", layers(50)))
    pane, world = tab.locator("[data-side=before]"), tab.locator("[data-side=before] svg > g")
    start = world.get_attribute("transform")
    box = pane.bounding_box()
    tab.mouse.move(box["x"] + 80, box["y"] + 90)
    tab.mouse.wheel(0, -240)
    tab.wait_for_function(
        "t => document.querySelector('[data-side=before] svg > g').getAttribute('transform') != t", arg=start
    )
    zoomed = world.get_attribute("transform")
    tab.mouse.down()
    tab.mouse.move(box["x"] + 180, box["y"] + 150, steps=4)
    tab.mouse.up()
    moved = world.get_attribute("transform")
    tab.click("[data-fit]")
    assert len({start, zoomed, moved}) == 3
    assert world.get_attribute("transform") == start
    assert wrong == []


def test_two_thousand_nodes_render_within_two_seconds(browser: Any, tmp_path: Path) -> None:
    """From the address, by the page's own clock; what is not in sight is not drawn until all of it is."""
    tab, wrong = opened(browser, write(tmp_path / "big.html", layers(2000)))
    assert 10 < tab.locator("[data-side=before] .nodes g[data-i]").count() < 100
    tab.locator("[data-side=before]").focus()
    tab.keyboard.press("0")
    assert tab.locator("[data-side=before] .nodes path").count() > 50
    assert float(tab.get_attribute("body", "data-ready")) < 2000
    assert wrong == []


def test_what_is_out_of_sight_is_not_laid_out_and_is_found(browser: Any, tmp_path: Path) -> None:
    """A search reaches the last of two thousand nodes at once and shows it; the pieces far from it are hidden."""
    tab, wrong = opened(browser, write(tmp_path / "big.html", layers(2000)))
    tab.fill("input[type=search]", "t399")
    assert tab.locator(".found li b").first.inner_text() == "Tanh"
    tab.keyboard.press("Enter")
    found = tab.locator("[data-side=before] .marks .chosen")
    assert found.count() == 1
    pane, node = tab.locator("[data-side=before]").bounding_box(), found.bounding_box()
    assert pane["y"] < node["y"] < pane["y"] + pane["height"]
    shown = "[...document.querySelectorAll('[data-side=before] .nodes > g')].filter(g => g.style.display === '')"
    assert 1 <= tab.evaluate(f"{shown}.length") <= 3
    assert wrong == []
