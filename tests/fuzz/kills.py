"""Kill writers in the midst of their work, again and again: never a model with the weights of another one, no litter.

    python -m tests.fuzz.kills [--count 500] [--seed 1]

The limit above which weights go into a file beside the model is lowered, so a model of 400 kB takes that way.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.files import io

LIMIT = 10_000
"""Bytes, in the place of 2 GB."""
WEIGHTS = 4
VERSIONS = 7


def model(version: int) -> onnx.ModelProto:
    """Return a model whose every weight holds its version, which is also its name."""
    weights = [numpy_helper.from_array(np.full(25_000, version * 10 + n, np.float32), f"w{n}") for n in range(WEIGHTS)]
    graph = helper.make_graph(
        [helper.make_node("Sum", [w.name for w in weights], ["y"])],
        f"version {version}",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [25_000])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mixed(path: Path) -> bool:
    """Return whether the file holds another version's weights, or cannot be read; no file is none."""
    if not path.exists():
        return False
    found = io.load(path)
    version = int(found.graph.name.split()[1])
    arrays = [numpy_helper.to_array(t) for t in found.graph.initializer]
    return not all((a == version * 10 + n).all() for n, a in enumerate(arrays))


def run(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Kill `count` writers, two at a time, and return what was seen."""
    io.PROTOBUF_LIMIT = LIMIT
    rng = Random(seed)
    path = folder / "out.onnx"
    models = [model(n) for n in range(VERSIONS)]
    start = time.perf_counter()
    io.save(models[0], path)
    usual = time.perf_counter() - start
    seen = {"kills": 0, "finished": 0, "mixed": 0, "litter": 0}
    while seen["kills"] < count:
        children = []
        for one in rng.sample(models, rng.choice((1, 2))):
            child = os.fork()
            if not child:
                io.save(one, path)
                os._exit(0)
            children.append(child)
        time.sleep(rng.random() * 1.5 * usual)
        for child in children:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            seen["kills" if os.WIFSIGNALED(status) else "finished"] += 1
        seen["mixed"] += mixed(path)
        if rng.random() < 0.1:
            io.save(rng.choice(models), path)
            seen["litter"] += len(list(folder.iterdir())) - 2
    io.save(models[0], path)
    seen["litter"] += len(list(folder.iterdir())) - 2
    seen["mixed"] += mixed(path)
    return seen


def main() -> int:
    """Print what was seen; exit 1 for a mixed model or litter."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = run(Path(folder), asked.count, asked.seed)
    print(", ".join(f"{number} {what}" for what, number in seen.items()))
    return 1 if seen["mixed"] or seen["litter"] else 0


if __name__ == "__main__":
    sys.exit(main())
