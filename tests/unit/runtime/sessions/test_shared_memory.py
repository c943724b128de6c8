"""How much dynamic shared memory a CUDA function may use: one number of the function, that many launches rely on."""

import ctypes
import struct
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from onnxfuse import runtime
from onnxfuse.model.fused import FusedOp
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.runtime.sessions.test_inference import CHAIN, CUDA, chain_error

LARGE, SMALL, UNASKED = 115_840, 115_712, 1_000
BYTES = {3: LARGE, 5: SMALL, 7: UNASKED}
"""The dynamic shared memory of a launch by the rows of its input: two of them ask."""
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


@dataclass
class OneFunction(stand_in_kernels.StandInKernels):
    """Every op has one CUDA function for all of its shapes, as a template has whose text does not tell them."""

    cases: list[Any] = field(default_factory=list)
    """What each plan's function is to do; a launch says which by its parameters."""
    functions: dict[str, Any] = field(default_factory=dict)
    numbering: Any = field(default_factory=threading.Lock)
    """Of the cases: sessions of several threads plan at once."""
    beginning: int = 0
    """Bytes that whoever loads a function asks for."""

    def _planned(self, op: FusedOp, shapes: Any, aligned: bool, number: int = 0) -> Any:
        made = super()._planned(op, shapes, aligned, number)
        made.shared_bytes = BYTES[shapes[0][0]]
        case = super().load(made.kernel, 0)
        with self.numbering:
            made.parameters = struct.pack("<16sq", stand_in_kernels.PARAMETERS, len(self.cases))
            self.cases.append(case)
        return made

    def load(self, kernel: Any, device: int) -> Any:
        if kernel.op.name not in self.functions:
            count = len(kernel.inputs) + len(kernel.outputs)

            def run(arguments: Any) -> None:
                (case,) = struct.unpack_from("<q", ctypes.string_at(arguments[count], 24), 16)
                self.cases[case].callback(arguments)

            callback = stand_in_kernels.HostKernel(run)
            driver = ctypes.CDLL("libcuda.so.1")
            driver.fake_function.restype = ctypes.c_void_p
            handle = driver.fake_function(kernel.op.name.encode(), callback)
            if self.beginning:
                driver.cuFuncSetAttribute(ctypes.c_void_p(handle), MAX_DYNAMIC_SHARED_SIZE_BYTES, self.beginning)
            made = SimpleNamespace(kernel=SimpleNamespace(ptr=handle), callback=callback)
            self.functions.setdefault(kernel.op.name, made)  # another thread may have been first
        return self.functions[kernel.op.name]

    def asked(self) -> set[int]:
        """Return what the functions may use now."""
        driver, found = ctypes.CDLL("libcuda.so.1"), set()
        for function in self.functions.values():
            value = ctypes.c_int()
            driver.cuFuncGetAttribute(ctypes.byref(value), MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      ctypes.c_void_p(function.kernel.ptr))  # fmt: skip
            found.add(value.value)
        return found


def installed(**settings: Any) -> OneFunction:
    return stand_in_kernels.install(OneFunction, **settings)  # type: ignore[return-value]  # install returns what it is given


def alternating() -> Any:
    kernels = installed()
    session = runtime.session(models.chain(), CUDA)
    errors = [chain_error(session, rows, seed) for seed in range(3) for rows in BYTES]
    return {"error": max(errors), "asked": sorted(kernels.asked()), "functions": len(kernels.functions)}


def test_a_launch_that_asks_for_less_takes_nothing_from_another(on_fake_cuda: FakeCuda) -> None:
    """Launches of one function ask for different sizes, the largest first, and all of them run again and again."""
    facts = on_fake_cuda(alternating)
    assert facts["error"] < 1e-6
    assert facts["functions"] == len(CHAIN)
    assert facts["asked"] == [LARGE]
    values = [a["value"] for a in on_fake_cuda.trace("cuFuncSetAttribute")]
    assert values == [LARGE] * len(CHAIN), "a function is asked for once more only where it is to grow"


def of_two_sessions() -> Any:
    kernels = installed()
    first, second = (runtime.session(models.chain(), CUDA) for _ in range(2))
    errors = [chain_error(first, 3), chain_error(second, 5), chain_error(first, 3), chain_error(second, 5)]
    del first
    errors += [chain_error(second, 5), chain_error(second, 3)]
    return {"error": max(errors), "asked": sorted(kernels.asked())}


def test_sessions_that_share_a_function_take_nothing_from_each_other(on_fake_cuda: FakeCuda) -> None:
    """The function is loaded once in a process, and each session has launches of its own of it."""
    assert on_fake_cuda(of_two_sessions) == {"error": 0, "asked": [LARGE]}


def loaded_with_more() -> Any:
    kernels = installed(beginning=200_000)
    error = max(chain_error(runtime.session(models.chain(), CUDA), rows) for rows in BYTES)
    return {"error": error, "asked": sorted(kernels.asked())}


def test_what_others_asked_for_stays(on_fake_cuda: FakeCuda) -> None:
    """Whoever loaded a function may launch it, too: what it was given is not lowered by a session."""
    assert on_fake_cuda(loaded_with_more) == {"error": 0, "asked": [200_000]}


def at_once() -> Any:
    kernels = installed()
    ours = [runtime.session(models.chain(), CUDA) for _ in range(2)]
    start, wrong = threading.Barrier(6), list[str]()

    def work(number: int) -> None:
        rows = list(BYTES)[number % len(BYTES)]
        start.wait()
        for seed in range(20):
            try:
                if chain_error(ours[number % 2], rows, seed) > 1e-6:
                    wrong.append(f"{rows} rows: other numbers")
            except Exception as error:  # a test tells of it
                wrong.append(f"{rows} rows: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"wrong": wrong[:3], "asked": sorted(kernels.asked())}


def test_threads_that_ask_at_once_get_the_most_of_all(on_fake_cuda: FakeCuda) -> None:
    """Reading what a function may use and setting it are one step: no thread sets a smaller number behind a larger."""
    assert on_fake_cuda(at_once) == {"wrong": [], "asked": [LARGE]}
