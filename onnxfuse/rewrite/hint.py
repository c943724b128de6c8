"""What a user can do about a refusal: one sentence per kind, with the values of the case."""

import re

from onnxfuse.rewrite.match import Refusal


def hint(refusal: Refusal) -> str:
    """Return what would let the rule apply, "" where there is nothing short to say."""
    r = refusal
    name = re.search(r"'([^']*)'", r.reason)
    value = r.subject or (name[1] if name else "")
    if "is not known" in r.reason:
        return "give the model's inputs element types and shapes, then export again: the rule has to know them"
    if r.kind == "predicate" and r.subject.startswith("dtype("):
        return f"convert the model to the type that the rule takes: {r.subject}"
    if "is not a constant" in r.reason:
        return "the rule wants a weight there; where it should be one, export with constants folded"
    hints = {
        "attribute": f"the rule takes {r.subject} = {r.wanted}; a rule of your own may leave it open: "
        f"<{r.subject}: TYPE = @{r.subject}>",
        "constant": f"the rule takes {r.wanted} there; a rule of your own may bind any number: "
        "Constant <value_float: float = @c>",
        "graph output": f"take '{value}' out of the model's outputs if nobody needs it",
        "read elsewhere": f"let the other reader take another value than '{value}'",
        "predicate": f"the rule asks for {r.subject}",
        "operator": f"where {r.seen} stands, the rule knows {r.wanted}; a rule of your own may add this spelling",
        "too little": "nothing pointwise stands beside it, so one kernel would save nothing",
        "slower": "measured on another GPU it may be the faster way: tune there",
        "opset": "export with a newer opset",
        "too large": "keep this part of the model in float32",
        "arity": "a rule of your own may name the input or output that is more or less",
        "other value": "two inputs must be one value there: export without copies or casts between them",
    }
    return hints.get(r.kind, "")
