"""Sessions with fused kernels, on the stand-in CUDA libraries: what is registered, launched, cached and reported.

The kernels are stand-ins too (stand_in_kernels.py): each evaluates its op's body on the very pointers it is given.
"""

import gc
import json
import shutil
import struct
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnxfuse import ops, runtime
from onnxfuse.cuda import Arch, TensorMapSpec
from onnxfuse.cuda import plan as real_plan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.passes import pipeline
from onnxfuse.support.errors import DeviceError, KernelError, UsageError
from tests.support import fused_models as models
from tests.support import shared_input, stand_in_kernels
from tests.support.scenarios import FakeCuda

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
CHAIN = ["BiasRelu_1", "TwiceTanh_2", "Negate_3"]
RUN_ERROR = "onnxruntime.capi.onnxruntime_pybind11_state.Fail"


def feeds(rows: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((rows, 8), np.float32), "b": rng.standard_normal(8, np.float32)}


def chain_of(x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -np.tanh(2 * np.maximum(x + b, 0))


def chain_error(session: runtime.Session, rows: int = 3, seed: int = 0) -> float:
    given = feeds(rows, seed)
    (y,) = session.run(None, given)
    assert y.shape == (rows, 8)
    return float(np.abs(y - chain_of(**given)).max(initial=0))


def message_of(error: type[Exception], call: Any, *arguments: Any, **named: Any) -> str:
    try:
        call(*arguments, **named)
    except error as raised:
        return f"{raised} {getattr(raised, 'hint', '')}"
    raise AssertionError(f"{error.__name__} was expected")


# ---- kernels run


def runs_as_kernels() -> Any:
    kernels = stand_in_kernels.install()
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(tempfile.mkdtemp()) / "profile")
    session = runtime.session(models.chain(), CUDA, options)
    errors = [chain_error(session, seed=seed) for seed in range(2)]
    profile = Path(session.end_profiling())
    events = json.loads(profile.read_text())
    shutil.rmtree(profile.parent)
    return {
        "errors": errors,
        "fused": [(p.op, p.rule, p.nodes, p.runs_as, p.reason) for p in session.fused],
        "launches": runtime.launches(),
        "parameters": {launch.parameters.decode() for launch in kernels.launched}.pop(),
        "providers": {e["args"]["op_name"]: e["args"]["provider"] for e in events if "provider" in e.get("args", {})},
    }


def test_each_fused_op_is_on_cuda_and_launches_once_per_run(on_fake_cuda: FakeCuda) -> None:
    """Every node of a fused model is placed on CUDA, launches once per run, and gets the right pointers."""
    facts = on_fake_cuda(runs_as_kernels)
    assert facts["errors"] == [0, 0]
    assert facts["fused"] == [[op, "by_hand", 1, "kernel", ""] for op in CHAIN]
    assert facts["launches"] == dict.fromkeys(CHAIN, 2)
    assert facts["parameters"] == stand_in_kernels.PARAMETERS.decode()
    placed = {op: provider for op, provider in facts["providers"].items() if not op.startswith("Memcpy")}
    assert placed == dict.fromkeys(CHAIN, "CUDAExecutionProvider")
    launches = on_fake_cuda.trace("cuLaunchKernel")
    assert [launch["kernel"] for launch in launches] == CHAIN * 2
    assert on_fake_cuda.trace("cudaLaunchKernel") == []


def count_maps_of_real_plans(kernels: stand_in_kernels.StandInKernels) -> list[int]:
    """Give each op the plan that a GPU would get, with a kernel that evaluates the body; return the maps of each."""
    evaluated, maps = kernels.plan, list[int]()

    def planned(op: FusedOp, shapes: Any, aligned: bool, arch: Arch, tuning: Variant | None) -> Any:
        mine = real_plan(op, shapes, aligned, arch, tuning)
        maps.append(len(mine.tensor_maps))
        asked = {f: getattr(mine, f) for f in ("grid", "block", "shared_bytes", "parameters", "tensor_maps")}
        return SimpleNamespace(**{**vars(evaluated(op, shapes, aligned, arch, tuning)), **asked})

    kernels.plan = planned  # type: ignore[method-assign]  # a stand-in's
    return maps


