"""The measured costs: every architecture has all sections, and a file that is not as its reader declares is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse import cuda
from onnxfuse.cuda import SUPPORTED, Arch
from onnxfuse.cuda.costs import library, tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.costs.tables import CostError
from onnxfuse.cuda.dispatch.cost import traffic_costs
from onnxfuse.cuda.dispatch.estimates import estimates, traffic
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.planning.launch_plan import SmallCosts
from onnxfuse.cuda.templates.attention import costs as attention
from onnxfuse.cuda.templates.conv import costs as conv
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile
from onnxfuse.cuda.templates.general import costs as general
from onnxfuse.cuda.templates.memory_bound import costs as memory_bound
from onnxfuse.cuda.templates.pointwise import costs as pointwise
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.cuda.templates.recurrent import costs as recurrent
from onnxfuse.cuda.templates.reduction import costs as reduction
from onnxfuse.cuda.templates.scan import costs as scan
from onnxfuse.rules.pattern import expression
from onnxfuse.support.errors import RuleError
from tests.unit.cuda.dispatch.test_measurements import CASES
from tools.calibrate import costs_file

READERS = (
    gemm.skinny, attention.costs_of, conv.depthwise, conv.direct,
    reduction.group, reduction.column, reduction.row, reduction.usual, scan.costs_of, pointwise.mapped, pointwise.usual,
    general.costs_of, lambda arch: recurrent.costs_of(arch),
)  # fmt: skip


@pytest.mark.parametrize("arch", [*SUPPORTED, Arch("sm_75", 40), Arch("sm_103", 148)], ids=lambda a: a.name)
def test_every_architecture_has_every_section(arch: Arch) -> None:
    """Also those without a file: the nearest lower one's stand for them, and sizes that it lacks are the H200's."""
    for reader in READERS:
        assert reader(arch) == reader(Arch("sm_90a", 132))  # until another card is measured
    assert [*gemm.mma(arch).rounded] == [*gemm.mma(H200).rounded]
    assert gemm.prologue(arch).around == gemm.prologue(H200).around
    assert conv.halo(arch).load == conv.halo(H200).load
    assert tables.section(arch.name, "small", SmallCosts) == SmallCosts(1024, 128)


def test_every_card_is_that_of_its_architecture() -> None:
    """A file names the GPU for which plans are made; what was measured has a date and a driver."""
    for arch in SUPPORTED:
        card = tables.card(arch.name)
        assert card.multiprocessors == arch.sm_count
        assert card.measured == (arch.name == "sm_90a") == bool(card.driver)
    assert {*tables.arches()} == {a.name for a in SUPPORTED}


@pytest.mark.parametrize("arch", [a for a in SUPPORTED if a != H200], ids=lambda a: a.name)
def test_times_of_a_card_that_was_not_measured_are_scaled(arch: Arch) -> None:
    """Products by the tensor cores, latencies by the clock, instructions by the lanes; the H200's stay as they are."""
    mine, measured = tables.card(arch.name), tables.card("sm_90a")
    clock = measured.clock / mine.clock
    for block, pace in gemm.mma(arch).rounded.items():
        known = gemm.mma(H200).rounded[block]
        assert pace.together == pytest.approx(known.together * clock * measured.products / mine.products)
        assert pace.finish == pytest.approx(known.finish * clock * measured.lanes / mine.lanes)
        assert pace.start == pytest.approx(known.start * clock)
        assert pace.resident == known.resident
    assert gemm.prologue(arch).rate == pytest.approx(gemm.prologue(H200).rate / clock * mine.lanes / measured.lanes)
    assert conv.halo(arch).product == pytest.approx(1.6 * measured.products / mine.products)
    assert traffic_costs(arch.name).bandwidth == pytest.approx(4.0 * mine.bandwidth / measured.bandwidth)
    assert traffic_costs(arch.name).launch == traffic_costs().launch
    assert tables.measured_card(arch.name) == measured == tables.measured_card("sm_90a")
    assert gemm.mma(H200).rounded[Block(64, 64, 2, 2)] == gemm.Pace(3, 0.254, 0.674, 0.4, 2.0)


def test_what_a_card_measured_itself_is_not_scaled() -> None:
    """A calibrated file keeps its rows; what it lacks is scaled from the file that it is like."""
    own = """like = "sm_90a"
        [card]
        name = "half"
        multiprocessors = 10
        bandwidth = 2.1
        clock = 0.99
        products = 512
        lanes = 64
        date = 2027-01-02
        [gemm.mma.rounded]
        "64x64x2x2" = { resident = 1, alone = 1.0, together = 2.0, finish = 3.0, start = 4.0 }
    """
    with tables.substituted("sm_80", own):
        rows = gemm.mma(Arch("sm_80", 10)).rounded
        assert rows[Block(64, 64, 2, 2)] == gemm.Pace(1, 1.0, 2.0, 3.0, 4.0)
        scaled = rows[Block(128, 64, 2, 2)]
        assert scaled.resident == 2
        times = (scaled.alone, scaled.together, scaled.finish, scaled.start)
        assert times == pytest.approx((4 * 0.391, 4 * 0.88, 4 * 0.3, 2 * 2.4))
        assert tables.measured_card("sm_80").name == "half"


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
    with pytest.raises(CostError, match=r"sm_100\.toml: no section gemm\.tcgen05"):
        tables.section("sm_100", "gemm.tcgen05", Both)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('like = "sm_61"', r"sm_80\.toml is like 'sm_61', expected the file of another architecture"),
        ('like = "sm_80"', r"sm_80\.toml is like 'sm_80', expected"),
    ],
)
def test_a_file_that_is_like_none_or_like_itself_is_refused(text: str, message: str) -> None:
    with tables.substituted("sm_80", text), pytest.raises(CostError, match=message):
        tables.section("sm_80", "small", SmallCosts)


