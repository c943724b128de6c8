"""Plans of large tensors for the small tensors of tests."""

from collections.abc import Iterator

import pytest

from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import SmallCosts


@pytest.fixture(autouse=True, scope="package")
def plans_of_large_tensors() -> Iterator[None]:
    """Tensors of tests are small: they get the plans that large ones have, unless a test asks for the other ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(0, 128))
        yield
