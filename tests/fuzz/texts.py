"""Mutants of what people write: rule files; and onnxfuse.toml, its lock, tuning files and inputs as JSON."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import onnx

from onnxfuse.rules.language import rule_file
from tests.fuzz.commands import run
from tests.fuzz.models import NUMBERS, WORDS, seeds

CONFIGURATION = """
rules = []
[[model]]
name = "mlp"
path = "in.onnx"
output = "out.onnx"
provider = "cpu"
verify = false
require = { gemm = 1, layer_norm = ">=1" }
shapes = { N = [1, 7] }
budget = { nodes = 100, megabytes = 1.5, error = 1.0 }
skip = ["pointwise"]
also = ["product"]
"""

LOCK = {
    "schema": 3,
    "rules": {"gemm": "0" * 64},
    "models": {
        "mlp": {
            "applied": {"gemm": 1},
            "exported": {"Add": 2},
            "operators": {"Add": 1},
            "opsets": {"ai.onnx": 17},
            "provider": "CPU",
            "tolerances": {"y": 0.1},
            "precision": "",
            "kept": {},
            "places": {"gemm": {"MatMul product": 2}},
            "interface": {"input x": "float32[N,4]"},
            "options": {"skip": ["pointwise"]},
            "checks": {"verify": True, "shapes.N": [1, 8]},
        }
    },
}

TUNING = {
    "version": 1,
    "machines": [
        {
            "gpu": "A",
            "driver": "1",
            "onnxruntime": "1",
            "measured": [
                {
                    "op": "MatMulAdd_0123456789",
                    "rule": "gemm",
                    "nodes": ["MatMul", "Add"],
                    "types": ["FLOAT", "FLOAT"],
                    "shapes": [[4, 2], [2, 3]],
                    "candidates": [
                        {"kind": "fused", "microseconds": 3.5, "spread": [3.0, 4.0]},
                        {"kind": "fused", "tuning": {"tile": {"m": 128, "n": 128, "cluster": 1}}, "failed": "no"},
                        {"kind": "alone", "microseconds": 5.0},
                    ],
                }
            ],
        },
    ],
}

TOKENS = (
    "max(1, 2)",
    "abs(x)",
    "% 0",
    "// 0",
    "/ 0",
    "** 9",
    "- -",
    "dim(x, 99)",
    "rank(x) == ",
    " in ",
    "or",
    "unless",
    "((",
    "))",
    "[[",
    "]]",
    '"',
    "'''",
    "\\",
    "{",
    "}",
    "=",
    "\n",
    "\x00",
    "\x1b[2J",
    "1e999",
    "0x",
    "nan",
    "inf",
    "true",
    "[]",
    "{}",
    "1979-05-27",
    "value(alpha)",
    "lambda: 0",
    "__import__('os')",
    "x.y",
    "x[0]",
    "9" * 400,
    "(" * 300,
    "[" * 3000,
    "-" * 3000 + "1",
)


@cache
def _rules() -> tuple[str, ...]:
    return tuple(p.read_text(encoding="utf-8") for p in rule_file.shipped_files().values() if p.stem != "attention")


def _changed(rng: Random, text: str) -> str:
    """Return `text` with a few tokens put in, cut out, doubled, or lines exchanged."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 2, 5, 20, 100)))
        change = rng.randrange(6)
        if change == 0:
            text = text[:at] + rng.choice((*TOKENS, *WORDS[:8], *map(str, NUMBERS))) + text[at:]
        elif change == 1:
            text = text[:at] + text[end:]
        elif change == 2:
            text = text[:at] + rng.choice((*TOKENS, *map(str, NUMBERS))) + text[end:]
        elif change == 3:
            lines = text.split("\n")
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a]
            text = "\n".join(lines)
        elif change == 4:
            lines = text.split("\n")
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        else:
            marks = [i for i, c in enumerate(text) if c == '"']
            if marks:
                at = rng.choice(marks) + 1
                text = text[:at] + rng.choice(TOKENS) + text[at:]
    return text


def changed_rule(rng: Random) -> bytes:
    """Return a shipped rule file, changed."""
    return _changed(rng, rng.choice(_rules())).encode("utf-8", "surrogatepass")


def attempt_rule(data: bytes, folder: Path) -> str:
    """Read the rule, explain it, and apply it alone to a model."""
    (folder / "in.onnx").write_bytes(_model())
    (folder / "mine").mkdir()
    (folder / "mine" / "mutant.toml").write_bytes(data)
    code = run("rules", "mutant", "--rules", "mine")
    run("optimize", "in.onnx", "out.onnx", "--rules", "mine", "--only", "mutant", leaves=("out.onnx",))
    return f"exit {code}"


def changed_configuration(rng: Random) -> bytes:
    """Return onnxfuse.toml, onnxfuse.lock, a tuning file and inputs, one of them changed, as one JSON text."""
    texts = {
        "onnxfuse.toml": CONFIGURATION,
        "onnxfuse.lock": json.dumps(LOCK),
        "tuning.json": json.dumps(TUNING),
        "inputs.json": json.dumps({"x": [[1.0, 2.0]], "r": [[1.0, 2.0, 3.0]]}),
    }
    name = rng.choice(list(texts))
    if name.endswith("toml") or rng.random() < 0.3:
        texts[name] = _changed(rng, texts[name])
    else:
        facts = json.loads(texts[name])
        _change_value(rng, facts)
        texts[name] = json.dumps(facts)
        if rng.random() < 0.05:
            texts[name] = "[" * 100_000
    return json.dumps(texts).encode()


def _change_value(rng: Random, facts: object) -> None:
    """Put something of another type or size somewhere in a tree of dictionaries and lists."""
    places: list[tuple[object, object]] = []

    def walk(one: object) -> None:
        pairs = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in list(pairs):
            places.append((one, key))
            walk(value)

    walk(facts)
    home, key = rng.choice(places)
    odd: tuple[Any, ...] = (
        None,
        True,
        -1,
        0,
        2**70,
        1e308,
        "",
        "x",
        [],
        {},
        [[]],
        [None],
        {"a": None},
        float("nan"),
        *WORDS[:8],
    )
    home[key] = rng.choice(odd)  # type: ignore[index]  # a dict or a list, with a key of its own


def attempt_configuration(data: bytes, folder: Path) -> str:
    """Hold a model to the contract, read the tuning file; the inputs are read by verify."""
    (folder / "in.onnx").write_bytes(_model())
    for name, text in json.loads(data).items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    code = run("ci", "--no-bench", leaves=("out.onnx",))
    for path in folder.glob("out.onnx"):
        path.unlink()
    run("explain", "in.onnx", "--tuning", "tuning.json")
    run("verify", "in.onnx", "in.onnx", "--provider", "cpu", "--inputs", "inputs.json")
    return f"exit {code}"


@cache
def _model() -> bytes:
    return next(s for s in seeds() if onnx.ModelProto.FromString(s).graph.name == "mlp")
