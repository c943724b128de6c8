"""One output in one case, measured, and what the measures say."""

from dataclasses import dataclass

from onnxfuse.verification.tolerance.metrics import Difference

FACTOR = 2.0
"""How many times the original's own error the fused error may be."""


TOO_FAR = 0.1
"""An original whose own error is more than this share of the largest value proves nothing about another one."""
BLUNT, BLUNT_STEPS = 0.01, 4.0
"""An own error of more than this share of the largest value, and of so many roundings of it, hides a weight that is
wrong by a percent or more: what holds the budget there is right only as far as that is seen."""


@dataclass(frozen=True)
class Measure:
    """One output in one case, measured."""

    elements: int
    """Elements of the output."""
    compared: int
    """Elements that could be judged; none where no run of the original has an own error."""
    difference: Difference
    """Fused against original, without the truth."""
    scale: float
    """Largest finite true value."""
    own: float
    """Largest error of the original against truth."""
    own_typical: float
    """Typical error of the original, in rounding steps."""
    error: float
    """Error of the fused model against truth at `where`."""
    step: float
    """The rounding step of the type at the true value at `where`."""
    typical: float
    """Typical error of the fused model, in rounding steps; 0 where there are too few elements to speak of one."""
    where: tuple[int, ...]
    """The element with the largest error beyond its rounding step, or the first one that breaks a law."""
    fused: float
    """The fused value there."""
    original: float
    """The original's value there."""
    truth: float
    """The true value there."""
    broken: str = ""
    """A law that holds without any tolerance and is broken at `where`."""
    unlike: bool = False
    """Whether there was nothing to compare: another shape or element type."""
    asked: bool = False
    """Whether `broken` is what was asked for beside the budget, and holds with tolerances too: `nan="fail"`."""
    unsure: bool = False
    """Whether the original is far from the truth, and some operator of the truth could not be looked at."""
    identical: bool = False
    """Whether fused and original are the same in every element, and some element is a number; or the output is
    declared to have none."""
    eps: float = 0.0
    """Distance from 1 to the next number of the type; 0 of whole values."""
    own_off: float = 0.0
    """How far off ONNX Runtime's default optimizations bring the original, as a share of the largest true value, where
    they break it: it is right without them, and judges without them. 0 where they do not."""
    follows: bool = False
    """Whether the fused output is that of the broken original, and not the right one."""

    @property
    def budget(self) -> float:
        """The largest error that is allowed at `where`."""
        return FACTOR * self.own + self.step

    @property
    def typical_budget(self) -> float:
        """The largest typical error that is allowed, in rounding steps."""
        return FACTOR * self.own_typical + 1.0

    @property
    def too_far(self) -> bool:
        """Whether the original's own error is too large to judge anything by it."""
        return self.own > TOO_FAR * self.scale and self.own > self.step

    @property
    def blunt(self) -> bool:
        """Whether the original's own error is so large that a wrong weight hides in it; what is the same hides none."""
        return self.compared > 0 and self.dull and not self.identical

    @property
    def dull(self) -> bool:
        """Whether a wrong weight would hide in the original's own error here."""
        if not self.eps:
            return False
        return self.own > max(BLUNT, BLUNT_STEPS * self.eps) * self.scale and self.own > self.step

    @property
    def telling(self) -> bool:
        """Whether a wrong weight would have shown: some value is not 0, and the original's own error is small."""
        return self.compared > 0 and not self.dull and (self.scale > 0 or not self.eps)

    @property
    def empty(self) -> bool:
        """Whether there was no element to compare."""
        return self.elements == 0 and not self.identical and not self.broken

    @property
    def undecided(self) -> bool:
        """Whether nothing could be judged: no element, too large an error of the original's own, or no sure truth.

        What is the same in every element is right whatever the truth is.
        """
        return not self.identical and (not self.compared or self.too_far or self.unsure)

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty where the promise holds."""
        if self.broken:
            return self.broken
        if self.error > self.budget:
            return f"error {self.error:.3g}, allowed {self.budget:.3g}"
        if self.typical > self.typical_budget and not self.too_far:
            return f"typical error {self.typical:.3g} rounding steps, allowed {self.typical_budget:.3g}"
        return ""

    @property
    def severity(self) -> float:
        """How much of the budget is used; above 1 is a fault."""
        if self.broken:
            return float("inf")
        largest = self.error / self.budget if self.budget else float(self.error > 0)
        return max(largest, 0.0 if self.too_far else self.typical / self.typical_budget)


NOTHING = Measure(0, 0, Difference(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0)
"""The measure of an output without elements."""
