"""What the library should take for a fused op's nodes: measured products, and launches for the rest."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from onnxfuse.cuda.costs import library as costs
from onnxfuse.cuda.dispatch.estimates import launch_and_traffic
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.explanation.library_cost import library_cost
from onnxfuse.measure.profile.sizes import ExpandedNode, sized
from tests.support.small import halved, parse

H200 = Arch("sm_90a", 132)
MEASURED = 7.0
"""Microseconds of whatever the library was measured at."""


@dataclass
class Library:
    """The library's times, and what was asked of them: function, arithmetic, bytes and operations."""

    asked: list[tuple[str, str, int, int]]
    known: bool = True

    def of(self, function: str, arithmetic: str) -> SimpleNamespace | None:
        """Return the times of a function."""

        def microseconds(size: int, flops: int) -> float:
            self.asked.append((function, arithmetic, size, flops))
            return MEASURED

        return SimpleNamespace(microseconds=microseconds) if self.known else None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Return times of every function."""
    made = Library([])
    asked: Callable[[str], Library] = {H200.name: made}.__getitem__
    monkeypatch.setattr(costs, "times", asked)
    return made


def cost(text: str, *, half: bool = False, tf32: bool = True) -> float | None:
    """Return the cost of a fused op of all nodes of a model."""
    model = halved(parse(text)) if half else parse(text)
    found = sized(model, {})
    node = ExpandedNode(found.nodes[0].proto, None, tuple(n.proto for n in found.nodes))
    return library_cost(node, found, H200, tf32)


def test_other_nodes_are_a_launch_each(library: Library) -> None:
    """Views and arithmetic on shapes are none."""
    text = "g (float[64,64] x) => (float[4096] z) <int64[1] s = {4096}> { a = Relu (x) y = Neg (a) z = Reshape (y, s) }"
    assert cost(text) == pytest.approx(2 * launch_and_traffic(2 * 4 * 64 * 64, H200))
    assert library.asked == []


@pytest.mark.parametrize(
    ("half", "tf32", "arithmetic"), [(True, True, "float16"), (False, True, "tf32"), (False, False, "float32")]
)
def test_a_product_takes_what_was_measured_of_its_arithmetic(
    library: Library, half: bool, tf32: bool, arithmetic: str
) -> None:
    """Half precision whatever is allowed of float32; other nodes come on top."""
    text = "g (float[64,64] x, float[64,64] w) => (float[64,64] z) { y = MatMul (x, w) z = Relu (y) }"
    size = 3 * 64 * 64 * (2 if half else 4)
    relu = launch_and_traffic(size * 2 // 3, H200)
    assert cost(text, half=half, tf32=tf32) == pytest.approx(MEASURED + relu)
    assert library.asked == [("product", arithmetic, size, 2 * 64**3)]


@pytest.mark.parametrize(
    ("channels", "group", "function"),
    [(8, 1, "convolution"), (8, 8, "depthwise"), (1, 1, "convolution"), (8, 2, "convolution")],
)
def test_convolutions_of_single_channels_are_their_own(
    library: Library, channels: int, group: int, function: str
) -> None:
    """As many groups as channels, and more than one."""
    each = channels // group
    text = f"""g (float[1,{channels},16,16] x, float[8,{each},3,3] w) => (float[1,8,14,14] y) {{
      y = Conv <group = {group}> (x, w) }}"""
    assert cost(text) == MEASURED
    size = 4 * (channels * 256 + 8 * each * 9 + 8 * 196)
    assert library.asked == [(function, "tf32", size, 2 * 8 * each * 196 * 9)]


def test_attention_is_no_product(library: Library) -> None:
    """Though it has two of them; a sum is neither."""
    text = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v) => (float[1,2,4,8] y) { y = Attention (q, k, v) }"""
    assert cost(text) == MEASURED
    assert [one[:2] for one in library.asked] == [("attention", "tf32")]


def test_what_is_not_known_has_no_cost(library: Library) -> None:
    """A shape, or how fast the library is."""
    assert cost("g (float[4] x) => (int64[1,M] y) { a = Relu (x) y = NonZero (a) }") is None
    library.known = False
    assert cost("g (float[8,8] x, float[8,8] w) => (float[8,8] y) { y = MatMul (x, w) }") is None
