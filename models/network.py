"""Write an ONNX graph the way a paper writes a network: `net.Add(net.MatMul(x, w), b)`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models.weights import Weights
from onnxfuse.support.errors import UsageError

Dimension = int | str
Operand = str | float | Sequence[int] | NDArray[np.generic]

OLDEST_OPSET = 13  # Squeeze, Unsqueeze and ReduceSum take their axes as an input from here on.
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Form:
    """How a model is written down, whatever its architecture."""

    dtype: str = "float32"
    """Type of weights and activations: `float32` or `float16`."""
    batch: Dimension = "batch"
    """A number, or the name of a dimension that is open until run time."""
    sequence: Dimension = "sequence"
    """Tokens per row of a text model: a number or a name. Image models do not read it."""
    opset: int = 17
    """Version of the default operator set. Below 17 LayerNormalization is spelled out, below 20 Gelu is."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}.")
        newest = onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= self.opset <= newest:
            raise UsageError(f"opset is {self.opset}, expected {OLDEST_OPSET} to {newest}, the newest that onnx knows.")
        for name in ("batch", "sequence"):
            size = getattr(self, name)
            if isinstance(size, int) and size < 1:
                raise UsageError(f"{name} is {size}, expected at least 1.", hint=f"Leave {name} out to keep it open.")


def start(name: str, form: Form, weights: Weights) -> "Network":
    """Return an empty model."""
    model = onnx.ModelProto(producer_name="onnxfuse models")
    model.opset_import.add(domain="", version=form.opset)
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    model.graph.name = name
    return Network(model, form, weights)


@dataclass(frozen=True)
class Network:
    """A model while it is written. Values are their names; every ONNX op is a method that returns its output.

    Operands may be Python numbers: `net.Mul(x, 0.5)` takes 0.5 in the model's own float type, integers and lists of
    integers become int64. `net.at("encoder")` is the same model with names that start with `encoder.`, as in torch.
    """

    model: onnx.ModelProto
    """What has been written so far. Filled in place: `helper.make_graph` would copy every weight once more."""
    form: Form
    """How it is written down."""
    weights: Weights
    """Where parameters come from."""
    scope: str = ""
    """The module that is being written, in torch's dotted names."""
    used: Counter[str] = field(default_factory=Counter)
    """How many nodes have each name, to tell them apart."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The type of weights and activations."""
        return np.dtype(self.form.dtype)

    @property
    def element_type(self) -> int:
        """The same as ONNX's number for it."""
        return onnx.helper.np_dtype_to_tensor_dtype(self.dtype)

    def at(self, module: str) -> "Network":
        """Return the same model, seen from inside `module`: what is added gets the module's name in front."""
        return replace(self, scope=self._inside(module))

    def using(self, weights: Weights) -> "Network":
        """Return the same model with another source for the parameters that are added from now on."""
        return replace(self, weights=weights)

    def input(self, name: str, dtype: np.dtype[np.generic], shape: Sequence[Dimension]) -> str:
        """Declare a graph input and return it."""
        self.model.graph.input.append(_value(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[Dimension]) -> None:
        """Declare that `value` leaves the graph under `name`."""
        for node in self.model.graph.node:
            for names in (node.input, node.output):
                for i, old in enumerate(names):
                    if old == value:
                        names[i] = name
        self.model.graph.output.append(_value(name, self.dtype, shape))

    def draw(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> NDArray[np.float32]:
        """Return the values of the parameter `name` of this module, without adding it to the model."""
        return self.weights(self._inside(name), shape, std, mean)

    def add_weight(self, name: str, values: NDArray[np.floating]) -> str:
        """Add `values`, in the model's float type, as the parameter `name` of this module and return it."""
        full_name = self._inside(name)
        raw = values.astype(self.dtype, order="C", copy=False).tobytes()
        self.model.graph.initializer.add(name=full_name, data_type=self.element_type, dims=values.shape, raw_data=raw)
        return full_name

    def weight(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> str:
        """Add the parameter `name` of this module, as its source has it, and return it."""
        return self.add_weight(name, self.draw(name, shape, std, mean))

    def constant(self, values: NDArray[np.generic]) -> str:
        """Add a Constant node, which is how exporters write what is not a parameter, and return its output."""
        return self._node("Constant", [], {"value": onnx.numpy_helper.from_array(values)})

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cut `x` along `axis` into parts of these sizes and return them: the one op here with several outputs."""
        parts = self._node("Split", [x, self._operand(sizes)], {"axis": axis})
        node = self.model.graph.node[-1]
        node.output.extend(f"{parts.removesuffix('0')}{i}" for i in range(1, len(sizes)))
        return list(node.output)

    def __getattr__(self, op: str) -> Callable[..., str]:
        if not op[0].isupper() or not onnx.defs.has(op, max_inclusive_version=self.form.opset):
            raise AttributeError(f"Network has no {op!r}, and opset {self.form.opset} of ONNX has no such op.")

        def add(*operands: Operand, **attributes: Any) -> str:
            return self._node(op, [self._operand(x) for x in operands], attributes)

        return add

    def _operand(self, x: Operand) -> str:
        """Return the name of the value that `x` stands for."""
        if isinstance(x, str):
            return x
        if isinstance(x, float):
            x = np.array(x, self.dtype)
        return self.constant(x if isinstance(x, np.ndarray) else np.array(x, np.int64))

    def _node(self, op: str, inputs: list[str], attributes: dict[str, Any]) -> str:
        path = f"{self.scope}/{op}"
        count = self.used[path]
        self.used[path] += 1
        name = f"{path}_{count}" if count else path
        output = f"{name}_output_0"
        self.model.graph.node.append(onnx.helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def _inside(self, name: str) -> str:
        return f"{self.scope}.{name}" if self.scope else name


def _value(name: str, dtype: np.dtype[np.generic], shape: Sequence[Dimension]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), shape)
