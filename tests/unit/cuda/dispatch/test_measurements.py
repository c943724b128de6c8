"""The tuning file: it says what was measured, the same way each time, and refuses what it does not know."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from bench.cases import ops, products
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.dispatch import variant_kinds
from onnxfuse.cuda.dispatch.measurements import Book, Machine, MeasuredVariants, Timed
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm.variant import GemmTile, GemmVariant
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError, ModelError

H200 = Arch("sm_90a", 132)

HERE, THERE = Machine("NVIDIA H200", "580.1", "1.31.1"), Machine("NVIDIA A100", "580.1", "1.31.1")

TILED = GemmVariant(tile=GemmTile(128, 64, 2))


def measured(op: str = "MatMulAdd_1", rows: int = 32, rule: str = "gemm") -> MeasuredVariants:
    return MeasuredVariants(
        op,
        rule,
        ("MatMul", "Add"),
        ("float16", "float16"),
        ((rows, 8), (8, 16)),
        (
            Timed("fused", None, 4.5, (4.25, 5.0)),
            Timed("fused", TILED, 4.0, (3.75, 4.125)),
            Timed("fused", RowVariant(row_threads=64), failed="no registers are left"),
            Timed("alone", None, 9.125, (9.0, 9.5)),
        ),
    )


def book(*several: MeasuredVariants, machine: Machine = HERE) -> Book:
    return {machine: {m.key: m for m in several}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every fact comes back, failures and variants too."""
    known = {**book(measured(), measured(rows=64)), **book(measured(), machine=THERE)}
    measurements.write(tmp_path / "t.json", known)
    assert measurements.read(tmp_path / "t.json") == known


def test_the_order_of_measuring_does_not_show(tmp_path: Path) -> None:
    """Machines by name, entries by rule, op and shapes: two runs that measure the same write the same."""
    entries = [measured(rows=64), measured(), measured("Add_2", rule="linear"), measured("AddMatMul_3")]
    one = {**book(*entries), **book(*entries, machine=THERE)}
    other = {**book(*entries[::-1], machine=THERE), **book(*entries[::-1])}
    for name, known in (("a", one), ("b", other)):
        measurements.write(tmp_path / name, known)
    text = (tmp_path / "a").read_text()
    assert text == (tmp_path / "b").read_text()
    facts = json.loads(text)
    assert [m["gpu"] for m in facts["machines"]] == ["NVIDIA A100", "NVIDIA H200"]
    assert [(m["op"], m["shapes"][0][0]) for m in facts["machines"][0]["measured"]] == [
        ("AddMatMul_3", 32), ("MatMulAdd_1", 32), ("MatMulAdd_1", 64), ("Add_2", 32)
    ]  # fmt: skip


