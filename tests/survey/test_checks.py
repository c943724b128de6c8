"""What the survey does with originals that ONNX Runtime runs at one shape alone, or never twice the same."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfuse
from models.survey import as_run, inputs, racing
from models.survey.checks import (
    ONE_SHAPE,
    Broken,
    Examined,
    changing,
    examined,
    opens_on_stand_ins,
    optimized,
    original_on_cpu,
    planned,
)
from models.survey.racing import contenders
from onnxfuse.measure.timing.binding import opened
from onnxfuse.measure.timing.settings import Setting
from onnxfuse.support.isolation import Crash, in_new_process
from onnxfuse.support.progress import Progress
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.sessions import CPU


def written(nodes: str, folder: Path) -> Path:
    """Return a file of a model of these nodes."""
    file = folder / "model.onnx"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 4] x) => (float[batch, 4] y) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), file)
    return file


def test_one_that_takes_one_shape_alone_is_timed_at_that(tmp_path: Path) -> None:
    """A larger batch, and one alone, are for those that take them."""
    fixed = "s = Constant <value_ints = [2, 4]> ()  y = Reshape (x, s)"
    for nodes, turns, rows in ((fixed, ONE_SHAPE, [2]), ("y = Relu (x)", (0, 1), [8, 1])):
        one = Examined(written(nodes, tmp_path), tmp_path, ())
        original_on_cpu(one)
        assert (one.turns, [given["x"].shape for _, given in one.timed()]) == (turns, [(n, 4) for n in rows])


def test_the_original_runs_each_case_that_is_checked(tmp_path: Path) -> None:
    """What it makes of one hangs on its values, too: an export is made for as many experts as were chosen."""
    shown = Examined(written("y = Relu (x)", tmp_path), tmp_path, ()).original()
    first, second = (float(inputs.feeds(shown, 0, seed)["x"].max()) for seed in (0, 1))
    other = float(inputs.feeds(shown, 1, 1)["x"].max())
    assert len({first, second, other}) == 3
    for turns, largest in (((0, 1), (first, other)), (ONE_SHAPE, (first, second)), ((0,), (first,))):
        # As many rows are found as the largest value has equals among these: none do not fill a Reshape to [1].
        these = ", ".join(repr(v) for v in largest)
        nodes = f"""these = Constant <value_floats = [{these}]> ()  one = Constant <value_ints = [1]> ()
          m = ReduceMax <keepdims = 0> (x)  e = Equal (these, m)  f = NonZero (e)  g = Reshape (f, one)
          h = Cast <to = 1> (g)  y = Add (x, h)"""
        one = Examined(written(nodes, tmp_path), tmp_path, ())
        original_on_cpu(one)
        assert (one.on_cpu, one.turns, len(one.cases())) == (True, turns, len(turns))


def test_sessions_that_are_timed_beside_other_workers_start_no_threads(tmp_path: Path) -> None:
    """Each session would start one for each core, in each worker."""
    one = Examined(written("y = Relu (x)", tmp_path), tmp_path, ())
    timed = contenders(one.path, one.fused, convolutions=True)
    assert {(one.name, one.setting.name) for one in timed} >= {("original", "NHWC"), ("fused", "CUDA graph")}
    before = len(os.listdir("/proc/self/task"))
    sessions = [
        opened(one.model, one.setting, ["CPUExecutionProvider"], fused=False) for one in timed if one.model.exists()
    ]
    assert len(sessions) == 6
    assert len(os.listdir("/proc/self/task")) == before


def test_ops_are_planned_at_the_shapes_that_they_have_when_they_run(tmp_path: Path) -> None:
    """Inference does not know how much of a table a computed mask leaves; a batch of one is among the cases."""
    nodes = """t = Constant <value_floats = [0.5, -1.5, 2.5]> ()  none = Constant <value_float = 0.0> ()
      z = ReduceMax <keepdims = 0> (x)  h = Sub (z, z)  m = Less (h, t)  c = Compress (t, m)  e = Exp (c)  r = Neg (e)
      i = Constant <value_ints = [0]> ()  s = ReduceSum (r, i)  a = Exp (x)  b = Neg (a)  y = Add (b, s)"""
    one = Examined(written(nodes, tmp_path), tmp_path, ())
    for step in (original_on_cpu, optimized, planned):
        step(one)
    assert [case["x"].shape for case in one.ones] == [(1, 4)]
    shapes = as_run.input_shapes(onnx.load(one.fused), [*one.cases(), *one.ones])
    summed, added = (next(found for name, found in shapes.items() if what in name) for what in ("Sum", "NegAdd"))
    assert (summed, {first for first, _ in added}) == ({((2,),)}, {(1, 4), (2, 4), (3, 4)})
    assert "without_shapes" not in one.facts


def racing_on_cpu(path: Path, dying: tuple[str, str], *, progress: Progress) -> dict[str, Any] | Crash:
    """Race on the CPU, where one setting of one model aborts; to be done in a process of its own."""

    def opening(file: Path, setting: Setting, providers: Any, *, fused: bool) -> Any:
        if ("fused" if fused else "original", setting.name) == dying:
            os.kill(os.getpid(), signal.SIGABRT)
        return opened(file, setting, providers, fused=fused)

    pytest.MonkeyPatch().setattr(racing, "opened", opening)
    racing.PROVIDERS, racing.ROUNDS, racing.TRIES = [CPU], 1, 1
    racing._bits = lambda value: value.numpy().tobytes()
    made = path.parent / "fused.onnx"
    onnx.save(onnxfuse.optimize(path), made)
    return racing.surviving(path, made, {"x": np.ones((2, 4), np.float32)}, convolutions=True, progress=progress)


def test_a_setting_of_the_original_that_crashes_is_left_out(tmp_path: Path) -> None:
    """The race is run without it; what crashes of ours is no race."""
    file, steps = written("r = Exp (x)  y = Neg (r)", tmp_path), list[str]()
    found = in_new_process(racing_on_cpu, file, ("original", "NHWC"), progress=lambda step, *_: steps.append(step))
    assert isinstance(found, dict)
    assert found["refused_settings"] == {"original, NHWC": "it ends the process by SIGABRT (Aborted)"}
    assert found["over"] > 0
    assert steps.count("original, CUDA graph") == 2
    assert steps.count("original, NHWC") == 1
    ours = in_new_process(racing_on_cpu, file, ("fused", "CUDA graph"))
    assert isinstance(ours, Crash)
    assert racing._told(ours).startswith("fused, CUDA graph: it ends the process by SIGABRT")


def test_one_that_draws_numbers_is_compared_with_nothing(tmp_path: Path) -> None:
    """The row says why; all that does not run it is checked."""
    *steps, row = examined(written("r = RandomUniformLike (x)  a = Add (x, r)  y = Relu (a)", tmp_path), "cpu", ())
    assert row["verdict"] == "right", row
    assert "draws random numbers" in row["original_on_cpu"]
    assert "planned" in {s["step"] for s in steps}


def test_outputs_whose_bits_change_are_named(tmp_path: Path) -> None:
    """They are looked at in every run, at every shape."""
    file = written("r = RandomUniformLike (x)  y = Add (x, r)", tmp_path)
    model = onnx.load(file)
    model.graph.output.add(name="z").CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "z"
    model.graph.node.add(op_type="Neg", input=["x"], output=["z"])
    session = sessions.ort_session(model, ["CPUExecutionProvider"])
    cases = [{"x": np.ones((rows, 4), np.float32)} for rows in (0, 3)]
    assert changing(session, cases, 2) == {"y"}
    assert changing(session, cases[:1], 2) == set()


def test_an_op_that_would_run_as_its_body_is_found_without_a_gpu(tmp_path: Path) -> None:
    """A session believes no declaration: after the file was changed nothing tells that queries and keys are as many."""
    from tests.unit.fusion.undo.test_unproven_ops import CUT

    one = Examined(tmp_path / "model.onnx", tmp_path, ())
    cut = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {CUT}')
    slices = [n for n in cut.graph.node if n.op_type == "Slice"]
    whole = onnx.ModelProto()
    whole.CopyFrom(cut)
    next(n for n in whole.graph.node if n.op_type == "Slice").CopyFrom(onnx.helper.make_node("Relu", ["x"], ["q"]))
    whole.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(whole, one.path)
    optimized(one)
    opens_on_stand_ins(one)
    fused = onnx.load(one.fused)
    relu = next(n for n in fused.graph.node if n.op_type == "Relu")
    relu.CopyFrom(slices[0])
    fused.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.int64), "zero"))
    fused.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "all"
    onnx.save(fused, one.fused)
    with pytest.raises(Broken, match=r"Attention_.* ran as its body"):
        opens_on_stand_ins(one)


def test_the_first_axis_is_the_batch_where_an_exporter_has_no_words(tmp_path: Path) -> None:
    """tf2onnx and paddle2onnx number the open dimensions: the sizes that a batch has are theirs, one among them."""
    text = written("y = Relu (x)", tmp_path).read_bytes().replace(b"batch", b"unk__")
    (tmp_path / "model.onnx").write_bytes(text)
    one = Examined(tmp_path / "model.onnx", tmp_path, ())
    original_on_cpu(one)
    assert inputs.words(one.original()) == {"unk__": "batch"}
    assert [case["x"].shape[0] for case in (*one.cases(), *one.ones)] == [2, 3, 1]
    assert [given["x"].shape[0] for _, given in one.timed()] == [8, 1]
