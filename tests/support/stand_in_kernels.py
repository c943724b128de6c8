"""A stand-in for `onnxfuse.cuda`: the "kernel" of an op runs its body on the host, by ONNX's reference evaluator.

It needs the driver of tests/support/fake_cuda, whose memory is host memory. So the outputs of a fused model are
right exactly if the bridge passes the right pointers and parameters.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator

from onnxfuse import cuda
from onnxfuse.cuda import Arch, TensorMapSpec
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.kernels import ahead_of_time, fallback_kernels, loader, loading, programs
from onnxfuse.support.errors import NoPlanError
from onnxfuse.symbolic.operations import UnansweredError

Shape = tuple[int, ...]
HostKernel = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))
MAP_BYTES = 128
PARAMETERS = b"the parameters!!"


class _Kernel(SimpleNamespace):
    """One of an op for its shapes, by the number of the variant."""

    def __hash__(self) -> int:  # type: ignore[override]  # a namespace has no hash, a key of a dict needs one
        return hash((self.op.name, self.inputs, self.aligned, self.number))


@dataclass
class StandInKernels:
    """Has the functions of `onnxfuse.cuda` that the runtime calls, and remembers what it was asked."""

    unsupported: dict[str, str] = field(default_factory=dict)
    """Op name -> why there is no kernel for it."""
    block: tuple[int, int, int] = (128, 1, 1)
    shared_bytes: int = 0
    tensor_maps: tuple[TensorMapSpec, ...] = ()
    scratch_bytes: int = 0
    counter_bytes: int = 0
    """Of that memory, those which are zeros before and after a launch."""
    smaller: int = 0
    """Bytes of scratch memory that another plan needs; 0: there is none."""
    unplanned: bool = False
    """Whether only the general kernel takes the shapes."""
    launches: int = 1
    """Of a plan, all of which do the same."""
    compiled: Callable[[Any], bool] = lambda kernel: True
    """Whether the kernel of a plan is there."""
    others: int = 0
    """Variants that give the same bits."""
    on_plan: Callable[[str], None] = lambda name: None
    """Called with the op's name at the start of each plan; may raise."""
    tunings: list[Variant | None] = field(default_factory=list)
    """The variant that each plan was asked for in."""
    asked_for: list[bool] = field(default_factory=list)
    """Whether each op that was asked for may round float32 to TF32."""
    planned: list[tuple[str, tuple[Shape, ...], bool]] = field(default_factory=list)
    """Each plan asked for: op name, input shapes, aligned."""
    launched: list[SimpleNamespace] = field(default_factory=list)
    """Each launch: op name, input and output pointers, aligned, parameters."""

    def supports(self, op: FusedOp, arch: Callable[[], Arch]) -> str | None:
        self.asked_for.append(op.tf32)
        return self.unsupported.get(op.name)

    def fits(self, op: FusedOp, shapes: Sequence[Any], arch: Arch) -> str | None:
        return cuda.fits(op, shapes, arch)

    def inplace(self, op: FusedOp) -> tuple[tuple[int, int], ...]:
        return tuple((i, 0) for i in range(len(op.inputs))) if len(op.outputs) == 1 else ()

    def arch_of(self, device: int) -> Arch:
        assert device == 0, "the stand-in driver has one device"
        return Arch("sm_90a", 132)

    def is_candidate(self, op: FusedOp, shapes: tuple[Shape, ...], arch: Arch, tuning: Variant | None) -> bool:
        return cuda.is_candidate(op, shapes, arch, tuning)

    def plan(self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Variant | None) -> Any:
        self.tunings.append(tuning)
        self.planned.append((op.name, shapes, aligned))
        self.on_plan(op.name)
        if self.unplanned:
            raise NoPlanError(f"{op.name}: no kernel for input shapes", "")
        return self._planned(op, shapes, aligned)

    def stand_ins(self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> Iterator[Any]:
        for number in range(1, 1 + self.others):
            yield self._planned(op, shapes, aligned, number)

    def plan_within(self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, arch: Arch, scratch_bytes: int) -> Any:
        if not 0 < self.smaller <= scratch_bytes:
            return None
        plan = self._planned(op, shapes, aligned)
        plan.scratch_bytes = plan.all_scratch_bytes = plan.kernel.scratch_bytes = self.smaller
        return plan

    def is_compiled(self, kernel: Any, device: int) -> bool:
        return self.compiled(kernel)

    def compile(self, kernel: Any, arch: Arch) -> bytes:
        return b""

    def general(self, op: FusedOp, shapes: tuple[Shape, ...], arch: Arch) -> Any:
        return self._planned(op, shapes, True)

    def _planned(self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, number: int = 0) -> Any:
        zeros = [np.zeros(s, tensor_dtype_to_np_dtype(t)) for s, t in zip(shapes, op.inputs, strict=True)]
        outputs = tuple(y.shape for y in _evaluate(op, zeros))
        blocks = max(-(-math.prod(s) // self.block[0]) for s in outputs)
        one = SimpleNamespace(
            kernel=_Kernel(
                op=op,
                inputs=shapes,
                outputs=outputs,
                aligned=aligned,
                number=number,
                text="",
                scratch_bytes=self.scratch_bytes,
            ),
            grid=(blocks, 1, 1),
            block=self.block,
            shared_bytes=self.shared_bytes,
            parameters=PARAMETERS,
            output_shapes=outputs,
            tensor_maps=self.tensor_maps,
            scratch_bytes=self.scratch_bytes,
            counter_bytes=self.counter_bytes,
            all_scratch_bytes=self.scratch_bytes,
            then=(),
        )
        return SimpleNamespace(**{**vars(one), "then": (one,) * (self.launches - 1)})

    def cached_family(self, op: FusedOp, key: Key, aligned: bool, arch: Arch) -> Any:
        return SimpleNamespace(learn=_learn)

    def load(self, kernel: Any, device: int) -> Any:
        """Return what stands for a CuPy function; the driver calls `run` when it is launched."""
        op, count = kernel.op, len(kernel.inputs)

        def run(arguments: Any) -> None:
            pointers = [ctypes.c_void_p.from_address(arguments[i]).value for i in range(count + len(kernel.outputs))]
            arrays = [
                _view(p, s, t)
                for p, s, t in zip(pointers, kernel.inputs + kernel.outputs, op.inputs + op.outputs, strict=True)
            ]
            results = _evaluate(op, [a.copy() for a in arrays[:count]])
            for array, result in zip(arrays[count:], results, strict=True):
                array[...] = result
            scratch = bool(kernel.scratch_bytes)
            room = ctypes.c_void_p.from_address(arguments[len(pointers)]).value if scratch else None
            if room is not None:
                counters = ctypes.string_at(room, self.counter_bytes)
                assert not any(counters), "counters that are not zeros"
                ctypes.memset(room + self.counter_bytes, 0xFF, kernel.scratch_bytes - self.counter_bytes)
            first = len(pointers) + scratch
            by_value = arguments[first : first + 1 + bool(self.tensor_maps)]
            parameters = ctypes.string_at(by_value[-1], len(PARAMETERS))
            self.launched.append(
                SimpleNamespace(
                    op=op.name,
                    inputs=pointers[:count],
                    outputs=pointers[count:],
                    aligned=kernel.aligned,
                    number=kernel.number,
                    parameters=parameters,
                    scratch=room,
                    tensor_maps=ctypes.string_at(by_value[0], MAP_BYTES * len(self.tensor_maps)),
                )
            )

        callback = HostKernel(run)
        driver = ctypes.CDLL("libcuda.so.1")
        driver.fake_function.restype = ctypes.c_void_p
        handle = driver.fake_function(op.name.encode(), callback)
        return SimpleNamespace(kernel=SimpleNamespace(ptr=handle), callback=callback)


def _learn(shapes: tuple[Shape, ...], expected: Any) -> bool:
    raise UnansweredError  # there are no plans to record here


def _evaluate(op: FusedOp, inputs: list[np.ndarray]) -> list[np.ndarray]:
    found = ReferenceEvaluator(op.body).run(None, dict(zip(op.body.input, inputs, strict=True)), attributes={})
    return [np.asarray(x) for x in found]


def _view(pointer: int | None, shape: Shape, element: int) -> np.ndarray:
    dtype = np.dtype(tensor_dtype_to_np_dtype(element))
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    assert pointer is not None
    memory: Any = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(memory, dtype).reshape(shape)


def install(kind: type[StandInKernels] = StandInKernels, **settings: Any) -> StandInKernels:
    """Let the runtime of this process plan and load through a new stand-in, and return it."""
    stand_in = kind(**settings)
    for module in (ahead_of_time, fallback_kernels, loader, loading, programs):
        module.cuda = stand_in  # type: ignore[attr-defined]  # modules that import it by that name
    ahead_of_time.MOST_THREADS = 0  # what is planned is counted: nothing ahead
    return stand_in
