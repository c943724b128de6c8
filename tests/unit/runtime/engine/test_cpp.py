"""Fused models without Python: examples/cpp, with a kernel pack whose kernels are functions of the host.

The stand-in driver runs a kernel by its name from the library that an image names, with the real plan's parameters; so
what comes out is right exactly if the engine has read pack and program right.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.cuda.pack import layout
from onnxfuse.cuda.pack.layout import CUBIN, PTX, PackEntry, StoredProgram, Target
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import LIBRARY
from tests.support import fused_models as models
from tests.support import serving
from tests.support.serving import right

H200, A100 = Arch("sm_90a", 132), Arch("sm_80", 108)
INPUTS = {"BiasRelu_1": (("N", 8), (8,)), "TwiceTanh_2": (("N", 8),), "Negate_3": (("N", 8),)}
OPS = (models.BIAS_RELU, models.TWICE_TANH, models.NEGATE)
ROWS = range(1, 41)


def program(op: FusedOp, target: Target, aligned: bool) -> tuple[bytes, int]:
    """Return the tape that answers for all rows, and how many kernels it has: one, whatever the rows."""
    dims = [n for s in INPUTS[op.name] for n in s]
    key = Key(tuple(map(len, INPUTS[op.name])), tuple(n if isinstance(n, int) else None for n in dims))
    family = dispatch.family(op, key, aligned, target.arch)
    for rows in ROWS:
        shapes = tuple(tuple(n if isinstance(n, int) else rows for n in s) for s in INPUTS[op.name])
        if family.answer(shapes) is None:
            family.record(shapes)
    tape = written(family)
    assert tape is not None
    return tape, len(family.kernels)


def pack(image: bytes, targets: Sequence[Target] = (Target(H200),), kinds: Sequence[bool] = (True, False)) -> bytes:
    """Return a pack of the ops of `chain`, all of whose kernels are this image.

    `kinds`: whether programs are for aligned pointers.
    """
    kernels: list[tuple[str, int, bytes]] = []
    entries = []
    for op in OPS:
        programs = []
        for place, target in enumerate(targets):
            for aligned in kinds:
                tape, count = program(op, target, aligned)
                programs.append(StoredProgram(place, aligned, tuple(range(len(kernels), len(kernels) + count)), tape))
                kernels += [(f"{op.name}_kernel", place, image)] * count
        entries.append(PackEntry(op.name, bytes(32), op.inputs, op.outputs, (0,), tuple(programs)))
    return b"".join(layout.packed("{}", targets, entries, kernels, bytes(32))[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, the kernels, the model, and the library beside the model's pack."""
    folder = tmp_path_factory.mktemp("cpp")
    serving.build(folder)
    onnx.save(models.chain(), folder / "model.onnx")
    (folder / "served").mkdir()
    shutil.copy(LIBRARY, folder / "served")
    (folder / "served" / "model.onnx.kernels").write_bytes(pack(image(folder)))
    return folder


def image(folder: Path) -> bytes:
    return serving.image(folder / "kernels.so")


class Served(serving.Served):
    """What a run of the program has said of the model in the folder."""

    def __init__(
        self, made: Path, libraries: Path, *options: str | Path, model: Path | None = None, **more: str
    ) -> None:
        library = made / "served" / LIBRARY.name
        super().__init__(made, libraries, model or made / "model.onnx", library, *options, **more)


@pytest.mark.parametrize("how", [[], ["--old"], ["--user-stream"], ["--old", "--user-stream"]])
def test_both_registrations_with_and_without_a_stream_of_the_user(how: list[str], made: Path, fake_cuda: Path) -> None:
    """The pack is found beside the library."""
    assert right(Served(made, fake_cuda, *how, "--rows", "5"), 5)


def test_the_first_sessions_of_a_process_are_opened_at_once(made: Path, fake_cuda: Path) -> None:
    """ONNX Runtime adds a domain to its table without a lock: of sixteen threads some would find it added meanwhile."""
    for _ in range(12):
        assert right(Served(made, fake_cuda, "--threads", "16", "--rows", "3"), 3, 16)


def test_four_threads_open_and_close_a_hundred_sessions_each(made: Path, fake_cuda: Path) -> None:
    """All right; the last half of them left 4 kB a session at most, handles among it that the stand-ins do not free.

    A leak is in each run. That a thread's heap grows by its step of 2 MB in the last half of them is in some.
    """
    left: list[int] = []
    while not left or (left[-1] >= 4 * 50 * 4 and len(left) < 4):
        served = Served(made, fake_cuda, "--threads", "4", "--cycles", "100", "--rows", "3")
        assert right(served, 3, 4)
        left.append(served.kilobytes)
    assert min(left) < 4 * 50 * 4, left


