"""Run generated kernels on the CPU: the host's compiler builds their text over host.cuh, the twin of device.cuh."""

import atexit
import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onnxfuse.codegen.emit.source import AMPERE, CLUSTER, DEVICE, HOPPER, KernelSource
from onnxfuse.cuda.isa.factors import E4M3, FACTORS
from onnxfuse.cuda.isa.sm_90 import SM_90A
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec
from onnxfuse.symbolic import element_types

HOST = Path(__file__).with_name("host.cuh")
GUARD = 64
"""Bytes around every buffer: poison before a run, unchanged after it."""
POISON = 0xFF  # NaN in every float type, -1 or the greatest number in every integer type


@cache
def folder() -> Path:
    """Return this process's folder, with the part that all kernels share compiled once."""
    ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
    made = Path(tempfile.mkdtemp(prefix="onnxfuse-emulated-"))
    atexit.register(shutil.rmtree, made)
    (made / "host.hpp").write_text(HOST.read_text())
    (made / "host.cpp").write_text(HOST.with_suffix(".cpp").read_text())
    _compile("-x", "c++-header", str(made / "host.hpp"), "-o", str(made / "host.hpp.gch"))
    # Fortified, a jump to another stack ends the process.
    _compile("-O2", "-U_FORTIFY_SOURCE", "-c", str(made / "host.cpp"), "-o", str(made / "host.o"))
    return made


