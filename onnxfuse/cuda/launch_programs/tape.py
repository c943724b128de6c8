"""A family's tree as bytecode on 64-bit registers, evaluated by the engine in C++.

Header, then the ranks of the inputs, their extents (-1: any), constants, instructions, answers. Registers hold the
extents, the constants, then the results along one path of the tree: branches that exclude each other use the same ones.
An instruction is five words: opcode, destination, three operands. Jumps are forward only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnxfuse.cuda.launch_programs.family import Family
from onnxfuse.cuda.launch_programs.leaf import Leaf
from onnxfuse.symbolic.evaluation import plain, step
from onnxfuse.symbolic.expressions import Expression, constant
from onnxfuse.symbolic.operations import OPERATIONS, Value, composed
from onnxfuse.symbolic.recording import DecisionNode, extents_of

MAGIC, VERSION = b"OFLP", 3
HEADER = struct.Struct("<4sI8I")
"""Magic, version; ranks, extents, constants, registers, instructions, words of answers, kernels, outputs."""
JUMP, ANSWER, MISS = range(3)
"""Jump to the third operand unless the first two are equal; return the answer at the third operand; defer to the
planner."""
FIRST = 16
"""Opcode of the first operation."""
NUMBERS = {op: FIRST + n for n, op in enumerate(o for o, how in OPERATIONS.items() if how.evaluate is not composed)}
MOST_REGISTERS, MOST_INSTRUCTIONS, MOST_WORDS = 1 << 16, 1 << 20, 1 << 22
"""Limits of the engine."""
NO_WINDOW, WINDOW = range(2)


@dataclass
class _Visit:
    """A node whose children are being written."""

    node: DecisionNode
    left: list[tuple[Value, DecisionNode]]
    """Children that are not written yet, the last one first."""
    shared: int
    """Number of registers that all children may read."""
    jump: int | None = None
    """Index of the jump over the child that was written last."""


@dataclass
class _TapeWriter:
    family: Family
    bits: list[int] = field(default_factory=list)
    """The constants."""
    code: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    registers: dict[Expression, int] = field(default_factory=dict)
    """Registers of extents, of constants, and of the results on the path to the current node, in this order."""
    most: int = 0
    """Number of registers that the longest path takes."""
    outputs: int = 0
    """Number of the op's outputs."""

    def assign_constants(self) -> None:
        """Assign a register to each extent and each constant of the tree."""
        names = extents_of(range(len(self.family.key.fixed)))
        constants: dict[Expression, int] = {}
        seen = set[Expression](names)
        waiting = [self.family.root]
        while waiting:
            at = waiting.pop()
            wanted = [] if at.answer is None else list(map(plain, at.answer.expressions()))
            if at.condition is not None:
                wanted += [plain(at.condition), *(int(v) for v in at.children)]
            while wanted:
                value = wanted.pop()
                if value in seen:
                    continue
                seen.add(value)
                number = constant(value)
                if number is not None:
                    constants[value] = bits_of(number)
                elif not isinstance(value, int):
                    wanted.extend(step(value)[1])
            waiting.extend(at.children.values())
        self.bits = list(constants.values())
        for value in (*names, *constants):
            self._assign(value)

    def register(self, value: Expression) -> int:
        return self.registers[plain(value)]

    def compute(self, value: Expression) -> None:
        waiting = [plain(value)]
        while waiting:
            top = waiting[-1]
            if top in self.registers or isinstance(top, int):
                waiting.pop()
                continue
            op, args = step(top)
            if missing := [a for a in args if a not in self.registers]:
                waiting.extend(missing)
                continue
            a, b, c = (*(self.registers[a] for a in args), 0, 0)[:3]
            self.code.append((NUMBERS[op], self._assign(top), a, b, c))
            waiting.pop()

    def write(self, root: DecisionNode) -> None:
        """Write the tree, depth first: a path may be longer than Python's stack."""
        path = self._entered(root)
        while path:
            visit = path[-1]
            if visit.jump is not None:  # from one child to the next
                self.code[visit.jump] = (*self.code[visit.jump][:4], len(self.code))
                while len(self.registers) > visit.shared:
                    self.registers.popitem()
            if visit.node.condition is None or not visit.left:
                self.code.append((MISS, 0, 0, 0, 0))
                path.pop()
                continue
            value, child = visit.left.pop()
            visit.jump = len(self.code)
            self.code.append((JUMP, 0, self.register(visit.node.condition), self.registers[int(value)], 0))
            path += self._entered(child)

    def _entered(self, node: DecisionNode) -> list[_Visit]:
        """Write an answer, or a decision's condition; return the visit of a node whose children are to be written."""
        if node.answer is None:
            if node.condition is not None:
                self.compute(node.condition)
            return [_Visit(node, [*node.children.items()][::-1], len(self.registers))]
        for number in node.answer.expressions():
            self.compute(number)
        self.code.append((ANSWER, 0, 0, 0, len(self.words)))
        self.leaf(node.answer)
        self.outputs = len(node.answer.output_shapes)
        return []

    def _assign(self, value: Expression) -> int:
        number = self.registers[value] = len(self.registers)
        self.most = max(self.most, len(self.registers))
        return number

    def several(self, values: Sequence[Expression]) -> list[int]:
        return [len(values), *map(self.register, values)]

    def leaf(self, at: Leaf) -> None:
        fixed = (*at.grid, *at.block, at.shared_bytes, at.scratch_bytes, at.counter_bytes)
        self.words += [
            at.kernel,
            *map(self.register, fixed),
            at.bits,
            *self.several(at.parameters),
        ]
        self.words.append(len(at.output_shapes))
        for shape in at.output_shapes:
            self.words += self.several(shape)
        self.words.append(len(at.tensor_maps))
        for m in at.tensor_maps:
            self.words += [m.pointer, m.dtype, int(m.to_tf32), NO_WINDOW if m.window is None else WINDOW]
            self.words.append(self.register(m.offset))
            for part in (m.extents, m.strides, m.box, *(m.window or ())):
                self.words += self.several(part)
        self.words.append(len(at.then))
        for after in at.then:
            self.leaf(after)


def bits_of(value: Value) -> int:
    """Return the 64 bits of an integer or a double as a signed integer."""
    return int.from_bytes(struct.pack("<d" if isinstance(value, float) else "<q", value), "little", signed=True)


def written(family: Family) -> bytes | None:
    """Return the program of a family; None if it exceeds the evaluator's limits."""
    tape = _TapeWriter(family)
    tape.assign_constants()
    tape.write(family.root)
    dims, registers = len(family.key.fixed), tape.most
    if registers > MOST_REGISTERS or len(tape.code) > MOST_INSTRUCTIONS or len(tape.words) > MOST_WORDS:
        return None
    ranks = family.key.ranks
    counts = (
        len(ranks), dims, len(tape.bits), registers, len(tape.code), len(tape.words), len(family.kernels), tape.outputs
    )  # fmt: skip
    words = [w for instruction in tape.code for w in instruction] + tape.words
    return b"".join((
        HEADER.pack(MAGIC, VERSION, *counts),
        struct.pack(f"<{dims}q", *(-1 if f is None else f for f in family.key.fixed)),
        struct.pack(f"<{len(tape.bits)}q", *tape.bits),
        struct.pack(f"<{len(ranks)}I", *ranks),
        struct.pack(f"<{len(words)}I", *words),
    ))  # fmt: skip
