"""The served page as a person meets it: unfold, select both ways, search, source, colours; in headless Chromium."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.viewing import View
from tests.unit.viewing.test_server import model, profiled

NASTY = "</script><img src=x onerror=alert(1)>\"'&\u202eabc"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """A model with times for some of its nodes."""
    path = profiled(tmp_path_factory.mktemp("view") / "p.json", ("one", "two", "product"))
    with onnxfuse.view(model(), profile=path) as served:
        yield served


@pytest.fixture
def tab(browser: Any, shown: View) -> Iterator[Any]:
    """The page, opened; no error, and no request to anywhere else, came of what was done with it."""
    yield from _tab(browser, shown.url)


def _tab(browser: Any, url: str) -> Iterator[Any]:
    tab, wrong = browser.new_page(viewport={"width": 1280, "height": 800}), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    base = url.partition("#")[0]
    tab.on("request", lambda request: None if request.url.startswith((base, "data:,")) else wrong.append(request.url))
    tab.goto(url)
    tab.wait_for_selector("body[data-ready]")
    yield tab
    tab.close()
    assert wrong == []


def node(tab: Any, side: str, op: str) -> Any:
    """Return the first drawn node whose label begins so."""
    return tab.locator(f"[data-side={side}] .nodes g[data-i]", has_text=op).first


def marked(tab: Any, side: str) -> list[str]:
    """Return the labels of the nodes that are marked in a graph."""
    found: list[str] = tab.evaluate(
        "side => [...document.querySelectorAll(`[data-side=${side}] .marks rect[data-i]`)].map("
        "r => works.get('0').pane(side).graph.nodes[r.dataset.i].op)",
        side,
    )
    return found


def test_a_fused_op_unfolds_and_folds(tab: Any) -> None:
    """By its sign, by the button beside it, and by the key; what is in it can be chosen by itself."""
    fused = node(tab, "after", "Relu + Sigmoid + Mul")
    assert tab.locator(".inner").count() == 0
    fused.locator("rect").click(position={"x": 8, "y": 13})
    assert tab.locator(".inner text").all_text_contents() == ["Relu", "Sigmoid", "Mul"]
    below = node(tab, "after", "MatMul").bounding_box()["y"]
    tab.locator(".inner", has_text="Sigmoid").click()
    assert tab.inner_text(".details .name") == "two"
    assert marked(tab, "before") == ["Sigmoid"]
    assert tab.locator("[data-side=after] .marks .chosen").count() == 1
    tab.click(".details a")
    tab.click(".details .fold")
    assert tab.locator(".inner").count() == 0
    assert node(tab, "after", "MatMul").bounding_box()["y"] < below
    tab.locator("[data-side=after]").focus()
    tab.keyboard.press("Enter")
    assert tab.locator(".inner").count() == 3
    tab.click("[data-unfold]")
    tab.click("[data-unfold]")
    assert tab.locator(".inner").count() == 0


def test_either_side_selects_the_other(tab: Any) -> None:
    """A region of one colour on one side is one node on the other; the address holds what is chosen."""
    node(tab, "before", "Sigmoid").click()
    assert marked(tab, "after") == ["Relu + Sigmoid + Mul"]
    assert tab.locator("[data-side=before] .region").count() == 1
    hue = "e => getComputedStyle(e).fill"
    region = tab.locator("[data-side=before] .region rect").first.evaluate(hue)
    tab.click("[data-colour=rules]")
    assert tab.locator("[data-side=before] .region rect").first.evaluate(hue) != region
    assert tab.locator("[data-side=before] .region rect").first.evaluate(hue) == node(tab, "after", "Relu +").locator(
        "rect"
    ).evaluate(hue)
    tab.click(".details a")
    tab.locator(".details .fold").wait_for()  # the address changes first, what it chooses follows
    assert tab.url.endswith("#node=0/after/three")
    assert marked(tab, "before") == ["Relu", "Sigmoid", "Mul"]
    told = tab.inner_text(".details")
    for words in ("pointwise", "Relu + Sigmoid + Mul", "read", "in place of", "x", "float[batch,64]"):
        assert words in told


def test_an_address_chooses(browser: Any, shown: View) -> None:
    """Also a node in an op, which unfolds; one that there is not is no mistake."""
    for tab in _tab(browser, f"{shown.url}#node=0/after/three/1"):
        assert tab.inner_text(".details .name") == "two"
        assert tab.locator(".inner").count() == 3
    for tab in _tab(browser, f"{shown.url}#node=0/after/nothing%ZZ"):
        assert "Click a node" in tab.inner_text(".details")


def test_the_keyboard_is_enough(tab: Any) -> None:
    """`/` searches, arrows choose a row, Enter jumps; then arrows go along edges."""
    tab.keyboard.press("/")
    tab.keyboard.type("c:")  # a tensor's name and the beginning of its type
    rows = tab.locator(".found li[role=option]")
    assert rows.count() >= 3
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    tab.keyboard.type("tanh")
    assert rows.locator("b").all_inner_texts() == ["Tanh", "Tanh"]
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert (tab.inner_text(".details h3"), tab.url.partition("#")[2]) == ("Tanh", "node=0/after/last")
    tab.locator("[data-side=after]").focus()
    tab.keyboard.press("ArrowUp")
    assert tab.inner_text(".details h3") == "MatMul"
    tab.fill("[data-find]", "there is no such thing")
    assert tab.inner_text(".found") == "nothing is called so"


def test_source_and_reason_come_when_they_are_asked_for(tab: Any) -> None:
    """The kernel for the GPU that is chosen; for a plain node what explain says first."""
    node(tab, "after", "Relu +").click()
    tab.click(".source > summary")
    tab.wait_for_selector(".source details[open] pre")
    names = tab.locator(".source details summary").all_inner_texts()
    assert any("(generated)" in n for n in names)
    assert "include/device.cuh" in names[0]
    assert "__global__" in "".join(tab.locator(".source pre").all_text_contents())
    assert "grid" in tab.inner_text(".source")
    with tab.expect_response(lambda answer: "arch=sm_80" in answer.url) as found:
        tab.select_option(".source select", "sm_80")
    assert found.value.status == 200
    node(tab, "after", "MatMul").click()
    tab.locator(".why", has_text="'w' is not a constant").wait_for()


def test_colours_are_times_where_there_is_a_profile(tab: Any) -> None:
    """And bytes when they are asked for; what was not timed is drawn as such."""
    kind = "e => e.getAttribute('class')"
    assert tab.get_attribute(".work", "data-painted") == "time"
    assert node(tab, "before", "MatMul").evaluate(kind) == "plain heat h8"
    assert node(tab, "before", "Tanh").evaluate(kind) == "plain unknown"
    assert "in 3 of 5 nodes" in tab.inner_text(".legend")
    assert "4.00 µs a node" in tab.inner_text(".legend")
    fill = "e => getComputedStyle(e.querySelector('rect')).fill"
    hot = node(tab, "before", "Relu").evaluate(fill)
    tab.click("[data-colour=bytes]")
    assert node(tab, "before", "Tanh").evaluate(kind).startswith("plain heat h")
    assert node(tab, "before", "Relu").evaluate(fill) != hot
    node(tab, "before", "Relu").click()
    assert "2.00 µs" in tab.inner_text(".details")


def test_what_was_folded_is_told_as_gone(browser: Any) -> None:
    """A node of the original that no fused op holds, and that is not there any more."""
    made = model()
    made.graph.node.insert(1, onnx.helper.make_node("Identity", ["a"], ["a2"], "same"))
    made.graph.node[2].input[0] = "a2"
    with onnxfuse.view(made) as served:
        for tab in _tab(browser, f"{served.url}#node=0/before/same"):
            tab.locator(".why", has_text="built-in pass").wait_for()
            assert "is gone" in tab.inner_text(".details")


def test_one_side_fills_the_room(tab: Any) -> None:
    """And comes back; a search result of the hidden side shows it."""
    tab.click("[data-show-side=after]")
    assert not tab.locator("[data-side=before]").is_visible()
    tab.fill("[data-find]", "sigmoid")
    tab.keyboard.press("Enter")
    assert tab.locator("[data-side=before]").is_visible()
    assert tab.locator("[data-side=before] .marks .chosen").count() == 1


def test_names_are_never_markup(browser: Any, tmp_path: Path) -> None:
    """Of nodes, values, attributes, operators and profiles: they are anyone's."""
    made = model()
    for n in made.graph.node:
        n.name = f"{n.name}{NASTY}"
    made.graph.node[3].op_type, made.graph.node[3].domain = f"Op{NASTY}", "x.y"
    made.graph.node[3].attribute.append(onnx.helper.make_attribute("a", NASTY))
    made.opset_import.append(onnx.helper.make_opsetid("x.y", 1))
    path = tmp_path / f"{NASTY.replace('/', '_')}.onnx"
    onnx.save(made, path)
    with onnxfuse.view(path) as served:
        for tab in _tab(browser, served.url):
            tab.fill("[data-find]", "op<")
            tab.fill("[data-find]", "onerror")
            tab.keyboard.press("Enter")
            tab.evaluate(
                "works.get('0').panes.forEach(p => p.graph.nodes.forEach((n, i) => works.get('0').choose(p, i)))"
            )
            tab.evaluate("works.get('0').choose(works.get('0').pane('before'), 2)")
            assert tab.locator("img").count() == 0
            assert "\u202e" not in tab.content()
            assert "\\u202e" in tab.inner_text(".details")


def test_the_page_says_how_far_it_is_and_goes_on(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model as it came at once, then both; what is chosen stays chosen."""
    monkeypatch.setattr("onnxfuse.viewing.view_page.LARGE", 2)
    with onnxfuse.view(model()) as served:
        for tab in _tab(browser, f"{served.url}#node=0/before/two"):
            tab.wait_for_selector("[data-side=after] .marks rect")
            assert tab.inner_text(".details .name") == "two"


def test_when_the_server_has_gone_the_page_says_so(browser: Any) -> None:
    """What is on the page still works."""
    served = onnxfuse.view(model())
    tab = browser.new_page()
    tab.goto(served.url)
    served.close()
    node(tab, "after", "Relu +").click()
    tab.click(".source > summary")
    tab.locator(".source", has_text="not running any more").wait_for()
    tab.close()


def test_json_in_the_page_is_what_python_made(tab: Any) -> None:
    """The data block is one JSON text, whatever stands in it."""
    data = json.loads(tab.locator("#graphs").text_content())
    assert set(data["graphs"]["0"]) == {"before", "after"}