def _compile(*arguments: str) -> None:
    # -O0 with fused multiply-adds off: the text is compiled much longer than it runs.
    # Shared memory is a static of a function template: without the flag all libraries of the process would share one.
    command = ["g++", "-std=c++17", "-O0", "-w", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def library(text: str) -> ctypes.CDLL:
    """Return the library that the host's compiler makes of `text`."""
    stem = folder() / hashlib.sha256(text.encode()).hexdigest()[:16]
    shared = stem.with_suffix(".so")
    if not shared.exists():
        stem.with_suffix(".cpp").write_text(text)
        text_file, host = str(stem.with_suffix(".cpp")), str(folder() / "host.o")
        # `folder` has loaded the standard library: that the linker looks through it is a quarter of the time.
        _compile("-shared", "-nodefaultlibs", "-Wl,-Bsymbolic", text_file, host, "-o", str(shared))
    return ctypes.CDLL(str(shared))


def host_text(kernel: KernelSource, pointers: int, scratch: bool = False) -> str:
    """Return the kernel's text for the host, with a function `launch` that runs a grid.

    `scratch`: the last of the pointers is that of the scratch memory.
    """
    twins = (AMPERE, CLUSTER, HOPPER, *(f.header for f in FACTORS if f.is_integer))
    sections = ['#include "host.hpp"' if s.file == DEVICE else s.text for s in kernel.sections if s.file not in twins]
    arguments = ", ".join(f"pointers[{i}]" for i in range(pointers))
    if HOPPER in (s.file for s in kernel.sections):
        sections = [_by_twins(text) for text in sections]
        arguments += ", *(const TensorMaps*)maps"
    launch = (
        'extern "C" void launch(unsigned blocks, unsigned threads, void** pointers, const size_t* sizes, '
        "const void* maps, const Parameters* p) {\n"
        "  written = strayed = 0;\n"
        f"  static_assert({pointers} <= MOST_BUFFERS);\n"
        f"  buffer_count = {pointers};\n"
        f"  for (int i = 0; i < {pointers}; ++i) buffers[i] = {{(char*)pointers[i], (char*)pointers[i] + sizes[i]}};\n"
        f"  scratch = {f'buffers[{pointers - 1}]' if scratch else '{}'};\n"
        f"  run_kernel(blocks, threads, [&] {{ {kernel.entry}({arguments}, *p); }});\n}}\n"
    )
    return "\n".join((*sections, launch))


def _by_twins(text: str) -> str:
    """Return the text with a twin's call in the place of each instruction of a warpgroup."""
    head = r"(DEVICE void \w+\(float \(&d\)\[\d+\](?:\[4\])?, [^)]*(?:\(&a\)[^)]*)?\) \{)[^}]*?wgmma\.mma_async.*?"
    end = r"f32\.(b?f16)\.b?f16 .*?, (\d);\\n.*?\n\}\n"
    text = re.sub(
        head + end,
        lambda m: f"{m[1]}\n  emulated_product<{m[3]}>(d, a, b, add, {m[2]}_to_float);\n}}\n",
        text,
        flags=re.DOTALL,
    )
    instruction = SM_90A.wgmma(E4M3)
    assert instruction is not None
    twin = f"\n  emulated_product_of_bytes<{instruction.sum_bits}>(d, a, b, add, e4m3_to_float);\n}}\n"
    return re.sub(head + r"f32\.e4m3\.e4m3 .*?\n\}\n", lambda m: m[1] + twin, text, flags=re.DOTALL)


class _HostMap(ctypes.Structure):
    """host.cuh's TensorMap."""

    _fields_ = (
        ("start", ctypes.c_void_p), ("extents", ctypes.c_longlong * 5), ("strides", ctypes.c_longlong * 5),
        ("box", ctypes.c_longlong * 5),
    )  # fmt: skip


def _host_map(told: TensorMapSpec, addresses: list[int]) -> _HostMap:
    strides = (element_types.TYPES[told.dtype].size, *told.strides)
    return _HostMap(addresses[told.pointer] + told.offset, told.extents, strides, told.box)


class Buffer:
    """An array in memory between two guards, 16-byte aligned or one element off."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, aligned: bool, content: np.ndarray | None = None
    ) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.memory = np.full(size + 2 * GUARD + 32, POISON, np.uint8)
        start = GUARD + -(self.memory.ctypes.data + GUARD) % 16 + (0 if aligned else dtype.itemsize)
        self.before, self.after = self.memory[:start], self.memory[start + size :]
        self.array = self.memory[start : start + size].view(dtype).reshape(shape)
        if content is not None:
            self.array[...] = content

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def check(self) -> None:
        assert (self.before == POISON).all(), "written before the buffer"
        assert (self.after == POISON).all(), "written behind the buffer"


def run(
    plan: LaunchPlan,
    inputs: Sequence[np.ndarray],
    output_types: Sequence[npt.DTypeLike],
    aligned: bool = True,
    over: int | None = None,
    caches: Mapping[int, int] = {},
    written_there: int = 0,
) -> list[np.ndarray]:
    """Return the outputs of a launch, which must write each element once and read nothing beside its buffers.

    `over`: the first output lies over this input, as in an in-place run. `caches`: outputs that lie over inputs, of
    which the launch writes `written_there` elements in all, and leaves the others. Scratch memory holds anything at
    first, but for the counters, which are zeros before and after each launch.
    """
    sources = [Buffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [Buffer(s, np.dtype(t), aligned) for s, t in zip(plan.output_shapes, output_types, strict=True)]
    if over is not None:
        results[0] = sources[over]
    for output, position in caches.items():
        results[output] = sources[position]
    most = max(p.scratch_bytes for p in (plan, *plan.then))
    room = [Buffer((most,), np.dtype(np.uint8), True, np.array(POISON, np.uint8))] if most else []
    counters = {p.counter_bytes for p in (plan, *plan.then) if p.scratch_bytes} or {0}
    assert len(counters) == 1, "launches that hand on scratch memory have it at other addresses"
    (counter_bytes,) = counters
    for memory in room:
        memory.array[:counter_bytes] = 0
    written = 0
    for part in (p for p in (plan, *plan.then) if p.grid[0]):
        scratch = room if part.scratch_bytes else []
        buffers = [*sources, *results, *scratch]
        pointers = (ctypes.c_void_p * len(buffers))(*(b.address for b in buffers))
        compiled = library(host_text(part.kernel, len(buffers), bool(scratch)))
        sizes = (ctypes.c_size_t * len(buffers))(*(b.array.nbytes for b in buffers))
        maps = (_HostMap * len(part.tensor_maps))(
            *(_host_map(m, [b.address for b in buffers]) for m in part.tensor_maps)
        )
        compiled.bytes_written.restype = compiled.bytes_strayed.restype = ctypes.c_ulonglong
        for _ in range(2 if scratch and over is None else 1):
            # The next launch finds the scratch memory as this one has left it.
            again = [r for n, r in enumerate(results) if n not in caches] if over is None and part is plan else []
            for result in again:
                result.array.reshape(-1).view(np.uint8)[...] = POISON
            compiled.launch(part.grid[0], part.block[0], pointers, sizes, maps, part.parameters)
        assert compiled.bytes_strayed() == 0, "read beside the buffers"
        assert not any(memory.array[:counter_bytes].any() for memory in room), "counters that are not zeros"
        written += compiled.bytes_written()
    # With right values everywhere: each element was written just once.
    whole = sum(r.array.nbytes for n, r in enumerate(results) if n not in caches)
    whole += sum(results[n].array.itemsize for n in [*caches][:1]) * written_there
    assert written == (whole if plan.grid[0] else 0), "written more than once"
    for buffer in (*sources, *results, *room):
        buffer.check()
    for i, (source, given) in enumerate(zip(sources, inputs, strict=True)):
        assert i == over or i in caches.values() or source.array.tobytes() == given.tobytes(), "an input was changed"
    return [r.array.copy() for r in results]
