"""A Triton backend called onnxruntime, in Python: what the real one does with a model, by the same functions of ONNX
Runtime, for a server that comes without the real one.

Triton finds it as `onnxruntime/model.py` in its folder of backends, and runs it in a process of its own.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ["PACKAGES"])  # the server's Python is the system's, and reads no PYTHONPATH

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """An instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session: provider first, then the libraries that the configuration names, then the model."""
        for library in json.loads(os.environ["PRELOADED"]):  # the stand-in CUDA libraries, instead of those of a GPU
            ctypes.CDLL(library)
        self.config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        for library in self.config["model_operations"]["op_library_filename"]:
            options.register_custom_ops_library(library)
        model = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        cuda = ("CUDAExecutionProvider", {"device_id": "0", "do_copy_in_default_stream": "1"})
        self.session = onnxruntime.InferenceSession(str(model), options, providers=[cuda])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run what has come as one batch, and share out its rows."""
        # By DLPack, as this server's arrays are those of NumPy 1 alone.
        inputs = {
            i["name"]: np.concatenate([np.from_dlpack(triton.get_input_tensor_by_name(r, i["name"])) for r in requests])
            for i in self.config["input"]
        }
        names = [o["name"] for o in self.config["output"]]
        outputs = self.session.run(names, inputs)
        first = self.config["input"][0]["name"]
        rows = [triton.get_input_tensor_by_name(r, first).shape()[0] for r in requests]
        ends = np.cumsum(rows)[:-1]
        parts = zip(*(np.split(output, ends) for output in outputs), strict=True)
        print(f"batch of {len(requests)}", flush=True)
        return [
            triton.InferenceResponse(
                [triton.Tensor.from_dlpack(n, np.ascontiguousarray(p)) for n, p in zip(names, part, strict=True)]
            )
            for part in parts
        ]
