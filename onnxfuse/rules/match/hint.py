"""Hints for the user on how to resolve a refusal: one sentence per kind of cause, with the values of the case."""

import re

from onnxfuse.rules.match.cause import Cause
from onnxfuse.support.plurals import a_noun

CONSTANT = "the rule wants a weight there; if it should be one, export with constants folded"
KNOWN = "give the model's inputs element types and shapes, then export again: the rule has to know them"
MASK = "if the mask hides nothing, leave it out of the export; otherwise nothing is lost here"

HINTS = {
    "attribute": "the rule takes {subject} = {wanted}; a rule of your own may leave it open: "
    "<{subject}: TYPE = @{subject}>",
    "same attribute": "the rule is for nodes that have the same {subject}",
    "constant": "the rule takes {wanted} there; a rule of your own may bind any number: "
    "Constant <value_float: float = @c>",
    "list": "the rule is for {wanted} there; other axes and shapes are other kernels",
    "number": "the rule is for one number there; other axes and shapes are other kernels",
    "not constant": CONSTANT,
    "quantized": "the rule is for floating-point weights; explain begins with what became of quantized products",
    "graph output": "remove '{subject}' from the model's outputs if nothing needs it",
    "read elsewhere": "let the other reader use another value than '{subject}'",
    "operator": "the rule expects {wanted} in place of {seen}; a rule of your own may add this spelling",
    "between": "remove {seen} from the model if it has no effect there; a rule of your own may add this spelling",
    "operand": "the rule expects {wanted} in place of {seen}; a rule of your own may add this spelling",
    "slower": "it may be faster on another GPU: tune there",
    "no saving": "nothing is lost here: they take as many launches by themselves",
    "opset": "export with a newer opset",
    "too many": "let `where` ask for smaller constants; what `to` computes of constants is stored in the file",
    "too large": "keep this part of the model in float32",
    "arity": "a rule of your own may take that many inputs or outputs",
    "missing": "a rule of your own may take that many inputs or outputs",
    "other value": "two inputs must be one value there: export without copies or casts between them",
    "multiple": "make that extent a multiple of {of}, for instance by channels of zeros",
    "mask": MASK,
    "finite": MASK,
    "unknown": KNOWN,
    "untyped": KNOWN,
    "label": KNOWN,
}


TOO_LITTLE = {
    "alone": "there is no elementwise node next to it, so fusing would save nothing",
    "fused": "nothing to do: the kernel of {wanted} computes the {subject} beside it",
    "movement": "nothing is lost here: a kernel of its own would take as long as ONNX Runtime's",
}
"""Of `too little`, by what the region is."""


def hint(cause: Cause) -> str:
    """Return what would let the rule apply, "" if there is nothing short to add to the reason."""
    if cause.parts:
        return next((said for part in cause.parts if (said := hint(part))), "")
    if cause.kind == "type":
        return f"export the model, or convert it, in {cause.of}: the kernel is for these types" if cause.of else ""
    if cause.kind == "operand" and cause.seen == "a constant":
        return f"nothing to do: this node reads a constant, the rule is for the result of {a_noun(cause.wanted)}"
    if cause.kind == "unknown" and cause.subject.startswith("value("):
        return ""  # an attribute that is absent, or a computed number: no type would determine it
    words = {"subject": cause.subject, "seen": cause.seen, "wanted": cause.wanted, "of": cause.of}
    sentence = TOO_LITTLE.get(cause.of, "") if cause.kind == "too little" else HINTS.get(cause.kind, "")
    return sentence.format(**words)


def without_names(reason: str) -> str:
    """Return a reason without names that differ between layers, so that equal reasons share one row."""
    reason = re.sub(r"( was fused into \w+) \([^)]*\)", r"\1", reason)
    reason = re.sub(r"(?<=; the node before it, )(\w+) [^,]*(?=, is one:)", r"a \1", reason)
    return re.sub(r"(value )?'[^']*'|; \S+:", lambda m: "a value" if "'" in m[0] else ";", reason)
