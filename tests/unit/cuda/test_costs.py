"""The measured costs: every architecture has all sections, and a file that is not as its reader declares is refused."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from onnxfuse.cuda import SUPPORTED, Arch
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import CostError
from onnxfuse.cuda.planning.launch_plan import SmallCosts
from onnxfuse.cuda.templates.attention import costs as attention
from onnxfuse.cuda.templates.conv import costs as conv
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from onnxfuse.cuda.templates.reduction import costs as reduction

READERS = (
    gemm.mma, gemm.skinny, gemm.prologue, attention.costs_of, conv.depthwise, conv.halo, conv.direct, reduction.group,
)  # fmt: skip


@pytest.mark.parametrize("arch", [*SUPPORTED, Arch("sm_75", 40), Arch("sm_103", 148)], ids=lambda a: a.name)
def test_every_architecture_has_every_section(arch: Arch) -> None:
    """Also those without a file: the nearest lower one's stand for them, and what that lacks is the H200's."""
    for reader in READERS:
        assert reader(arch) == reader(Arch("sm_90a", 132))  # until another card is measured
    assert tables.section(arch.name, "small", SmallCosts) == SmallCosts(1024, 128)


def test_every_card_is_that_of_its_architecture() -> None:
    """A file names the GPU for which plans are made; what was measured has a date and a driver."""
    for arch in SUPPORTED:
        card = tables.card(arch.name)
        assert card.multiprocessors == arch.sm_count
        assert card.measured == (arch.name == "sm_90a") == bool(card.driver)
    assert {*tables.arches()} == {a.name for a in SUPPORTED}


@dataclass(frozen=True)
class Row:
    step: float
    count: int = 1


@dataclass(frozen=True)
class Both:
    half: Mapping[GemmTile, Row]
    single: Mapping[GemmTile, Row]
    limits: tuple[int, ...] = ()


def test_a_table_is_like_another_one_except_for_its_rows() -> None:
    """In the order of that one: of two tiles with equal times the first is chosen."""
    half = {"128x64x1": {"step": 1}, "64x64x1x1x1": {"step": 2.5, "count": 3}}
    read = tables.read({"half": half, "single": {"like": "half", "128x64x1": {"step": 4.0}}}, Both, "here")
    assert read.half == {GemmTile(128, 64, 1): Row(1.0), GemmTile(64, 64, 1, teams=1): Row(2.5, 3)}
    assert [*read.single.items()] == [(GemmTile(128, 64, 1), Row(4.0)), (GemmTile(64, 64, 1, teams=1), Row(2.5, 3))]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"half": {}}, r"here: unknown \[\], missing \['single'\]"),
        ({"half": {}, "single": {}, "third": {}}, r"here: unknown \['third'\]"),
        ({"half": {}, "single": {"like": "other"}}, "here.single is like 'other', which is no table beside it"),
        ({"half": {}, "single": {"128": {"step": 1}}}, "here.single: '128' is no GemmTile, expected 3 to 6 integers"),
        ({"half": {}, "single": {"1x2x3": {"step": "fast"}}}, "here.single.1x2x3.step is 'fast', expected"),
        ({"half": {}, "single": {"1x2x3": {"step": 1, "count": 1.5}}}, "count is 1.5, expected"),
        ({"half": {}, "single": {}, "limits": [1, True]}, r"limits\[1\] is True, expected"),
        ([], r"here is \[\], expected a table"),
    ],
)
def test_another_table_than_declared_is_refused_with_its_place(facts: object, message: str) -> None:
    with pytest.raises(CostError, match=message):
        tables.read(facts, Both, "here")
    with pytest.raises(CostError, match=r"sm_90a\.toml: no section gemm\.tcgen05"):
        tables.section("sm_100", "gemm.tcgen05", Both)
