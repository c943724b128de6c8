"""Flatten a command's report into individual checks, for JUnit, Markdown and annotations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxfuse.support.plurals import fused_ops_text, plural

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One requirement, and whether it was met."""

    group: str
    """The command; for `ci` the model."""
    name: str
    ok: bool
    text: str
    """The result in words."""
    seconds: float = 0.0
    why: tuple[str, ...] = ()
    """The causes of a failure, where they are known."""
    next_steps: tuple[str, ...] = ()
    """What to do about a failure, in lines."""
    accept: str = ""
    """The command that accepts a failure, if it is intended."""
    file: str = ""
    """The file that contains the requirement, for an annotation."""
    line: int = 0
    skipped: bool = False
    """Whether it was not checked; `text` says why."""
    warned: bool = False
    """Whether an annotation names it although it is no failure."""

    @property
    def found(self) -> tuple[str, ...]:
        """The result in lines: what was found, why, what to do, and how to accept it."""
        accept = (f"if this is intended, accept it: {self.accept}",) if self.accept else ()
        return (self.text, *(f"why: {reason}" for reason in self.why), *self.next_steps, *accept)


PLACE = re.compile(r"(?P<file>[^:\n]+\.(?:toml|lock)):(?:(?P<line>\d+):)?")
"""Before an error: the file of the mistake, and its line."""
VERDICTS = {
    "undecided": "undecided: could not be judged in most cases",
    "blunt": "blunt: the original's own error would hide a wrong weight in every case",
}
"""Text for outputs that are neither wrong nor verified."""


def word(facts: Facts) -> str:
    """Return the result of a command in one word: ok, undecided, blunt, or failed."""
    if facts.get("ok", True):
        return "ok"
    verdict = str(facts.get("verdict", ""))
    return verdict if verdict in VERDICTS else "failed"


def checks(command: str, facts: Facts) -> tuple[Check, ...]:
    """Return the checks of a command from the dictionary of its report (onnxfuse/reporting/schema.json)."""
    if "error" in facts:
        return (_error(command, "error", facts),)
    makers = {"optimize": _optimize, "verify": _verify, "bench": _bench, "profile": _profile, "ci": _ci}
    return tuple(makers[command](facts)) if command in makers else ()


def _error(group: str, name: str, facts: Facts, file: str = "", line: int = 0) -> Check:
    steps = tuple(filter(None, facts.get("hint", "").splitlines()))
    if not file and (place := PLACE.match(facts["error"])):
        file, line = place["file"], int(place["line"] or 1)
    return Check(group, name, False, facts["error"], next_steps=steps, file=file, line=line)


def _optimize(facts: Facts) -> Iterator[Check]:
    nodes = facts["nodes"]
    text = f"{plural(nodes['before'], 'node')} -> {nodes['after']}"
    if "undone" in facts:
        text += f", {plural(facts['undone'], 'fused op')} undone; {facts['back']['summary']}"
    else:
        text += f", including {fused_ops_text(facts['fused_nodes'], facts['distinct_kernels'])}"
    yield Check("optimize", facts["source"], True, text, facts["seconds"])
    for line in facts["not_met"]:
        name = f"require {line.split(':')[0]}"
        yield Check("optimize", name, False, line, why=tuple(facts["why"].get(line, ())))
    if "guard" in facts:
        guard = facts["guard"]
        text = f"{plural(guard['checked'], 'window')} checked, {len(guard['undone'])} reverted"
        yield Check("optimize", "guard", True, "; ".join([text, *guard.get("unseen", ())]))


def _verify(facts: Facts) -> Iterator[Check]:
    seconds = facts["seconds"]
    for row in facts["outputs"]:
        text = f"error {_number(row['error'])}, allowed {_number(row['budget'])}"
        if judged_by_parts(row):
            text = f"judged by the model's parts; moved by at most {_number(row['max_abs'])}"
        text += f", values to {_number(row['scale'])}" if "scale" in row else ""
        at = f", worst case {case}" if (case := worst_case(facts, row)) else ""
        text += at
        fault = row.get("fault") or VERDICTS.get(row["verdict"], "")
        if fault:
            measured = row.get("difference", {}).get("finite", 1)
            text = text if fault.startswith("error") else f"{fault}; {text}" if measured else f"{fault}{at}"
        text += f"; also {row['also']}" if row.get("also") else ""
        yield Check("verify", f"output {row['output']}", row["verdict"] == "ok", text, seconds)
        seconds = 0.0  # All outputs are examined together: report the time once, so that it adds up.
    if facts.get("parts"):
        parts = facts["parts"]
        yield Check("verify", "parts", not parts["faults"] and not parts["undecided"], parts["text"])
    if facts.get("ran_as"):
        yield Check("verify", "kernels", True, f"kernels were not verified here: {facts['ran_as']}", skipped=True)
    for index, line in enumerate(facts.get("original_broken", ()), 1):
        yield Check("verify", f"original {index}", True, line)
    for index, problem in enumerate(facts["problems"], 1):
        yield Check("verify", f"problem {index}", False, problem)
    if not facts["outputs"] and not facts["problems"]:
        yield Check("verify", "outputs", False, facts["summary"])
    if facts.get("bisection"):
        yield Check("verify", "bisect", False, facts["bisection"]["text"])


