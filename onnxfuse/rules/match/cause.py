"""Structured causes of a refusal: kind, subject, actual value, and expected value.

Code that creates a cause does not choose its wording; code that prints one uses its `text`. Hints and rankings depend
on `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onnxfuse.rules.pattern.expression import Extent
from onnxfuse.support.plurals import a_noun

TEXTS = {
    "operator": "is {a_seen}, the rule wants {a_wanted}",
    "between": "is {a_seen}, the rule wants {a_wanted}; the node before it, {subject}, is one: both sides match",
    "operand": "reads {subject}, {seen}, where the rule wants {a_wanted}",
    "attribute": "{of} has {subject} = {seen}, the rule wants {wanted}",
    "same attribute": "{of} has {subject} = {seen}, another node of the match {wanted}",
    "constant": "has the constant {seen}, the rule wants {wanted}",
    "list": "has the constant {seen}, the rule wants {wanted}",
    "number": "reads a constant of shape {seen}, the rule wants one number",
    "not constant": "'{subject}' is not a constant",
    "quantized": "'{subject}' is not a constant: it is quantized",
    "arity": "has {seen}, the rule wants {wanted}",
    "missing": "lacks the input '{subject}' of the rule",
    "other value": "reads {seen} where the rule wants {wanted} again",
    "own value": "'{seen}', which the rule wants for '{subject}', is computed by nodes that it replaces",
    "graph output": "value '{subject}' is a graph output",
    "read elsewhere": "value '{subject}' is also read by {seen}",
    "fused": "the {subject} beside it was fused into {wanted} ({seen})",
    "too many": "{a_subject} of constants in `to` makes {seen} elements, more than the {wanted} that are folded",
    # of `where`
    "unknown": "{subject} is not known",
    "mask": "{subject} is not known",
    "label": "{subject} is not known",
    "rank": "rank({subject}) is {seen}, expected {wanted}",
    "extent": "{subject} is {seen}, {wanted}",
    "excluded": "{subject}; the rule leaves that alone",
    "finite": "'{subject}' is not known to be finite",
    "not whole": "'{subject}' is not known to be whole numbers",
    "counted": "'{subject}' is not known to count from 0 as it lies in memory",
    "inexact": "the type of '{wanted}' is not known to represent every number of '{subject}'",
    "no output": "'{subject}' is not an output of the graph",
    "readers": "'{subject}' is not read by {wanted} alone",
    "taken": "{wanted} may read the element type of '{subject}' in the model's operator set",
    "not let go": "'{subject}' is not a constant that nothing else reads",
}
"""Message of each kind. Other kinds (no kernel, too little, slower, ...) carry their own text."""

COMPARED = frozenset({"relation", "type", "multiple", "unknown", "mask"})
"""Kinds whose message ends with the expected value."""

SPELLINGS = frozenset({
    "operator", "between", "operand", "attribute", "same attribute", "constant", "list", "number", "arity", "missing",
    "other value",
})  # fmt: skip
"""Kinds of structural mismatches with a pattern."""

CONDITIONS = COMPARED | {
    "label", "rank", "extent", "excluded", "finite", "not whole", "counted", "quantized", "not constant", "none of",
    "inexact", "no output", "readers", "taken", "not let go",
}  # fmt: skip
"""Kinds that come from a rule's conditions."""

NAMING: Mapping[str, tuple[str, ...]] = {
    "between": ("subject",), "operand": ("subject",), "not constant": ("subject",), "quantized": ("subject",),
    "arity": ("seen",), "other value": ("seen", "wanted"), "own value": ("seen",), "graph output": ("subject",),
    "read elsewhere": ("subject", "seen"), "finite": ("subject",), "counted": ("subject",), "no output": ("subject",),
    "readers": ("subject",), "taken": ("subject",), "not let go": ("subject",),
}  # fmt: skip
"""The fields that name a value or a node of the model, by kind; kinds without a message may name some anywhere."""


class Cause(NamedTuple):
    """One reason for a refusal. A tuple, as every stop of every attempt creates one: three times as fast."""

    kind: str
    """Identifier for scripts and hints: `attribute`, `constant`, `operator`, `unknown`, ..."""
    subject: str = ""
    """The attribute, value or term in question."""
    seen: str = ""
    """The actual value in the model."""
    wanted: str = ""
    """The value that the rule expects."""
    of: str = ""
    """Further context of the message: the operator of an attribute, the accepted types, the divisor."""
    parts: tuple[Cause, ...] = ()
    """For alternatives that all fail: the cause of each."""
    axes: tuple[Extent, ...] = ()
    """The named axes in the condition."""

    @property
    def naming(self) -> tuple[str, ...]:
        """The fields that name a value or a node of the model."""
        return NAMING.get(self.kind, ())

    @property
    def text(self) -> str:
        """The reason as text."""
        if self.parts:
            return f"{self.fact}; the rule wants {self.wanted}"
        wish = "; the rule wants {wanted}" if self.kind in COMPARED else ""
        return self._said(TEXTS.get(self.kind, "{seen}") + wish)

    @property
    def fact(self) -> str:
        """The actual value as text, without the expected one, where a condition compares the two."""
        if self.parts:
            return " and ".join(dict.fromkeys(part.fact for part in self.parts))
        return self._said(TEXTS.get(self.kind, "{seen}"))

    def _said(self, text: str) -> str:
        return text.format(
            subject=self.subject, seen=self.seen, wanted=self.wanted, of=self.of,
            a_seen=a_noun(self.seen), a_wanted=a_noun(self.wanted), a_subject=a_noun(self.subject),
        )  # fmt: skip
