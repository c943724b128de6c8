"""`onnxfuse`, with an ONNX Runtime in which one kind of node crashes.

    python -m tests.cli.crashing HOW WHICH OP ARGUMENTS

HOW is a signal, `hangs`, `illegal` for a kernel that writes where no memory is, or `gpu` for what CUDA says after one.
WHICH are the sessions that it happens in: `kernels`, `plain`, or `opening` for those with kernels, as they are opened;
or `original` or `fused` for those that `bench` times, of which OP is then the setting, `N threads on SHAPE` where it
happens to inputs of one shape alone.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from onnxfuse import runtime
from onnxfuse.cli.main import main
from onnxfuse.files import io
from onnxfuse.measure.benchmark import compare
from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.support import isolation, process_pool
from onnxfuse.verification.localize import crashes
from onnxfuse.verification.run import sessions


def crash(how: str) -> None:
    """Do what a wrong kernel does."""
    if how == "hangs":
        time.sleep(60)
    elif how == "gpu":
        runtime.device_fault = lambda: "an illegal memory access was encountered, CUDA error 700"
        raise errors.Fail("CUDA failure 700")
    elif how == "illegal":
        import cupy

        cupy.RawKernel('extern "C" __global__ void wild(int* p) { *p = 1; }', "wild")((1,), (1,), (cupy.uint64(8),))
    else:
        os.kill(os.getpid(), getattr(signal, how))


def after_crash(how: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what crashes and then runs, where it still can."""

    def crashing(*arguments: Any, **options: Any) -> Any:
        crash(how)
        return run(*arguments, **options)

    return crashing


def install_setting(how: str, who: str, setting: str) -> None:
    """Let the sessions that are timed of one model at one setting crash, where they run on inputs of that shape."""
    name, _, shape = setting.partition(" on ")
    warm = compare._warm
    process_pool.cores = lambda: 2  # the settings are: default, 1 thread, 2 threads
    # Each attempt would measure anew.
    pytest.MonkeyPatch().setattr(compare, "measured", lambda types, providers, setting: Ceilings(1e9, {}))

    def dying(contender: Any, providers: Any, inputs: Any, outputs: Any) -> Any:
        shapes = ["x".join(map(str, value.shape())) for value in inputs.values()]
        if (contender.name, contender.setting.name) == (who, name) and (not shape or shape in shapes):
            crash(how)
        return warm(contender, providers, inputs, outputs)

    compare._warm = dying


def install(how: str, which: str, op: str) -> None:
    """Let the sessions of models with a node of that operator crash; a fused op is called by how its name begins."""
    if which in ("original", "fused"):
        install_setting(how, which, op)
        return
    module, name = (sessions, "ort_session") if which == "plain" else (runtime, "session")
    opened = getattr(module, name)

    def dying(model: sessions.Model, *arguments: Any, **options: Any) -> Any:
        graph = (model if isinstance(model, onnx.ModelProto) else io.load(Path(model))).graph
        guilty = any(n.op_type.startswith(op) for n in graph.node)
        if guilty and which == "opening":
            crash(how)
        session = opened(model, *arguments, **options)
        if guilty:
            for called in ("run", "run_with_iobinding"):
                setattr(session, called, after_crash(how, getattr(session, called)))
        return session

    setattr(module, name, dying)


if __name__ == "__main__":
    install(*sys.argv[1:4])
    if sys.argv[1] == "hangs" and sys.argv[2] not in ("original", "fused"):  # else a busy machine would hang, too
        isolation.PATIENCE = crashes.HANG_SECONDS = 4.0
    sys.argv[1:] = sys.argv[4:]
    main()
