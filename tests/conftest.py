"""Settings that all tests share."""

import shutil
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

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
