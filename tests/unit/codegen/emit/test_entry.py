"""The text of a kernel's entry point: its bounds, its arguments, and the typed pointers that it passes on."""

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse.codegen.emit.access import Operand, Pointer, scratch
from onnxfuse.codegen.emit.entry import entry_point, kernel, typed

ADD = ops.op("(x, b) => (y) { y = Add (x, b) }", (HALF, FLOAT), (HALF,))
FIELDS = (Operand("in0", "a0", "half", 2, (4,), False), Operand("out0", "b0", "half", 2, (4,), True))


def test_arguments_are_inputs_outputs_more_and_parameters() -> None:
    """In this order, without types: they are cast where they are used."""
    assert kernel("e", 2, 1, "  work();\n", more="int n") == (
        "KERNEL(THREADS) e(const void* in0, const void* in1, void* out0, int n, PARAMETERS p) {\n  work();\n}\n"
    )
    assert kernel("e", 0, 0, "", bounds="B") == "B e(PARAMETERS p) {\n}\n"


def test_pointers_are_cast_but_a_null_pointer() -> None:
    """A live input is const; an absent argument stays null."""
    pointers = [f.pointer for f in FIELDS] + [Pointer("unsigned", "scratch", "nullptr")]
    assert typed(pointers) == "(const half*)in0, (half*)out0, nullptr"


def test_an_entry_calls_its_work_behind_the_preceding_kernel() -> None:
    """What may run before that is written before `join_stream`."""
    assert entry_point("e", "work", ADD, FIELDS, 0, prefetch="  fetch();\n") == (
        "KERNEL(THREADS) e(const void* in0, const void* in1, void* out0, PARAMETERS p) {\n"
        "  fetch();\n  join_stream();\n  work({(const half*)in0, (half*)out0}, p);\n}\n"
    )


def test_bounds_name_resident_blocks_and_a_cluster() -> None:
    """Each only where it is asked for."""
    assert entry_point("e", "work", ADD, FIELDS, 3).startswith("KERNEL(THREADS, 3) e(")
    assert entry_point("e", "work", ADD, FIELDS, 3, 2).startswith("CLUSTER_KERNEL(2, THREADS, 3) e(")
    assert entry_point("e", "work", ADD, FIELDS, 0, 1).startswith("KERNEL(THREADS) e(")


def test_scratch_is_an_argument_where_it_is_used() -> None:
    """Unused it is a null pointer, and no argument."""
    used = entry_point("e", "work", ADD, (*FIELDS, scratch(True)), 0)
    assert "void* out0, void* scratch, PARAMETERS p" in used
    assert "(unsigned*)scratch}" in used
    unused = entry_point("e", "work", ADD, (*FIELDS, scratch(False)), 0)
    assert "void* scratch" not in unused
    assert "nullptr}" in unused
