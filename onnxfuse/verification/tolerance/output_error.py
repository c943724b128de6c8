"""Measures of one output in one case, and the verdict they imply."""

from dataclasses import dataclass

from onnxfuse.verification.tolerance.metrics import Difference

FACTOR = 2.0
"""Allowed multiple of the original's own error."""


TOO_FAR = 0.1
"""An original whose own error exceeds this share of the largest value cannot serve to judge another model."""
BLUNT, BLUNT_STEPS = 0.01, 4.0
"""An own error beyond this share of the largest value, and of so many roundings of it, hides a weight that is wrong by
a percent or more: passing the budget is then only weak evidence."""


@dataclass(frozen=True)
class Measure:
    """Measures of one output in one case."""

    elements: int
    """Elements of the output."""
    compared: int
    """Elements that could be judged; none if no run of the original has an own error."""
    difference: Difference
    """Fused against original, without the reference."""
    scale: float
    """Largest finite reference value."""
    own: float
    """Largest error of the original against the reference."""
    own_typical: float
    """Typical error of the original, in rounding steps."""
    error: float
    """Error of the fused model against the reference at `where`."""
    step: float
    """The rounding step of the type at the reference value at `where`."""
    typical: float
    """Typical error of the fused model, in rounding steps; 0 if there are too few elements for one."""
    where: tuple[int, ...]
    """The element with the largest error beyond its rounding step, or the first one that breaks a law."""
    fused: float
    """The fused value there."""
    original: float
    """The original's value there."""
    truth: float
    """The reference value there."""
    broken: str = ""
    """A law without tolerance that is broken at `where`."""
    unlike: bool = False
    """Whether shape or element type differ, so that nothing could be compared."""
    asked: bool = False
    """Whether `broken` is due to an additional request that also applies with tolerances: `nan="fail"`."""
    unsure: bool = False
    """Whether the original is far from the reference, and some operator of the reference could not be checked."""
    identical: bool = False
    """Whether fused and original are equal in every element, and some element is a number; or the output is declared to
    have none."""
    eps: float = 0.0
    """Machine epsilon of the type; 0 for integers."""
    own_off: float = 0.0
    """Error that ONNX Runtime's default optimizations cause in the original, relative to the largest reference value,
    if they break it: it is right without them, and then judged without them. 0 otherwise."""
    grid: float = 0.0
    """The step to multiples of which the model rounds the output; 0 if it does not."""
    reach: float = 0.0
    """How far a tie of rounding inside the model moves the output (`inner_ties`); 0 if that was not asked."""
    apart: int = 0
    """Elements of such an output that the fused model rounds to another step than any run of the original."""
    ties: int = 0
    """Elements of such an output that only other runs than the original's first round to the fused model's step."""
    follows: bool = False
    """Whether the fused output follows the broken original instead of the right one."""

    @property
    def budget(self) -> float:
        """The largest allowed error at `where`."""
        return FACTOR * self.own + self.step + self.reach

    @property
    def typical_budget(self) -> float:
        """The largest allowed typical error, in rounding steps."""
        return FACTOR * self.own_typical + 1.0

    @property
    def too_far(self) -> bool:
        """Whether the original's own error is too large to serve as a yardstick."""
        return self.own > TOO_FAR * self.scale and self.own > self.step

    @property
    def blunt(self) -> bool:
        """Whether the original's own error is so large that a wrong weight hides in it; identical outputs hide none."""
        return self.compared > 0 and self.hides_faults and not self.identical

    @property
    def hides_faults(self) -> bool:
        """Whether a wrong weight would hide in the original's own error here."""
        if not self.eps:
            return False
        return self.own > max(BLUNT, BLUNT_STEPS * self.eps) * self.scale and self.own > self.step

    @property
    def telling(self) -> bool:
        """Whether a wrong weight would have been visible: some value is not 0, and the original's own error is
        small."""
        return self.compared > 0 and not self.hides_faults and (self.scale > 0 or not self.eps)

    @property
    def empty(self) -> bool:
        """Whether there was no element to compare."""
        return self.elements == 0 and not self.identical and not self.broken

    @property
    def undecided(self) -> bool:
        """Whether nothing could be judged: no element, too large an own error of the original, or an uncertain
        reference.

        Outputs equal in every element are right whatever the reference is.
        """
        return not self.identical and (not self.compared or self.too_far or self.unsure)

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty if the output is within its budget."""
        if self.broken:
            return self.broken
        if self.error > self.budget:
            return f"error {self.error:.3g}, allowed {self.budget:.3g}"
        if self.typical > self.typical_budget and not self.too_far:
            return f"typical error {self.typical:.3g} rounding steps, allowed {self.typical_budget:.3g}"
        return ""

    @property
    def severity(self) -> float:
        """Used share of the budget; above 1 is a fault."""
        return float("inf") if self.broken else self.used

    @property
    def used(self) -> float:
        """Used share of the budget by the elements whose error is a number, whichever law others break."""
        largest = self.error / self.budget if self.budget else float(self.error > 0)
        return max(largest, 0.0 if self.too_far else self.typical / self.typical_budget)


NOTHING = Measure(0, 0, Difference(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0)
"""The measure of an output without elements."""
