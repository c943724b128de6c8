"""Launch plans by value: collapsing, operand kinds, widths, shapes, parameters; pure Python."""

import math
import re
import struct
from dataclasses import replace

import pytest

from bench.cases import ops, packed
from bench.cases.ops import DOUBLE, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.codegen.emit.source import DEVICE, template
from onnxfuse.cuda import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic import strides as layout
from onnxfuse.symbolic.packing import Packing

H200 = Arch("sm_90a", 132)

ADD = ops.op("(x, b) => (y) { y = Add(x, b) }", (HALF, HALF), (HALF,))

LAYER_NORM = ops.op(
    "(x, r, g, b) => (y, s) { s = Add(x, r) y = LayerNormalization <axis = -1> (s, g, b) }",
    (HALF,) * 4,
    (HALF,) * 2,
    "row",
)


def constant(plan: LaunchPlan, name: str) -> str:
    """Return a constant of the generated kernel."""
    declaration = next(
        part
        for part in plan.kernel.text.replace(";", ",").split(",")
        if part.strip().split(" = ")[0].endswith(name) and " = " in part
    )
    return declaration.split(" = ")[1]


@pytest.mark.parametrize(
    ("shapes", "load"),
    [
        ([(64, 768), (768,)], "load_inner<W>(from.in1"),
        ([(64, 770), (770,)], "load_seam<W>(from.in1"),
        ([(64, 768), (64, 1)], "load_strided_splat<W>(from.in1"),
        ([(64, 770), (64, 1)], "load_seam_splat<W>(from.in1"),
        ([(64, 3, 7), (3, 1)], "load_gather<W>(from.in1"),
        ([(64, 768), ()], "load_uniform<W>(from.in1"),
        ([(64, 768), (64, 768)], "load_linear<W>(from.in1"),
    ],
)
def test_operand_kinds(shapes: list[tuple[int, ...]], load: str) -> None:
    plan = cuda.plan(ADD, tuple(shapes), True, H200)
    assert load in plan.kernel.text
    assert "load_linear<W>(from.in0" in plan.kernel.text
    assert constant(plan, "WIDTH") == "8"


def test_a_new_batch_or_sequence_is_the_same_kernel() -> None:
    """Extents and strides are parameters: nothing is compiled again."""
    plans = [cuda.plan(ADD, ((b, s, 768), (768,)), True, H200) for b in (2, 3, 8) for s in (5, 128)]
    assert len({p.kernel for p in plans}) == 1
    assert len({p.parameters for p in plans}) == 6
    rows = [cuda.plan(LAYER_NORM, ((b, 768),) * 2 + ((768,),) * 2, True, H200) for b in (1, 7, 4096)]
    assert len({p.kernel for p in rows}) == 1


def test_misaligned_pointers_get_one_element_at_a_time() -> None:
    assert constant(cuda.plan(ADD, ((64, 768), (768,)), False, H200), "WIDTH") == "1"
    assert constant(cuda.plan(LAYER_NORM, ((4, 768),) * 2 + ((768,),) * 2, False, H200), "WIDTH") == "1"


def test_parameters_of_a_bias() -> None:
    """count, two divisors, the strides of the bias: all 32-bit words."""
    plan = cuda.plan(ADD, ((4, 5, 768), (768,)), True, H200)
    words = struct.unpack("<9I", plan.parameters)
    assert words == (15360, *layout.divisor(20, 32), *layout.divisor(768, 32), 0, 1)
    assert plan.output_shapes == ((4, 5, 768),)
    assert plan.block == (256, 1, 1)
    assert plan.grid == (math.ceil(15360 / 8 / 256), 1, 1)


