"""What templates ask of an instruction set is looked up: no GPU is recognised by its name."""

import re
from pathlib import Path

import onnxfuse.cuda.templates


def test_no_template_recognises_a_gpu_by_its_name() -> None:
    """Nor by its compute capability: a new GPU has an instruction set, and a file of costs that its name finds."""
    folder = Path(next(iter(onnxfuse.cuda.templates.__path__)))
    asks, costs = re.compile(r"\barch\.(name|number)\b(?!\})|\"sm_\d"), re.compile(r"\btables\.\w+\([^()]*\)")
    for file in folder.rglob("*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        found = [line for line in lines if asks.search(costs.sub("", line))]
        assert not found, (file, found)
