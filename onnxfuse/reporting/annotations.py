"""GitHub workflow commands, which annotate the line of a failed requirement."""

from collections.abc import Sequence

from onnxfuse.reporting.checks import Check
from onnxfuse.support.printable import controls_written_out

LINE = "\n"


def annotations(checks: Sequence[Check]) -> tuple[str, ...]:
    """Return a line for the log of a GitHub workflow for each failed check, and for those that warn."""
    lines = []
    for check in checks:
        if check.ok and not check.warned:
            continue
        location = {"file": check.file, "line": str(check.line or "")} if check.file else {}
        facts = {**location, "title": f"onnxfuse {check.group}: {check.name}"}
        properties = ",".join(f"{k}={_escape(v, ',:')}" for k, v in facts.items() if v)
        lines.append(f"::{'warning' if check.ok else 'error'} {properties}::{_escape(LINE.join(check.found))}")
    return tuple(lines)


def _escape(text: str, extra: str = "") -> str:
    """Return `text` with characters that would end a workflow command escaped as %XX."""
    for character in f"%\r\n{extra}":
        text = text.replace(character, f"%{ord(character):02X}")
    return controls_written_out(text)
