"""ONNX's own inference, in a child process where a model could make it slow or crash."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.shapes import inference_process, onnx_inference
from onnxfuse.support.errors import DeviceError, ModelError
from tests.unit.model.test_validate import model, seconds

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '


MULTIPLIES = "g (float[a,b] x) => (int64[n] y) <int64 z = {0}, int64 o = {1}> { s = Shape (x) h = Gather (s, o) " \
             "r = Range (z, h, o) y = Add (r, o) }"  # fmt: skip
"""A model whose integers may multiply, so that another process infers its types."""


def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    """A copy of it lacks the threads that hold its locks: Python 3.12 and later warn, and one day the copy hangs.

    Not by `-W error`: Python drops the exception that becomes of this warning.
    """
    onnx.save(model(MULTIPLIES), tmp_path / "m.onnx")
    code = (
        "import sys, threading, onnxfuse\n"
        "sys.addaudithook(lambda event, _: print(event) if event in ('os.fork', 'os.forkpty') else None)\n"
        "stay = threading.Event()\n"
        "thread = threading.Thread(target=stay.wait, daemon=True)\n"
        "thread.start()\n"
        "from onnxfuse.shapes import inference_process\n"
        "print(len(onnxfuse.optimize('m.onnx').graph.node) > 0, inference_process._Current.process is not None)\n"
        "stay.set()\n"
    )
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True True\n"
    assert "fork" not in done.stderr


def test_one_process_serves_until_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start costs 0.3 s; an Einsum that does not end costs the process, and the next inference starts another."""
    made = model(MULTIPLIES)
    expected = onnx.shape_inference.infer_shapes(made, data_prop=True)
    assert onnx_inference.infer_shapes(made) == expected
    first = inference_process._Current.process
    assert first is not None
    assert onnx_inference.infer_shapes(made) == expected
    assert inference_process._Current.process is first
    monkeypatch.setattr(onnx_inference, "SECONDS", 0.5)
    with pytest.raises(ModelError, match="cannot be inferred"):
        onnx_inference.infer_shapes(model('g (float[a,b] x) => (float[c] y) { y = Einsum <equation = "ij0"> (x) }'))
    assert first.child.returncode is not None
    monkeypatch.setattr(onnx_inference, "SECONDS", 10.0)
    assert onnx_inference.infer_shapes(made) == expected
    second = inference_process._Current.process
    assert second is not None
    second.child.kill()  # as the system does when memory runs out
    second.child.wait()
    assert onnx_inference.infer_shapes(made) == expected


