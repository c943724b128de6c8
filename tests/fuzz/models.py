"""Mutants of model files: changed bytes, changed structure, changed files with fused ops."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import onnxfuse
from tests.fuzz.commands import FaultError, run

SEEDS = Path(__file__).parent / "seeds"

NUMBERS = (0, 1, -1, 2, 3, 7, 64, 10**6, 6 * 10**8, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))
WORDS = (
    "",
    "x",
    "y",
    "a b",
    "\x1b[31mred",
    "::error file=a::b",
    "new\nline\n::set-output name=a::b",
    "\x00",
    "..",
    "../../up",
    "/absolute",
    "[bold]markup[/]",
    "<b>&amp;",
    "]]>",
    "|cell|",
    "\u202eright",
    "\ufeff",
    "é" * 300,
    "n" * 5000,
    "%0A::error::",
    "-7",
    "1e400",
    "onnxfuse",
    "ai.onnx",
    "com.microsoft",
    "axis",
    "perm",
)
EXTENTS = (
    "N*N",
    "N*" * 3000 + "N",
    "1+" * 2000 + "N",
    "(" * 300 + "N" + ")" * 300,
    "-" * 5000 + "N",
    "9" * 5000 + "*N",
    "\u00b2*N",
    "N%0",
    "min()",
    "floor(1e400-1e400)",
    "min(*N)",
    "unk__0*N",
)
OPERATORS = (
    "Add",
    "Conv",
    "ConvTranspose",
    "Reshape",
    "Gather",
    "Slice",
    "Concat",
    "Split",
    "Range",
    "Expand",
    "Tile",
    "ConstantOfShape",
    "Constant",
    "If",
    "Loop",
    "Scan",
    "Einsum",
    "Resize",
    "Pad",
    "TopK",
    "Softmax",
    "ReduceSum",
    "LayerNormalization",
    "Attention",
    "Transpose",
    "Cast",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
    "QLinearAdd",
    "LSTM",
    "Squeeze",
    "OneHot",
    "Shape",
    "Identity",
    "Dropout",
    "MaxPool",
    "Unsqueeze",
    "Clip",
    "Nothing",
    "GatherND",
    "MatMul",
    "Gemm",
    "BatchNormalization",
    "SpaceToDepth",
    "Where",
    "Flatten",
    "CumSum",
    "Trilu",
    "Mod",
    "Pow",
    "Div",
)


@cache
def seeds() -> tuple[bytes, ...]:
    """Return the models of the corpus; weights that their texts leave out are seeded noise."""
    found = []
    for path in sorted(SEEDS.glob("*.txt")):
        model = onnx.parser.parse_model(path.read_text(encoding="utf-8"))
        noise = np.random.default_rng(0)
        named = {t.name for t in model.graph.initializer}
        for value in [v for v in model.graph.value_info if v.name not in named]:
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            drawn = noise.integers(0, 100, dims) if dtype.itemsize == 1 else noise.random(dims)
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(drawn, dtype), value.name))
            model.graph.value_info.remove(value)
        found.append(model.SerializeToString(deterministic=True))
    return tuple(found)


@cache
def fused_seeds() -> tuple[bytes, ...]:
    """Return the models of the corpus, optimized."""
    models = (onnxfuse.optimize(onnx.ModelProto.FromString(s)) for s in seeds())
    return tuple(m.SerializeToString(deterministic=True) for m in models if m.functions)


def changed_bytes(rng: Random) -> bytes:
    """Return a seed, plain or fused, with a few of its bytes changed, dropped, doubled or taken from another one."""
    data = bytearray(rng.choice(seeds() + fused_seeds()))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 8, 64))
        change = rng.randrange(5)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            del data[at : at + length]
        elif change == 3:
            data[at:at] = data[at : at + length]
        else:
            other = rng.choice(seeds())
            start = rng.randrange(len(other))
            data[at : at + length] = other[start : start + length]
        if not data:
            return b"\x08"
    return bytes(data)


def changed_structure(rng: Random) -> bytes:
    """Return a seed in which facts contradict each other: valid protobuf, and no valid model."""
    return _changed(rng, rng.choice(seeds()))


def changed_fused(rng: Random) -> bytes:
    """Return a fused seed with changes in functions, metadata, and the nodes that call them."""
    return _changed(rng, rng.choice(fused_seeds()))


def _changed(rng: Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        rng.choice(CHANGES)(rng, model)
    try:
        return model.SerializeToString(deterministic=True)
    except (UnicodeEncodeError, ValueError):  # a change that protobuf itself refuses to write
        return data


def attempt(data: bytes, folder: Path) -> str:
    """Run the commands that need no ONNX Runtime on a model."""
    (folder / "in.onnx").write_bytes(data)
    code = run("optimize", "in.onnx", "out.onnx", leaves=("out.onnx",))
    run("explain", "in.onnx")
    run("profile", "in.onnx", "--no-time")
    if code == 0:
        again = run("optimize", "out.onnx", "again.onnx", leaves=("again.onnx",))
        if again:
            raise FaultError(f"what optimize wrote it refuses: exit {again}")
        run("optimize", "--undo", "out.onnx", "plain.onnx", leaves=("plain.onnx",))
    run("optimize", "--undo", "in.onnx", "undone.onnx", leaves=("undone.onnx",))
    return f"exit {code}"


# ---- what is changed


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    own = [n for g in _graphs(model.graph) for n in g.node]
    return own + [n for f in model.functions for n in f.node]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    inside = [a.t for n in _nodes(model) for a in n.attribute if a.type == AttributeProto.TENSOR]
    return [t for g in _graphs(model.graph) for t in g.initializer] + inside


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [v for g in _graphs(model.graph) for v in (*g.input, *g.output, *g.value_info)]


def _names(model: onnx.ModelProto) -> list[str]:
    return [v for n in _nodes(model) for v in (*n.input, *n.output)] + [t.name for t in model.graph.initializer] + [""]


def _int32(number: int) -> int:
    return max(-(2**31), min(2**31 - 1, number))


def _dims(rng: Random, model: onnx.ModelProto) -> None:
    if found := _tensors(model):
        tensor = rng.choice(found)
        if tensor.dims and rng.random() < 0.7:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        else:
            tensor.dims.append(rng.choice(NUMBERS))


def _type_of_tensor(rng: Random, model: onnx.ModelProto) -> None:
    if found := _tensors(model):
        rng.choice(found).data_type = rng.choice((*range(28), 99, -1, 2**31 - 1))


def _data_of_tensor(rng: Random, model: onnx.ModelProto) -> None:
    if not (found := _tensors(model)):
        return
    tensor = rng.choice(found)
    change = rng.randrange(6)
    if change == 0:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif change == 1:
        tensor.raw_data = rng.randbytes(rng.choice((0, 1, 8, 100)))
    elif change == 2:
        tensor.ClearField(rng.choice(("float_data", "int64_data", "int32_data", "raw_data")))
    elif change == 3:
        tensor.string_data.append(b"\xff\xfe")
    elif change == 4:
        tensor.int64_data.append(rng.choice(NUMBERS))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key in rng.sample(("location", "offset", "length", "checksum"), 3):
            tensor.external_data.add(key=key, value=rng.choice((*WORDS, "in.onnx", "/etc/passwd", "12")))


def _versions(rng: Random, model: onnx.ModelProto) -> None:
    change = rng.randrange(5)
    if change == 0:
        model.ir_version = rng.choice(NUMBERS)
    elif change == 1 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*NUMBERS, *range(1, 30)))
    elif change == 2 and model.opset_import:
        rng.choice(model.opset_import).domain = rng.choice(WORDS)
    elif change == 3 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    else:
        model.opset_import.add(domain=rng.choice(("", *WORDS)), version=rng.choice(NUMBERS))


def _attribute(rng: Random, model: onnx.ModelProto) -> None:
    nodes = [n for n in _nodes(model) if n.attribute]
    if not nodes:
        return
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    change = rng.randrange(8)
    if change == 0:
        attribute.type = rng.choice(range(15))
    elif change == 1:
        attribute.name = rng.choice((*WORDS, "axes", "to", "value", "keepdims", "value_ints"))
    elif change == 2:
        node.attribute.remove(attribute)
    elif change == 3 and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    elif change == 4 and attribute.ints:
        del attribute.ints[rng.randrange(len(attribute.ints)) :]
    elif change == 5:
        node.attribute.add().CopyFrom(attribute)
    elif change == 6:
        name = attribute.name
        made: Any = rng.choice((1, -1.5, "text", [1, 2], [0.5], ["a"], numpy_helper.from_array(np.zeros((2, 2)), "t")))
        attribute.CopyFrom(helper.make_attribute(name, made))
    else:
        attribute.i = rng.choice(NUMBERS)
        if attribute.type == AttributeProto.FLOAT:
            attribute.f = rng.choice((float("nan"), float("inf"), 0.0, -1e38))


def _new_attribute(rng: Random, model: onnx.ModelProto) -> None:
    if nodes := _nodes(model):
        names = (
            "axis",
            "axes",
            "to",
            "perm",
            "group",
            "pads",
            "strides",
            "dilations",
            "num_outputs",
            "keepdims",
            "start",
            "blocksize",
            "equation",
            "num_heads",
            "allowzero",
            "kernel_shape",
            "auto_pad",
            "ceil_mode",
        )
        made = rng.choice((rng.choice(NUMBERS), [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 5))], "text", 0.5))
        rng.choice(nodes).attribute.append(helper.make_attribute(rng.choice(names), made))


def _wiring(rng: Random, model: onnx.ModelProto) -> None:
    if not (nodes := _nodes(model)):
        return
    node = rng.choice(nodes)
    ends = rng.choice((node.input, node.output))
    change = rng.randrange(4)
    if change == 0 and ends:
        del ends[rng.randrange(len(ends))]
    elif change == 1:
        ends.append(rng.choice(_names(model)))
    elif change == 2 and ends:
        ends[rng.randrange(len(ends))] = rng.choice((*_names(model), *WORDS))
    else:
        del ends[:]


def _operator(rng: Random, model: onnx.ModelProto) -> None:
    if nodes := _nodes(model):
        node = rng.choice(nodes)
        if rng.random() < 0.8:
            node.op_type = rng.choice((*OPERATORS, *(f.name for f in model.functions)))
        else:
            node.domain = rng.choice(WORDS)


def _node(rng: Random, model: onnx.ModelProto) -> None:
    graph = rng.choice([*_graphs(model.graph), *model.functions])
    if not graph.node:
        return
    node = rng.choice(graph.node)
    change = rng.randrange(4)
    if change == 0:
        graph.node.remove(node)
    elif change == 1:
        graph.node.add().CopyFrom(node)
    elif change == 2:
        names = _names(model)
        graph.node.append(helper.make_node(rng.choice(OPERATORS), rng.choices(names, k=rng.randrange(4)), ["new"]))
    else:
        body = onnx.GraphProto(name="body")
        body.CopyFrom(model.graph)
        graph.node.append(helper.make_node("Loop", ["", "", *list(node.input)[:1]], ["looped"], body=body))


def _value(rng: Random, model: onnx.ModelProto) -> None:
    if not (found := _values(model)):
        return
    value = rng.choice(found)
    shape = value.type.tensor_type.shape
    change = rng.randrange(7)
    if change == 0 and shape.dim:
        shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice(NUMBERS)
    elif change == 1 and shape.dim:
        shape.dim[rng.randrange(len(shape.dim))].dim_param = rng.choice((*WORDS, *EXTENTS))
    elif change == 2:
        value.type.tensor_type.elem_type = rng.choice((*range(28), 99, -1))
    elif change == 3:
        value.ClearField("type")
    elif change == 4:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif change == 5:
        value.name = rng.choice((*_names(model), *WORDS))
    else:
        shape.dim.add().dim_value = rng.choice(NUMBERS)


def _declaration(rng: Random, model: onnx.ModelProto) -> None:
    graph = rng.choice(list(_graphs(model.graph)))
    values = rng.choice((graph.input, graph.output, graph.value_info))
    if values and rng.random() < 0.5:
        del values[rng.randrange(len(values))]
    else:
        dims = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
        values.append(helper.make_tensor_value_info(rng.choice(_names(model)), rng.choice((1, 7, 10)), dims))


def _name(rng: Random, model: onnx.ModelProto) -> None:
    word = rng.choice(WORDS)
    old = rng.choice(_names(model))
    for graph in [*_graphs(model.graph), *model.functions]:
        for node in graph.node:
            for ends in (node.input, node.output):
                for index, name in enumerate(ends):
                    if name == old:
                        ends[index] = word
            if rng.random() < 0.2:
                node.name = word
    for one in (*_values(model), *model.graph.initializer):
        if one.name == old:
            one.name = word
    if rng.random() < 0.3:
        model.graph.name = word


def _metadata(rng: Random, model: onnx.ModelProto) -> None:
    homes: list[Any] = [model, *model.functions, *_nodes(model)]
    homes = [h for h in homes if h.metadata_props] or homes
    home = rng.choice(homes)
    texts = (
        *WORDS,
        "[]",
        "{}",
        "[1,2]",
        '["a"]',
        '[["a"]]',
        "[" * 3000,
        '{"version": 1}',
        "null",
        "[null]",
        "FLOAT",
        "FLOAT,FLOAT",
        "row",
        "gemm",
        "attention",
        "pointwise",
        "library",
        "9" * 5000,
    )
    change = rng.randrange(3)
    if change == 0 and home.metadata_props:
        rng.choice(home.metadata_props).value = rng.choice(texts)
    elif change == 1 and home.metadata_props:
        del home.metadata_props[rng.randrange(len(home.metadata_props))]
    else:
        keys = ("nodes", "values", "rule", "template", "inputs", "outputs", "library", "tuning", "use_tf32")
        home.metadata_props.add(key=f"onnxfuse.{rng.choice(keys)}", value=rng.choice(texts))


def _function(rng: Random, model: onnx.ModelProto) -> None:
    if not model.functions:
        return
    function = rng.choice(model.functions)
    change = rng.randrange(6)
    if change == 0:
        model.functions.add().CopyFrom(function)
    elif change == 1:
        model.functions.remove(function)
    elif change == 2:
        function.name = rng.choice((*WORDS, *(f.name for f in model.functions)))
    elif change == 3:
        function.domain = rng.choice(("", "onnxfuse", "mine", *WORDS))
    elif change == 4:
        ends = rng.choice((function.input, function.output))
        if ends and rng.random() < 0.5:
            del ends[rng.randrange(len(ends))]
        else:
            ends.append(rng.choice(WORDS))
    elif function.opset_import:
        rng.choice(function.opset_import).version = rng.choice(NUMBERS)


def _constant(rng: Random, model: onnx.ModelProto) -> None:
    """Change the numbers of a small integer weight: sizes, axes, targets."""
    found = [t for t in _tensors(model) if t.data_type == TensorProto.INT64 and not t.raw_data and t.int64_data]
    if found:
        tensor = rng.choice(found)
        tensor.int64_data[rng.randrange(len(tensor.int64_data))] = rng.choice(NUMBERS)


def _grown(rng: Random, model: onnx.ModelProto) -> None:
    """Let an integer vector, or another value, be put together with itself node after node."""
    name, nodes = rng.choice(_names(model)), model.graph.node
    if rng.random() < 0.7:
        nodes.append(helper.make_node("Shape", [name], ["grown"]))
        name = "grown"
    if rng.random() < 0.3:
        many = rng.choice((5_000, 10**6, 10**9))
        nodes.append(helper.make_node("Constant", [], ["many"], value_ints=[many]))
        nodes.append(helper.make_node(rng.choice(("Tile", "Expand")), [name, "many"], ["tiled"]))
        name = "tiled"
    operator = rng.choice(("Concat", "Mul", "Add", "MatMul"))
    for n in range(rng.choice((1, 8, 40))):
        more: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
        nodes.append(helper.make_node(operator, [name, name], [f"grown_{n}"], **more))
        name = f"grown_{n}"


CHANGES: tuple[Callable[[Random, onnx.ModelProto], None], ...] = (
    _dims,
    _type_of_tensor,
    _data_of_tensor,
    _versions,
    _attribute,
    _attribute,
    _new_attribute,
    _wiring,
    _operator,
    _node,
    _value,
    _declaration,
    _name,
    _metadata,
    _function,
    _constant,
    _constant,
    _grown,
)