def total_lengths() -> Any:
    """Return the shapes that the planner of a GroupQueryAttention is asked for, which then gives no plan."""
    kernels = stand_in_kernels.install()

    def refuse(name: str) -> None:
        raise KernelError("asked", "")

    kernels.on_plan = refuse
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float16[1,1,64] x, float16[1,1,P,16] past_k, float16[1,1,P,16] past_v, int32[1] lengths, int32 total)
    => (float16[1,1,32] y, float16[1,1,T,16] present_k, float16[1,1,T,16] present_v) {
      y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (x, , , past_k, past_v, lengths, total)
    }""")
    pipeline.run(model)
    session = runtime.session(model, CUDA)
    cache = np.zeros((1, 1, 12, 16), np.float16)
    for total in (5, 9):
        given = {"x": np.zeros((1, 1, 64), np.float16), "past_k": cache, "past_v": cache}
        given |= {"lengths": np.asarray([total - 1], np.int32), "total": np.asarray(total, np.int32)}
        message_of(Exception, session.run, None, given)
    return [shapes for _, shapes, _ in kernels.planned]


def test_a_planner_sees_the_value_of_a_number_on_the_cpu(on_fake_cuda: FakeCuda) -> None:
    """The total length of GroupQueryAttention is an extent to the planner: other values are other launches."""
    asked = on_fake_cuda(total_lengths)
    assert [shapes[4] for shapes in asked] == [[5], [9]]
    assert all(shapes[3] == [1] and shapes[1] == [1, 1, 12, 16] for shapes in asked)


def products_of_one_input() -> Any:
    maps = count_maps_of_real_plans(stand_in_kernels.install())
    original, model = shared_input.products(12), shared_input.products(12)
    pipeline.run(model)
    session = runtime.session(model, CUDA)
    plain = onnxruntime.InferenceSession(original.SerializeToString(), providers=CUDA[1:])
    errors = []
    for rows in (128, 70):
        given = {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float16)}
        pairs = zip(session.run(None, given), plain.run(None, given), strict=True)
        errors += [float(np.abs(a.astype(np.float32) - b.astype(np.float32)).max()) for a, b in pairs]
    return {"errors": errors, "maps": maps, "fused": [(p.rule, p.nodes, p.runs_as) for p in session.fused]}


def test_twelve_products_of_one_input_run(on_fake_cuda: FakeCuda) -> None:
    """An encoder with relative positions shared by all layers runs, by the plans of an H200."""
    facts = on_fake_cuda(products_of_one_input)
    assert facts["fused"] == [["layer_norm", 1, "kernel"], ["gemm", 2, "kernel"]]
    assert facts["maps"] == [0, 13, 0, 13], "the norm, and six products with an input, six weights, six outputs"
    assert max(facts["errors"]) < 2e-2, "a few float16 roundings of values up to 8"


def batches_of_tokens() -> Any:
    maps = count_maps_of_real_plans(stand_in_kernels.install())
    rng = np.random.default_rng(0)
    v, w = ((rng.standard_normal(s) / s[0] ** 0.5).astype(np.float16) for s in ((49, 264), (264, 49)))
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float16[N, 49, 264] x) => (float16[N, 49, 264] y) {
      t = Transpose <perm = [0, 2, 1]> (x)  m = MatMul (t, v)  h = Relu (m)  n = MatMul (h, w)
      u = Transpose <perm = [0, 2, 1]> (n)  y = Add (u, x) }""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for a, name in ((v, "v"), (w, "w")))
    pipeline.run(model)
    session = runtime.session(model, CUDA)
    errors = []
    for batch in (64, 1, 0, 3):
        x = rng.standard_normal((batch, 49, 264)).astype(np.float16)
        hidden = np.maximum(x.transpose(0, 2, 1).astype(np.float32) @ v, 0)
        (y,) = session.run(None, {"x": x})
        errors.append(float(np.abs(y - ((hidden @ w).transpose(0, 2, 1) + x)).max(initial=0)))
    return {"errors": errors, "maps": maps[:2], "fused": [(p.rule, p.nodes, p.runs_as) for p in session.fused]}


def test_products_along_the_tokens_run(on_fake_cuda: FakeCuda) -> None:
    """A layer that mixes tokens runs with any batch, none included, by the plans of an H200."""
    facts = on_fake_cuda(batches_of_tokens)
    assert facts["fused"] == [["left_weight", 1, "kernel"], ["left_weight", 1, "kernel"]]
    assert facts["maps"] == [3, 4], "the weight, the tokens, the output, and once a residual"
    assert max(facts["errors"]) < 2e-2, "a few float16 roundings of values up to 8"


def planning_that_runs_another_session() -> Any:
    """Both sessions meet a new shape: while the chain's first op is planned, the other session runs in this thread."""
    kernels = stand_in_kernels.install()
    inner, outer = (runtime.session(m, CUDA) for m in (models.sum_softmax(), models.chain()))
    given = {"x": np.ones((7, 8), np.float32), "r": np.full((7, 8), 2, np.float32)}
    sums: list[float] = []

    def on_plan(name: str) -> None:
        if name in CHAIN:
            s, _ = inner.run(None, given)
            sums.append(float(np.abs(s - 3).max()))

    kernels.on_plan = on_plan
    return {"errors": [chain_error(outer, rows) for rows in (3, 5)], "sums": sums}


