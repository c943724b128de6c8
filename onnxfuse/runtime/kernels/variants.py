"""The variants of kernels that were measured fastest: from the model that carries them to the plans of a session."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import onnx
import onnxruntime

from onnxfuse.cuda.planning import measurements
from onnxfuse.cuda.planning.launch_plan import TileTuning
from onnxfuse.cuda.planning.measurements import Book, Key, Machine, Section
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable

DRIVER_VERSION = Path("/proc/driver/nvidia/version")

Variants = Callable[[int], Mapping[Key, TileTuning]]
"""The variants for the GPU of a number."""


def machine_of(device: int) -> Machine:
    """Return what times on the GPU number `device` hold for. Needs CuPy and a GPU."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    found = re.search(r"\b\d{3,}\.\d[\d.]*", DRIVER_VERSION.read_text()) if DRIVER_VERSION.exists() else None
    driver = found[0] if found else f"CUDA {cupy.cuda.runtime.driverGetVersion()}"
    return Machine(name, driver, onnxruntime.__version__)


def section(book: Book, device: int) -> tuple[Section, str]:
    """Return what was measured on this very machine; else in one line why the book tells nothing of it."""
    if not book:
        return {}, ""
    machine = machine_of(device)
    return (book[machine], "") if machine in book else ({}, _stale(book, str(machine)))


def usable(book: Book) -> tuple[Book, str]:
    """Return what of the book holds here, and in one line what does not and why.

    Without a GPU the model is for another machine: then all of them count that have this version of ONNX Runtime.
    """
    if cuda_unusable() is None:
        found, note = section(book, 0)
        return ({machine_of(0): found} if found else {}), note
    version = onnxruntime.__version__
    same = {machine: found for machine, found in book.items() if machine.onnxruntime == version}
    others = [machine for machine in book if machine not in same]
    return same, _stale(others, f"onnxruntime {version}, without a GPU") if others else ""


def _stale(machines: Iterable[Machine], here: str) -> str:
    return f"tuning not used: measured on {'; '.join(map(str, machines))}; here is {here}"


def variants_of(model: onnx.ModelProto) -> Variants:
    """Return where the plans of a session look up what `model` carries.

    What was measured on another GPU, driver or ONNX Runtime is not used, and a warning says so once.
    """
    book = measurements.of_model(model)

    @cache
    def on(device: int) -> Mapping[Key, TileTuning]:
        found, stale = section(book, device)
        if stale:
            warnings.warn(stale, stacklevel=1)
        return measurements.variants(found)

    return on
