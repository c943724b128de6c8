"""Kernel packs: sessions find them, and plan and compile nothing in their ranges; what is no pack of theirs is told."""

import os
import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse import cuda, runtime
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch, measurements
from onnxfuse.cuda.dispatch.measurements import MeasuredVariants, Timed
from onnxfuse.cuda.pack import file
from onnxfuse.cuda.pack.layout import CUBIN, PTX, StoredProgram, Target, best
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.deploy import compiling
from onnxfuse.deploy.compiling import Compiling
from onnxfuse.files import io
from onnxfuse.model.fused import fused_ops
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.engine.launch import LaunchProgram, LoadedKernel
from onnxfuse.runtime.kernels import ahead_of_time
from onnxfuse.runtime.kernels import variants as runtime_tuned
from onnxfuse.runtime.kernels.packs import pack_of
from onnxfuse.runtime.packing import packing
from onnxfuse.support.errors import NoCompilerError
from onnxfuse.support.process_pool import Workers
from onnxfuse.support.progress import silent
from tests.support import fused_models as models
from tests.support import growth
from tests.support.scenarios import FakeCuda
from tests.unit.runtime.kernels.test_variants import HERE, WIDE, carrying
from tests.unit.runtime.sessions.test_inference import message_of

H200 = Arch("sm_90a", 132)


def image(kernel: cuda.KernelSource, arch: Arch) -> bytes:
    return f"{arch.name} {kernel.entry}".encode()


def compiled(folder: Path, **how: Any) -> Path:
    """Write the chain of three ops and its pack, without a compiler; return the model's path."""
    cuda.compile, cuda.portable = image, image
    path = folder / "chain.onnx"
    io.save(models.chain(), path)
    compiling.compile(path, Compiling(**{"archs": ("sm_90a",), "ranges": {"N": (1, 4096)}, **how}))
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is compiled be the kernel's name."""
    monkeypatch.setattr(cuda, "compile", image)
    monkeypatch.setattr(cuda, "portable", image)
    monkeypatch.setattr(packing, "Workers", lambda processes: Workers(1))


# ---- sessions


def counted() -> SimpleNamespace:
    """Count from here on what a pack makes unneeded, and let kernels of a pack do nothing."""
    counts = SimpleNamespace(plans=0, builds=0, loads=0)
    plan, loaded = cuda.plan, cuda.load(None, 0)  # type: ignore[arg-type]  # the stand-in loads no source

    def planned(*facts: Any) -> Any:
        counts.plans += 1
        return plan(*facts)

    def built(*facts: Any, **more: Any) -> Any:
        counts.builds += 1
        return b"", ""

    def load_image(image: Any, digest: bytes, entry: str, device: int) -> Any:
        assert image().decode().split()[1] == entry
        counts.loads += 1
        return loaded

    def load(kernel: cuda.KernelSource, device: int) -> Any:
        counts.builds += 1
        return loaded

    cuda.plan, nvrtc.build = planned, built  # type: ignore[assignment]  # the stand-in of this process
    cuda.load_image, cuda.load = load_image, load
    return counts


def begin() -> tuple[Path, SimpleNamespace]:
    growth.install()
    pytest.MonkeyPatch().setattr(packing, "Workers", lambda processes: Workers(1))
    path = compiled(Path(os.environ["XDG_CACHE_HOME"]).parent)
    return path, counted()


def run(session: onnxruntime.InferenceSession, lengths: list[int]) -> bool:
    return all(session.run(None, growth.feeds(n))[0].shape == (n, 8) for n in lengths)


