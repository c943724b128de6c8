"""What was found when the parts of a quantized model were verified one by one, each on the original's own values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onnxfuse.support.plurals import agreeing, plural

NAMED = 3
"""Number of parts that are named; JSON has all."""


@dataclass(frozen=True)
class QuantizedParts:
    """The parts in which the models differ, each compared with the original's on the original's values."""

    parts: int
    cases: tuple[int, ...]
    """Indices of the report's cases on whose values they were compared."""
    left_out: tuple[int, ...]
    """Indices of those that the time limit excluded."""
    values: int
    """Values compared that the model rounds to steps: integers, and what was dequantized from them."""
    apart: int
    """Those of them that are rounded to another step, the next one except for ties inside a part."""
    faults: tuple[str, ...]
    """What is wrong with parts, one sentence each."""
    undecided: Mapping[str, str]
    """Parts that could not be judged, by the first value that they compute, and why."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        right = self.parts - len(self.undecided)
        ties = ""
        if self.values:
            ties = f"; {self.apart} of {plural(self.values, 'quantized value')} rounded to another step"
        shown = "; ".join(f"{name}: {why}" for name, why in list(self.undecided.items())[:NAMED])
        left = f"; {plural(self.undecided, 'part')} could not be judged ({shown})" if self.undecided else ""
        late = f"; {plural(self.left_out, 'case')} left out: the time for the parts is used up (--time)"
        late *= bool(self.left_out)
        many = plural(self.parts, "part")
        are = agreeing(right, "is", "are", of=self.parts)
        return (
            f"{many if right == self.parts else f'{right} of {many}'} {are} the same on the original's own values, "
            f"{plural(self.cases, 'case')}{late}{ties}{left}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        listed = {name: list(getattr(self, name)) for name in ("cases", "left_out", "faults")}
        return {**asdict(self), **listed, "text": self.text}