def _bench(facts: Facts) -> Iterator[Check]:
    missed = facts.get("not_met", [])
    required, seconds = facts.get("min_speedup"), facts["seconds"] / len(facts["blocks"])
    for block in facts["blocks"]:
        name = " ".join(f"{k}={v}" for k, v in block["dimensions"].items()) or "fixed shapes"
        text = block.get("measured", block["verdict"])
        ok = required is None or block["speedup"] >= required
        yield Check("bench", name, ok, text if ok else f"{text}; --min-speedup {required:g}", seconds)
    if missed and not any(required is not None and b["speedup"] < required for b in facts["blocks"]):
        yield Check("bench", "min-speedup", False, "; ".join(missed))


def _profile(facts: Facts) -> Iterator[Check]:
    # A command without requirements reports its result as a passed check, so that a file of results is not empty.
    untimed = f"; not timed: {facts['untimed']}" if facts["untimed"] else ""
    yield Check("profile", "one run", True, f"{facts['summary']}{untimed}", facts["seconds"])


def _ci(facts: Facts) -> Iterator[Check]:
    for model in facts["models"]:
        location = {"file": facts["config"], "line": model["line"]}
        name = model["name"]
        if model.get("error"):
            yield _error(name, "model", model, **location)
            continue
        steps = {key: (step,) for key, step in model["next_steps"].items()}
        for key in ("optimize", "verify", "bench"):
            for check in checks(key, model[key]) if model.get(key) else ():
                step = () if check.ok else steps.get(key, ())
                yield replace(check, group=name, name=f"{key}: {check.name}", next_steps=step, **location)
        against = [(line, line, "") for line in model["not_met"]]
        differs = model["regressed"] + (model["changed"] if facts["locked"] else [])
        against += [(line, f"{line} (against {facts['lock']})", facts["accept"]) for line in differs]
        for line, text, accept in against:
            reasons = tuple(model["why"].get(line, ()))
            step = steps.get("optimize", ()) if reasons else ()
            yield Check(name, line.split(":")[0], False, text, why=reasons, next_steps=step, accept=accept, **location)
        for what, reason in model["unchecked"].items():
            yield Check(name, what, True, f"not checked: {reason}", **location, skipped=True)
        if not against:
            checked = " that were checked" * bool(model["unchecked"])
            yield Check(name, "contract", True, f"all requirements{checked} are met")
    if facts["lock_state"] == "absent":
        yield Check(
            facts["lock"],
            "lock",
            True,
            f"no {facts['lock']} yet: nothing was compared with earlier results",
            next_steps=(f"write it, then commit it: onnxfuse ci {facts['config']} --update",),
            file=facts["config"],
            skipped=True,
            warned=True,
        )
    for line in facts["changed"] if facts["locked"] else ():
        subject = line.split(":")[0]
        yield Check(facts["lock"], subject, False, f"{line} (--locked)", accept=facts["accept"], file=facts["config"])


def judged_by_parts(row: Facts) -> bool:
    """Return whether the parts of a quantized model are judged in place of this output, whose error decides nothing."""
    return bool(row.get("judged_by") == "parts")


def worst_case(facts: Facts, row: Facts) -> str:
    """Return the worst case of an output, with the shapes of its inputs; empty if unknown."""
    cases, case_index = facts.get("cases", ()), row.get("case", -1)
    if not 0 <= case_index < len(cases):
        return ""
    case = cases[case_index]
    shapes = " ".join(f"{n}={'x'.join(map(str, s)) or 'scalar'}" for n, s in case["shapes"].items())
    return f"{case['name']} {shapes}".strip()


def notes(command: str, facts: Facts) -> list[str]:
    """Return notes on a command's figures: their origin, and what did not run."""
    if "error" in facts:
        return []
    texts = [facts["portable"]] if facts.get("portable") else []
    if command == "verify":
        texts += facts.get("original_broken", [])
        made_up = any(case.get("seed") is not None for case in facts.get("cases", ()))
        sizes = facts.get("sizes", {}) if made_up else {}
        texts += [f"sizes run: {', '.join(f'{n}={_listed(s)}' for n, s in sizes.items())}"] if sizes else []
        texts += [f"not run: {line}" for line in facts.get("not_run", [])]
    if command == "optimize":
        texts += facts.get("notes", [])
        texts += [facts["back"]["summary"]] if "back" in facts else []
    if command == "ci":
        model_notes = [(m["name"], note) for m in facts["models"] for note in m.get("notes", [])]
        model_notes += [
            (m["name"], note) for m in facts["models"] if m.get("verify") for note in notes("verify", m["verify"])
        ]
        return [f"{name}: {note}" for name, note in model_notes]
    if command in ("bench", "profile") and facts.get("assumed"):
        texts.append(f"assumed {' '.join(f'{name}=1' for name in facts['assumed'])}")
    if command == "bench" and "rounds" in facts:
        texts.append(
            f"us per run; medians of {facts['rounds']} x {plural(facts['runs'], 'run')}, 95% of it: where they lie"
        )
    if command == "profile" and facts.get("provider"):
        texts.append(f"times: medians of {plural(facts['runs'], 'run')} at {facts['setting']}")
    if facts.get("environment"):
        texts.append("; ".join(f"{name} {value}" for name, value in facts["environment"].items()))
    return texts


KEPT = ("op", "node", "type", "because")
"""Headings of the nodes that lower precision left in float32."""


def precision_rows(lowered: Facts) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return how a model was converted to lower precision, in lines, and a row for each node that stayed float32."""
    lines = [line for line in (lowered["summary"], lowered["hint"]) if line]
    for title, names in (
        ("mask constants clamped to its range, without effect on the result", lowered["clamped"]),
        ("weights stored in two types", lowered["doubled"]),
    ):
        lines += [f"{title}: {', '.join(names)}"] if names else []
    return lines, [(k["op"], k["node"], k["type"], k["reason"]) for k in lowered["kept"]]


def _listed(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"
