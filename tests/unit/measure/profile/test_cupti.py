"""Launches as CUPTI reports them."""

import sys
import time
from collections.abc import Iterator

import pytest

from onnxfuse.measure.profile import cupti
from onnxfuse.measure.profile.cupti import Record, demangled, split
from onnxfuse.support.errors import DeviceError
from tests.support import stand_in_cupti
from tests.support.stand_in_cupti import StandInCupti


@pytest.fixture
def binding() -> Iterator[StandInCupti]:
    """The stand-in in the package's place."""
    known = {name: sys.modules.get(name) for name in ("cupti", "cupti.cupti")}
    yield stand_in_cupti.install()
    for name, module in known.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module


def test_every_launch_of_every_run_is_seen(binding: StandInCupti) -> None:
    """Per run, in order; times by the system's clock; kernels with their shape, copies and fills as such."""
    zero = time.time_ns()

    def run() -> None:
        binding.launch("first", 2.5)
        binding.launch("copy", call="DRIVER")
        binding.launch("fill")

    runs = cupti.traced(run, 3, zero)
    assert [[k.name for k in kernels] for kernels in runs] == [["first", "copy", "fill"]] * 3
    first, copy, _ = runs[0]
    assert first.duration == 2.5
    assert (first.grid, first.block, first.registers, first.shared_bytes) == ((3, 2, 1), (128, 1, 1), 40, 1040)
    assert (first.copy, copy.copy) == (False, True)
    assert first.launched is not None
    assert first.begin - first.launched == pytest.approx(1.0)
    # The two clocks are 5 s apart; after the conversion the first launch lies in the time of this test.
    assert 0 <= first.launched < (time.time_ns() - zero) / 1e3
    assert not binding.enabled, "nothing goes on being traced"


def test_without_the_package_or_the_driver_it_is_said(monkeypatch: pytest.MonkeyPatch, binding: StandInCupti) -> None:
    """The reason in one line, and how to get it."""
    assert cupti.missing() is None

    def fails() -> int:
        raise RuntimeError("CUDA driver is not found")

    monkeypatch.setattr(binding, "get_timestamp", fails)
    assert cupti.missing() == "CUPTI does not start (CUDA driver is not found)"
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    with pytest.raises(DeviceError, match="cupti-python is not installed") as raised:
        cupti.traced(lambda: None, 1, 0)
    assert raised.value.hint == "pip install 'onnxfuse[profile]'"


def test_another_profiler_is_no_traceback(binding: StandInCupti) -> None:
    """CUPTI serves one at a time."""
    binding.refuses = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
    with pytest.raises(DeviceError, match="MULTIPLE_SUBSCRIBERS"):
        cupti.traced(lambda: None, 1, 0)


def test_a_kernel_belongs_to_the_run_that_launched_it() -> None:
    """Not to the one that had begun when it ran; without a launch, to the one that it ran in."""
    records = [
        Record("RUNTIME", 90, 95, 1), Record("CONCURRENT_KERNEL", 210, 230, 1, "late"),
        Record("CONCURRENT_KERNEL", 250, 260, 2, "replayed"), Record("CONCURRENT_KERNEL", 10, 20, 3, "before"),
    ]  # fmt: skip
    runs = split(records, [50, 200], zero=0)
    assert [[k.name for k in run] for run in runs] == [["late"], ["replayed"]]
    assert runs[1][0].launched is None


def test_names_are_those_of_the_source() -> None:
    """C++ names are taken apart; names of C, and what is none, stay."""
    assert demangled("_Z10row_kernelPKfPfi") == "row_kernel(float const*, float*, int)"
    assert demangled("onnxfuse_row") == "onnxfuse_row"
    assert demangled("_Znonsense") == "_Znonsense"
