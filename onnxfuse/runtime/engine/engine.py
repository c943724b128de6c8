"""The engine as seen from Python: its host callbacks (planner, memory) implemented in Python, and its exported
functions."""

import ctypes
import itertools
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfuse.cuda import TensorMapSpec
from onnxfuse.runtime.engine import abi
from onnxfuse.runtime.engine.launch import LaunchArguments, LaunchProgram, Planner, Row, Shape, Varied
from onnxfuse.support.errors import OnnxfuseError

MAP_BYTES = 128
"""Size of a CUtensorMap in bytes."""


class Objects:
    """Registry of Python objects that the engine holds by handle until it releases them."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.numbers = itertools.count(1)

    def hand_over(self, owner: object) -> int:
        """Return a handle for an object, which stays alive until the engine releases the handle."""
        handle = next(self.numbers)
        self.held[handle] = owner
        return handle


@dataclass(frozen=True)
class SessionMemory:
    """Memory on the GPU, in bytes; zeros where ONNX Runtime has no arena."""

    scratch: int
    """Scratch memory of the streams that the sessions' kernels launched on."""
    allocated: int
    """By ONNX Runtime's arena, of the newest session."""
    in_use: int
    """Of the arena, now."""
    peak: int
    """Of the arena, the most at a time."""
    free: int
    """On the GPU that this thread uses; 0 without one."""