def test_planning_may_run_another_session_in_the_same_thread(on_fake_cuda: FakeCuda) -> None:
    """A call's pointers and shapes are its own: what runs while it waits for a plan does not change them."""
    facts = on_fake_cuda(planning_that_runs_another_session)
    assert facts == {"errors": [0, 0], "sums": [0] * 6}


def several_outputs_and_branches() -> Any:
    stand_in_kernels.install()
    x, r = feeds()["x"], feeds(seed=1)["x"]
    s, y = runtime.session(models.sum_softmax(), CUDA).run(None, {"x": x, "r": r})
    exp = np.exp(x + r - (x + r).max(-1, keepdims=True))
    forked = runtime.session(models.branches(), CUDA)
    then = forked.run(None, {"c": np.array(True), "x": x})[0]
    other = forked.run(None, {"c": np.array(False), "x": x})[0]
    return {
        "sum": float(np.abs(s - (x + r)).max()),
        "softmax": float(np.abs(y - exp / exp.sum(-1, keepdims=True)).max()),
        "then": float(np.abs(then + x).max()),
        "else": float(np.abs(other - np.tanh(2 * x)).max()),
        "fused": [(p.op, p.nodes, p.runs_as) for p in forked.fused],
    }


def test_several_outputs_and_ops_in_branches(on_fake_cuda: FakeCuda) -> None:
    """Each output goes to its own buffer, and fused ops in the branches of an If run as kernels."""
    facts = on_fake_cuda(several_outputs_and_branches)
    assert facts["sum"] == facts["then"] == facts["else"] == 0
    assert facts["softmax"] < 1e-6, "a few float32 roundings of values below 1"
    assert facts["fused"] == [["Negate_3", 1, "kernel"], ["TwiceTanh_2", 1, "kernel"]]


# ---- plans


def plans_per_shape() -> Any:
    kernels = stand_in_kernels.install()
    session = runtime.session(models.chain(), CUDA)
    errors = [chain_error(session, rows) for rows in (3, 3, 5, 3, 5)]
    return {"errors": errors, "planned": kernels.planned, "launches": runtime.launches()}


def test_a_plan_is_asked_once_per_shape(on_fake_cuda: FakeCuda) -> None:
    """Python is asked once for each (op, input shapes); after that a launch is a lookup."""
    facts = on_fake_cuda(plans_per_shape)
    assert facts["errors"] == [0] * 5
    assert facts["planned"] == [
        plan
        for rows in (3, 5)
        for plan in (
            ["BiasRelu_1", [[rows, 8], [8]], True],
            ["TwiceTanh_2", [[rows, 8]], True],
            ["Negate_3", [[rows, 8]], True],
        )
    ]
    assert facts["launches"] == dict.fromkeys(CHAIN, 5)


