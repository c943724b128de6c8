"""The launch programs of attention, against the plans of each size."""

from collections.abc import Iterable
from dataclasses import replace

from bench.cases.attentions import Case
from onnxfuse.cuda import Arch, KernelSource
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Family, Key
from tests.support.kernels import programs


def answers(case: Case, arch: Arch, lengths: Iterable[int]) -> tuple[Family, set[KernelSource]]:
    """Return the programs of a case of open batch and length, which agree with the plans; and the kernels of these."""
    op, found = replace(case.op(), open_length=True), set[KernelSource]()
    key = Key((3, 3, 3), (None, None, 256) * 3)
    if case.bias is not None:
        extents = tuple(None if n in (case.batch, case.keys) else n for n in case.bias)
        key = Key((3, 3, 3, 4), (None, None, 256) * 3 + extents)
    made = dispatch.family(op, key, True, arch)
    for length in lengths:
        for batch in (1, 7):
            of_this = {case.batch: batch, case.keys: length}
            bias = case.bias and tuple(of_this.get(n, n) for n in case.bias)
            now = replace(case, batch=batch, queries=length, keys=length, bias=bias)
            expected = programs.plan(op, now.shapes(), True, arch)
            assert expected is not None
            if made.answer(now.shapes()) is None:
                made.record(now.shapes())
            assert made.answer(now.shapes()) == expected
            found.add(expected.kernel)
    return made, found
