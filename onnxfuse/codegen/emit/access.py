"""Emit the C++ around a template's core: operand pointers, register storage, loads, and stores.

A template supplies the C++ that addresses each operand in a load or store. This module emits the code around it, for
all templates: the struct `Pointers`, the structs of a thread's registers, their load functions, `element`, which passes
the operands to the body, and the functions that store its results.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class Pointer:
    """A field of `Pointers`."""

    stored: str
    """C++ element type in memory."""
    name: str
    argument: str
    """The kernel argument: `in3`, `out0`, `scratch`; or `nullptr`."""

    @property
    def pointer(self) -> "Pointer":
        """The pointer itself."""
        return self


def scratch(used: bool) -> Pointer:
    """Return the pointer to the scratch memory shared by the launches of one stream."""
    return Pointer("unsigned", "scratch", "scratch" if used else "nullptr")


@dataclass(frozen=True)
class Operand:
    """A live input, or an output."""

    name: str
    """`in3`, `out0`: its name in the kernel."""
    field: str
    """Its field in `Element` or `Result`."""
    stored: str
    """C++ type in memory."""
    size: int
    """Bytes of an element."""
    shape: Shape
    is_output: bool

    @property
    def pointer(self) -> Pointer:
        """Its pointer."""
        return Pointer(f"{'' if self.is_output else 'const '}{self.stored}", self.name, self.name)


def operands(program: BodyProgram, input_shapes: tuple[Shape, ...]) -> tuple[Operand, ...]:
    """Return the live inputs and then the outputs, with the shapes of their values (keepdims=1)."""
    shapes = program.shapes(input_shapes)
    inputs = [
        operand(f"in{i}", f"a{i}", program.inputs[i], input_shapes[i], False) for i in expressions.live_inputs(program)
    ]
    outputs = [operand(f"out{n}", f"b{n}", o.dtype, shapes[o.value], True) for n, o in enumerate(program.outputs)]
    return (*inputs, *outputs)


def operand(name: str, field: str, dtype: int, shape: Shape, is_output: bool) -> Operand:
    """Return an operand of this element type."""
    facts = element_types.TYPES[dtype]
    return Operand(name, field, facts.stored, facts.size, shape, is_output)


@dataclass(frozen=True)
class Load:
    """A thread's load of an input."""

    name: str
    """Its field in the register struct."""
    holder: str
    """C++ type of the field: `Pack<f16, W>`, adjacent elements; `Splat<f16>`, one element broadcast to all; ..."""
    call: str
    """The load expression in C++."""
    halves: bool = False
    """Whether a thread holds two fields, of rows `half` 0 and 1."""

    @property
    def field(self) -> str:
        """The field's declaration."""
        return f"{self.holder} {self.name}{'[2]' if self.halves else ''};"

    @property
    def statement(self) -> str:
        """The statement that loads it into the struct `held`."""
        if self.halves:
            return f"for (int half = 0; half < 2; ++half) held.{self.name}[half] = {self.call};"
        return f"held.{self.name} = {self.call};"


@dataclass(frozen=True)
class RegisterGroup:
    """Inputs that a thread holds in registers together."""

    struct: str
    name: str
    """The struct's variable name in the functions."""
    loads: tuple[Load, ...]
    wide: bool = False
    """Whether the struct is a template over `W`, the vector width."""

    @property
    def _type(self) -> str:
        return f"{self.struct}<W>" if self.wide else self.struct

    def hold(self) -> str:
        """Return the struct definition."""
        fields = "".join(f"  {load.field}\n" for load in self.loads)
        return f"{_template(self.wide)}struct {self.struct} {{\n{fields}}};\n"

    def values(self) -> dict[str, str]:
        """Return the C++ expression of each field's element, by name."""
        return {v.name: f"{self.name}.{v.name}{'[half]' if v.halves else ''}.get(w)" for v in self.loads}

    def fill(self, function: str, arguments: str, loads: Iterable[Load] | None = None) -> str:
        """Return the function that loads all fields, or some, into a struct `held`, its first argument."""
        head = f"{_template(self.wide)}DEVICE void {function}({self._type}& held, {arguments})"
        return f"{head} {{\n{_statements(self.loads if loads is None else loads)}}}\n"

    def load(self, function: str, arguments: str, *, after: str = "", later: str = "", of: str = "") -> str:
        """Return the function that returns the struct with all inputs loaded except `later`, which the core fills.

        `after`: statements before the loads, on a zeroed struct; `of`: qualifiers after a member function's parameters.
        """
        loads = _statements(load for load in self.loads if load.name != later)
        head = f"{_template(self.wide)}DEVICE {self._type} {function}({arguments}){of}"
        return f"{head} {{\n  {self._type} held = {{}};\n{after}{loads}  return held;\n}}\n"


@dataclass(frozen=True)
class Store:
    """A thread's store of an output."""

    name: str
    """Name of the array of its values."""
    stored: str
    """C++ element type in memory."""
    field: str
    """Field of `Result`."""
    call: str
    """The C++ store of that array."""

    @staticmethod
    def of(operand: Operand, call: str) -> "Store":
        """Return the store of an output."""
        return Store(operand.name, operand.stored, operand.field, call)

    def statements(self, width: str) -> str:
        """Return the statements that store `width` results."""
        return (
            f"  Stored<{self.stored}>::Value {self.name}[{width}];\n"
            f"  UNROLLED for (int w = 0; w < {width}; ++w) {self.name}[w] = result[w].{self.field};\n"
            f"  {self.call};\n"
        )


def pointers(fields: Iterable[Operand | Pointer], others: Iterable[str] = ()) -> str:
    """Return the struct `Pointers`, with other fields behind them."""
    declared = (*(f"{f.pointer.stored}* {f.pointer.name}" for f in fields), *others)
    return "struct Pointers {\n" + "".join(f"  {field};\n" for field in declared) + "};\n"


def element(operands: Iterable[str], registers: Iterable[RegisterGroup], arguments: str) -> str:
    """Return the function that passes one element of each operand to the body, in order.

    Operands in `registers` are referenced by name; others are C++ expressions.
    """
    groups = tuple(registers)
    names = {name: value for group in groups for name, value in group.values().items()}
    values, wide = [names.get(o, o) for o in operands], any(group.wide for group in groups)
    return f"{_template(wide)}DEVICE Element element({arguments}) {{\n  return {{{', '.join(values)}}};\n}}\n"


def store(function: str, arguments: str, stores: Iterable[Store], width: str, before: str = "", after: str = "") -> str:
    """Return the function that stores an array `result` of `width` elements, with surrounding statements."""
    statements = "".join(s.statements(width) for s in stores)
    return f"{_template(width == 'W')}DEVICE void {function}({arguments}) {{\n{before}{statements}{after}}}\n"


def _template(wide: bool) -> str:
    return "template <int W> " if wide else ""


def _statements(loads: Iterable[Load]) -> str:
    return "".join(f"  {load.statement}\n" for load in loads)
