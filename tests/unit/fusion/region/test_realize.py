"""What a file says of the library's form decides nothing: the rule makes it of the body, where it stands."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, printer

from onnxfuse.cuda.templates.attention.body import parse_op
from onnxfuse.fusion.region.realize import Realized, realize
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops, write
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.gpu.library_forms import CONVOLUTIONS, FORMS, KNOWN, POOLINGS, attention, image_op, through_library
from tests.support.small import parse


def made(name: str, length: int = 0) -> tuple[ModelProto, FusedOp]:
    """Return the form of this name as a model that runs through the library, and its op."""
    model = through_library(attention(name, "float16", 64, 2, length))
    (op,) = (op for op in fused_ops(model).values() if op.library is not None)
    return model, op


def of_rule(model: ModelProto) -> Realized:
    """Return what the rule makes of the only op with a form of the library's."""
    (found,) = realize(model, {n: op for n, op in fused_ops(model).items() if op.library is not None}).values()
    return found


def text(form: onnx.FunctionProto | None) -> str:
    assert form is not None
    return str(printer.to_text(form))


@pytest.mark.parametrize("name", [name for name in FORMS if name != "windows"])
def test_attention_is_made_again_as_optimize_made_it(name: str) -> None:
    """From the file alone, of open and of known lengths."""
    for length in (77,) if name in KNOWN else (0, 64):
        model, op = made(name, length)
        read = ModelProto.FromString(model.SerializeToString())
        assert text(of_rule(read).form) == text(op.library)


def test_windows_are_made_again() -> None:
    """Their result may go through one Reshape more or less, by what is known of its batch; all else is the same."""
    model, op = made("windows", 77)
    told, again = (parse_op(replace(op, library=form)) for form in (op.library, of_rule(model).form))
    assert told.windows
    assert replace(again, target=None) == replace(told, target=None)
    assert {told.target, again.target} <= {None, (0, 0, 128)}


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *POOLINGS])
def test_images_are_made_again_as_optimize_made_them(name: str) -> None:
    """Also what grew after the anchor: a Relu follows."""
    if name in POOLINGS:
        model = image_op(POOLINGS[name][0], "float16", 8, POOLINGS[name][1], None)
    else:
        op_type, groups, options = CONVOLUTIONS[name]
        shape = (16, 8 // groups, 3, 3) if op_type == "Conv" else (8, 16, 3, 3)
        model = image_op(op_type, "float16", 8, {**options, "group": groups}, shape)
    fused = through_library(model)
    ops = [op for op in fused_ops(fused).values() if op.library is not None]
    assert [text(of_rule(fused).form)] == [text(op.library) for op in ops]


CONCAT = """g (float16[N,9,7,8] x) => (float16[N,9,7,24] y) <float16[8,3,3,8] w, float16[16,1,1,8] u> {
  first = Transpose <perm = [0,3,1,2]> (x)  f = Transpose <perm = [0,3,1,2]> (w)
  c = Conv <pads = [1,1,1,1]> (first, f)  cl = Transpose <perm = [0,2,3,1]> (c)  cr = Relu (cl)
  second = Transpose <perm = [0,3,1,2]> (x)  h = Transpose <perm = [0,3,1,2]> (u)
  d = Conv (second, h)  dl = Transpose <perm = [0,2,3,1]> (d)  dr = Sigmoid (dl)
  y = Concat <axis = -1> (cr, dr)
}"""


def test_each_part_of_a_concat_is_made_again() -> None:
    """Two convolutions beside each other: the library computes each, and what grew after it follows."""
    random = np.random.default_rng(0)
    model = parse(CONCAT.replace("<float16[8,3,3,8] w, float16[16,1,1,8] u>", ""), opset=20)
    for name, shape in (("w", (8, 3, 3, 8)), ("u", (16, 1, 1, 8))):
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float16), name))
    pipeline.run(model)
    (op,) = fused_ops(model).values()
    assert op.template == "concat"
    form = of_rule(model).form
    assert form is not None
    assert [n.op_type for n in form.node if n.domain] == ["Conv", "Conv"]
    assert {"Relu", "Sigmoid", "Concat"} <= {n.op_type for n in form.node}


# ---- files that say something else


def changed(model: ModelProto, old: str, new: str) -> ModelProto:
    """Return the model with another library form in its metadata."""
    other = ModelProto.FromString(model.SerializeToString())
    (entry,) = (p for f in other.functions for p in f.metadata_props if p.key == f"{DOMAIN}.library")
    assert old in entry.value
    entry.value = entry.value.replace(old, new)
    return other