def test_a_file_without_a_card_is_refused() -> None:
    with tables.substituted("sm_80", ""), pytest.raises(CostError, match=r"sm_80\.toml: no section card"):
        tables.card("sm_80")


def test_rules_and_passes_read_substituted_costs() -> None:
    text = tables.source("sm_90a").replace("product_terms = 4096", "product_terms = 2048")
    with tables.substituted("sm_90a", text):
        assert library.measured()["product_terms"] == 2048
    assert library.measured()["product_terms"] == 4096


def test_every_size_at_which_the_library_is_faster_is_asked_for() -> None:
    """By a rule, by a pass, or as kernels grow: a size that nobody asks for is not kept."""
    rules = "\n".join(p.read_text(encoding="utf-8") for p in Path("rules").rglob("*.toml"))
    asked = {*re.findall(r"measured\((\w+)\)", rules)}
    code = [p.read_text() for room in ("passes", "fusion") for p in Path("onnxfuse", room).rglob("*.py")]
    asked |= {n for text in code for n in library.measured() if f".{n}" in text}
    assert asked == {*library.measured()}


def test_a_condition_asks_for_a_size_by_name() -> None:
    """It is the number from then on, also in messages; a typo is answered with the nearest name."""
    assert expression.read("dim(x, 0) <= measured(product_terms)") == expression.read("dim(x, 0) <= 4096")
    with pytest.raises(RuleError, match=r"'measured\(product_term\)' is not one of .* Did you mean product_terms"):
        expression.read("dim(x, 0) <= measured(product_term)")
    with pytest.raises(RuleError, match="is not one of the measured sizes"):
        expression.read("dim(x, 0) <= measured(3)")


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda a: a.name)
def test_the_plan_s_own_choice_is_among_the_estimates(arch: Arch) -> None:
    """Fastest first; of a product it is the fastest of its kernel's tiles or blocks, and the plan launches it."""
    for name, (op, shapes) in CASES.items():
        sizes = tuple(map(tuple, shapes))
        found = estimates(op, sizes, arch)
        (chosen,) = [one for one in found if one.chosen]
        assert [one.microseconds for one in found] == sorted(one.microseconds for one in found)
        if name.startswith("gemm") and chosen.variant is not None:
            kind = chosen.variant.changed.keys()
            alike = [one for one in found if one.variant is not None and one.variant.changed.keys() == kind]
            assert chosen == alike[0]
            assert len(found) > 3
        if not op.template.startswith("gemm") and name != "gate":
            assert found == (chosen,)


def test_a_kernel_without_estimates_of_variants_has_the_time_of_its_kind() -> None:
    """A softmax by what rows take, an attention by its kernel; what no kind tells by what memory allows at least."""
    op, shapes = CASES["row"]
    (only,) = estimates(op, tuple(map(tuple, shapes)), H200)
    size = 2 * 4096 * 197 * 4
    row = memory_bound.times_of(H200).row
    assert only.microseconds == pytest.approx(row.start + size / (row.bandwidth * 1e6))
    assert traffic(op, ((4096, 197),), ((4096, 197),), H200) == pytest.approx(2.0 + size / 4.2e6)


def test_the_longer_of_traffic_and_operations_is_a_kernel_s_time() -> None:
    """On a card with half the clock and the lanes it starts twice as late; its multiprocessors count for operations."""
    one = Roofline(2.0, 4.0, 100.0)
    assert one.microseconds(8_000_000) == one.microseconds(8_000_000, 2e8) == 4.0
    assert one.microseconds(8_000_000, 4e8) == 6.0
    assert Roofline(2.0, 4.0).microseconds(8_000_000, 4e12) == 4.0
    mine, measured = tables.card("sm_80"), tables.card("sm_90a")
    share = mine.multiprocessors / measured.multiprocessors * mine.clock / measured.clock
    there, here = attention.times_of(Arch("sm_80", 108)).kept, attention.times_of(H200).kept
    assert there.operations == pytest.approx(here.operations * share)
    assert there.bandwidth == pytest.approx(here.bandwidth * mine.bandwidth / measured.bandwidth)


def test_what_a_variant_leaves_to_the_plan_is_what_the_costs_say() -> None:
    """Threads of a block by the costs, those of a variant before them."""
    op, shapes = ops.op("(x, b) => (y) { y = Add(x, b) }", (HALF,) * 2, (HALF,)), ((4096, 4096), (4096,))

    def threads(variant: PointwiseVariant | None = None) -> int:
        return cuda.plan(op, shapes, True, H200, variant).block[0]

    text = costs_file.with_value(tables.source(H200.name), "pointwise.usual", "pointwise_threads", "64")
    assert (threads(), threads(PointwiseVariant(pointwise_threads=512))) == (256, 512)
    with tables.substituted(H200.name, text):
        assert (threads(), threads(PointwiseVariant(pointwise_threads=512))) == (64, 512)
