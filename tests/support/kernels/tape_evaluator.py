"""The evaluator of launch programs in Python: twin of the engine's."""

import struct
from collections.abc import Sequence
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.launch_programs import leaf as leaves
from onnxfuse.cuda.launch_programs.leaf import Leaf, Map
from onnxfuse.cuda.launch_programs.tape import ANSWER, HEADER, JUMP, MAGIC, MISS, NUMBERS, VERSION, WINDOW, bits_of
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.symbolic.operations import OPERATIONS, UnansweredError
from onnxfuse.symbolic.strides import Shape

_NAMES = {number: op for op, number in NUMBERS.items()}


class Tape:
    """A program to be evaluated."""

    def __init__(self, data: bytes) -> None:
        magic, version, *counts = HEADER.unpack_from(data)
        assert (magic, version) == (MAGIC, VERSION)
        ranks, dims, constants, self.registers, instructions, words, self.kernels, self.outputs = counts
        assert len(data) == HEADER.size + 8 * (dims + constants) + 4 * (ranks + 5 * instructions + words)
        at = HEADER.size
        self.fixed = struct.unpack_from(f"<{dims}q", data, at)
        self.constants = struct.unpack_from(f"<{constants}q", data, at + 8 * dims)
        at += 8 * (dims + constants)
        self.ranks = struct.unpack_from(f"<{ranks}I", data, at)
        self.code = list(struct.iter_unpack("<5I", data[at + 4 * ranks : at + 4 * (ranks + 5 * instructions)]))
        self.words = struct.unpack_from(f"<{words}I", data, at + 4 * (ranks + 5 * instructions))

    def answer(self, shapes: tuple[Shape, ...], kernels: Sequence[KernelSource]) -> LaunchPlan | None:
        """Return the launch for these shapes; None if the planner must be called."""
        dims = [n for s in shapes for n in s]
        if tuple(map(len, shapes)) != self.ranks:
            return None
        if any(f not in (-1, n) for f, n in zip(self.fixed, dims, strict=True)):
            return None
        values = [*dims, *self.constants, *([0] * (self.registers - len(dims) - len(self.constants)))]
        try:
            end = self._run(values)
        except UnansweredError:
            return None
        if end is None:
            return None
        result, _ = self._leaf(end)
        return leaves.launch(result, kernels, lambda register: values[register])

    def _run(self, registers: list[int]) -> int | None:
        at = 0
        while True:
            op, to, *operands = self.code[at]
            at += 1
            if op == MISS:
                return None
            if op == ANSWER:
                return int(operands[2])
            if op == JUMP:
                at = at if registers[operands[0]] == registers[operands[1]] else operands[2]
                continue
            name = _NAMES[op]
            how = OPERATIONS[name]
            values: list[Any] = [
                struct.unpack("<d", struct.pack("<q", registers[o]))[0] if kind == "r" else registers[o]
                for o, kind in zip(operands, how.takes, strict=False)
            ]
            result = how.evaluate(*values)
            registers[to] = bits_of(float(result)) if how.gives == "r" else int(result)

    def _leaf(self, at: int) -> tuple[Leaf, int]:
        """Decode an answer, with registers in place of expressions; return it with the index of the next word."""
        words = self.words

        def several() -> tuple[int, ...]:
            nonlocal at
            count = words[at]
            at += 1 + count
            return tuple(words[at - count : at])

        def one() -> int:
            nonlocal at
            at += 1
            return int(words[at - 1])

        kernel, *registers = (one() for _ in range(10))
        bits, parameters = one(), several()
        shapes = tuple(several() for _ in range(one()))
        maps = []
        for _ in range(one()):
            pointer, dtype, tf32, window, offset = (one() for _ in range(5))
            extents, strides, box = several(), several(), several()
            sides = (several(), several(), several()) if window == WINDOW else None
            maps.append(Map(pointer, dtype, bool(tf32), extents, strides, box, offset, sides))
        then = []
        for _ in range(one()):
            after, at = self._leaf(at)
            then.append(after)
        grid, block = tuple(registers[:3]), tuple(registers[3:6])
        result = Leaf(
            kernel,
            grid,
            block,
            registers[6],
            bits,
            parameters,
            shapes,
            tuple(maps),
            registers[7],
            registers[8],
            tuple(then),
        )
        return result, at
