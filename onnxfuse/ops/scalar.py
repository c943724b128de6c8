"""The scalar language, in which entries say what an operator computes: one element of the output from those of the
inputs.

`codegen` implements `Scalar` and `ScalarNode` by terms of a program, the reference by arrays in float64. A `Function`
is one step of the language: a function of that name in `math.cuh`, or an operator of C++.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, Self, TypeVar

from onnx import TensorProto


class Kind(Enum):
    """Element types that a meaning distinguishes."""

    REAL = auto()
    """Floating-point numbers."""
    INTEGER = auto()
    BOOLEAN = auto()


NUMBERS = (Kind.REAL, Kind.INTEGER)


class Scalar(ABC):
    """One element of a value."""

    @property
    @abstractmethod
    def dtype(self) -> int:
        """Element type, `onnx.TensorProto.DataType`."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """The kind of its element type."""

    @property
    @abstractmethod
    def literal(self) -> float | int | bool | None:
        """The number of a constant, None for a computed value."""

    @abstractmethod
    def apply(self, function: "Function", *args: Self | float) -> Self:
        """Return a function of these arguments; Python numbers get the element type of the first value among them."""

    @abstractmethod
    def number(self, value: float) -> Self:
        """Return a number of the same element type."""

    @abstractmethod
    def cast(self, to: int) -> Self:
        """Return the value converted to another element type."""

    @abstractmethod
    def is_computed_as(self, dtype: int) -> bool:
        """Return whether numbers of this element type are computed in the same type as the value."""

    @abstractmethod
    def retype(self, to: int) -> Self:
        """Return the value under another element type, which is computed in the same type."""

    @property
    def is_real(self) -> bool:
        """Whether it is a floating-point number."""
        return self.kind is Kind.REAL

    def __add__(self, other: Self | float) -> Self:
        return self.apply(add, self, other)

    def __radd__(self, other: float) -> Self:
        return self.apply(add, other, self)

    def __sub__(self, other: Self | float) -> Self:
        return self.apply(sub, self, other)

    def __rsub__(self, other: float) -> Self:
        return self.apply(sub, other, self)

    def __mul__(self, other: Self | float) -> Self:
        return self.apply(mul, self, other)

    def __rmul__(self, other: float) -> Self:
        return self.apply(mul, other, self)

    def __truediv__(self, other: Self | float) -> Self:
        return self.apply(div, self, other)

    def __rtruediv__(self, other: float) -> Self:
        return self.apply(div, other, self)

    def __neg__(self) -> Self:
        return self.apply(neg, self)


class ScalarNode(Protocol):
    """A node whose meaning is asked for: its attributes, and an element of each operand."""

    @property
    def opset(self) -> int:
        """Version of the default operator set."""

    def term(self, position: int, *kinds: Kind) -> Scalar:
        """Return the operand at `position`, which must be present, and of one of these kinds if any are given."""

    def optional(self, position: int) -> Scalar | None:
        """Return the operand at `position`, None if absent."""

    def real(self, position: int) -> Scalar:
        """Return the operand at `position`, a floating-point number."""

    def alike(self, *kinds: Kind, first: int = 0, count: int | None = None) -> tuple[Scalar, ...]:
        """Return `count` operands from `first` on, or all, which must have one element type, of one of these kinds if
        any are given."""

    def number(self, attribute: str, default: float) -> float:
        """Return a numeric attribute."""

    def text(self, attribute: str, default: str) -> str:
        """Return a string attribute."""

    def refusal(self, reason: str) -> Exception:
        """Return the error to raise for a node without a meaning here, such as Dropout "in training mode"."""


class RowNode(ScalarNode, Protocol):
    """A node whose meaning reduces within rows."""

    def over(self, kind: str, x: Scalar, axis: int, *, onward: bool) -> Scalar:
        """Return the "sum", "mean", "max" or "min" over an axis, and with `onward` over all axes after it; their length
        is 1 in the result."""


S = TypeVar("S", bound=Scalar)
Formula = Callable[..., Scalar]
"""A function's value, from its arguments."""


class Function(str):
    """One scalar function: its name, as programs have it, and what is known of it.

    In C++ it is `math::NAME`, unless `codegen/emit/operations.py` has another text.
    """

    formula: Formula | None
    """The function as a formula of others; None for one that the reference computes by NumPy."""
    cheap: bool
    """Whether it takes one or two instructions."""
    half: bool
    """Whether namespace `math16` has a shorter form, whose rounding 16-bit types do not see."""
    commutative: bool
    """Whether its two operands can be swapped."""
    boolean: bool
    """Whether the result is a truth value."""
    neutral: float | None
    """The second argument with which the first is the result; None if there is none."""
    typed_by: int
    """Position of the argument whose element type the result has."""

    def __new__(
        cls,
        name: str,
        formula: Formula | None = None,
        *,
        cheap: bool = False,
        half: bool = False,
        commutative: bool = False,
        boolean: bool = False,
        neutral: float | None = None,
        typed_by: int = 0,
    ) -> "Function":
        """Return the function of this name."""
        function = super().__new__(cls, name)
        function.formula, function.cheap, function.half = formula, cheap, half
        function.commutative, function.boolean = commutative, boolean
        function.neutral, function.typed_by = neutral, typed_by
        return function

    def __call__(self, *args: S | float) -> S:
        """Return the function of these arguments, at least one of them a value."""
        return next(a for a in args if isinstance(a, Scalar)).apply(self, *args)

    def result(self, *dtypes: int) -> int:
        """Return the element type of the result for arguments of these."""
        return int(TensorProto.BOOL) if self.boolean else dtypes[self.typed_by]


