"""The graphs of the outlines: what exporters write, as text, and as files that they wrote."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import models
from models.survey.samples import FOLDER, SUFFIX, unpacked
from tests.support.quantized_models import in_few_bits
from tests.support.small import halved

TEXTS = Path(__file__).with_name("graphs")
"""Models as text. A value that is declared and never computed is a weight; a graph called `half` is all float16."""

SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"stages": (1, 2), "width": 16, "image": 64, "classes": 8},
    "efficientnet_b0": {"width": 8, "stages": (1, 2, 1), "channels": (8, 16, 16), "image": 64, "classes": 8},
    "convnext_tiny": {"stages": (1, 2), "width": 16, "image": 64, "classes": 8},
    "bert_base": {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128, "vocabulary": 97, "positions": 40},
    "vit_b_16": {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128, "image": 48, "classes": 8},
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128, "vocabulary": 97, "positions": 40},
}
"""The architectures of `models`, of a few layers, with sizes that kernels take."""


IN_FEW_BITS = ("plain-llama_decode-dynamo-18-float16-static", "transformers-qwen2-trace-17-float16-dynamic")
"""Language models whose weights may have 4 bits, too: what is found around the products is the same."""


def graphs() -> dict[str, Callable[[], onnx.ModelProto]]:
    """Return what makes each model, by its name."""
    return {
        **{path.stem: partial(_written, path) for path in sorted(TEXTS.glob("*.txt"))},
        **{
            f"{name}-{dtype}": partial(models.build, name, dtype=dtype, **sizes)
            for name, sizes in SMALL.items()
            for dtype in ("float16", "float32")
        },
        **{
            path.name.removesuffix(SUFFIX): partial(_packed, path)
            for path in sorted(FOLDER.glob(f"*{SUFFIX}"))
        },
        **{f"{name}-int4": partial(_in_few_bits, name) for name in IN_FEW_BITS},
    }  # fmt: skip


def _in_few_bits(name: str) -> onnx.ModelProto:
    return in_few_bits(_packed(FOLDER / f"{name}{SUFFIX}"))


def _packed(path: Path) -> onnx.ModelProto:
    return unpacked(path.read_bytes())


def _written(path: Path) -> onnx.ModelProto:
    model = onnx.parser.parse_model(path.read_text(encoding="utf-8"))
    computed = {name for node in model.graph.node for name in node.output}
    random = np.random.default_rng(0)
    for value in [v for v in model.graph.value_info if v.name not in computed]:
        tensor = value.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        largest = 100 if dtype.itemsize < 8 and dtype.kind in "iu" else 1.0
        drawn = np.asarray(random.uniform(0.5, 1.0, shape) * largest, dtype)
        model.graph.initializer.append(numpy_helper.from_array(drawn, value.name))
        model.graph.value_info.remove(value)
    return halved(model) if model.graph.name == "half" else model
