"""`onnxfuse rules --test` on a real GPU: what applies runs as kernels, too, and computes the same there."""

import pytest

from onnxfuse.authoring.testing import run_examples
from onnxfuse.rules.language import rule_file
from tests.gpu.test_kernels import _gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


@pytest.mark.parametrize("one", rule_file.shipped(), ids=lambda one: one.name)
def test_every_shipped_rule_holds_on_the_gpu(one: rule_file.Rule) -> None:
    """By the plain nodes and by the kernels; of rules that fuse into a template's kernel some example launches one.

    What stands between kernels of other rules does nothing by itself.
    """
    (found,) = run_examples([one])
    assert found.ok, found.faults
    if one.fuse is not None and not one.fuse.needs_others and one.fuse.template in ("pointwise", "row", "scan"):
        assert found.kernels, found.bodies