class Engine:
    """A loaded engine library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = abi.opened(path)
        self.objects = Objects()
        # ctypes callbacks must outlive their C function pointers; this tuple keeps them alive for the life of the
        # process.
        self.host = abi.sized(
            abi.Host,
            plan=abi.Plan(self._plan),
            release=abi.Release(self._release),
            is_there=abi.is_initialized(),
            is_leaving=abi.is_finalizing(),
            name=b"Python",
        )

    # ---- calls from Python into the engine

    def stage(self, rows: Iterable[Row]) -> int:
        """Create the ops for the next registration that this thread requests of ONNX Runtime; return their handles for
        `forget`."""
        ops = ctypes.c_void_p()
        structs = [self._op(row) for row in rows]
        self._check(self.library.onnxfuse_create(self.host, _array(abi.Op, structs), len(structs), ctypes.byref(ops)))
        self.library.onnxfuse_stage(ops)
        return int(ops.value or 0)

    def unstage(self) -> None:
        """Discard ops staged by this thread for a registration that ONNX Runtime never performed."""
        self.library.onnxfuse_stage(None)

    def forget(self, ops: int) -> None:
        """Release the planners of these ops after the last session that used them has been destroyed."""
        self.library.onnxfuse_close(ops)

    def encoded_tensor_maps(self, maps: Iterable[TensorMapSpec], addresses: Sequence[int]) -> bytes:
        """Return the encoded tensor maps (128 bytes each) that a launch passes between its pointers and its parameters.

        `addresses`: the kernel's pointers, inputs before outputs. Raises RuntimeError with the driver's message.
        """
        structs = [_tensor_map(m) for m in maps]
        out = ctypes.create_string_buffer(MAP_BYTES * len(structs))
        pointers = (ctypes.c_void_p * len(addresses))(*map(int, addresses))
        encode = self.library.onnxfuse_encode
        self._check(encode(_array(abi.TensorMap, structs), len(structs), pointers, len(addresses), out))
        return out.raw

    def memory(self, ops: int) -> SessionMemory:
        """Return the memory on the GPU of the sessions of `ops`, which `stage` returned."""
        now = abi.sized(abi.Memory)
        self._check(self.library.onnxfuse_memory_of(ops, ctypes.byref(now)))
        return SessionMemory(now.scratch, now.allocated, now.in_use, now.peak, now.free)

    def extend_arena(self, ops: int, size: int) -> None:
        """Let the arena of the newest session of `ops` allocate a region of `size` bytes for later values.

        Raises RuntimeError with ONNX Runtime's message.
        """
        if size > 0:
            self._check(self.library.onnxfuse_extend_arena(ops, size))

    def limit_scratch(self, ops: int, size: int) -> None:
        """Allow launches of `ops` so many bytes of scratch memory."""
        self.library.onnxfuse_limit_scratch(ops, size)

    def new_shapes(self, ops: int) -> int:
        """Return how often `ops` were called with shapes that they had no launch for."""
        return int(self.library.onnxfuse_new_shapes(ops))

    def calls(self) -> dict[str, int]:
        """Return the number of completed calls of each registered op since the start or the last reset."""
        return {c.name.decode(): c.calls for c in self._counts()}

    def launches(self) -> dict[str, int]:
        """Return the number of kernel launches of each registered op since the start or the last reset."""
        return {c.name.decode(): c.launches for c in self._counts()}

    def answers(self) -> dict[str, int]:
        """Return the number of shapes of each registered op for which a launch program supplied the launch."""
        return {c.name.decode(): c.answers for c in self._counts()}

    def reset_counts(self) -> None:
        """Reset every count to zero."""
        self.library.onnxfuse_reset_counts()

    def evaluated(self, program: LaunchProgram, shapes: Iterable[Shape]) -> dict[str, Any] | None:
        """Evaluate a launch program for these shapes; return the launch's fields, or None if it defers to the planner.

        Raises RuntimeError if the bytes are not a program of this version.
        """
        extents = [_numbers(s) for s in shapes]
        answers: list[dict[str, Any]] = []
        see = abi.See(lambda user, launch: answers.append(_facts(launch.contents)))
        struct, buffer = self._program(program), _array(abi.Numbers, extents)
        self._check(self.library.onnxfuse_evaluate(self.host, struct, buffer, len(extents), see, None))
        return answers[0] if answers else None

    def unanswered(self, tape: bytes, shapes: bytes, width: int) -> list[int]:
        """Return the indices of the shapes that a launch program does not cover; releases the GIL meanwhile.

        `shapes`: rows of `width` int64 words, the rank and the extents of each input in turn. Raises RuntimeError if
        the bytes are not a program of this version.
        """
        count, rest = divmod(len(shapes), 8 * width)
        if rest:
            raise RuntimeError("shapes of unequal lengths")
        flags = ctypes.create_string_buffer(count)
        self._check(self.library.onnxfuse_answered(tape, len(tape), shapes, width, count, flags))
        return [n for n, answered in enumerate(flags.raw) if not answered]

    # ---- calls from the engine into Python

    def _plan(self, planner: int, question: Any, reply: int) -> None:
        def answer() -> None:
            request = question.contents
            shapes = tuple(tuple(s.at[: s.count]) for s in request.shapes[: request.shape_count])
            plan: Planner = self.objects.held[planner]
            varied = _varied(request, shapes)
            launch = plan(shapes, bool(request.aligned), request.device, varied, request.scratch_limit or None)
            if isinstance(launch, LaunchProgram):
                self.library.onnxfuse_reply_program(reply, self._program(launch))
                return
            program = None if launch.program is None else self._program(launch.program)
            self.library.onnxfuse_reply_launch(reply, self._launch(launch), program)

        self._answered(reply, answer)

    def _release(self, handle: int) -> None:
        del self.objects.held[handle]

    def _answered(self, reply: int, answer: Callable[[], None]) -> None:
        try:
            answer()
        except BaseException as error:  # the run that waits for this plan fails with its message
            self.library.onnxfuse_reply_error(reply, _words(error).encode("utf-8", "replace"))

    # ---- conversion of Python's results into the engine's structures

    def _op(self, row: Row) -> abi.Op:
        return abi.sized(
            abi.Op,
            name=row.name.encode(),
            inputs=(ctypes.c_int32 * len(row.inputs))(*row.inputs),
            input_count=len(row.inputs),
            outputs=(ctypes.c_int32 * len(row.outputs))(*row.outputs),
            output_count=len(row.outputs),
            may_alias=_mask(row.may_alias),
            on_host=_mask(row.on_host),
            planner=self.objects.hand_over(row.planner),
        )

    def _launch(self, launch: LaunchArguments) -> abi.Launch:
        maps = [_tensor_map(m) for m in launch.tensor_maps]
        return abi.sized(
            abi.Launch,
            function=launch.function,
            grid=tuple(map(int, launch.grid)),
            block=tuple(map(int, launch.block)),
            shared_bytes=launch.shared_bytes,
            early=launch.early,
            parameters=ctypes.cast(ctypes.c_char_p(launch.parameters), ctypes.c_void_p),
            parameter_bytes=len(launch.parameters),
            tensor_maps=_array(abi.TensorMap, maps),
            tensor_map_count=len(maps),
            output_shapes=_array(abi.Numbers, [_numbers(s) for s in launch.output_shapes]),
            output_count=len(launch.output_shapes),
            scratch_bytes=launch.scratch_bytes,
            counter_bytes=launch.counter_bytes,
            interim=launch.interim,
            owner=self.objects.hand_over(launch),
            then=_array(abi.Launch, [self._launch(after) for after in launch.then]),
            then_count=len(launch.then),
        )

    def _program(self, program: LaunchProgram) -> abi.Program:
        kernels = [
            abi.Kernel(k.function, k.early, None if k.module is None else self.objects.hand_over(k.module))
            for k in program.kernels
        ]
        return abi.sized(
            abi.Program,
            family=program.family,
            tape=program.tape,
            tape_bytes=len(program.tape),
            kernels=_array(abi.Kernel, kernels),
            kernel_count=len(kernels),
            apart=_array(abi.Numbers, [_numbers(words) for words in program.apart]),
            apart_count=len(program.apart),
        )

    def _counts(self) -> Sequence[abi.Counts]:
        count = self.library.onnxfuse_count
        size = count(None, 0)
        while True:
            all_ = (abi.Counts * size)()
            available = count(all_, size)
            if available <= size:
                return list(all_[:available])
            size = available

    def _check(self, error: bytes | None) -> None:
        if error is not None:
            raise RuntimeError(error.decode("utf-8", "replace"))


def _words(error: BaseException) -> str:
    """Return message and hint of an OnnxfuseError; any other exception is a defect and keeps its traceback."""
    words = f"{error} {error.hint}" if isinstance(error, OnnxfuseError) else "".join(traceback.format_exception(error))
    return words.replace("\0", "\\0")


def _mask(indices: Iterable[int]) -> int:
    """Return a bit mask with one bit per index below 64."""
    return sum(1 << n for n in indices if n < 64)


def _array(struct: Any, values: Sequence[Any]) -> Any:
    return (struct * len(values))(*values)


def _numbers(values: Sequence[int]) -> abi.Numbers:
    return abi.Numbers((ctypes.c_int64 * len(values))(*map(int, values)), len(values))


def _varied(request: abi.Question, shapes: Sequence[Shape]) -> Varied | None:
    if not request.varies:
        return None
    flags, at = [], 0
    for shape in shapes:
        flags.append(tuple(map(bool, request.varies[at : at + len(shape)])))
        at += len(shape)
    return tuple(flags)


def _tensor_map(m: TensorMapSpec) -> abi.TensorMap:
    rank, window = len(m.extents), m.window
    struct = abi.TensorMap(
        m.pointer, m.dtype, m.to_tf32, rank, m.offset, tuple(m.extents), tuple(m.strides), tuple(m.box),
        window is not None,
    )  # fmt: skip
    if window is not None:
        struct.lower, struct.upper, struct.steps = tuple(window.lower), tuple(window.upper), tuple(window.strides)
    return struct


def _facts(launch: abi.Launch) -> dict[str, Any]:
    maps = []
    for m in launch.tensor_maps[: launch.tensor_map_count]:
        sides = m.rank - 2 if m.is_window else 0
        box = m.box[: 2 if m.is_window else m.rank]
        window = (m.lower[:sides], m.upper[:sides], m.steps[:sides])
        maps.append((m.pointer, m.offset, m.element_type, bool(m.to_tf32), m.extents[: m.rank],
                     m.strides[: m.rank - 1], box, *window))  # fmt: skip
    return {
        "function": launch.function, "grid": launch.grid[:], "block": launch.block[:],
        "shared_bytes": launch.shared_bytes,
        "parameters": ctypes.string_at(launch.parameters, launch.parameter_bytes),
        "output_shapes": [s.at[: s.count] for s in launch.output_shapes[: launch.output_count]],
        "tensor_maps": maps, "scratch_bytes": launch.scratch_bytes, "counter_bytes": launch.counter_bytes,
        "then": [_facts(after) for after in launch.then[: launch.then_count]],
    }  # fmt: skip