def runs_from_threads() -> Any:
    kernels = stand_in_kernels.install()
    sessions = [runtime.session(models.chain(), CUDA) for _ in range(2)]
    errors: list[float] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        errors.extend(chain_error(sessions[number % 2], rows=1 + step % 3, seed=number) for step in range(20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"errors": errors, "plans": len(kernels.planned), "launches": runtime.launches()}


def test_threads_and_sessions_share_nothing_but_the_counters(on_fake_cuda: FakeCuda) -> None:
    """Eight threads on two sessions of one model: right results, one plan per session, op and shape."""
    facts = on_fake_cuda(runs_from_threads)
    assert facts["errors"] == [0] * (8 * 20)
    assert facts["plans"] == 2 * 3 * 3
    assert facts["launches"] == dict.fromkeys(CHAIN, 8 * 20)


def plans_are_freed() -> Any:
    stand_in_kernels.install()

    def alive() -> int:
        gc.collect()
        return sum(isinstance(o, stand_in_kernels.HostKernel) for o in gc.get_objects())

    session: runtime.Session | None = runtime.session(models.chain(), CUDA)
    assert session is not None
    chain_error(session)
    during = alive()
    session = None
    return {"during": during, "after": alive(), "error": chain_error(runtime.session(models.chain(), CUDA))}


def test_kernels_are_unloaded_with_the_last_session(on_fake_cuda: FakeCuda) -> None:
    """The modules of a session's kernels live as long as the session, and the next session loads its own."""
    assert on_fake_cuda(plans_are_freed) == {"during": 3, "after": 0, "error": 0}


def two_models_with_one_op_name() -> Any:
    stand_in_kernels.install()
    other = models.fused_op("Negate_3 (x) => (y) { a = Abs(x)  y = Neg(a) }", inputs=1)
    graph = "g (float[N, 8] x) => (float[N, 8] y) { y = onnxfuse.Negate_3 (x) }"
    x = np.full((2, 8), -1, np.float32)
    sessions = [runtime.session(models.model(graph, op), CUDA) for op in (models.NEGATE, other)]
    return [float(session.run(None, {"x": x})[0][0, 0]) for session in sessions * 2]


def test_a_table_belongs_to_one_session(on_fake_cuda: FakeCuda) -> None:
    """Two models in one process whose ops share a name run each its own kernel."""
    assert on_fake_cuda(two_models_with_one_op_name) == [1, -1, 1, -1]


# ---- memory


def buffers() -> Any:
    facts = {}
    for known in (True, False):
        kernels = stand_in_kernels.install()
        assert chain_error(runtime.session(models.chain(shapes_known=known), CUDA)) == 0
        middle = kernels.launched[1]
        facts["in place" if known else "apart"] = middle.inputs[0] == middle.outputs[0]
    kernels = stand_in_kernels.install()
    x = feeds()["x"]
    graph = """g (float[N, 8] x) => (float[N, 8] z, float[N, 8] y) <float[N, 8] a, float[N, 8] s> {
      a = onnxfuse.Negate_3 (x)
      s, y = onnxfuse.SumSoftmax_4 (a, x)
      z = onnxfuse.Negate_3 (s)
    }"""
    runtime.session(models.model(graph, models.NEGATE, models.SUM_SOFTMAX), CUDA).run(None, {"x": x})
    rows = kernels.launched[1]
    facts["two outputs, apart"] = not set(rows.inputs) & set(rows.outputs)
    return facts


def test_output_takes_over_an_input_where_that_is_safe(on_fake_cuda: FakeCuda) -> None:
    """In place where the kernel allows it and the file tells ONNX Runtime that the shapes are the same; else never."""
    assert on_fake_cuda(buffers) == {"in place": True, "apart": False, "two outputs, apart": True}


def zero_rows() -> Any:
    kernels = stand_in_kernels.install()
    error = chain_error(runtime.session(models.chain(), CUDA), rows=0)
    counted = [sum(count().values()) for count in (runtime.calls, runtime.launches)]
    return {"error": error, "planned": len(kernels.planned), "calls and launches": counted}


def test_nothing_is_launched_for_zero_rows(on_fake_cuda: FakeCuda) -> None:
    """An empty batch gives empty outputs of the right shape without a launch."""
    assert on_fake_cuda(zero_rows) == {"error": 0, "planned": 3, "calls and launches": [3, 0]}
    assert on_fake_cuda.trace("cuLaunchKernel") == []


def misaligned() -> Any:
    kernels = stand_in_kernels.install()
    session = runtime.session(models.chain(), CUDA)
    given = feeds()
    room = np.zeros(64, np.float32)
    start = (-room.ctypes.data // 4) % 4  # elements to the next 16-byte boundary
    results = []
    for x_offset, y_offset in ((0, 0), (1, 0), (0, 3)):
        x = room[start + x_offset :][:24].reshape(3, 8)
        x[...] = given["x"]
        wide = np.zeros(32 + 4, np.float32)
        y = wide[(-wide.ctypes.data // 4) % 4 + y_offset :][:24].reshape(3, 8)
        binding = session.io_binding()
        binding.bind_input("x", "cuda", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_ortvalue_input("b", onnxruntime.OrtValue.ortvalue_from_numpy(given["b"], "cuda", 0))
        binding.bind_output("y", "cuda", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        aligned = [launch.aligned for launch in kernels.launched[-3:]]
        results.append([float(np.abs(y - chain_of(**given)).max()), aligned])
    return results


def test_misaligned_pointers_get_their_own_plan(on_fake_cuda: FakeCuda) -> None:
    """A plan for 16-byte accesses runs only where every input and output pointer is 16-byte aligned."""
    assert on_fake_cuda(misaligned) == [
        [0, [True, True, True]],
        [0, [False, True, True]],
        [0, [True, True, False]],
    ]


def captured() -> Any:
    kernels = stand_in_kernels.install()
    session = runtime.session(models.chain(), [("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), CUDA[1]])
    binding = session.io_binding()
    for name, value in feeds().items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type([3, 8], np.float32, "cuda", 0)
    binding.bind_ortvalue_output("y", y)
    launches = []
    for _ in range(4):
        session.run_with_iobinding(binding)
        launches.append(len(kernels.launched))
    return {"launches": launches, "planned": len(kernels.planned)}


def test_kernels_are_captured_in_a_cuda_graph(on_fake_cuda: FakeCuda) -> None:
    """Under ORT's CUDA graphs the kernels are launched until the capture, and replays cost no launch."""
    facts = on_fake_cuda(captured)
    assert facts["planned"] == 3
    assert facts["launches"][0] > 0
    assert facts["launches"] == facts["launches"][:1] * 4
    assert len(on_fake_cuda.trace("cudaStreamEndCapture")) == 1
    assert len(on_fake_cuda.trace("cudaGraphLaunch")) >= 3


def much_shared_memory() -> Any:
    stand_in_kernels.install(shared_bytes=100_000)
    return chain_error(runtime.session(models.chain(), CUDA))


def test_more_than_48_kb_of_shared_memory_is_asked_for(on_fake_cuda: FakeCuda) -> None:
    """CUDA gives a block more than 48 KB only to a function that asked once."""
    assert on_fake_cuda(much_shared_memory) == 0
    asked = on_fake_cuda.trace("cuFuncSetAttribute")
    assert [(a["kernel"], a["value"]) for a in asked] == [(op, 100_000) for op in CHAIN]
    assert {launch["shared_bytes"] for launch in on_fake_cuda.trace("cuLaunchKernel")} == {100_000}


PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""


def test_kernels_may_start_before_the_one_ahead_has_ended(on_fake_cuda: FakeCuda) -> None:
    on_fake_cuda(runs_as_kernels)
    asked = on_fake_cuda.trace("cuLaunchKernelEx")
    assert {(a["attribute"], a["value"]) for a in asked} == {(PROGRAMMATIC_STREAM_SERIALIZATION, 1)}
    assert len(asked) == len(on_fake_cuda.trace("cuLaunchKernel"))


def products() -> Any:
    maps = (TensorMapSpec(0, 1, (8, 3), (32,), (32, 3)), TensorMapSpec(1, 1, (8, 1), (32,), (32, 1)))
    kernels = stand_in_kernels.install(tensor_maps=maps)
    session = runtime.session(models.chain(), CUDA)
    errors = [chain_error(session, seed=seed) for seed in range(2)]
    # The stand-in driver notes in each map the address, the extents, the bytes from row to row and the box.
    words = [struct.unpack("<6Q", launch.tensor_maps[:48]) for launch in kernels.launched]
    return {
        "errors": errors,
        "own": [w[0] == launch.inputs[0] for w, launch in zip(words, kernels.launched, strict=True)],
        "facts": sorted({w[1:] for w in words}),
        "parameters": {launch.parameters.decode() for launch in kernels.launched}.pop(),
    }


def test_tensor_maps_are_encoded_for_every_launch(on_fake_cuda: FakeCuda) -> None:
    """They hold the addresses of this very run, and lie between the pointers and the parameters."""
    facts = on_fake_cuda(products)
    assert max(facts["errors"]) < 1e-6
    assert facts["own"] == [True] * len(facts["own"])
    assert facts["facts"] == [[8, 3, 32, 32, 3]]
    assert facts["parameters"] == stand_in_kernels.PARAMETERS.decode()


def several_launches() -> Any:
    maps = (TensorMapSpec(0, 1, (8, 3), (32,), (32, 3)), TensorMapSpec(0, 1, (8, 3), (32,), (32, 3), offset=48))
    kernels = stand_in_kernels.install(launches=3, scratch_bytes=64, tensor_maps=maps)
    session = runtime.session(models.chain(), CUDA)
    session.run(None, feeds())  # in place: what the stand-in computes three times is no longer right
    words = [struct.unpack("<Q", launch.tensor_maps[n : n + 8])[0] for launch in kernels.launched for n in (0, 128)]
    return {
        "calls": runtime.calls(),
        "launches": runtime.launches(),
        "scratch": len({launch.scratch for launch in kernels.launched}),
        "pointers": len({(r.op, *r.inputs, *r.outputs) for r in kernels.launched[:9]}),
        "offsets": sorted({b - a for a, b in zip(words[::2], words[1::2], strict=True)}),
    }


def test_a_plan_may_be_several_launches(on_fake_cuda: FakeCuda) -> None:
    """On the same pointers, one after the other; all get the stream's scratch memory, and maps begin where they say."""
    facts = on_fake_cuda(several_launches)
    assert set(facts["launches"].values()) == {3}
    assert set(facts["calls"].values()) == {1}
    assert facts["scratch"] == 1
    assert facts["pointers"] == 3
    assert facts["offsets"] == [48]


# ---- what stays a function


def some_ops_inlined() -> Any:
    stand_in_kernels.install(unsupported={"TwiceTanh_2": "no kernel for Tanh on Sundays"})
    session = runtime.session(models.chain(), CUDA)
    session.run(None, feeds())
    return {"fused": [(p.op, p.runs_as, p.reason) for p in session.fused], "launches": runtime.launches()}


def test_an_op_without_a_kernel_is_inlined_and_reported(on_fake_cuda: FakeCuda) -> None:
    """An op for which no kernel can be made keeps its body, beside ops that are registered, and says why."""
    facts = on_fake_cuda(some_ops_inlined)
    assert facts["fused"] == [
        ["BiasRelu_1", "kernel", ""],
        ["TwiceTanh_2", "body", "no kernel for Tanh on Sundays"],
        ["Negate_3", "kernel", ""],
    ]
    assert facts["launches"] == {"BiasRelu_1": 1, "Negate_3": 1}
    of_onnxruntime, ours = on_fake_cuda.trace("cudaLaunchKernel"), on_fake_cuda.trace("cuLaunchKernel")
    assert any("Tanh" in launch["kernel"] for launch in of_onnxruntime)
    streams = {launch["stream"] for launch in of_onnxruntime + ours}
    assert len(streams) == 1, "our kernels run on ONNX Runtime's stream"


def shape_arithmetic() -> Any:
    stand_in_kernels.install()
    x = feeds()["x"]
    of_shape = runtime.session(models.shape_product(), CUDA)
    (product,) = of_shape.run(None, {"x": x})
    divisions = (
        models.divide_by_size, models.divide_by_folded, models.divide_by_device_value, models.divide_by_large_constant
    )  # fmt: skip
    sessions = [of_shape, *(runtime.session(m(), CUDA) for m in divisions)]
    (quotient,) = sessions[-1].run(None, {"x": x})
    return {
        "product": product.tolist(),
        "quotient": quotient.tolist(),
        "fused": [[(p.op, p.runs_as) for p in s.fused] for s in sessions],
    }


def test_arithmetic_on_shapes_keeps_its_body(on_fake_cuda: FakeCuda) -> None:
    """ONNX Runtime would put such an op on the CPU, where it has no kernel; not so where it reads device values, or a
    Constant that is no small one."""
    facts = on_fake_cuda(shape_arithmetic)
    assert facts["product"] == [-6, -8]
    assert facts["quotient"] == np.full((13, 8), -np.float32(2) / 24).tolist()
    assert facts["fused"] == [
        [["ShapeProduct_5", "body"]],
        [["Divide_6", "body"]],
        [["Divide_6", "body"]],
        [["Divide_6", "kernel"], ["Negate_3", "kernel"]],
        [["Divide_6", "kernel"]],
    ]


def read_on_host() -> Any:
    stand_in_kernels.install()
    made = {op: models.divide_by_what_reads_on_host(op) for op in models.READS_ON_HOST} | {
        "half": models.divide_halves_by_size()
    }
    return {name: [p.runs_as for p in runtime.session(m, CUDA).fused] for name, m in made.items()}


def test_what_cuda_makes_of_a_shape_is_read_by_kernels(on_fake_cuda: FakeCuda) -> None:
    """ONNX Runtime opens the sessions: it leaves on the device what a CUDA kernel computes of a shape that it reads in
    host memory, and what reads a half type."""
    assert {*models.READS_ON_HOST, "Upsample"} == {entry for entry in ops.ENTRIES.values() if entry.on_host}
    assert on_fake_cuda(read_on_host) == {name: ["kernel"] for name in (*models.READS_ON_HOST, "half")}


# ---- errors


def errors_of_kernels() -> Any:
    def refuse(op: str) -> None:
        if op == "TwiceTanh_2":
            raise KernelError("pointwise.cu:12: identifier is undefined", "Report this.")

    stand_in_kernels.install(on_plan=refuse)
    run = runtime.session(models.chain(), CUDA).run
    plan_error = message_of(Exception, run, None, feeds())
    stand_in_kernels.install(block=(2048, 1, 1))
    run = runtime.session(models.chain(), CUDA).run
    return {"plan": plan_error, "launch": message_of(Exception, run, None, feeds())}


def test_errors_name_op_shapes_and_cause(on_fake_cuda: FakeCuda) -> None:
    """A planner's exception and a failed launch come out of session.run with op, shapes, grid and CUDA's words."""
    facts = on_fake_cuda(errors_of_kernels)
    assert (
        "onnxfuse.TwiceTanh_2 with inputs [3, 8]: pointwise.cu:12: identifier is undefined Report this."
        in facts["plan"]
    )
    assert "onnxfuse.BiasRelu_1 with inputs [3, 8] [8]: launching grid (1, 1, 1) block (2048, 1, 1)" in facts["launch"]
    assert "CUDA_ERROR_INVALID_VALUE: invalid argument" in facts["launch"]


def errors_of_the_environment() -> Any:
    stand_in_kernels.install()
    options = onnxruntime.SessionOptions()
    runtime.session(models.chain(), CUDA, options)
    facts: dict[str, Any] = {
        "twice": message_of(UsageError, runtime.session, models.sum_softmax(), CUDA, options),
        "device": message_of(
            DeviceError, runtime.session, models.chain(), [("CUDAExecutionProvider", {"device_id": "3"})]
        ),
    }
    _hide_bridge()
    facts["bridge"] = message_of(DeviceError, runtime.session, models.chain(), CUDA)
    by_default = runtime.session(models.chain())
    facts["by default"] = [(p.runs_as, p.reason) for p in by_default.fused]
    facts["providers"] = by_default.get_providers()
    return facts


def _hide_bridge() -> None:
    from onnxfuse.runtime.engine import bridge

    bridge.LIBRARY = Path("libnot_built.so")


def test_what_is_missing_is_said_with_the_remedy(on_fake_cuda: FakeCuda) -> None:
    """Options used twice, a device that is not there, and an install without the bridge: each says what to do."""
    facts = on_fake_cuda(errors_of_the_environment)
    assert "already hold the fused kernels" in facts["twice"]
    assert "device_id is 3, and the driver reports 1 device" in facts["device"]
    assert "the engine is not built" in facts["bridge"]
    assert "apt install g++" in facts["bridge"]
    assert all(runs_as == "body" and "engine is not built" in reason for runs_as, reason in facts["by default"])
    assert facts["providers"][0] == "CUDAExecutionProvider"


# ---- the other ways in


def register_by_hand() -> Any:
    stand_in_kernels.install()
    options = onnxruntime.SessionOptions()
    model = models.chain().SerializeToString()
    placements = runtime.register(options, model)
    session = onnxruntime.InferenceSession(model, options, providers=CUDA)
    given = feeds()
    error = float(np.abs(session.run(None, given)[0] - chain_of(**given)).max())
    counted = [runtime.calls(), runtime.launches()]
    runtime.reset_counts()
    return {
        "error": error,
        "runs_as": [p.runs_as for p in placements],
        "calls and launches": counted,
        "reset": [runtime.calls(), runtime.launches()],
        "default": runtime.session(model).get_providers()[0],
    }


def test_register_serves_a_session_built_by_hand(on_fake_cuda: FakeCuda) -> None:
    """`register` gives an ordinary InferenceSession the kernels; counters can be reset; CUDA is taken by default."""
    assert on_fake_cuda(register_by_hand) == {
        "error": 0,
        "runs_as": ["kernel"] * 3,
        "calls and launches": [dict.fromkeys(CHAIN, 1)] * 2,
        "reset": [dict.fromkeys(CHAIN, 0)] * 2,
        "default": "CUDAExecutionProvider",
    }


def with_and_without_tf32() -> Any:
    kernels, found = stand_in_kernels.install(), {}
    for value in (None, 1, 0, "0", "False"):
        kernels.asked_for.clear()
        options = {} if value is None else {"use_tf32": value}
        runtime.session(models.chain(), [("CUDAExecutionProvider", options), "CPUExecutionProvider"])
        found[repr(value)] = sorted({*kernels.asked_for})
    return found


def as_the_file_says() -> Any:
    kernels, found = stand_in_kernels.install(), {}
    strict = models.chain()
    set_strict_fp32(strict)
    ways: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("names", CUDA, {}),
        ("asked for", [("CUDAExecutionProvider", {"use_tf32": "1"}), "CPUExecutionProvider"], {}),
        ("beside", CUDA, {"provider_options": [{"device_id": "0"}, {}]}),
    )
    for name, providers, more in ways:
        kernels.asked_for.clear()
        session = runtime.session(strict, providers, **more)
        option = session.get_provider_options()["CUDAExecutionProvider"]["use_tf32"]
        found[name] = [option, sorted({*kernels.asked_for})]
    kernels.asked_for.clear()
    runtime.register(onnxruntime.SessionOptions(), strict)
    found["registered"] = sorted({*kernels.asked_for})
    return found


def test_a_file_made_without_tf32_is_opened_without(on_fake_cuda: FakeCuda) -> None:
    """ONNX Runtime's own products are exact then, too; what the caller says goes first."""
    assert on_fake_cuda(as_the_file_says) == {
        "names": ["0", [False]], "asked for": ["1", [True]], "beside": ["0", [False]], "registered": [False],
    }  # fmt: skip


def test_a_session_without_tf32_asks_for_exact_kernels(on_fake_cuda: FakeCuda) -> None:
    """As the provider's option says, however it is written."""
    assert on_fake_cuda(with_and_without_tf32) == {
        "None": [True], "1": [True], "0": [False], "'0'": [False], "'False'": [False],
    }  # fmt: skip


def memory_patterns() -> Any:
    stand_in_kernels.install()
    fixed = models.chain()
    for dim in (d for i in fixed.graph.input for d in i.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            dim.dim_value = 3
    sessions = {
        "open": runtime.session(models.chain(), CUDA),
        "fixed": runtime.session(fixed, CUDA),
        "own options": runtime.session(models.chain(), CUDA, onnxruntime.SessionOptions()),
        "on the CPU": runtime.session(models.chain(), CUDA[1:]),
    }
    return {name: session.get_session_options().enable_mem_pattern for name, session in sessions.items()}


def test_a_layout_of_memory_is_planned_for_a_model_of_one_shape_alone(on_fake_cuda: FakeCuda) -> None:
    """Where every shape would get one, there is none; what the caller says stays."""
    assert on_fake_cuda(memory_patterns) == {"open": False, "fixed": True, "own options": True, "on the CPU": True}