def test_threads_and_forks_share_no_answers() -> None:
    """Eight threads, and a fork of this process, each get the types of their own model."""
    sizes = range(1, 9)
    made = {n: model(MULTIPLIES.replace("float[a,b]", f"float[a,{n}]")) for n in sizes}
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(sizes, pool.map(lambda n: onnx_inference.infer_shapes(made[n]), sizes), strict=True))
    assert all(found[n] == onnx.shape_inference.infer_shapes(made[n], data_prop=True) for n in sizes)
    child = os.fork()
    if not child:
        os._exit(0 if onnx_inference.infer_shapes(made[1]) == found[1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert onnx_inference.infer_shapes(made[2]) == found[2]


def test_no_python_to_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python may not know its interpreter."""
    monkeypatch.setattr(inference_process._Current, "process", None)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(DeviceError, match="no process for shape inference can be started"):
        onnx_inference.infer_shapes(model(MULTIPLIES))


@pytest.mark.parametrize("op", ["Mul", "Add", "Concat <axis = 0>"])
@pytest.mark.parametrize("dims", ["A,B", "3,5", "A,5"])
def test_extents_that_double_are_open(op: str, dims: str) -> None:
    """Forty products of a shape with itself are a name of 2^40 letters, or a number of as many bits: no extent.

    Each of the six inferences follows for a second at most.
    """
    steps = " ".join(f"c{n + 1} = {op} (c{n}, c{n})" for n in range(25))
    start = seconds()
    onnxfuse.optimize(model(f"g (float[{dims}] x) => (int64[n] y) {{ c0 = Shape (x) {steps} y = Neg (c25) }}"))
    assert seconds() - start < 6 * (onnx_inference.FOLLOWING_SECONDS + 0.5)


TILED = (
    "z = Constant <value_int = 0> () e = Constant <value_int = 12> () d = Constant <value_int = 1> () "
    "many = Constant <value_ints = [1000000]> () zero = Constant <value_ints = [0]> () "
    "one = Constant <value_ints = [1]> () r = Range (z, e, d) f = Cast <to = 1> (r) t = Tile (f, many) "
)

LONG = {
    "a graph": f"g (float[a,b] x) => (float[1] y) {{ {TILED} y = Slice (t, zero, one, zero) }}",
    "a branch": f"g (bool c) => (float[1] y) {{ y = If (c) <then_branch = q () => (float[1] u) "
                f"{{ {TILED} u = Slice (t, zero, one, zero) }}, else_branch = r () => (float[1] v) "
                f"{{ {TILED} v = Slice (t, zero, one, zero) }}> }}",
    "an input": "g (float[12000000] x) => (float[1] y) <int64[1] zero = {0}, int64[1] one = {1}> "
                "{ s = Slice (x, zero, one, zero) y = Relu (s) }",
    "a computed length": "g (float[4000,3000] x) => (int64 y) <int64 z = {0}, int64 o = {1}, int64 three = {3}> "
                         "{ s = Shape (x) a = Gather (s, z) b = Gather (s, o) n = Mul (a, b) r = Range (z, n, o) "
                         "y = Gather (r, three) }",
}  # fmt: skip


@pytest.mark.parametrize("place", LONG)
def test_a_long_vector_is_not_followed(place: str) -> None:
    """Twelve million numbers that are read one by one are no shape, though inference would follow each of them."""
    start = seconds()
    assert onnxfuse.optimize(model(LONG[place])).ByteSize() < 10_000
    assert seconds() - start < 6 * (onnx_inference.FOLLOWING_SECONDS + 0.5)


def test_lengths_need_no_following() -> None:
    """Where too many integers would be followed, what is beside them is inferred from types alone."""
    made = model(
        f"g (float[a,b] x) => (float[1] y, float[2,m] w) <float[b,4] k, int64[2] rows = {{2,-1}}> {{ {TILED} "
        "y = Slice (t, zero, one, zero) p = MatMul (x, k) w = Reshape (p, rows) u = Add (t, t) }"
    )
    inferred = onnx_inference.infer_shapes(made)
    dims = {
        v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info
    }
    assert (dims["t"], dims["u"], dims["p"]) == ([12_000_000], [12_000_000], ["a", 4])


def test_the_child_says_what_this_process_says() -> None:
    """What may multiply and does not is inferred the same, and what is not valid is told the same."""
    text = "g (float[a,b] x) => (int64[n] y) <int64 z = {0}, int64 o = {1}> { s = Shape (x) h = Gather (s, o) "
    made = model(text + "r = Range (z, h, o) y = Add (r, o) }")
    assert onnx_inference.may_multiply(made)
    assert onnx_inference.infer_shapes(made) == onnx.shape_inference.infer_shapes(made, data_prop=True)
    wrong = model(text + "r = Range (z, h, o) y = Add (r, o) }")
    del wrong.opset_import[:]
    with pytest.raises(ModelError, match="the model is not valid"):
        onnx_inference.infer_shapes(wrong)


def test_ordinary_models_need_no_child() -> None:
    """Slices to the end, shapes put together, weights: all are inferred in this process."""
    made = model(
        "g (float[N,S,8] x) => (float[N,S,2,4] y) <int64[1] start = {0}, int64[1] end = {9223372036854775807}, "
        "int64[1] axis = {1}, int64[2] heads = {2,4}, int64[1] zero = {0}, int64[1] two = {2}> { s = Shape (x) "
        "lead = Slice (s, zero, two, zero) t = Concat <axis = 0> (lead, heads) c = Slice (x, start, end, axis) "
        "y = Reshape (c, t) }"
    )
    assert not onnx_inference.may_multiply(made)
