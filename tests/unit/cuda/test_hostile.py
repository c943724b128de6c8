"""Bodies and shapes changed at random: a plan or one clear error, soon, whatever the file says."""

import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.support.errors import KernelError
from tests.support.kernels import hostile


def test_the_corpus_itself_has_plans() -> None:
    """Else the mutants would say nothing."""
    assert {hostile.judge(case) for case in hostile.corpus()} == {"planned"}


def test_no_mutant_ends_in_anything_but_a_plan_or_a_refusal() -> None:
    """In a process of its own: a crash is a failure, too. more: `python -m tests.support.kernels.hostile`."""
    command = [sys.executable, "-m", "tests.support.kernels.hostile", "--cases", "400", "--seed", "17"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-500:]
    assert all(int(n) > 20 for n in re.findall(r"(\d+) (?:planned|refused|invalid)", done.stdout)), done.stdout


@pytest.mark.parametrize(
    ("step", "last", "template", "refused"),
    [
        ("Mul(V, V)", "Relu", "pointwise", None), ("Add(V, V)", "Relu", "pointwise", None),
        ("Mul(V, V)", "Softmax", "row", None), ("Add(V, V)", "Transpose", "pointwise", None),
        ("Concat <axis = 0> (V, V)", "Relu", "pointwise", "more than 2048 places"),
        ("Relu(V)", "Transpose", "pointwise", "a chain of movements"),
    ],
)  # fmt: skip
def test_a_value_that_is_read_twice_again_and_again_costs_no_more(
    step: str, last: str, template: str, refused: str | None
) -> None:
    """60 doublings are 2^60 paths and one value each; 400 steps are deeper than Python's stack."""
    count = 400 if "Relu" in step else 60
    body = " ".join(f"v{i + 1} = {step.replace('V', f'v{i}')}" for i in range(count))
    fused = ops.op(f"(v0) => (y) {{ {body} y = {last} (v{count}) }}", (FLOAT,), (FLOAT,), template)
    began = time.process_time()
    cuda.inplace(fused)
    with nullcontext() if refused is None else pytest.raises(KernelError, match=refused):
        cuda.plan(fused, ((4, 1),), True, hostile.ARCHS[0])
    assert time.process_time() - began < 10