# ---- comparisons, logic, bits

equal = Function("equal", cheap=True, commutative=True, boolean=True)
less = Function("less", cheap=True, boolean=True)
greater = Function("greater", cheap=True, boolean=True)
less_equal = Function("less_equal", cheap=True, boolean=True)
greater_equal = Function("greater_equal", cheap=True, boolean=True)
is_nan = Function("is_nan", boolean=True)
where = Function("where", cheap=True, typed_by=1)
logical_and = Function("and", cheap=True, commutative=True, neutral=1)
logical_or = Function("or", cheap=True, commutative=True, neutral=0)
logical_xor = Function("xor", cheap=True, commutative=True, neutral=0)
logical_not = Function("not", cheap=True)
bit_and = Function("bit_and", cheap=True, commutative=True)
bit_or = Function("bit_or", cheap=True, commutative=True)
bit_xor = Function("bit_xor", cheap=True, commutative=True)
bit_not = Function("bit_not", cheap=True)
shift_left = Function("shift_left")
shift_right = Function("shift_right")

# ---- arithmetic

add = Function("add", cheap=True, commutative=True, neutral=0)
sub = Function("sub", cheap=True, neutral=0)
mul = Function("mul", cheap=True, commutative=True, neutral=1)
div = Function("div", neutral=1)
neg = Function("neg", cheap=True)
absolute = Function("abs", cheap=True)
sign = Function("sign", cheap=True)
reciprocal = Function("reciprocal")
maximum = Function("max", cheap=True, commutative=True)
minimum = Function("min", cheap=True, commutative=True)
at_least = Function("at_least", lambda x, low: where(less(x, low), low, x), cheap=True)
at_most = Function("at_most", lambda x, high: where(greater(x, high), high, x), cheap=True)
clip = Function("clip", lambda x, low, high: at_most(at_least(x, low), high), cheap=True)
mod_integer = Function("mod_integer")
mod_real = Function("mod_real")
fmod_integer = Function("fmod_integer")
fmod_real = Function("fmod_real")
floor = Function("floor")
ceil = Function("ceil")
round_half_even = Function("round_half_even")
steps = Function(
    "steps", lambda x, scale, low, high: clip(round_half_even((x / scale).cast(TensorProto.FLOAT)), low, high)
)
"""How many steps of a scale a number is: the nearest whole number, within bounds, which are whole.

The quotient is one of float32.
"""
shifted_steps = Function(
    "shifted_steps", lambda x, scale, zero, low, high: steps(x, scale, low - zero, high - zero) + zero
)
"""The same above a whole number, and within bounds of the sum, the last two arguments."""
line_inside = Function("line_inside", lambda x, slope, offset, *_: round_half_even(x * slope + offset), cheap=True)
"""The whole number nearest to x * slope + offset, known to lie within the bounds, the last two arguments.

x is a whole number of at most 9 bits.
"""
line = Function("line", lambda x, slope, offset, low, high: clip(line_inside(x, slope, offset, low, high), low, high))
"""The same, within the bounds."""

power = Function("pow")
POWERS = {
    2.0: Function("pow_2", lambda x, _: x * x, cheap=True),
    3.0: Function("pow_3", lambda x, _: x * x * x, cheap=True),
}
"""Powers with these exponents. The exponent stays an argument, as it takes part in broadcasting."""
REAL_POWERS = {
    **POWERS,
    1.0: Function("pow_1", lambda x, _: x, cheap=True),
    -1.0: Function("pow_minus_1", lambda x, _: reciprocal(x)),
    0.5: Function("pow_half", lambda x, y: power(x, y)),
    -0.5: Function("pow_minus_half", lambda x, y: power(x, y)),
}
"""The same for floating-point numbers."""

# ---- exponentials and the like

exp = Function("exp", half=True)
expm1 = Function("expm1")
log = Function("log")
sqrt = Function("sqrt", half=True)
erf = Function("erf")
sin = Function("sin")
cos = Function("cos")
tan = Function("tan")
asin = Function("asin")
acos = Function("acos")
atan = Function("atan")
sinh = Function("sinh")
cosh = Function("cosh")
tanh = Function("tanh")
asinh = Function("asinh")
acosh = Function("acosh")
atanh = Function("atanh")

# ---- activations

relu = Function("relu", lambda x: at_least(x, 0.0), cheap=True)
sigmoid = Function("sigmoid", lambda x: 1.0 / (exp(-x) + 1.0), half=True)
softplus = Function("softplus")
one_plus_erf = Function("one_plus_erf", half=True)
gelu = Function("gelu", lambda x: x * one_plus_erf(x * 0.5**0.5) * 0.5, half=True)
gelu_tanh = Function(
    "gelu_tanh", lambda x: x * sigmoid((x + x * x * x * 0.044715) * (8 / 3.141592653589793) ** 0.5), half=True
)

# ---- conversions

cast = Function("cast", cheap=True)
"""Another element type, rounded or truncated to it."""
retype = Function("retype", cheap=True)
"""The same number under another element type that is computed alike."""
