"""GitHub's workflow commands: a broken promise shows beside the line that made it."""

from collections.abc import Sequence

from onnxfuse.reporting.checks import Check
from onnxfuse.support.printable import controls_written_out


def annotations(checks: Sequence[Check]) -> tuple[str, ...]:
    """Return a line for the log of a GitHub workflow for each check that failed."""
    lines = []
    for check in checks:
        if check.ok:
            continue
        place = {"file": check.file, "line": str(check.line or "")} if check.file else {}
        facts = {**place, "title": f"onnxfuse {check.group}: {check.name}"}
        properties = ",".join(f"{k}={_escape(v, ',:')}" for k, v in facts.items() if v)
        lines.append(f"::error {properties}::{_escape(check.text)}")
    return tuple(lines)


def _escape(text: str, more: str = "") -> str:
    """Return `text` with what would end a workflow command written as %XX."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return controls_written_out(text)
