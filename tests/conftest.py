"""Settings that all tests share."""

import shutil
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from tests.support.scenarios import fake_cuda, on_fake_cuda

__all__ = ["fake_cuda", "on_fake_cuda"]

# A shell without job control lets what runs behind it ignore ^C, and so would every command that the tests stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomized: the same examples on every machine, so that red means the code changed and not the dice.
hypothesis.settings.register_profile(
    "onnxfuse",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
hypothesis.settings.load_profile("onnxfuse")

# ---- a sample of tests with many cases

SAMPLED = (
    "tests/emulator/",
    "tests/laws/test_coincidences.py",
    "tests/laws/test_no_false_alarms.py",
    "tests/laws/test_random_graphs.py",
    "tests/unit/codegen/",
    "tests/unit/cuda/",
    "tests/unit/fusion/",
    "tests/unit/precision/",
    "tests/unit/verification/",
)
"""Two thirds of the time of all tests: kernels that are run by the host's compiler, or compiled for each GPU."""
FEW, SHARE = 2, 8
"""Cases of such a test that are in the sample at least, and the part of them that is: one of so many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know what `make test` asks for."""
    parser.addoption("--sample", action="store_true", help="some cases of tests that have many and take long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the sample: the same cases each time, whatever their order."""
    if not config.getoption("--sample"):
        return
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.nodeid.startswith(SAMPLED):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for of_test in cases.values():
        shuffled = sorted(of_test, key=lambda item: zlib.crc32(item.nodeid.encode()))
        left_out.update(shuffled[max(FEW, -(-len(shuffled) // SHARE)) :])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
