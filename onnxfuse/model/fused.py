"""The fused op: an op in the domain `onnxfuse` whose semantics is a model-local function, its body."""

from dataclasses import dataclass

import onnx
import onnx.printer

from onnxfuse import ops
from onnxfuse.model import bodies, provenance
from onnxfuse.model.nested import graphs_in, nodes_of
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.support.bounded_text import parse_function
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural

DOMAIN = provenance.DOMAIN


@dataclass(frozen=True)
class Slot:
    """Location of a part's result within a merged op's output: a slice of channels, its last axis."""

    first: int
    total: int
    """Channels of the whole output."""


@dataclass(frozen=True)
class Meaning:
    """Semantics of an op independent of its name, as a cache key."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    text: bytes

    def op(self, template: str = "") -> "FusedOp":
        """Return an unnamed op with these semantics."""
        return FusedOp("", "", template, self.inputs, self.outputs, onnx.FunctionProto.FromString(self.text))


@dataclass(frozen=True)
class FusedOp:
    """One distinct fused op of a model. All nodes of the same op share one body and so one kernel."""

    name: str
    """`op_type` in the domain `onnxfuse`; ends in a hash of the body and the element types."""
    rule: str
    """The rule that made it."""
    template: str
    """The kernel template, such as `row`; `attention` or `library` if an ONNX Runtime op computes it."""
    inputs: tuple[int, ...]
    """Element type (`onnx.TensorProto.DataType`) of each function input, in order."""
    outputs: tuple[int, ...]
    """Element type of each function output, in order."""
    body: onnx.FunctionProto
    """The replaced nodes, in topological order; scalars are `Constant` nodes inside."""
    library: onnx.FunctionProto | None = None
    """The same computation as an ONNX Runtime op, for a session on CUDA; None if a kernel is generated."""
    slot: Slot | None = None
    """For a part of a merged op, which is not itself in the model; None: it has its own output."""
    extremes_of: int | None = None
    """For a part of a merged op: the output of which the kernel should leave the smallest and the largest element, too.
    `LaunchPlan.extremes` says where it does; None: of none."""
    open_length: bool = False
    """Whether a session may run any sequence length: kernels are not specialized to each. Not in the file."""
    constants: frozenset[int] = frozenset()
    """Indices of inputs that are weights at every node of the op: they do not change while it runs. Not in the file;
    derived from the model.
    """
    tf32: bool = True
    """Whether float32 products may be rounded to TF32, ONNX Runtime's default (`use_tf32`). Set by the session; without
    a session by the model.
    """

    @property
    def meaning(self) -> Meaning:
        """Its body and element types, without a reference to a model."""
        return Meaning(self.inputs, self.outputs, self.body.SerializeToString(deterministic=True))

    @property
    def opset(self) -> int:
        """Version of the default operator set of the body."""
        return next(int(o.version) for o in self.body.opset_import if o.domain == "")


def fused_ops(model: onnx.ModelProto) -> dict[str, FusedOp]:
    """Return the model's fused ops by name, in file order."""
    tf32, weights = not is_strict_fp32(model), _weights(model)
    return {f.name: _read(f, tf32, weights.get(f.name, frozenset())) for f in model.functions if f.domain == DOMAIN}


def _weights(model: onnx.ModelProto) -> dict[str, frozenset[int]]:
    """Return for each op the indices of inputs that are weights at all of its nodes and that no caller can override."""
    inner = [body for node in model.graph.node for body in graphs_in(node)]
    names = {t.name for graph in (model.graph, *inner) for t in graph.initializer}
    names -= {i.name for i in model.graph.input}
    indices: dict[str, frozenset[int]] = {}
    for node in nodes_of(model.graph):
        if node.domain == DOMAIN:
            mine = frozenset(i for i, name in enumerate(node.input) if name in names)
            indices[node.op_type] = indices.get(node.op_type, mine) & mine
    return indices


def replaced_nodes(node: onnx.NodeProto, op: FusedOp) -> tuple[str, ...]:
    """Return the original nodes of a fused node, as "Op name"; unnamed ones by their first output.

    If another tool dropped the node's metadata, the names are those of the body.
    """
    actual = {f"v{i}": name for i, name in enumerate(provenance.names(node, "values") or ())}
    actual.update(zip(op.body.output, node.output, strict=False))
    inner = [n for n in op.body.node if n.op_type != ops.Constant]
    names = (provenance.names(node, "nodes") or [])[-len(inner) :] if inner else []
    called = [*names, *[""] * (len(inner) - len(names))]
    return tuple(
        f"{n.op_type} {name or actual.get(n.output[0], n.output[0])}" for n, name in zip(inner, called, strict=True)
    )


def write(op: FusedOp) -> onnx.FunctionProto:
    """Return the function of `op` as stored in a model: the body, with its properties as metadata."""
    function = onnx.FunctionProto()
    function.CopyFrom(op.body)
    del function.metadata_props[:]
    for key, value in (
        ("rule", op.rule),
        ("template", op.template),
        ("inputs", _type_names(op.inputs)),
        ("outputs", _type_names(op.outputs)),
    ):
        function.metadata_props.add(key=f"{DOMAIN}.{key}", value=value)
    if op.library is not None:
        function.metadata_props.add(key=f"{DOMAIN}.library", value=onnx.printer.to_text(op.library))
    return function


def _read(function: onnx.FunctionProto, tf32: bool, constants: frozenset[int]) -> FusedOp:
    facts = {p.key.removeprefix(f"{DOMAIN}."): p.value for p in function.metadata_props}
    lacking = {"rule", "template", "inputs", "outputs"} - set(facts)
    if lacking:
        raise ModelError(
            f"the function {DOMAIN}.{function.name} lacks its metadata ({', '.join(sorted(lacking))})",
            "A tool that rewrote the file dropped it; optimize the original model again.",
        )
    bodies.check(function)
    inputs, outputs = (_types(function, facts, key) for key in ("inputs", "outputs"))
    return FusedOp(
        name=function.name,
        rule=facts["rule"],
        template=facts["template"],
        inputs=inputs,
        outputs=outputs,
        body=function,
        library=_library(function, facts["library"]) if "library" in facts else None,
        constants=constants,
        tf32=tf32,
    )


def _type_names(types: tuple[int, ...]) -> str:
    return ",".join(onnx.TensorProto.DataType.Name(t) for t in types)


def _types(function: onnx.FunctionProto, facts: dict[str, str], key: str) -> tuple[int, ...]:
    names = [n for n in facts[key].split(",") if n]
    values = list(function.input if key == "inputs" else function.output)
    if len(names) != len(values) or not set(names) <= set(onnx.TensorProto.DataType.keys()):
        raise _damaged(function, f"names the types {bodies.shown(facts[key])!r} for {plural(values, key[:-1])}")
    return tuple(int(onnx.TensorProto.DataType.Value(n)) for n in names)


def _library(function: onnx.FunctionProto, text: str) -> onnx.FunctionProto:
    try:
        parsed = parse_function(text)
    except ModelError as error:
        raise _damaged(function, f"holds a library form that cannot be read: {bodies.shown(f'{error}')}") from None
    bodies.check(parsed)
    return parsed


def _damaged(function: onnx.FunctionProto, fact: str) -> ModelError:
    return ModelError(
        f"the metadata of the function {DOMAIN}.{bodies.shown(function.name)} {fact}",
        "The file is damaged, or no tool of ours wrote it; optimize the original model again.",
    )
