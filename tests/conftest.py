"""Settings that all tests share."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis.internal.conjecture import providers

from tests.support import processor_times, warm_command
from tests.support.processor_times import ProcessorTimes
from tests.support.scenarios import ROOT, fake_cuda, on_fake_cuda, scenarios

__all__ = ["fake_cuda", "on_fake_cuda", "scenarios"]

# A shell without job control lets what runs behind it ignore ^C, and so would every command that the tests stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes import the package: each would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers share the cores: threads of NumPy in each would wait for those of the others.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Derandomized: the same examples on every machine, so that red means the code changed and not the dice.
hypothesis.settings.register_profile(
    "onnxfuse",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
hypothesis.settings.register_profile("sample", hypothesis.settings.get_profile("onnxfuse"), max_examples=15)
hypothesis.settings.load_profile("onnxfuse")
# Hypothesis would draw constants of all modules that are imported, too: other examples wherever another test ran before
# or a line anywhere changed; and to read these modules takes each process ten seconds.
if hasattr(providers, "_get_local_constants"):  # not in the oldest version that is allowed
    providers._get_local_constants = lambda: providers._local_constants

# ---- a sample of tests with many cases

SAMPLED = (
    "tests/cli/test_crashes.py",
    "tests/cli/test_manners.py",
    "tests/cli/test_report_files.py",
    "tests/cli/test_untold.py",
    "tests/emulator/",
    "tests/laws/",
    "tests/survey/test_samples.py",
    "tests/unit/codegen/",
    "tests/unit/cuda/",
    "tests/unit/fusion/",
    "tests/unit/ops/shapes/test_windows.py",
    "tests/unit/passes/layout/test_all_axes.py",
    "tests/unit/passes/layout/test_plain_runtime.py",
    "tests/unit/passes/masks/test_shrink_masks.py",
    "tests/unit/passes/quantization/test_integer_convolutions.py::test_a_layer",
    "tests/unit/passes/quantization/test_products.py::test_no_product_is_lost",
    "tests/unit/passes/quantization/test_whole_models.py",
    "tests/unit/passes/shapes/test_exact_pools.py",
    "tests/unit/passes/test_pipeline.py::test_an_optimized_model_comes_out_as_it_went_in",
    "tests/unit/precision/",
    "tests/unit/rules/test_shipped.py::test_an_example_can_be_undone",
    "tests/unit/rules/test_shipped.py::test_an_example_in_half_precision_gives_the_same",
    "tests/unit/rules/test_shipped.py::test_an_example_whose_floats_are_all_weights_is_optimized",
    "tests/unit/runtime/",
    "tests/unit/verification/",
)
"""Most of the time of all tests: kernels that two compilers build, commands and sessions in processes of their own."""
SHARE = 16
"""The part of such a test's cases that is in the sample: one of so many, and one at least."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know what `make test` asks for."""
    parser.addoption("--sample", action="store_true", help="some cases of tests that have many and take long")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/outlines anew")
    parser.addoption("--processor-times", action="store_true", help="what the tests compute, by folder, file and test")


def pytest_configure(config: pytest.Config) -> None:
    """Count processor time where it is asked for; draw fewer examples for a sample."""
    if config.getoption("--sample"):
        hypothesis.settings.load_profile("sample")
    if config.getoption("--processor-times"):
        config.pluginmanager.register(ProcessorTimes())


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
        left_out.update(shuffled[-(-len(shuffled) // SHARE) :])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


# ---- what several folders use


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """What a module's name and its arguments follow, as they do `python -m`: a process, and no time to start."""
    path = str(tmp_path_factory.mktemp("warm") / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", warm_command.__name__, path], cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True
    )
    processor_times.RUNNING.add(server.pid)
    while not os.path.exists(path):
        assert server.poll() is None, "it did not start"
        time.sleep(0.05)
    yield sys.executable, "-I", "-S", warm_command.__file__, path
    processor_times.RUNNING.remove(server.pid)
    server.terminate()
    server.wait()


@pytest.fixture(scope="session")
def warm_onnxfuse(warm_python: tuple[str, ...]) -> tuple[str, ...]:
    """What the arguments of `onnxfuse` follow."""
    return *warm_python, "onnxfuse"


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