def test_a_changed_time_is_one_changed_line(tmp_path: Path) -> None:
    """A person reads what changed in a diff."""
    was = measured()
    now = replace(was, candidates=(*was.candidates[:3], replace(was.candidates[3], microseconds=8.0)))
    measurements.write(tmp_path / "a", book(was))
    measurements.write(tmp_path / "b", book(now))
    a, b = ((tmp_path / n).read_text().splitlines() for n in "ab")
    assert len(a) == len(b)
    (changed,) = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    assert changed[1].strip() == '{"kind": "alone", "microseconds": 8.0, "spread": [9.0, 9.5]}'
    assert max(map(len, a)) <= measurements.WIDTH


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a tuning file: Expecting value"),
        ("[]", "is not a tuning file: the file is [], expected an object"),
        ("[" * 100_000, "is not a tuning file: it nests too deeply"),
        ("{}", "is not a tuning file: the file has no 'version'"),
        ('{"version": 99}', "version 99, expected 1"),
        ('{"version": 1, "machines": [{"gpu": "a"}]}', "machines[0] has no 'driver'"),
    ],
)
def test_another_file_is_refused_with_its_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"t\.json") as raised:
        measurements.read(path)
    assert told in str(raised.value)
    assert "optimize --tune" in raised.value.hint


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "fast"}, "candidate of kind 'fast', expected one of fused, library, split, alone"),
        ({"tuning": {"speed": 3}}, "tuning has 'speed', which is none of"),
        ({"tuning": {"min_blocks": '1) {} \n#include "/etc/passwd"'}}, "min_blocks is .* expected an integer"),
        ({"tuning": {"min_blocks": True}}, "min_blocks is True, expected an integer"),
        ({"tuning": {"width": -1}}, "width is -1, expected an integer from 0"),
        ({"tuning": {"tile": {"m": 128, "n": "64", "cluster": 2}}}, "tile.n is '64', expected an integer"),
        ({"tuning": {"tile": {"m": 128}}}, "tile has no 'n'"),
        ({"tuning": {"patch": [1, 2]}}, r"patch is \[1, 2\], expected an object"),
        ({"microseconds": "soon"}, "microseconds is 'soon', expected a number"),
        ({"microseconds": float("nan")}, "microseconds is nan, expected a number"),
        ({"spread": [1.0]}, "spread has 1 number"),
    ],
)
def test_an_unknown_fact_of_a_candidate_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    facts = measurements.as_dict(book(measured()))
    facts["machines"][0]["measured"][0]["candidates"][0].update(change)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(facts))
    with pytest.raises(ModelError, match=told):
        measurements.read(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read as a tuning file"):
        measurements.read(tmp_path / "t.json")


def test_a_model_carries_one_book() -> None:
    """A second one takes the place of the first; an empty one leaves nothing."""
    model = onnx.ModelProto()
    assert measurements.of_model(model) == {}
    measurements.attach(model, book(measured()))
    measurements.attach(model, book(measured(rows=64)))
    assert measurements.of_model(model) == book(measured(rows=64))
    measurements.attach(model, {})
    assert not model.metadata_props


def test_a_model_keeps_its_times_from_version_to_version() -> None:
    """The key is part of the format: of another name nothing is read, and nothing says so."""
    model = onnx.ModelProto()
    model.metadata_props.add(key="onnxfuse.tuning", value=json.dumps(measurements.as_dict(book(measured()))))
    assert measurements.of_model(model) == book(measured())


def test_the_fastest_variant_is_the_one_that_ran() -> None:
    """Of what failed nothing follows."""
    assert measurements.variant(measured()) == TILED
    failed = replace(measured(), candidates=(Timed("fused", TILED, failed="no"), Timed("alone", None, 1.0)))
    assert measurements.variant(failed) is None
    assert failed.ran
    assert not replace(failed, candidates=failed.candidates[:1]).ran


@pytest.mark.parametrize(
    ("low", "high", "chosen"),
    [(4.25, 4.125, TILED), (4.25, 4.25, None), (3.0, 4.125, None), (4.25, 9.0, None)],
)
def test_a_variant_has_to_be_faster_beyond_chance(low: float, high: float, chosen: Variant | None) -> None:
    """Where the 10th percentile of the plan's own choice is below the 90th of the variant, the plan's own stays."""
    times = (Timed("fused", None, 4.5, (low, 5.0)), Timed("fused", TILED, 4.0, (3.75, high)))
    assert measurements.variant(replace(measured(), candidates=times)) == chosen


def test_a_tile_of_an_older_file_has_what_was_then_usual() -> None:
    """Files that say nothing of warpgroups, teams and splits are read as they were written: two teams of one."""
    facts = measurements.as_dict(book(measured()))
    (candidate,) = (c for c in facts["machines"][0]["measured"][0]["candidates"] if "tile" in c.get("tuning", {}))
    candidate["tuning"]["tile"] = {"m": 128, "n": 64, "cluster": 2}
    (read,) = measurements.parse(json.dumps(facts), "here")[HERE].values()
    assert TILED in [c.tuning for c in read.candidates]


@pytest.mark.parametrize(
    ("tile", "name"),
    [
        (GemmTile(128, 64, 2), "128x64x2"), (GemmTile(192, 192, 1, warpgroups=3, teams=1), "192x192x1 w3 t1"),
        (GemmTile(64, 64, 1, teams=1, split=4), "64x64x1 t1 s4"),
    ],
)  # fmt: skip
def test_tiles_that_differ_have_names_that_differ(tile: GemmTile, name: str) -> None:
    assert str(tile) == name


def test_names_of_candidates() -> None:
    assert [c.name for c in measured().candidates] == ["fused", "fused tile 128x64x2", "fused row_threads 64", "alone"]


CASES: dict[str, tuple[FusedOp, Sequence[tuple[int, ...]]]] = {
    "gemm": products.case(products.GELU, HALF, (512,), 768, 768),
    "gate": products.case(products.SWIGLU, HALF, (512,), 512, 768),
    "gemm, odd": products.case(products.GELU, HALF, (512,), 765, 768),
    "pointwise": (ops.op("(x, b) => (y) { s = Add(x, b) y = Gelu(s) }", (HALF,) * 2, (HALF,)), [(4096, 3072), (3072,)]),
    "row": (ops.op("(x) => (y) { y = Softmax <axis = -1> (x) }", (FLOAT,), (FLOAT,), "row"), [(4096, 197)]),
    "long row": (ops.op("(x) => (y) { y = Softmax <axis = -1> (x) }", (FLOAT,), (FLOAT,), "row"), [(64, 16384)]),
    "empty": (ops.op("(x) => (y) { y = Relu(x) }", (HALF,), (HALF,)), [(0, 8)]),
}


@pytest.mark.parametrize("case", CASES)
def test_candidates_of_every_template(case: str) -> None:
    """The plan's own choice first; each makes a plan that no other makes."""
    op, shapes = CASES[case]
    found = cuda.candidates(op, tuple(map(tuple, shapes)), H200)
    assert found[0] is None
    plans = [cuda.plan(op, tuple(map(tuple, shapes)), True, H200, t) for t in found]
    keys = [(p.kernel, p.grid, p.block, p.shared_bytes, p.parameters) for p in plans]
    assert len(set(keys)) == len(keys)
    assert len(found) == 1 if case == "empty" else len(found) > 1


@pytest.mark.parametrize("case", CASES)
def test_a_variant_that_nobody_would_measure_is_none(case: str) -> None:
    """Constants of the right types are not enough: a file chooses among the op's own variants."""
    op, shapes = CASES[case]
    sizes = tuple(map(tuple, shapes))
    assert all(cuda.is_candidate(op, sizes, H200, t) for t in cuda.candidates(op, sizes, H200))
    for other in (
        PointwiseVariant(min_blocks=3),
        PointwiseVariant(width=16),
        PointwiseVariant(pointwise_threads=1 << 20),
    ):
        assert not cuda.is_candidate(op, sizes, H200, other)


def test_every_template_says_its_candidates() -> None:
    """A template of the future that has variants says so by one field; none has to."""
    from onnxfuse.cuda.dispatch.dispatch import TEMPLATES

    assert all(callable(t.planner.candidates) for t in TEMPLATES.values() if t.planner is not None)


def test_a_variant_of_another_template_is_refused() -> None:
    """A template reads the constants that it declares, and no others."""
    gemm, shapes = CASES["gemm"]
    with pytest.raises(KernelError, match="row_threads 64, which is not a variant of template gemm"):
        cuda.plan(gemm, tuple(map(tuple, shapes)), True, H200, RowVariant(row_threads=64))
    row, shapes = CASES["row"]
    with pytest.raises(KernelError, match="pointwise_threads 64, expected a RowVariant"):
        cuda.plan(row, tuple(map(tuple, shapes)), True, H200, PointwiseVariant(pointwise_threads=64))


def test_no_two_kinds_of_variants_share_a_candidate_s_field() -> None:
    """A tuning file names a variant by its fields alone: those that are ever measured belong to one kind."""
    measured = [
        field for op, shapes in CASES.values() for t in cuda.candidates(op, tuple(map(tuple, shapes)), H200)
        if t is not None for field in t.changed
    ]  # fmt: skip
    kinds = {field: [k for k in variant_kinds() if k.accepts({field: None})] for field in measured}
    assert measured
    assert {field: len(k) for field, k in kinds.items()} == dict.fromkeys(measured, 1)


def test_candidates_of_an_op_without_template() -> None:
    op = replace(ops.op("(x) => (y) { y = Relu(x) }", (HALF,), (HALF,)), template="nothing")
    with pytest.raises(KernelError, match="no kernel template 'nothing'"):
        cuda.candidates(op, ((8,),), H200)