@pytest.mark.parametrize(
    ("columns", "width", "threads", "items", "exact"),
    [
        (8, 8, 1, 1, True), (64, 8, 8, 1, True), (72, 8, 8, 2, False), (197, 8, 8, 4, False),
        (256, 8, 8, 4, True), (768, 8, 32, 3, True), (1024, 8, 32, 4, True), (1025, 8, 32, 5, False),
        (4096, 8, 256, 2, True), (8192, 8, 512, 2, True), (16384, 8, 512, 4, True), (20000, 8, 1024, 3, False),
        (40000, 8, 1024, 5, False), (100000, 8, 4096, 4, False),
        (400000, 8, 8192, 0, False),
    ],
)  # fmt: skip
def test_rows_are_shared_out(columns: int, width: int, threads: int, items: int, exact: bool) -> None:
    """Part of a warp, a warp, a block, two at once, a cluster, one that walks (0 items), by the length of the row."""
    plan = cuda.plan(LAYER_NORM, ((1000, columns),) * 2 + ((columns,),) * 2, True, H200)
    found = tuple(constant(plan, name) for name in ("WIDTH", "ROW_THREADS", "ITEMS", "EXACT"))
    assert found == (str(width), str(threads), str(items), str(exact).lower())


@pytest.mark.parametrize(
    ("columns", "width", "shifted"),
    [(7, 1, False), (197, 8, True), (198, 8, True), (196, 4, False), (192, 8, False), (40001, 8, True)],
)
def test_rows_that_wide_accesses_do_not_divide_are_shifted(columns: int, width: int, shifted: bool) -> None:
    """Half the width does for rows that it divides; a row shorter than a vector is read element by element."""
    plan = cuda.plan(LAYER_NORM, ((10, columns),) * 2 + ((columns,),) * 2, True, H200)
    assert (constant(plan, "WIDTH"), constant(plan, "SHIFTED")) == (str(width), str(shifted).lower())


def test_a_long_row_leaves_registers_for_a_second_block() -> None:
    """Scale and bias, which no reduction reads, are fetched late; the residual, dense, is not."""
    text = cuda.plan(LAYER_NORM, ((1000, 16384),) * 2 + ((16384,),) * 2, True, H200).kernel.text
    assert "KERNEL(THREADS, 2) tested" in text
    held, late = (text.split(f"struct {name} {{")[1].split("}")[0].split() for name in ("Held", "Late"))
    assert [w for w in held if w.startswith("in")] == ["in0;", "in1;"]
    assert [w for w in late if w.startswith("in")] == ["in2;", "in3;"]


def test_output_shapes() -> None:
    text = """(x) => (k, d, y) { a = Constant <value_ints = [-1]> () k = ReduceMax(x, a)
      d = ReduceSum <keepdims = 0> (x, a) y = Sub(x, k) }"""
    fused = ops.op(text, (FLOAT,), (FLOAT,) * 3, "row")
    assert cuda.output_shapes(fused, ((2, 3, 40),)) == ((2, 3, 1), (2, 3), (2, 3, 40))
    assert cuda.output_shapes(ADD, ((3, 1), (4,))) == ((3, 4),)


def test_nothing_is_launched_for_an_empty_output() -> None:
    assert cuda.plan(ADD, ((0, 768), (768,)), True, H200).grid[0] == 0
    assert cuda.plan(LAYER_NORM, ((0, 768),) * 2 + ((768,),) * 2, True, H200).grid[0] == 0


def test_more_than_2_to_the_31_elements_use_64_bit_indices() -> None:
    plan = cuda.plan(ADD, ((2**21, 1024), (1024,)), True, H200)
    assert "using Index = unsigned long long" in plan.kernel.text
    assert len(plan.parameters) == 9 * 8


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((3, 4), (5,)), "do not broadcast"),
        (((3, 4),), "1 input shape, expected 2"),
    ],
)
def test_errors_name_op_and_shapes(shapes: tuple[tuple[int, ...], ...], words: str) -> None:
    with pytest.raises(KernelError, match=words) as caught:
        cuda.plan(ADD, shapes, True, H200)
    assert "tested: no kernel for input shapes 3x4" in str(caught.value)