def streams() -> Any:
    path, counts = begin()
    chance = random.Random(1)
    lengths = [chance.randint(1, 4096) for _ in range(200)]
    found: dict[str, Any] = {}
    options = onnxruntime.SessionOptions()
    runtime.register(options, path)
    for kind, opened in (
        ("session", runtime.session(path, growth.CUDA)),
        ("register", onnxruntime.InferenceSession(path, options, providers=growth.CUDA)),
        ("bytes", runtime.session(path.read_bytes(), growth.CUDA, kernels=file.pack_path_of(path))),
        ("model", runtime.session(models.chain(), growth.CUDA, kernels=str(file.pack_path_of(path)))),
    ):
        before = vars(counts).copy()
        runtime.reset_counts()
        right = run(opened, lengths)
        custom_ops_arguments = sum(bridge().answers().values())
        found[kind] = {
            "right": right, "plans": counts.plans - before["plans"], "builds": counts.builds - before["builds"],
            "answers": custom_ops_arguments, "launches": sum(runtime.launches().values()),
        }  # fmt: skip
    found["outside"] = run(opened, [5000, 5001]) and counts.plans > 0
    return found


def test_nothing_is_planned_or_compiled_in_a_packs_ranges(on_fake_cuda: FakeCuda) -> None:
    """From the first shape of each node on; beyond the ranges the planner is asked, as without a pack."""
    found = on_fake_cuda(streams)
    for kind in ("session", "register", "bytes", "model"):
        assert found[kind]["right"], kind
        assert (found[kind]["plans"], found[kind]["builds"]) == (0, 0), kind
        assert found[kind]["launches"] == 3 * 200
        assert found[kind]["answers"] >= 3 * 150
    assert found["outside"]
    # Kernels are loaded in a thread of their own, which may be while another one captures a CUDA graph.
    assert {call["mode"] for call in on_fake_cuda.trace("cuThreadExchangeStreamCaptureMode")} == {2}


def tuned() -> Any:
    path, counts = begin()
    runtime_tuned.machine_of = lambda device: HERE
    model = carrying(HERE, 3)
    book = measurements.of_model(model)
    shapes = ((7, 8), (8,))
    book[HERE]["BiasRelu_1".rpartition("_")[2], shapes] = MeasuredVariants(
        "BiasRelu_1", "by_hand", (), (), shapes, (Timed("fused", None, 1.0),)
    )
    measurements.attach(model, book)
    io.save(model, path)
    made = compiling.compile(path, Compiling(("sm_90a",), {"N": (1, 64)}))
    counts.plans = counts.builds = 0
    session = runtime.session(path, growth.CUDA)
    right = run(session, [5, 3, 7, 3, 9])
    wide = [p for e in file.opened(made.target, named=False).index.ops for p in e.programs if p.variant]
    plan = dispatch.plan(fused_ops(model)["BiasRelu_1"], ((3, 8), (8,)), True, H200, WIDE)
    return {
        "right": right, "plans": counts.plans, "builds": counts.builds, "variants": len(wide),
        "blocks": list(launched(wide[0], ((3, 8), (8,)))["block"]), "wanted": list(plan.block),
    }  # fmt: skip


def test_what_was_measured_fastest_is_in_the_pack(on_fake_cuda: FakeCuda) -> None:
    """For its shapes alone, and where it was measured on this machine; what was measured slower leaves all as it is."""
    found = on_fake_cuda(tuned)
    assert (found["right"], found["plans"], found["builds"]) == (True, 0, 0)
    assert found["blocks"] == found["wanted"]
    assert found["variants"] == 2  # by aligned pointers, and by others


def without() -> Any:
    path, counts = begin()
    ahead_of_time.MOST_THREADS = 0
    ones = {
        "False": runtime.session(path, growth.CUDA, kernels=False),
        "bytes": runtime.session(path.read_bytes(), growth.CUDA),
    }
    found = {}
    for kind, session in ones.items():
        before = counts.plans
        found[kind] = run(session, [3]) and counts.plans > before
    return found


def test_a_pack_is_taken_where_one_is_named_or_beside(on_fake_cuda: FakeCuda) -> None:
    assert on_fake_cuda(without) == {"False": True, "bytes": True}


