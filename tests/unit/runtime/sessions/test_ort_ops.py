"""Attention in sessions: on CUDA an op of ONNX Runtime's own takes the place of the body, and nowhere else."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

import onnxfuse
from onnxfuse import runtime
from onnxfuse.cuda import Arch
from onnxfuse.files import external, io, outline
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from tests.gpu import library_forms
from tests.models import small
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.support.small import halved, optimize
from tests.unit.fusion.test_attention import attention
from tests.unit.fusion.test_attention_masks import CAUSAL, CHOSEN, KEEP, SAFE, infinite
from tests.unit.fusion.test_attention_masks import attention as masked

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
CPU = ["CPUExecutionProvider"]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""Float32 against float32: sums of 4 and 5 products in another order, and one rounding of the scale."""


def original() -> ModelProto:
    """Return an attention with a mask."""
    return onnx.parser.parse_model(HEAD + attention(mask="B,1,1,L", batch="N", rows="S", columns="L"))


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 8), "k": (2, 5, 8), "v": (2, 5, 8), "mask": (2, 1, 1, 5)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def plain(model: ModelProto) -> np.ndarray:
    """Return what plain ONNX Runtime computes on the CPU."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=CPU)
    return np.asarray(session.run(None, feeds())[0])


def domains(model: ModelProto) -> set[str]:
    """Return the domains of the nodes, those in the fused ops' functions included."""
    return {n.domain for f in (model.graph, *model.functions) for n in f.node}


@pytest.fixture
def fused() -> ModelProto:
    """The optimized attention."""
    return optimize(original())[0]


# ---- the model that is opened