def test_reductions_that_do_not_make_one_row_are_refused() -> None:
    text = "(x) => (y) { y = ReduceMean <axes = [1]> (x) }"
    fused = ops.op(text, (FLOAT,), (FLOAT,), "row", opset=13)
    assert cuda.supports(fused) is None  # axis 1 of 2 is the last one
    assert cuda.plan(fused, ((3, 40),), True, H200).output_shapes == ((3, 1),)
    text = "(x) => (y) { a = ReduceMean <axes = [1]> (x) b = ReduceMean <axes = [2]> (x) y = Add(a, b) }"
    fused = ops.op(text, (FLOAT,), (FLOAT,), "row", opset=13)
    with pytest.raises(KernelError, match=r"reductions over axes \[1\] and \[2\] of \(3, 40, 2\) in one op"):
        cuda.plan(fused, ((3, 40, 2),), True, H200)


def test_an_epilogue_wider_than_the_reduced_row_is_refused() -> None:
    """Softmax over 1 element broadcast to 4: its row is not the op's row, and no kernel is right for that."""
    fused = ops.op("(x, e) => (y) { s = Softmax <axis = -1> (x) y = Add(s, e) }", (HALF,) * 2, (HALF,), "row")
    with pytest.raises(
        KernelError, match=r"tested: no kernel for input shapes 3x1, 3x4: a reduction .* rows of \(4,\)"
    ):
        cuda.plan(fused, ((3, 1), (3, 4)), True, H200)


def test_in_place_pairs_are_safe_for_all_shapes() -> None:
    """An output of full size may lie over an input of its type; one that does not see all inputs may not."""
    assert cuda.inplace(ADD) == ((0, 0), (1, 0))
    part = ops.op("(x, b) => (y, c) { c = Neg(b) y = Add(x, c) }", (FLOAT,) * 2, (FLOAT,) * 2)
    assert cuda.inplace(part) == ((0, 0), (1, 0))
    reduced = ops.op("(x) => (y) { y = ReduceMax <axes = [-1]> (x) }", (FLOAT,), (FLOAT,), "row", opset=13)
    assert cuda.inplace(reduced) == ()