def damaged() -> Any:
    path, counts = begin()
    ahead_of_time.MOST_THREADS = 0
    place = file.pack_path_of(path)
    whole = place.read_bytes()
    found = {}
    other = path.with_name("other.onnx")
    io.save(models.sum_softmax(), other)
    file.pack_path_of(other).write_bytes(whole)
    for kind, data in {
        "empty": b"", "text": b"hello", "cut": whole[:-1], "longer": whole + b"\0", "head": whole[:40],
        "index": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], "kernel": whole[:-1] + b"?",
        "planners": whole[:70] + b"\0\0" + whole[72:],
    }.items():  # fmt: skip
        place.write_bytes(data)
        found[kind] = told(path, counts)
    place.unlink()
    place.symlink_to(other)
    found["link"] = told(path, counts)
    place.unlink()
    os.mkfifo(place)
    found["fifo"] = told(path, counts)
    place.unlink()
    with place.open("wb") as sparse:
        sparse.write(whole)
        sparse.truncate(1 << 40)
    found["huge"] = told(path, counts)
    place.unlink()
    place.write_bytes(whole)
    place.chmod(0o666)
    found["open"] = told(path, counts)
    cuda.arch_of = lambda device: Arch("sm_80", 108)  # type: ignore[assignment]  # the stand-in of this process
    place.chmod(0o600)
    found["gpu"] = told(path, counts)
    return found


def told(path: Path, counts: SimpleNamespace) -> Any:
    """Return what a session says of its pack, and whether it runs by plans of its own."""
    before = counts.plans
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        right = run(runtime.session(path, growth.CUDA), [3, 4])
    lines = [str(w.message) for w in said if ".kernels" in str(w.message)]
    return {"right": right and counts.plans > before, "lines": lines}


SAID = {
    "empty": "is empty", "text": "is no kernel pack", "cut": "says that it has", "longer": "says that it has",
    "head": "is no kernel pack", "index": "is damaged: its index", "kernel": "is damaged: the kernel",
    "planners": "was made by another version of onnxfuse", "link": "is a link", "fifo": "is no file",
    "huge": "says that it has", "open": "can be written by anyone",
    "gpu": "has no kernels for this GPU, sm_80; it has sm_90a",
}  # fmt: skip


def test_what_is_no_pack_is_one_line_and_the_session_runs(on_fake_cuda: FakeCuda) -> None:
    """Damaged, cut off, of another version, linked, huge: told once, with the command that builds it again."""
    found = on_fake_cuda(damaged)
    assert set(found) == set(SAID)
    for kind, words in SAID.items():
        assert found[kind]["right"], kind
        (line,) = found[kind]["lines"]
        assert words in line, kind
        assert "chain.onnx.kernels: " in line
        assert "Build it: onnxfuse compile " in line
        assert "\n" not in line


def no_nvrtc() -> Any:
    path, counts = begin()
    ahead_of_time.MOST_THREADS = 0

    def load(kernel: cuda.KernelSource, device: int) -> Any:
        raise NoCompilerError("NVRTC cannot be loaded")

    cuda.load = load
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        right = run(runtime.session(path, growth.CUDA), [5000, 3, 5000, 70000])
    without = message_of(Exception, run, runtime.session(path, growth.CUDA, kernels=False), [5000])
    return {"right": right, "told": [str(w.message) for w in said], "loads": counts.loads, "without": without}


def test_where_nothing_can_be_compiled_the_packs_general_kernels_run(on_fake_cuda: FakeCuda) -> None:
    """Beyond its ranges, slowly and with a warning for each shape; without a pack there is nothing to run."""
    found = on_fake_cuda(no_nvrtc)
    assert found["right"]
    assert len(found["told"]) == 2 * 3
    assert all("NVRTC cannot be loaded" in t and "the kernel for all shapes runs" in t for t in found["told"])
    assert found["loads"] == 2 * 3  # of each op the general kernel, and that of the shape inside of the ranges
    assert "NVRTC cannot be loaded" in found["without"]


# ---- what a pack holds


def launched(program: StoredProgram, shapes: Any) -> Any:
    numbered = tuple(LoadedKernel(n + 1, True, None) for n in range(len(program.kernels)))
    return bridge().evaluated(LaunchProgram(0, program.tape, numbered, ()), shapes)