def test_the_librarys_op_takes_the_place_of_the_body(fused: ModelProto, tmp_path: Path) -> None:
    """From a model, its bytes or its path: the same model, which is valid and computes the same."""
    onnx.save(fused, tmp_path / "m.onnx")
    opened = [
        with_library_ops(source, onnxruntime.SessionOptions(), fused_ops(fused))
        for source in (fused, fused.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx"))
    ]
    assert all(o == opened[0] for o in opened)
    assert "com.microsoft" in domains(opened[0])
    onnx.checker.check_model(opened[0])
    np.testing.assert_allclose(plain(opened[0]), plain(original()), **TOLERANCE)


def test_the_model_given_is_not_touched(fused: ModelProto) -> None:
    """The portable body stays in it, byte by byte."""
    before = fused.SerializeToString(deterministic=True)
    with_library_ops(fused, onnxruntime.SessionOptions(), fused_ops(fused))
    assert fused.SerializeToString(deterministic=True) == before
    assert domains(fused) == {"", DOMAIN}


def test_other_ops_keep_their_bodies() -> None:
    """Only what has a library form changes."""
    made = optimize(with_tail())[0]
    opened = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    gone = {f.name for f in made.functions} - {f.name for f in opened.functions}
    assert gone == {name for name, op in fused_ops(made).items() if op.rule == "attention"}
    assert opened.functions
    assert all(f in list(made.functions) for f in opened.functions)


def test_what_every_layer_makes_of_the_mask_is_made_once() -> None:
    """Two attentions with one mask: it is spread over the scores once, whatever the lengths are at run time."""
    text = original()
    custom_ops_arguments = [onnx.NodeProto.FromString(n.SerializeToString()) for n in text.graph.node]
    inner = {o for n in custom_ops_arguments for o in n.output}
    for node in custom_ops_arguments:
        node.input[:] = ["y" if v == "q" else f"second_{v}" if v in inner else v for v in node.input]
        node.output[:] = [f"second_{v}" for v in node.output]
    text.graph.node.extend(custom_ops_arguments)
    text.graph.output[0].name = "second_y"
    made = optimize(text)[0]
    opened = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    counted = Counter(n.op_type for n in opened.graph.node)
    assert counted["MultiHeadAttention"] == 2
    assert counted["Expand"] == 1
    np.testing.assert_allclose(plain(opened), plain(text), **TOLERANCE)


def test_the_file_runs_without_its_library_form(fused: ModelProto) -> None:
    """Plain ONNX Runtime on the CPU, and onnxfuse.session there, run the body."""
    np.testing.assert_allclose(plain(fused), plain(original()), **TOLERANCE)
    session = runtime.session(fused, CPU)
    assert [(p.rule, p.runs_as) for p in session.fused] == [("attention", "body")]
    np.testing.assert_array_equal(session.run(None, feeds())[0], plain(fused))


def with_a_product() -> tuple[ModelProto, ModelProto]:
    """Return an attention that a product with a weight follows, before and after it is fused."""
    before = original()
    before.graph.node[-1].output[0] = "attended"
    before.graph.node.append(onnx.helper.make_node("MatMul", ["attended", "w"], ["y"]))
    weight = np.random.default_rng(1).standard_normal((8, 8), np.float32)
    before.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return before, optimize(before)[0]


@pytest.mark.parametrize("pad", range(4))
@pytest.mark.parametrize("linked", [False, True])
def test_weights_of_the_file_itself_are_read_from_it(
    pad: int, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is opened as bytes without them, at whatever byte of the file they are, behind a link too."""
    before, made = with_a_product()
    made.producer_name = "p" * pad
    for module in (external, outline):
        monkeypatch.setattr(module, "SMALL", 16)
    path = tmp_path / "m.onnx"
    (tmp_path / "blobs").mkdir()
    file = tmp_path / "blobs" / "5d0c" if linked else path
    file.write_bytes(made.SerializeToString())
    if linked:
        path.symlink_to(file)
    options = onnxruntime.SessionOptions()
    opened = with_library_ops(path, options, fused_ops(made))
    places = [e.value for t in opened.graph.initializer for e in t.external_data if e.key == "location"]
    assert places == [file.name]
    session = onnxruntime.InferenceSession(opened.SerializeToString(), options, providers=CPU)
    np.testing.assert_allclose(session.run(None, feeds())[0], plain(before), rtol=1e-5, atol=1e-5)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "elsewhere" / "seen.onnx")
    whole = with_library_ops(path, options, fused_ops(made))
    assert not any(external.is_external(t) for t in whole.graph.initializer)


def test_external_data_is_found_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is opened as bytes, its weights stay in the file beside it, whatever the working folder is."""
    before, made = with_a_product()
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 100)
    monkeypatch.setattr(external, "SMALL", 16)
    io.save(made, tmp_path / "m.onnx")
    (data,) = tmp_path.glob("m.onnx.*.data")
    assert data.stat().st_size >= 8 * 8 * 4
    (tmp_path / "elsewhere").mkdir()
    for folder, path in ((tmp_path, "m.onnx"), (tmp_path / "elsewhere", str(tmp_path / "m.onnx"))):
        monkeypatch.chdir(folder)
        options = onnxruntime.SessionOptions()
        opened = with_library_ops(path, options, fused_ops(made))
        assert opened.ByteSize() < made.ByteSize() + 2000
        assert any(t.data_location == onnx.TensorProto.EXTERNAL for t in opened.graph.initializer)
        session = onnxruntime.InferenceSession(opened.SerializeToString(), options, providers=CPU)
        np.testing.assert_allclose(session.run(None, feeds())[0], plain(before), rtol=1e-5, atol=1e-5)


# ---- on CUDA


def opened_on_cuda() -> Any:
    stand_in_kernels.install()
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, seen = Path(folder) / "m.onnx", Path(folder) / "seen.onnx"
        onnx.save(onnxfuse.optimize(halved(with_tail())), path)
        for name, source in (("path", path), ("bytes", path.read_bytes()), ("model", onnx.load(path))):
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(seen)
            session = runtime.session(source, CUDA, options)
            facts[name] = {
                "fused": [(p.rule, p.nodes, p.runs_as, p.reason) for p in session.fused],
                "ops": sorted({f"{n.domain}:{n.op_type.split('_')[0]}" for n in onnx.load(seen).graph.node}),
            }
        options = onnxruntime.SessionOptions()
        facts["registered"] = [(p.rule, p.runs_as, p.reason) for p in runtime.register(options, path)]
        options.optimized_model_filepath = str(seen)
        onnxruntime.InferenceSession(str(path), options, providers=CUDA)
        facts["registered ops"] = sorted({n.op_type for n in onnx.load(seen).graph.node if n.domain == "com.microsoft"})
    return facts


def with_tail() -> ModelProto:
    """Return an attention that a pointwise kernel follows."""
    model = original()
    model.graph.node[-1].output[0] = "attended"
    model.graph.node.append(onnx.helper.make_node("Relu", ["attended"], ["positive"]))
    model.graph.node.append(onnx.helper.make_node("Tanh", ["positive"], ["y"]))
    return model


def test_a_session_on_cuda_runs_attention_in_the_library(on_fake_cuda: FakeCuda) -> None:
    """The placement says so, the op is in the graph that ONNX Runtime runs, and the kernels beside it are kernels."""
    facts = on_fake_cuda(opened_on_cuda)
    for source in ("path", "bytes", "model"):
        assert sorted(facts[source]["fused"]) == [["attention", 1, "onnxruntime", ""], ["pointwise", 1, "kernel", ""]]
        assert "com.microsoft:MultiHeadAttention" in facts[source]["ops"]
        assert ":Softmax" not in facts[source]["ops"]
    reason = "ONNX Runtime's own op computes it in sessions that onnxfuse.session opens"
    assert sorted(facts["registered"]) == [["attention", "body", reason], ["pointwise", "kernel", ""]]
    assert "MultiHeadAttention" not in facts["registered ops"]


def placed_on_cuda() -> Any:
    stand_in_kernels.install()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    model = onnxfuse.optimize(halved(onnx.parser.parse_model(HEAD + attention())))
    session = runtime.session(model, ["CUDAExecutionProvider"], options)
    return [p.runs_as for p in session.fused]


def test_the_librarys_op_is_on_cuda(on_fake_cuda: FakeCuda) -> None:
    """A session opens that may put nothing on the CPU; with a mask there is shape arithmetic, which belongs there."""
    assert on_fake_cuda(placed_on_cuda) == ["onnxruntime"]


MASKED = {
    "no number for a lost row": masked(KEEP, CHOSEN, weights=", float low = {-9}"),
    "0 for a lost row": masked("masked = Add (s, mask)", ", float[2,1,1,5] mask", SAFE),
    "two masks": masked("a = Add (s, one) masked = Add (two, a)", ", float[1,2,5,5] one, float[2,1,1,5] two"),
    **CAUSAL,
}


def halves_on_cuda() -> Any:
    stand_in_kernels.install()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in MASKED.items():
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(Path(folder) / "seen.onnx")
            runtime.session(onnxfuse.optimize(halved(infinite(text))), CUDA, options)
            nodes = onnx.load(Path(folder) / "seen.onnx").graph.node
            found[name] = sum(n.op_type == "MultiHeadAttention" for n in nodes)
    return found


def test_every_kind_of_mask_opens_on_cuda_in_half_precision(on_fake_cuda: FakeCuda) -> None:
    """All nodes of the library's form have kernels there, and the op is in the graph that runs."""
    assert on_fake_cuda(halves_on_cuda) == dict.fromkeys(MASKED, 1)


def with_a_mask_of_its_own() -> Any:
    stand_in_kernels.install()
    made = onnxfuse.optimize(small.build("gpt2", dtype="float16"))
    (mask,) = (n.op_type for n in made.graph.node if "LessOrEqualWhere" in n.op_type)
    session = runtime.session(made, CUDA)
    return {"library": [p.op for p in session.fused if p.runs_as == "onnxruntime"], "mask": mask}


def test_what_the_librarys_op_alone_would_read_is_not_waited_for(on_fake_cuda: FakeCuda) -> None:
    """A causal attention of the library reads no mask: the op that makes it has gone with it, and is never called."""
    facts = on_fake_cuda(with_a_mask_of_its_own)
    assert facts["mask"] in facts["library"]
    assert len(facts["library"]) == 2


# ---- what a file says of the library's form


def lying(model: ModelProto, form: str) -> ModelProto:
    """Return the model with this text as the library form of its only op that has one."""
    told = ModelProto.FromString(model.SerializeToString())
    (entry,) = (p for f in told.functions for p in f.metadata_props if p.key == f"{DOMAIN}.library")
    entry.value = form
    return told


def lies_on_cuda() -> Any:
    stand_in_kernels.install()
    found = {}
    short = onnxfuse.optimize(through_nodes("float16", 77))
    honest = onnxfuse.optimize(through_nodes("float16", 512))
    softmax = onnxfuse.optimize(
        onnx.parser.parse_model(HEAD + "g (float[2,4] x) => (float[2,4] y) { a = Exp (x) y = Softmax (a) }")
    )
    softmax.functions[0].metadata_props.add(key=f"{DOMAIN}.library", value="")
    head = f'<domain: "{DOMAIN}", opset_import: ["" : 17, "com.microsoft" : 1]> library '
    negated = head + "(x0) => (y0) { y0 = Neg (x0) }"
    doubled = (
        head
        + """(x0, x1, x2) => (y0) {
      y0 = com.microsoft.MultiHeadAttention <num_heads = 4, scale = 7.0> (x0, x1, x2) }"""
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (
            ("Neg for Softmax", lying(as_library(softmax), negated)), ("another attention", lying(honest, doubled)),
            ("another attention for the kernel", lying(short, doubled)),
        ):  # fmt: skip
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(Path(folder) / "seen.onnx")
            session = runtime.session(model, CUDA, options)
            nodes = onnx.load(Path(folder) / "seen.onnx").graph.node
            scales = [a.f for n in nodes if n.op_type == "MultiHeadAttention" for a in n.attribute if a.name == "scale"]
            found[name] = {
                "fused": [(p.runs_as, p.reason) for p in session.fused],
                "ops": sorted({n.op_type for n in nodes} & {"Neg", "Softmax", "MultiHeadAttention"}),
                "scales": scales,
            }
    return found


def as_library(model: ModelProto) -> ModelProto:
    """Return the model whose fused ops say that the library alone computes them."""
    for function in model.functions:
        for entry in function.metadata_props:
            if entry.key == f"{DOMAIN}.template":
                entry.value = "library"
    return model


def through_nodes(element: str, length: int) -> ModelProto:
    return library_forms.attention("plain", element, 64, 2, length)


def test_a_file_does_not_say_what_the_library_computes(on_fake_cuda: FakeCuda) -> None:
    """What runs is the body, or what the rule makes of it; the session says which, and why."""
    found = on_fake_cuda(lies_on_cuda)
    ((runs_as, reason),) = found["Neg for Softmax"]["fused"]
    assert (runs_as, found["Neg for Softmax"]["ops"]) == ("body", ["Softmax"])
    assert "has no library form" in reason
    assert found["another attention"]["fused"] == [["onnxruntime", ""]]
    assert found["another attention"]["scales"] == [pytest.approx(0.37, rel=1e-3)]
    assert found["another attention for the kernel"]["fused"] == [["kernel", ""]]


def on_smaller_gpus() -> Any:
    found = {}
    plain = library_forms.attention("plain", "float16", 64, 2, 640)
    for value in (*plain.graph.input, *plain.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    model = onnxfuse.optimize(plain)
    for gpu in (Arch("sm_80", 108), Arch("sm_86", 84), Arch("sm_89", 58), Arch("sm_90a", 132), Arch("sm_100", 148)):
        kernels = stand_in_kernels.install()
        kernels.arch_of = lambda device, gpu=gpu: gpu  # type: ignore[method-assign, misc]  # a stand-in's
        session = runtime.session(model, CUDA, onnxruntime.SessionOptions())
        found[gpu.name] = [p.runs_as for p in session.fused]
    return found


def test_a_sequence_too_long_for_a_block_of_the_gpu_goes_by_step_by_step(on_fake_cuda: FakeCuda) -> None:
    """640 keys of 64 elements take 187 KB: a block has 163 on an A100, 99 on an L4, 227 on an H100."""
    assert set(map(tuple, on_fake_cuda(on_smaller_gpus).values())) == {("kernel",)}
