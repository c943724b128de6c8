"""Emit the C++ around a template's core: operand pointers, register storage, loads, and stores.

A template supplies the C++ that addresses each operand in a load or store. This module emits the code around it, for
all templates: the struct `Pointers`, the structs of a thread's registers, their load functions, `element`, which passes
the operands to the body, and the functions that store its results.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.program.program import Program
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class Pointer:
    """A field of `Pointers`."""

    stored: str
    """C++ type of what it points to."""
    name: str
    argument: str
    """The kernel's argument that it is: `in3`, `out0`, `scratch`; or `nullptr`."""

    @property
    def pointer(self) -> "Pointer":
        """Itself."""
        return self


def scratch(used: bool) -> Pointer:
    """Return that of the memory that the launches of one stream share."""
    return Pointer("unsigned", "scratch", "scratch" if used else "nullptr")


@dataclass(frozen=True)
class Operand:
    """An input that is read, or an output."""

    name: str
    """`in3`, `out0`: its name in the kernel."""
    field: str
    """Its field of `Element` or `Result`."""
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


def operands(program: Program, input_shapes: tuple[Shape, ...]) -> tuple[Operand, ...]:
    """Return the inputs that are read and then the outputs, with the shapes of their values (keepdims=1)."""
    shapes = program.shapes(input_shapes)
    inputs = [
        operand(f"in{i}", f"a{i}", program.inputs[i], input_shapes[i], False) for i in expressions.live_inputs(program)
    ]
    outputs = [operand(f"out{n}", f"b{n}", o.dtype, shapes[o.value], True) for n, o in enumerate(program.outputs)]
    return (*inputs, *outputs)


def operand(name: str, field: str, dtype: int, shape: Shape, is_output: bool) -> Operand:
    """Return the operand of this element type."""
    facts = element_types.TYPES[dtype]
    return Operand(name, field, facts.stored, facts.size, shape, is_output)


@dataclass(frozen=True)
class Load:
    """An input, as a thread reads it."""

    name: str
    """Its field in the struct that holds it."""
    holder: str
    """C++ type of that: `Pack<f16, W>`, neighbours; `Splat<f16>`, one element for all elements; ..."""
    call: str
    """The load, as C++."""
    halves: bool = False
    """Whether a thread holds two, of rows `half` 0 and 1."""

    @property
    def field(self) -> str:
        """Its declaration."""
        return f"{self.holder} {self.name}{'[2]' if self.halves else ''};"

    @property
    def statement(self) -> str:
        """What loads it to the struct `held`."""
        if self.halves:
            return f"for (int half = 0; half < 2; ++half) held.{self.name}[half] = {self.call};"
        return f"held.{self.name} = {self.call};"


@dataclass(frozen=True)
class RegisterGroup:
    """Inputs that a thread holds together."""

    struct: str
    name: str
    """What the functions call one of them."""
    loads: tuple[Load, ...]
    wide: bool = False
    """Whether the struct is a template of `W`, the elements of a vector."""

    @property
    def _type(self) -> str:
        return f"{self.struct}<W>" if self.wide else self.struct

    def hold(self) -> str:
        """Return the struct."""
        fields = "".join(f"  {load.field}\n" for load in self.loads)
        return f"{_template(self.wide)}struct {self.struct} {{\n{fields}}};\n"

    def values(self) -> dict[str, str]:
        """Return the element of a element of each, as C++, by its name."""
        return {v.name: f"{self.name}.{v.name}{'[half]' if v.halves else ''}.get(w)" for v in self.loads}

    def fill(self, function: str, arguments: str, loads: Iterable[Load] | None = None) -> str:
        """Return the function that loads all of them, or some, to a struct `held`, its first argument."""
        head = f"{_template(self.wide)}DEVICE void {function}({self._type}& held, {arguments})"
        return f"{head} {{\n{_statements(self.loads if loads is None else loads)}}}\n"

    def load(self, function: str, arguments: str, *, after: str = "", later: str = "", of: str = "") -> str:
        """Return the function that gives the struct with all but the input `later`, which the core fills.

        `after`: what it does first, on zeros; `of`: what follows the arguments of a member function.
        """
        loads = _statements(load for load in self.loads if load.name != later)
        head = f"{_template(self.wide)}DEVICE {self._type} {function}({arguments}){of}"
        return f"{head} {{\n  {self._type} held = {{}};\n{after}{loads}  return held;\n}}\n"


@dataclass(frozen=True)
class Store:
    """An output, as a thread writes it."""

    name: str
    """Of the array of its values."""
    stored: str
    """C++ type of an element in memory."""
    field: str
    """Of `Result`."""
    call: str
    """The store of that array, as C++."""

    @staticmethod
    def of(operand: Operand, call: str) -> "Store":
        """Return the store of an output."""
        return Store(operand.name, operand.stored, operand.field, call)

    def statements(self, width: str) -> str:
        """Return what stores `width` results."""
        return (
            f"  Stored<{self.stored}>::Value {self.name}[{width}];\n"
            f"  UNROLLED for (int w = 0; w < {width}; ++w) {self.name}[w] = result[w].{self.field};\n"
            f"  {self.call};\n"
        )


def pointers(fields: Iterable[Operand | Pointer]) -> str:
    """Return the struct `Pointers`."""
    return "struct Pointers {\n" + "".join(f"  {f.pointer.stored}* {f.pointer.name};\n" for f in fields) + "};\n"


def element(operands: Iterable[str], held: Iterable[RegisterGroup], arguments: str) -> str:
    """Return the function that gives the body its operands of a element, in their order.

    They are told by their names in what is `held`; what is not held is C++ itself.
    """
    groups = tuple(held)
    known = {name: value for group in groups for name, value in group.values().items()}
    values, wide = [known.get(o, o) for o in operands], any(group.wide for group in groups)
    return f"{_template(wide)}DEVICE Element element({arguments}) {{\n  return {{{', '.join(values)}}};\n}}\n"


def store(function: str, arguments: str, stores: Iterable[Store], width: str, before: str = "", after: str = "") -> str:
    """Return the function that stores the outputs of an array `result` of `width` elements, and what it does around."""
    statements = "".join(s.statements(width) for s in stores)
    return f"{_template(width == 'W')}DEVICE void {function}({arguments}) {{\n{before}{statements}{after}}}\n"


def _template(wide: bool) -> str:
    return "template <int W> " if wide else ""


def _statements(loads: Iterable[Load]) -> str:
    return "".join(f"  {load.statement}\n" for load in loads)