@pytest.mark.usefixtures("no_compiler")
def test_a_program_answers_what_the_planner_plans(tmp_path: Path) -> None:
    """For any shape of its range, with aligned pointers and others; by the kernel that the plan launches."""
    path = compiled(tmp_path)
    ops = fused_ops(models.chain())
    packed = pack_of(path, None, ops)
    assert packed is not None
    chance = random.Random(3)
    aligned = {p.aligned for e in packed.pack.index.ops for p in e.programs}
    assert aligned == {True, False}  # the first op reads the caller's buffers, the last one writes them
    assert [sum(p.general for p in e.programs) for e in packed.pack.index.ops] == [1, 1, 1]
    for entry in packed.pack.index.ops:
        op = ops[entry.name]
        for program in entry.programs:
            for n in (1, 4096, *(chance.randint(1, 4096) for _ in range(20))):
                shapes = ((n, 8), (8,))[: len(op.inputs)]
                found, plan = launched(program, shapes), cuda.general(op, shapes, H200)
                plan = plan if program.general else cuda.plan(op, shapes, program.aligned, H200)
                for name in ("parameters", "shared_bytes", "scratch_bytes", "counter_bytes"):
                    assert found[name] == getattr(plan, name)
                assert [tuple(found[f]) for f in ("grid", "block")] == [plan.grid, plan.block]
                assert [tuple(s) for s in found["output_shapes"]] == list(plan.output_shapes)
                kernel = packed.pack.index.kernels[program.kernels[found["function"] - 1]]
                assert packed.pack.image(kernel) == image(plan.kernel, H200)


CACHED = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (float16[B,S,128] x, float16[B,1,P,32] past_k, float16[B,1,P,32] past_v, float16[4096,16] cos, float16[4096,16] sin,
   int32[B] lengths, int32 total) => (float16[B,S,64] y, float16[B,1,T,32] present_k, float16[B,1,T,32] present_v) {
  y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, do_rotary = 1>
    (x, , , past_k, past_v, lengths, total, cos, sin)
}"""


@pytest.mark.usefixtures("no_compiler")
def test_a_pack_answers_attention_behind_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the value of its total length; beyond its ranges by the general kernel."""
    path = tmp_path / "cached.onnx"
    fused = onnxfuse.optimize(onnx.parser.parse_model(CACHED))
    io.save(fused, path)
    compiling.compile(path, Compiling(archs=("sm_90a",), ranges={"B": (1, 2), "S": (1, 3), "P": (0, 64)}))
    monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
    monkeypatch.setattr(cuda, "load_image", lambda image, digest, entry, device: entry)
    packed = pack_of(path, None, fused_ops(fused))
    assert packed is not None
    ((name, op),) = fused_ops(fused).items()

    def shapes(queries: int, total: int) -> tuple[tuple[int, ...], ...]:
        found = {"x": (2, queries, 128), "lengths": (2,), "total": (total,), "cos": (4096, 16), "sin": (4096, 16)}
        return tuple(found.get(v, (2, 1, 64, 32)) for v in fused.graph.node[0].input)

    for total in (1, 20, 65):
        assert packed.answers(name, shapes(1, total), True, 0)
    assert packed.answers(name, shapes(3, 3), False, 0)
    assert not packed.answers(name, shapes(900, 3000), True, 0)
    for wanted in (shapes(1, 20), shapes(2000, 3000)):
        plan = cuda.general(op, wanted, H200)
        assert packed.general(name, wanted, 0) == [plan.kernel.entry]
        assert not plan.then