REFUSED = {
    "op": ("(x) => (y) { y = Det(x) }", (FLOAT,), (FLOAT,), "no kernel for Det"),
    "domain": ("(x) => (y) { y = com.microsoft.Attention(x) }", (FLOAT,), (FLOAT,), "com.microsoft.Attention"),
    "string": ("(x) => (y) { y = Identity(x) }", (8,), (8,), "element type STRING"),
    "types": ("(a, b) => (y) { y = Add(a, b) }", (FLOAT, HALF), (FLOAT,), "Add of FLOAT and FLOAT16"),
    "result": ("(a) => (y) { y = Abs(a) }", (FLOAT,), (DOUBLE,), "computed as FLOAT and stored as DOUBLE"),
    "training": (
        "(x) => (y) { r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () y = Dropout(x, r, t) }",
        (FLOAT,), (FLOAT,), "training mode",
    ),
    "axes": ("(x, a) => (y) { y = ReduceSum(x, a) }", (FLOAT, 7), (FLOAT,), "not a constant of the body"),
    "logic": ("(a, b) => (y) { y = And(a, b) }", (FLOAT,) * 2, (FLOAT,), "And of FLOAT, expected BOOL"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_give_the_reason(name: str) -> None:
    text, inputs, outputs, reason = REFUSED[name]
    assert reason in str(cuda.supports(ops.op(text, inputs, outputs, "row")))


def test_the_body_language_is_open_to_questions() -> None:
    assert cuda.is_pointwise("Gelu")
    assert cuda.is_pointwise("BiasGelu", "com.microsoft")
    assert not cuda.is_pointwise("BiasGelu")
    assert cuda.is_reduction("LayerNormalization")
    assert not cuda.is_pointwise("LayerNormalization")
    assert {"Add", "Where", "Cast"} <= cuda.pointwise_ops()


CHANNEL_MEAN = ops.op("(x) => (y) { y = ReduceMean <axes = [1]> (x) }", (HALF,), (HALF,), "row", opset=13)

TURNED = ops.op("(x) => (y) { t = Transpose <perm = [1, 0]> (x) y = Relu (t) }", (HALF,), (HALF,))

DEPTHWISE = ops.op(
    "(x, w) => (y) { y = Conv <group = 8, pads = [1, 1, 1, 1]> (x, w) }", (HALF,) * 2, (HALF,), "depthwise"
)

PRODUCT = ops.op("(x, w) => (y) { m = MatMul(x, w) y = Relu(m) }", (HALF,) * 2, (HALF,), "gemm")


@pytest.mark.parametrize(
    ("fused", "shapes"),
    [
        (ADD, ((64, 64), (64,))), (LAYER_NORM, ((64, 64), (64, 64), (64,), (64,))), (CHANNEL_MEAN, ((64, 64, 64),)),
        (TURNED, ((64, 64),)), (DEPTHWISE, ((4, 8, 16, 16), (8, 1, 3, 3))), (PRODUCT, ((64, 64), (64, 64))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("aligned", [True, False])
def test_every_kernel_waits_for_the_one_ahead(
    fused: FusedOp, shapes: tuple[tuple[int, ...], ...], aligned: bool
) -> None:
    """It may be launched early, so it says once where it begins to need what the one ahead computes."""
    assert cuda.plan(fused, shapes, aligned, H200).kernel.text.count("join_stream();") == 1


def test_every_block_waits_and_the_last_ones_let_the_next_kernel_begin() -> None:
    """One that did not wait would race with the kernel ahead; told by all, the next one takes the places of blocks."""
    text = template(DEVICE).text
    head = text[text.index("DEVICE void join_stream()") :]
    tell, wait = (head.index(f"griddepcontrol.{what}") for what in ("launch_dependents", "wait"))
    assert "if (blockIdx.x + LAST_BLOCKS >= gridDim.x)" in head[:tell]
    assert "if" not in head[tell:wait]


@pytest.mark.parametrize("name", ["float", "pointwise", "Parameters", "1) {}\n#include <passwd>", "", "x" * 10**6])
def test_a_name_of_a_file_is_no_word_of_the_text(name: str) -> None:
    """A kernel is called after its op, and nothing else: no keyword, no name of a template, no text, no megabyte."""
    fused = replace(ops.op("(x) => (y) { y = Relu(x) }", (HALF,), (HALF,)), name=name)
    text = cuda.plan(fused, ((8,),), True, H200).kernel.text
    (entry,) = re.findall(r"KERNEL\(THREADS\) (\w+)\(", text)
    assert entry.endswith("_kernel")
    assert len(entry) < 300
    assert "#include" not in text.replace(entry, "")


def test_a_plan_within_a_limit_of_scratch_memory_is_another_variant() -> None:
    """Products of many rows by packed weights make the elements of these in scratch memory, unless it is too little."""
    fused, inputs = packed.case("plain", HALF, (4096,), 1024, Packing(4, 32, 1024))
    given = packed.shapes(inputs)
    chosen = cuda.plan(fused, given, True, H200)
    assert chosen.all_scratch_bytes == 2 * 1024 * 1024
    within = cuda.plan_within(fused, given, True, H200, chosen.all_scratch_bytes - 1)
    assert within is not None
    assert within.all_scratch_bytes == 0
    assert within.output_shapes == chosen.output_shapes


def test_the_general_kernel_is_the_last_that_may_need_less() -> None:
    """A sum over all rows leaves one row in scratch memory there; below that there is none."""
    total = ops.op("(x) => (y) { a = Constant <value_ints = [0]> () y = ReduceSum <keepdims = 0> (x, a) }",
                   (FLOAT,), (FLOAT,), "row")  # fmt: skip
    given = ((50_000, 64),)
    chosen = cuda.plan(total, given, True, H200)
    assert chosen.all_scratch_bytes > 4 * 64
    general = cuda.plan_within(total, given, True, H200, 4 * 64)
    assert general is not None
    assert general.all_scratch_bytes == 4 * 64
    assert cuda.plan_within(total, given, True, H200, 4 * 64 - 1) is None
