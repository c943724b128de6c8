"""What a user can do about a refusal: one sentence per kind, with the values of the case."""

import re

from onnxfuse.rewrite.match.match import Refusal

ELSEWHERE = "another node of the match"
"""How a reason says that an attribute has to be the same at two places."""


def hint(refusal: Refusal) -> str:
    """Return what would let the rule apply, "" where there is nothing short to say beside the reason."""
    r = refusal
    name = re.search(r"'([^']*)'", r.reason)
    value = r.subject or (name[1] if name else "")
    if r.kind == "predicate":
        return _of_predicate(r)
    if r.kind == "constant" and re.search(r"[\[(]", f"{r.wanted}{r.seen}"):
        return f"the rule is for {r.wanted} there; other axes and shapes are other kernels"
    if r.kind == "attribute" and ELSEWHERE in r.reason:
        return f"the rule is for nodes that have the same {r.subject}"
    if r.kind == "operator" and r.seen == "a constant":
        return f"nothing to do: it is no {r.wanted} that is divided by or added there, but a number"
    hints = {
        "attribute": f"the rule takes {r.subject} = {r.wanted}; a rule of your own may leave it open: "
        f"<{r.subject}: TYPE = @{r.subject}>",
        "constant": f"the rule takes {r.wanted} there; a rule of your own may bind any number: "
        "Constant <value_float: float = @c>",
        "not constant": "the rule wants a weight there; where it should be one, export with constants folded",
        "graph output": f"take '{value}' out of the model's outputs if nobody needs it",
        "read elsewhere": f"let the other reader take another value than '{value}'",
        "operator": f"where {r.seen} stands, the rule knows {r.wanted}; a rule of your own may add this spelling",
        "too little": "nothing pointwise stands beside it, so one kernel would save nothing",
        "slower": "measured on another GPU it may be the faster way: tune there",
        "opset": "export with a newer opset",
        "too large": "keep this part of the model in float32",
        "arity": "a rule of your own may name the input or output that is more or less",
        "other value": "two inputs must be one value there: export without copies or casts between them",
    }
    return hints.get(r.kind, "")


def without_names(reason: str) -> str:
    """Return a reason without the names that differ from layer to layer: equal ones become one row."""
    return re.sub(r"(value )?'[^']*'|; \S+:", lambda m: "a value" if "'" in m[0] else ";", reason)


def _of_predicate(r: Refusal) -> str:
    """Return what helps where a condition of the rule does not hold; the reason tells the condition itself."""
    types = re.match(r"dtype\(\w+\) (?:in|==) ([\w, ]+)$", r.subject)
    if types:
        return f"export the model, or convert it, in {' or '.join(types[1].split(', '))}: the kernel is for these types"
    if r.reason.endswith("it is quantized"):
        return "a quantized model is left to ONNX Runtime's kernels; the rules are for its float original"
    if "is not a constant" in r.reason:
        return "the rule wants a weight there; where it should be one, export with constants folded"
    if "known to be" in r.reason and "mask" in r.subject:
        return "where the mask hides nothing, leave it out of the export; else nothing is lost here"
    if "is not known" in r.reason or "are not known" in r.reason or "are not both known" in r.reason:
        return "give the model's inputs element types and shapes, then export again: the rule has to know them"
    multiple = re.search(r"dim\((\w+), (-?\d+)\) % (\d+) == 0", r.subject)
    if multiple and f"{multiple[0].removesuffix(' == 0')} is" in r.reason:
        return f"make that extent a multiple of {multiple[3]}, for instance by channels of zeros"
    return ""
