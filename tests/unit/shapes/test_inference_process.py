"""The process that infers shapes: what it answers, and how it ends."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx
import pytest

from onnxfuse.shapes import inference_process
from onnxfuse.shapes.inference_process import EndedError, InvalidModelError, OutOfTimeError, Request, infer
from onnxfuse.support.errors import DeviceError
from tests.support.small import parse

MODEL = parse("g (float[N,8] x) => (float[M,K] y) { a = Relu (x) y = Transpose (a) }")
ASKED = Request(MODEL.SerializeToString(), True, True, 60.0, 60, 1 << 33)


@pytest.fixture(scope="module", autouse=True)
def own_process() -> Iterator[None]:
    """The tests share one that is theirs: its start is all that takes time here."""
    before, inference_process._Current.process = inference_process._Current.process, None
    yield
    if inference_process._Current.process is not None:
        inference_process._Current.process.close()
    inference_process._Current.process = before


def process() -> inference_process._Process:
    """Return the process that answered."""
    infer(ASKED)
    assert inference_process._Current.process is not None
    return inference_process._Current.process


def test_it_answers_as_onnx_does_and_goes_on_after_an_invalid_model() -> None:
    """Its message is ONNX's; the same process answers what is asked next."""
    expected = onnx.shape_inference.infer_shapes(MODEL, strict_mode=True, data_prop=True)
    first = process()
    assert onnx.ModelProto.FromString(infer(ASKED)) == expected
    wrong = parse("g (float[2] x, float[3] z) => (float[N] y) { y = Add (x, z) }")
    with pytest.raises(InvalidModelError, match="Add"):
        infer(replace(ASKED, data=wrong.SerializeToString()))
    assert onnx.ModelProto.FromString(infer(ASKED)) == expected
    assert process() is first


def test_it_is_killed_at_the_end_of_its_time_and_another_one_started() -> None:
    """Nothing that it answers later is taken for the answer to the next request."""
    first = process()
    os.kill(first.child.pid, signal.SIGSTOP)  # it takes its time
    with pytest.raises(OutOfTimeError):
        infer(replace(ASKED, seconds=0.01))
    assert not first.usable
    assert first.child.returncode is not None
    assert process() is not first


def test_a_process_of_another_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child shares the pipes of its parent, who waits for the answers."""
    first = process()
    assert first.usable
    monkeypatch.setattr(first, "owner", os.getpid() + 1)
    assert not first.usable


@pytest.mark.parametrize("executable", ["", "/bin/false"])
def test_a_process_that_does_not_start_is_told(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is not known by its path, or ends at once."""
    monkeypatch.setattr(inference_process._Current, "process", None)
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(DeviceError, match="no process for shape inference can be started"):
        infer(ASKED)


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt(), KeyboardInterrupt), (EOFError(), EndedError)])
def test_what_ends_a_request_ends_the_process(
    error: BaseException, told: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control-C, or its own end: what it answers later would be taken for the next answer."""
    closed = list[str]()
    first = process()

    def end(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(pickle, "load", end)
        patched.setattr(first, "close", lambda: closed.append("closed"))
        with pytest.raises(told):
            first.call(None, 60.0)
    assert closed == ["closed"]
    assert not first.usable
    first.in_step = True  # nothing was asked of it


def test_out_of_memory_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is not to be trusted with what it does then."""

    def too_much(*_: Any, **__: Any) -> None:
        raise MemoryError

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", too_much)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit, match="1"):
        inference_process._answer(replace(ASKED, memory=1 << 40, busy=1 << 20))


def test_what_a_library_prints_is_no_answer() -> None:
    """Standard output is standard error there."""
    code = (
        "import sys\nfrom onnxfuse.shapes import inference_process as own\n"
        "own._answer = lambda request: (print('noise'), ('inferred', request))[1]\nown.serve()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(b"asked"), capture_output=True, check=True)
    first = pickle.loads(done.stdout)
    assert first == ("ready", b"")
    assert pickle.loads(done.stdout[len(pickle.dumps(first)) :]) == ("inferred", b"asked")
    assert b"noise" in done.stderr