def test_options_name_a_pack(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """It goes before the one beside the library."""
    other = tmp_path / "other.kernels"
    assert f"{other} cannot be read (No such file or directory)" in Served(made, fake_cuda, "--pack", other).error
    other.write_bytes(pack(image(made)))
    assert right(Served(made, fake_cuda, "--pack", other), 4)


def test_a_program_for_any_pointers_is_for_aligned_ones_too(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    place = tmp_path / "any.kernels"
    place.write_bytes(pack(image(made), kinds=(False,)))
    assert right(Served(made, fake_cuda, "--pack", place), 4)


def test_a_foreign_gpu_is_refused_by_name(made: Path, fake_cuda: Path) -> None:
    """When the library is registered, with what is there and what to do."""
    served = Served(made, fake_cuda, FAKE_CUDA_CAPABILITY="75")
    assert served.code == 1
    assert "has no kernels for this GPU, sm_75; it has sm_90a" in served.error
    assert "onnxfuse compile MODEL --arch sm_75" in served.error


def test_a_session_on_a_foreign_gpu_beside_another_is_refused_when_it_is_made(made: Path, fake_cuda: Path) -> None:
    """By name, before a run; the GPU that the pack is for serves."""
    two: dict[str, Any] = {"FAKE_CUDA_CAPABILITY": "90,75"}
    served = Served(made, fake_cuda, "--device", "1", **two)
    assert served.code == 1
    assert re.search(
        r"onnxfuse\.\w+: the kernel pack .* has no kernels for this GPU, sm_75; it has sm_90a", served.error
    )
    assert "with inputs" not in served.error, "it was refused by the first run"
    assert right(Served(made, fake_cuda, **two), 4)
    assert right(Served(made, fake_cuda, "--device", "1", FAKE_CUDA_CAPABILITY="75,90"), 4)


def test_a_later_gpu_takes_ptx(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    portable = tmp_path / "ptx.kernels"
    portable.write_bytes(pack(image(made), (Target(A100), Target(A100, PTX))))
    assert right(Served(made, fake_cuda, "--pack", portable, FAKE_CUDA_CAPABILITY="100"), 4)
    alone = tmp_path / "cubin.kernels"
    alone.write_bytes(pack(image(made), (Target(A100, CUBIN),)))
    assert (
        "this GPU, sm_100; it has sm_80" in Served(made, fake_cuda, "--pack", alone, FAKE_CUDA_CAPABILITY="100").error
    )


def test_shapes_beyond_the_programs_are_an_error_by_name(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """With op, shapes and what to do. TwiceTanh's program is for 8 columns."""
    wide = models.model(
        "wide (float[N, 9] x) => (float[N, 9] y) { y = onnxfuse.TwiceTanh_2 (x) }", models.TWICE_TANH
    )  # fmt: skip
    onnx.save(wide, tmp_path / "wide.onnx")
    served = Served(made, fake_cuda, model=tmp_path / "wide.onnx")
    assert served.code == 1
    assert "onnxfuse.TwiceTanh_2 with inputs [4, 9]: the kernel pack" in served.error
    assert "has no launch program for these shapes on sm_90a" in served.error
    assert "onnxfuse compile MODEL --shape" in served.error


def test_the_general_program_answers_where_no_other_does(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """Unseen shapes run, as slowly as it is."""
    entries: list[PackEntry] = []
    kernels: list[tuple[str, int, bytes]] = []
    for op in OPS:
        tape, count = program(op, Target(H200), False)
        numbers = tuple(range(len(kernels), len(kernels) + count))
        kernels += [(f"{op.name}_kernel", 0, image(made))] * count
        entries.append(
            PackEntry(
                op.name, bytes(32), op.inputs, op.outputs, (0,), (StoredProgram(0, False, numbers, tape, general=True),)
            )
        )
    place = tmp_path / "general.kernels"
    place.write_bytes(b"".join(layout.packed("{}", [Target(H200)], entries, kernels, bytes(32))[1]))
    assert right(Served(made, fake_cuda, "--pack", place, "--threads", "2", "--cycles", "3"), 4, 2)


def test_damaged_packs_are_refused(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """Wherever a byte is another one: no crash, no wrong answer, and the file is named."""
    whole = (made / "served" / "model.onnx.kernels").read_bytes()
    places = [0, 9, 13, 17, 25, 40, layout.HEADER.size, layout.HEADER.size + 300, len(whole) - 5]
    for number, at in enumerate(places):
        damaged = tmp_path / f"{number}.kernels"
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        served = Served(made, fake_cuda, "--pack", damaged)
        assert served.code == 1, at
        assert str(damaged) in served.error, at
    for size in (0, 20, len(whole) - 1):
        short = tmp_path / "short.kernels"
        short.write_bytes(whole[:size])
        assert str(short) in Served(made, fake_cuda, "--pack", short).error


def test_a_pack_that_lies_with_right_hashes_is_refused(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """What is hashed right is checked against its bounds all the same."""
    tape, count = program(models.NEGATE, Target(H200), True)
    good = PackEntry("Negate_3", bytes(32), (1,), (1,), (0,), (StoredProgram(0, True, tuple(range(count)), tape),))
    lies = {
        "cut off": replace(good, programs=(replace(good.programs[0], tape=tape[:20]),)),
        "other kernels": replace(good, programs=(replace(good.programs[0], kernels=()),)),
        "other outputs": replace(good, outputs=(1, 1)),
    }
    for words, entry in lies.items():
        place = tmp_path / f"{words}.kernels"
        kernels = [("Negate_3_kernel", 0, image(made))] * count
        place.write_bytes(b"".join(layout.packed("{}", [Target(H200)], [entry], kernels, bytes(32))[1]))
        served = Served(made, fake_cuda, "--pack", place)
        assert served.code == 1
        assert words in served.error
        assert str(place) in served.error


def test_an_op_that_no_kernel_is_for_keeps_its_body(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """ONNX Runtime inlines it, on the stand-ins it computes nothing; the model opens and the others run."""
    kernels = [("Negate_3_kernel", 0, image(made))]
    tape, count = program(models.NEGATE, Target(H200), True)
    assert count == 1
    entries = [
        PackEntry("Negate_3", bytes(32), (1,), (1,), (0,), (StoredProgram(0, True, (0,), tape),)),
        PackEntry("TwiceTanh_2", bytes(32), (1,), (1,), (0,), ()),
    ]
    place = tmp_path / "part.kernels"
    place.write_bytes(b"".join(layout.packed("{}", [Target(H200)], entries, kernels, bytes(32))[1]))
    served = Served(made, fake_cuda, "--pack", place)
    assert served.code == 0, served.error
    assert [a.shape for a in served.answers] == [(4, 8)]
