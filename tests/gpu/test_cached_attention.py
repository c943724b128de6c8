"""Attention behind KV caches on a real GPU: shared and separate buffers, all options, beside ONNX Runtime's kernel."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import onnxfuse
from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT
from bench.kernels.launching import launcher
from onnxfuse import cuda, runtime
from tests.gpu.test_kernels import DeviceBuffer, cupy, pytestmark
from tests.support.kernels.cached_attentions import Case, finite, within_budget

__all__ = ["pytestmark"]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
TOKEN = Case((1023, 0, 500), capacity=1024, heads=16, of_keys=4, size=128, half=64, packed=True)
CASES = [
    TOKEN, replace(TOKEN, before=(1023,)), replace(TOKEN, dtype=BRAIN), replace(TOKEN, dtype=FLOAT),
    replace(TOKEN, packed=False, half=0), replace(TOKEN, interleaved=True, half=32), replace(TOKEN, window=100),
    replace(TOKEN, softcap=2.0), replace(TOKEN, sink=True), replace(TOKEN, smooth=True), replace(TOKEN, norm=True),
    replace(TOKEN, before=(1000, 3, 512), queries=8), replace(TOKEN, before=(0, 0), queries=200),
    replace(TOKEN, before=(0, 0), queries=200, window=33), replace(TOKEN, before=(300,), queries=100),
    replace(TOKEN, capacity=1023, before=(1023, 1023)), replace(TOKEN, size=64, half=32),
    replace(TOKEN, size=256, half=64), replace(TOKEN, size=72, half=16, heads=6, of_keys=3),
    replace(TOKEN, heads=32, of_keys=1), replace(TOKEN, heads=8, of_keys=8),
    replace(TOKEN, before=tuple(range(0, 1024, 16))), replace(TOKEN, before=(0,) * 4, queries=512),
    replace(TOKEN, before=(300, 0, 511), queries=512, packed=False),
    replace(TOKEN, before=(0,), queries=600, window=100, sink=True, softcap=3.0),
    replace(TOKEN, dtype=FLOAT, before=(0, 500), queries=400), replace(TOKEN, before=(4095,), capacity=8192),
    replace(TOKEN, before=(0,), queries=1),
]  # fmt: skip


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_computes_its_body(case: Case, aligned: bool) -> None:
    """In buffers of its own, and, to the same bits, in those that it reads; run after run."""
    op, inputs = case.op(), case.inputs(np.random.default_rng(0))
    arch, shapes = cuda.arch_of(0), case.shapes(inputs)
    if (reason := cuda.supports(op, lambda: arch)) is not None:
        pytest.skip(reason)
    plan = cuda.plan(op, shapes, aligned, arch)
    found = []
    for shared in (False, True):
        if shared and case.total > case.capacity:
            continue
        sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
        results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, op.outputs, strict=True)]
        for output, source in case.caches.items() if shared else ():
            results[output] = sources[source]
        launch = launcher(plan, [b.address for b in (*sources, *results)], early=True)
        for _ in range(3):
            launch()
            cupy.cuda.Device(0).synchronize()
            found.append([r.read().copy() for r in results])
    within_budget(case, inputs, found[0])
    for again in found[1:]:
        assert again[0].tobytes() == found[0][0].tobytes()
        for output in case.caches:
            for row, before in enumerate(case.before):
                end = before + case.queries
                assert again[output][row, :, :end].tobytes() == found[0][output][row, :, :end].tobytes()


ORT_CASES = [
    TOKEN, replace(TOKEN, packed=False, half=0), replace(TOKEN, window=100),
    replace(TOKEN, before=(0, 0), queries=200), replace(TOKEN, before=(300,), queries=100),
]  # fmt: skip


@pytest.mark.parametrize("case", ORT_CASES, ids=str)
def test_a_session_agrees_with_onnx_runtime(case: Case) -> None:
    """With past and present bound to one buffer each, as onnxruntime-genai does: no further from the truth."""
    op, inputs = case.op(), finite(case.inputs(np.random.default_rng(0)))
    caches: list[int | str] = [len(case.before), case.of_keys, "P", case.size]
    values = [
        helper.make_tensor_value_info(n, t, caches if n.startswith("past") else list(x.shape))
        for n, t, x in zip(op.body.input, op.inputs, inputs, strict=True)
    ]
    ranks = zip(op.body.output, op.outputs, (3, 4, 4), strict=True)
    results = [helper.make_tensor_value_info(n, t, [None] * rank) for n, t, rank in ranks]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([*op.body.node], "g", values, results)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    ours = runtime.session(onnxfuse.optimize(model), CUDA, wait_for_kernels=True)
    assert [p.runs_as for p in ours.fused] == ["kernel"]
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA)
    given = dict(zip(op.body.input, inputs, strict=True))
    found = [in_its_buffers(session, given, case) for session in (theirs, ours)]
    exact = ops.truth(op, inputs)[0]
    before, after = (np.abs(f[0].astype(np.float64) - exact).max() for f in found)
    assert after <= 2 * before + 2 * ops.ROUNDING[case.dtype]
    if not case.half:
        assert all(found[0][output].tobytes() == found[1][output].tobytes() for output in case.caches)


def in_its_buffers(session: onnxruntime.InferenceSession, given: dict[str, np.ndarray], case: Case) -> list[np.ndarray]:
    """Return the outputs of a run whose caches are the inputs' buffers."""
    binding, on = session.io_binding(), dict[str, onnxruntime.OrtValue]()
    for name, array in given.items():
        on[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu" if name == "total" else "cuda", 0)
        binding.bind_ortvalue_input(name, on[name])
    shape = (len(case.before), case.queries, case.heads * case.size)
    on["y"] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, ops.NUMPY[case.dtype], "cuda", 0)
    for output, source in (("y", "y"), ("pk", "past_key"), ("pv", "past_value")):
        binding.bind_ortvalue_output(output, on[source])
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [on[name].numpy() for name in ("y", "past_key", "past_value")]