@pytest.mark.usefixtures("no_compiler")
def test_each_launch_of_a_general_program_has_its_own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a recurrent layer the products, then the positions."""
    layer = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float16[S,B,64] x) => (float16[S,1,B,64] y) { y = RNN <hidden_size = 64> (x, w, r) }""")
    weights = np.full((1, 64, 64), 0.125, np.float16)
    layer.graph.initializer.extend(numpy_helper.from_array(weights, name) for name in ("w", "r"))
    monkeypatch.setattr(cuda, "compile", lambda kernel, arch: kernel.text.encode())
    path = tmp_path / "layer.onnx"
    fused = onnxfuse.optimize(layer)
    io.save(fused, path)
    compiling.compile(path, Compiling(archs=("sm_90a",), ranges={"S": (1, 8), "B": (1, 4)}))
    monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
    monkeypatch.setattr(cuda, "load_image", lambda image, digest, entry, device: image().decode())
    packed = pack_of(path, None, fused_ops(fused))
    assert packed is not None
    ((name, op),) = fused_ops(fused).items()
    shapes = ((8, 3, 64), (1, 64, 64), (1, 64, 64))[: len(op.inputs)]
    plan = cuda.general(op, shapes, H200)
    texts = [p.kernel.text for p in (plan, *plan.then)]
    assert len(set(texts)) == 2
    assert packed.general(name, shapes, 0) == texts


@pytest.mark.usefixtures("no_compiler")
def test_the_same_model_gives_the_same_pack(tmp_path: Path) -> None:
    first = file.pack_path_of(compiled(tmp_path)).read_bytes()
    assert file.pack_path_of(compiled(tmp_path)).read_bytes() == first


@pytest.mark.usefixtures("no_compiler")
def test_a_pack_of_several_gpus(tmp_path: Path) -> None:
    path = compiled(tmp_path, archs=("sm_80", "sm_90"), ptx=True)
    pack = file.opened(file.pack_path_of(path), named=False)
    assert [t.name for t in pack.index.targets] == ["sm_80", "sm_90a", "compute_86"]
    for n, target in enumerate(pack.index.targets):
        mine = [k for k in pack.index.kernels if k.target == n]
        assert mine
        assert {pack.image(k).decode().split()[0] for k in mine} == {target.arch.name}


def test_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NVRTC, in processes of their own: cubins, and PTX for later GPUs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "chain.onnx"
    one = "g (float[N, 8] x) => (float[N, 8] y) { y = onnxfuse.Negate_3 (x) }"
    io.save(models.model(one, models.NEGATE), path)
    made = compiling.compile(path, Compiling(("sm_89",), {"N": (1, 4)}, ptx=True))
    pack = file.opened(made.target, named=False)
    images = [(pack.index.targets[k.target].kind, pack.image(k)) for k in pack.index.kernels]
    assert {kind for kind, _ in images} == {CUBIN, PTX}
    for kind, data in images:
        assert data.startswith(b"\x7fELF") if kind == CUBIN else b".target sm_86" in data


def test_which_kernels_a_gpu_runs() -> None:
    """Its own; else PTX of an earlier one, whose shared memory it has."""
    targets = (
        Target(Arch("sm_80", 108)), Target(Arch("sm_90a", 132)), Target(Arch("sm_90a", 114)),
        Target(Arch("sm_86", 132, 1536), PTX), Target(Arch("sm_80", 108), PTX),
    )  # fmt: skip
    chosen = {
        "sm_80": 0, "sm_86": 3, "sm_89": 3, "sm_100": 3, "sm_103": 3, "sm_121": 3, "sm_87": 3, "sm_75": None,
    }  # fmt: skip
    assert {name: best(targets, Arch(name, 100)) for name in chosen} == chosen
    assert best(targets, H200) == 1
    assert best(targets, Arch("sm_90a", 100)) == 2
    assert best(targets[4:], Arch("sm_120", 170)) is None  # 99 kB of shared memory, where plans may use 163
    assert targets[0].kind == CUBIN


@pytest.mark.usefixtures("no_compiler")
def test_a_range_that_no_kernel_takes_is_told(tmp_path: Path) -> None:
    """Shapes of which the planner has no plan are left, and why is said; the others are answered."""
    made, _ = compiling.build(models.sum_softmax(), Compiling(("sm_90a",), {"N": (0, 2**31 - 1)}), silent)
    (part,) = {(p.shapes, p.whole) for p in made.programs}
    assert part[0] < 2**31
    assert not part[1]
