"""Source generation of a general kernel: a function per value read by coordinates, a loop per materialized value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.program.program import (
    Apply,
    Attend,
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Reduce,
    Resample,
    SlidingWindow,
    Unpacked,
    Value,
    arguments,
)
from onnxfuse.codegen.program.window import Counted, Resizing
from onnxfuse.cuda.planning.template import Running
from onnxfuse.cuda.templates.general import movement_cpp, products_cpp, reductions_cpp, shapes
from onnxfuse.cuda.templates.general.numbers import WordTable
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

ARGUMENTS = "const Pointers& t, const Parameters& p, const Index* c"
CHUNK = 32
"""Channels of an attention's result that a thread accumulates at once: scores are recomputed for each chunk."""


@dataclass
class Text:
    """The source of a program for inputs of certain ranks."""

    program: BodyProgram
    shapes: dict[int, Shape]
    stored: dict[int, str]
    """For each materialized value, C++ of its pointer."""
    numbers: WordTable
    running: Running | None

    def function(self, index: int) -> str:
        """Return the function that computes the element of a value at the coordinates `c`, of its rank."""
        value, shape = self.program.values[index], self.shapes[index]
        if isinstance(value, SlidingWindow):
            return self._window(index, value)
        if index not in self.stored:
            return self._function(f"value{index}", index)
        position = f"position<{len(shape)}>(c, {self.numbers.extents(shape)})"
        read = f"inline {element_types.computed(value.dtype)} value{index}({ARGUMENTS}) {{\n"
        read += f"  return get({self.stored[index]}, {position});\n}}\n"
        return read + (self._function(f"source{index}", index) if isinstance(value, Input | Move) else "")

    def _function(self, name: str, index: int) -> str:
        value, shape = self.program.values[index], self.shapes[index]
        match value:
            case Input(index=number):
                lines = [f"return get(t.in{number}, position<{len(shape)}>(c, {self.numbers.extents(shape)}));"]
            case Constant():
                lines = [f"return {element_types.literal(value.value, value.dtype)};"]
            case Move():
                lines = self._moved(value, shape)
            case Unpacked():
                lines = self._unpacked(value)
            case _:
                raise AssertionError(f"{value}, which is kept or computed where it is read")
        body = "".join(f"  {line}\n" for line in lines)
        return f"inline {element_types.computed(value.dtype)} {name}({ARGUMENTS}) {{\n{body}}}\n"

    def _moved(self, value: Move, shape: Shape) -> list[str]:
        def element(operand: int, coordinates: list[str]) -> str:
            return self.call(value.args[operand], coordinates)

        own = self._inside(shape)
        operands = tuple(self.shapes[a] for a in value.args)
        return [own, *movement_cpp.statements(value.how, operands, shape, self.numbers, element)]

    def _unpacked(self, weight: Unpacked) -> list[str]:
        """Return the statements that compute an element of a weight in few bits, at its column and term."""
        (packed, scales, *zeros), bits, block = weight.args, weight.packing.bits, weight.packing.block

        def number(of: int, at: Sequence[str], place: str) -> str:
            byte = self.call(of, [*at, f"{place} * {bits} / 8"])
            return f"(float)((int){byte} >> {place} * {bits} % 8 & {(1 << bits) - 1})"

        of_block = ["c[0]", f"c[1] / {block}"]
        zero = f"{weight.packing.middle}.0f"
        if zeros:
            zero = (
                number(zeros[0], of_block[:1], f"({of_block[1]})")
                if weight.zeros_packed
                else self.call(zeros[0], of_block)
            )
        return [
            f"const float number = {number(packed, of_block, f'(c[1] % {block})')};",
            f"return (number - {zero}) * {self.call(scales, of_block)};",
        ]

    def _inside(self, shape: Shape) -> str:
        """Return the statement that maps coordinates in a broadcast shape to those in the value itself."""
        rank, extents = len(shape), self.numbers.extents(shape)
        each = f"for (int d = 0; d < {rank}; ++d) own[d] = ({extents})[d] == 1 ? 0 : c[d];"
        return f"Index own[{max(rank, 1)}]; UNROLLED {each} c = own;"

    def call(self, index: int, coordinates: Sequence[str], more: str = "") -> str:
        """Return C++ of the element of a value at these coordinates."""
        at = f"Coordinates<{max(len(coordinates), 1)}>{{{', '.join(coordinates)}}}.c"
        return f"value{index}(t, p, {at}{more})"

    def _window(self, index: int, window: SlidingWindow) -> str:
        """Return the image element that a window reads at [batch, channel, positions..., taps...], 0 outside the image,
        and whether it is one that counts."""
        of = self.shapes[window.args[0]]
        dims = len(of) - 2
        over = shapes.windows(window, tuple(self.shapes[a] for a in window.args))
        lines, at, inside = ["seen = true;"], ["c[0]", "c[1]"], list[str]()
        for d in range(dims):
            along = d - dims
            step, gap = window.sliding.strides[along], window.sliding.dilations[along]
            extent, begins = self.numbers.extent(of, 2 + d), self.numbers.one(over.begin[along])
            lines += [
                f"const Index x{d} = c[{2 + d}] * {step} + c[{2 + dims + d}] * {gap} - {begins};",
            ]
            if window.counted is Counted.PADDING:
                lines.append(f"seen = seen && x{d} < {extent} + {self.numbers.one(over.end[along])};")
                inside.append(f"x{d} >= 0 && x{d} < {extent}")
            else:
                lines.append(f"seen = seen && x{d} >= 0 && x{d} < {extent};")
            at.append(f"x{d}")
        lines += [f"if (!({' && '.join(inside) or 'seen'})) return 0;", f"return {self.call(window.args[0], at)};"]
        body = "".join(f"  {line}\n" for line in lines)
        return f"inline {element_types.computed(window.dtype)} value{index}({ARGUMENTS}, bool& seen) {{\n{body}}}\n"

    # ---- scalar work

    def scalar(self, target: int, rank: int) -> list[str]:
        """Return the statements after which `r` is a value at the coordinates `c`, of this rank or a lower one."""
        leaves = self.leaves([target])
        values = list(self.program.values)
        for leaf in leaves:
            values[leaf] = Input(leaf, values[leaf].dtype)
        plain = replace(self.program, values=tuple(values))
        lines = []
        if leaves:
            fields = " ".join(f"{element_types.computed(values[i].dtype)} a{i};" for i in leaves)
            reads = ", ".join(f"value{i}(t, p, c + {rank - len(self.shapes[i])})" for i in leaves)
            lines.append(f"const struct {{ {fields} }} x = {{{reads}}};")
        lines += [line.strip() for line in expressions.statements(plain, [target])]
        return [*lines, f"const {element_types.computed(values[target].dtype)} r = {expressions.name(plain, target)};"]

    def leaves(self, targets: Iterable[int]) -> list[int]:
        """Return the values that scalar work for `targets` reads by their coordinates."""
        result, waiting, seen = set[int](), list(targets), set[int]()
        while waiting:
            index = waiting.pop()
            value = self.program.values[index]
            if index in seen or isinstance(value, Constant):
                continue
            seen.add(index)
            if isinstance(value, Apply) and index not in self.stored:
                waiting.extend(value.args)
            elif isinstance(value, SlidingWindow):
                raise UnsupportedError("a window that nothing reduces or contracts")
            else:
                result.add(index)
        return sorted(result)

    # ---- materialized values and outputs

    def loop(self, shape: Shape, lines: Sequence[str], begin: str = "first()", step: str = "stride()") -> str:
        """Return the loop of all threads, or blocks, over the elements `n` of a shape, at the coordinates `c`."""
        rank, extents = len(shape), self.numbers.extents(shape)
        body = "".join(f"      {line}\n" for line in lines)
        return (
            f"    for (Index n = {begin}, all = elements<{rank}>({extents}); n < all; n += {step}) {{\n"
            f"      Index c[{max(rank, 1)}];\n      coordinates<{rank}>(n, {extents}, c);\n{body}    }}\n"
        )

    def output(self, number: int) -> str:
        """Return the loop that writes an output."""
        index = self.program.outputs[number].value
        shape = self.shapes[index]
        return self.loop(shape, [*self.scalar(index, len(shape)), f"put(t.out{number}, n, r);"])

    def stage(self, index: int) -> str:
        """Return the loop that computes a materialized value."""
        value, shape, to = self.program.values[index], self.shapes[index], self.stored[index]
        match value:
            case Reduce():
                return reductions_cpp.stage(self, value, shape, to)
            case Contraction():
                return products_cpp.stage(self, value, shape, to)
            case Resample():
                return self.loop(shape, [*self._resampled(value), f"keep({to}, n, r);"])
            case Attend():
                return self._attended(index, value)
            case Input() | Move():
                computed = element_types.computed(value.dtype)
                return self.loop(shape, [f"const {computed} r = source{index}(t, p, c);", f"keep({to}, n, r);"])
            case _:
                before = replace(self, stored={k: v for k, v in self.stored.items() if k != index})
                return self.loop(shape, [*before.scalar(index, len(shape)), f"keep({to}, n, r);"])

    def _resampled(self, resample: Resample) -> list[str]:
        of, lines = self.shapes[resample.arg], []
        for axis, name in enumerate(("down", "across")):
            size = self.numbers.extent(of, 2 + axis)
            out = self.numbers.one(resample.how.over((of[2], of[3]))[axis])
            lines += _line(resample.how, axis, name, size, out)
        corner = {
            n: self.call(resample.arg, ["c[0]", "c[1]", f"down.{a}", f"across.{b}"])
            for n, a, b in (
                ("a", "first", "first"),
                ("b", "first", "second"),
                ("d", "second", "first"),
                ("e", "second", "second"),
            )
        }
        high = f"(1 - across.share) * {corner['a']} + across.share * {corner['b']}"
        low = f"(1 - across.share) * {corner['d']} + across.share * {corner['e']}"
        return [
            *lines,
            f"const float high = {high}, low = {low};",
            "const float r = (1 - down.share) * high + down.share * low;",
        ]

    def _attended(self, index: int, attend: Attend) -> str:
        """Return the online softmax: a thread processes one query of a head and some channels of its result."""
        q, k, v, *bias = attend.args
        extent = self.numbers.extent
        if element_types.computed(attend.dtype) != "float":
            raise UnsupportedError(f"attention on {element_types.name(attend.dtype)}")
        of_q, of_k, of_v = (self.shapes[a] for a in (q, k, v))
        head, width = of_v[2] // attend.heads, self.numbers.one(of_v[2] // attend.heads)
        size = self.numbers.one(of_q[2] // attend.heads)
        work = (of_q[0], attend.heads, -(-head // CHUNK), of_q[1])
        scale = f"(float){attend.scale!r}" if attend.scale else f"1 / math::sqrt((float){size})"
        whole = ["c[0]", "c[1]", "c[3]", "i"]
        score = f"sum.get() * {scale}" + "".join(f" + {self.call(b, whole[4 - len(self.shapes[b]) :])}" for b in bias)
        at = f"Coordinates<3>{{c[0], c[3], c[1] * {width} + channel}}.c"
        result = f"position<3>({at}, {self.numbers.extents(self.shapes[index])})"
        query = self.call(q, ["c[0]", "c[3]", f"c[1] * {size} + d"])
        key = self.call(k, ["c[0]", "i", f"c[1] * {size} + d"])
        lines = [
            f"const Index begin = c[2] * {CHUNK};",
            f"float y[{CHUNK}] = {{}}, most = {element_types.literal(float('-inf'), attend.dtype)}, total = 0;",
            "const float least = most;",
            f"for (Index i = 0; i < {extent(of_k, 1)}; ++i) {{",
            *(["if (i > c[3]) break;"] if attend.causal else []),
            "Sum sum;",
            f"for (Index d = 0; d < {size}; ++d) sum.add({query}, {key});",
            f"const float score = {score};",
            "if (score == least && most == least) continue;",
            "if (score > most) {",
            "const float less = math::exp(most - score);",
            f"total *= less; most = score; for (int j = 0; j < {CHUNK}; ++j) y[j] *= less;",
            "}",
            "const float weight = math::exp(score - most);",
            "total += weight;",
            f"for (int j = 0; j < {CHUNK}; ++j) if (begin + j < {width}) "
            f"y[j] += weight * {self.call(v, ['c[0]', 'i', f'c[1] * {width} + begin + j'])};",
            "}",
            f"for (int j = 0; j < {CHUNK}; ++j) {{ const Index channel = begin + j; if (channel < {width}) "
            f"keep({self.stored[index]}, {result}, {extent(of_k, 1)} == 0 ? 0 : y[j] / total); }}",
        ]  # fmt: skip
        return self.loop(work, lines)


def _line(how: Resizing, axis: int, name: str, size: str, out: str) -> list[str]:
    """Return the statements that find the two pixels adjacent to a position along an axis of an image."""
    scale = f"(double){out} / (double){size}" if how.scales is None else f"{float(how.scales[axis])!r}"
    match how.centre:
        case "align_corners":
            step, start = f"{out} > 1 ? ({size} - 1.0) / ({out} - 1.0) : 0.0", "0.0"
        case "asymmetric":
            step, start = f"1 / ({scale})", "0.0"
        case "pytorch_half_pixel":
            step, start = f"{out} == 1 ? 0.0 : 1 / ({scale})", f"{out} == 1 ? 0.0 : 0.5 / ({scale}) - 0.5"
        case _:
            step, start = f"1 / ({scale})", f"0.5 / ({scale}) - 0.5"
    return [f"const Between {name} = between(c[{2 + axis}], {step}, {start}, {size});"]


def read_by(value: Value) -> tuple[int, ...]:
    """Return the values whose elements a value is computed from; other arguments only matter by shape."""
    if isinstance(value, Move):
        return tuple(value.args[i] for i in movement_cpp.read_operands(value.how, len(value.args)))
    if isinstance(value, SlidingWindow):
        return value.args[:1]
    return arguments(value)