LIES: dict[str, tuple[str, str, str]] = {
    "another scale": ("plain", "scale: float = 0.37", "scale: float = 0.5"),
    "other heads": ("plain", "num_heads: int = 2", "num_heads: int = 4"),
    "causal, which the body is not": ("plain", "num_heads", "unidirectional: int = 1, num_heads"),
    "not causal, which the body is": ("causal", "unidirectional: int = 1", "unidirectional: int = 0"),
    "values for keys": ("plain", "(x0, x1, x2)", "(x0, x2, x1)"),
    "no mask": ("mask by key", ', "", "", inner_whole', ""),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_form_that_says_something_else_is_not_read(lie: str) -> None:
    """The rule makes the right one of the body."""
    name, old, new = LIES[lie]
    model, op = made(name)
    assert text(of_rule(changed(model, old, new)).form) == text(op.library)


def rewritten(change: Callable[[onnx.FunctionProto], None], name: str = "plain") -> Realized:
    """Return what the rule makes of a body that was changed, beside the form of the old one."""
    model, op = made(name)
    body = onnx.FunctionProto.FromString(op.body.SerializeToString())
    change(body)
    (function,) = (f for f in model.functions if f.name == op.name)
    function.CopyFrom(write(replace(op, body=body)))
    return of_rule(model)


def test_a_body_that_computes_something_else_has_no_such_form() -> None:
    """Softmax along another axis, and no attention at all."""

    def other_axis(body: onnx.FunctionProto) -> None:
        (softmax,) = (n for n in body.node if n.op_type == "Softmax")
        softmax.attribute[0].i = 1

    def none_left(body: onnx.FunctionProto) -> None:
        del body.node[:]
        body.node.append(onnx.helper.make_node("Softmax", ["x0"], ["y0"], axis=-1))

    for change in (other_axis, none_left):
        found = rewritten(change)
        assert found.form is None
        assert "the rule attention does not find in its body" in found.reason


def test_another_scale_in_the_body_is_another_form() -> None:
    """What runs is what the body says."""

    def doubled(body: onnx.FunctionProto) -> None:
        constants = [n.attribute[0].t for n in body.node if n.op_type == "Constant"]
        (scale,) = (t for t in constants if t.data_type == onnx.TensorProto.FLOAT16)
        scale.CopyFrom(numpy_helper.from_array(np.asarray(0.74, np.float16)))

    form = rewritten(doubled).form
    assert form is not None
    (node,) = (n for n in form.node if n.domain)
    assert next(a.f for a in node.attribute if a.name == "scale") == pytest.approx(0.74, rel=1e-3)


def test_a_causal_op_with_another_mask_has_no_causal_form() -> None:
    """The body is right for any mask; the form that reads none is right for the causal one alone."""
    model, op = made("causal")
    (node,) = (n for n in model.graph.node if n.op_type == op.name)
    mask = next(v for v in node.input if v not in ("q", "k", "v"))
    (maker,) = (n for n in model.graph.node if mask in n.output)
    maker.op_type = "GreaterOrEqual"  # keys before their query are hidden
    found = of_rule(model)
    assert found.form is None or "unidirectional" not in text(found.form)


def test_a_mask_in_external_data_is_read(tmp_path: Path) -> None:
    """Weights of products are not: a file of them alone is not opened."""
    keep = np.tril(np.ones((1, 1, 64, 64), bool))
    model = attention("chosen", "float16", 64, 2, 64)
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(keep, "keep"))
    fused = through_library(model)
    (op,) = fused_ops(fused).values()
    assert "unidirectional" in text(op.library)
    onnx.save(fused, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=100)
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (found,) = realize(light, fused_ops(light), (), tmp_path / "m.onnx").values()
    assert text(found.form) == text(op.library)
    found = of_rule(light)
    assert found.form is None or "unidirectional" not in text(found.form)


def test_places_that_differ_have_no_form_together() -> None:
    """One op called with the causal mask here and with another one there."""
    model, op = made("causal")
    (node,) = (n for n in model.graph.node if n.op_type == op.name)
    mask = next(v for v in node.input if v not in ("q", "k", "v"))
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.input[list(node.input).index(mask)] = "given"
    again.output[0] = "z"
    model.graph.node.append(again)
    model.graph.input.append(onnx.helper.make_tensor_value_info("given", onnx.TensorProto.BOOL, [1, 1, "L", "L"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT16, None))
    found = of_rule(model)
    assert found.form is None
    assert found.reason
    assert len(found.shapes) == 2


def test_shapes_that_a_file_declares_prove_nothing() -> None:
    """A causal mask whose extents the file makes up: what follows from the inputs counts."""
    fused, _ = made("causal")
    for value in fused.graph.input:
        if value.name in "kv":
            value.type.tensor_type.ClearField("shape")
    (mask,) = (v for v in fused.graph.node[-1].input if v not in "qkv")
    declared = onnx.helper.make_tensor_value_info(mask, onnx.TensorProto.BOOL, [1, 1, "L", "L"])
    fused.graph.value_info.append(declared)
    found = of_rule(fused)
    assert found.form is None
    assert found.reason


def test_a_rule_of_the_users_own_has_to_be_given(tmp_path: Path) -> None:
    """By its file; a name that is no shipped rule is looked up nowhere."""
    path = tmp_path / "mine.toml"
    path.write_text("""summary = "A square root, as the library's."
[fuse]
template = "library"
[[fuse.anchor]]
pattern = \'\'\'(x) => (y) { r = Exp (x) y = Tanh (r) }\'\'\'
realize = \'\'\'(x) => (y) { r = Exp (x) y = com.microsoft.FastGelu (r) }\'\'\'
""")
    mine = rule_file.read(path)
    model = parse("g (float[2,4] x) => (float[2,4] y) { r = Exp (x) y = Tanh (r) }")
    pipeline.run(model, [mine])
    ops = fused_ops(model)
    (unknown,) = realize(model, ops).values()
    assert unknown.form is None
    assert "'mine' is not known here" in unknown.reason
    (known,) = realize(model, ops, [mine]).values()
    assert known.form is not None
    for name in ("../mine", str(path), ""):
        (other,) = realize(model, {n: replace(op, rule=name) for n, op in ops.items()}).values()
        assert other.form is None
