"""examples/ray: two replicas on this machine, asked over HTTP."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.serving.ports import free_port
from tests.support import fused_models as models

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray: make test-serving installs it")
ROOT = Path(__file__).parents[2]
PATIENCE = 120
"""Seconds until the replicas answer: Ray starts six processes."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the model answers, -tanh(2 x)."""
    folder = tmp_path_factory.mktemp("ray")
    graph = "twice (float[N, 8] x) => (float[N, 8] y) { t = onnxfuse.TwiceTanh_2 (x)  y = onnxfuse.Negate_3 (t) }"
    onnx.save(models.model(graph, models.TWICE_TANH, models.NEGATE), folder / "model.onnx")
    port, log = free_port(), folder / "log"
    command = [sys.executable, ROOT / "examples/ray/serve_model.py", folder / "model.onnx", "--replicas", "2"]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder), "RAY_memory_monitor_refresh_ms": "0"}
    with log.open("w") as out:
        process = subprocess.Popen(
            [*map(str, command), "--port", str(port)], env=os.environ | quiet, stdout=out, stderr=out
        )
    address = f"http://127.0.0.1:{port}/"
    try:
        begun = time.monotonic()
        while not ready(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() - begun < PATIENCE, log.read_text()
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def ready(address: str) -> bool:
    try:
        return bool(asked(address, np.zeros((1, 8), np.float32)))
    except (urllib.error.URLError, ConnectionError):
        return False


def asked(address: str, x: np.ndarray) -> dict[str, Any]:
    with urllib.request.urlopen(address, json.dumps({"x": x.tolist()}).encode(), timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_two_replicas_share_the_requests(url: str) -> None:
    """Each request gets its own rows back; both replicas have answered some."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1 + n % 3, 8), np.float32) for n in range(120)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda x: asked(url, x), inputs))
    for x, answer in zip(inputs, answers, strict=True):
        np.testing.assert_allclose(answer["y"], -np.tanh(2 * x), atol=1e-6)
    assert len({answer["replica"] for answer in answers}) == 2
