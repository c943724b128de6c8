"""Measured kernel variants: read from the model's metadata and passed to the plans of a session."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import onnx
import onnxruntime

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Book, Key, Machine, Section
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable

DRIVER_VERSION = Path("/proc/driver/nvidia/version")

Variants = Callable[[int], Mapping[Key, Variant | None]]
"""Variants by GPU index."""


def machine_of(device: int) -> Machine:
    """Return the machine (GPU, driver, versions) for which times on GPU `device` are valid. Needs CuPy and a GPU."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    driver = driver_version() or f"CUDA {cupy.cuda.runtime.driverGetVersion()}"
    return Machine(name, driver, onnxruntime.__version__)


def driver_version() -> str:
    """Return the version of the NVIDIA driver; empty if the system does not show it."""
    match = re.search(r"\b\d{3,}\.\d[\d.]*", DRIVER_VERSION.read_text()) if DRIVER_VERSION.exists() else None
    return match[0] if match else ""


def section(book: Book, device: int) -> tuple[Section, str]:
    """Return the measurements taken on this machine; otherwise one line that says why there are none."""
    if not book:
        return {}, ""
    machine = machine_of(device)
    return (book[machine], "") if machine in book else ({}, _stale(book, str(machine)))


def usable(book: Book) -> tuple[Book, str]:
    """Return the measurements that are valid here, and one line about those that are not, with the reason.

    Without a GPU the model targets another machine: then all measurements of this ONNX Runtime version count.
    """
    if cuda_unusable() is None:
        times, note = section(book, 0)
        return ({machine_of(0): times} if times else {}), note
    version = onnxruntime.__version__
    same = {machine: times for machine, times in book.items() if machine.onnxruntime == version}
    other_machines = [machine for machine in book if machine not in same]
    return same, _stale(other_machines, f"onnxruntime {version}, without a GPU") if other_machines else ""


def _stale(machines: Iterable[Machine], this_machine: str) -> str:
    return f"tuning not used: measured on {'; '.join(map(str, machines))}; here is {this_machine}"


def variants_of(model: onnx.ModelProto) -> Variants:
    """Return the lookup of measured variants for the plans of a session of `model`.

    Measurements from another GPU, driver or ONNX Runtime are ignored, with one warning.
    """
    book = measurements.of_model(model)

    @cache
    def on(device: int) -> Mapping[Key, Variant | None]:
        on_device, stale = section(book, device)
        if stale:
            warnings.warn(stale, stacklevel=1)
        return measurements.variants(on_device)

    return on
