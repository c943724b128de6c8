"""JUnit XML for CI systems: a suite per command or model, a case per check."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from onnxfuse.reporting.checks import Check
from onnxfuse.support.printable import controls_written_out

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(checks: Sequence[Check]) -> str:
    """Return the checks as JUnit XML."""
    failed = sum(not c.ok for c in checks)
    root = ElementTree.Element("testsuites", name="onnxfuse", tests=str(len(checks)), failures=str(failed))
    root.set("skipped", str(sum(c.skipped for c in checks)))
    for group in dict.fromkeys(c.group for c in checks):
        members = [c for c in checks if c.group == group]
        suite = ElementTree.SubElement(
            root, "testsuite", name=_clean(group), tests=str(len(members)), errors="0",
            failures=str(sum(not c.ok for c in members)),
            skipped=str(sum(c.skipped for c in members)), time=f"{sum(c.seconds for c in members):.3f}",
        )  # fmt: skip
        for check in members:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"onnxfuse.{_clean(group)}", name=_clean(check.name),
                time=f"{check.seconds:.3f}",
            )  # fmt: skip
            if check.skipped:
                ElementTree.SubElement(case, "skipped", message=_clean("\n".join(check.found)))
            elif check.ok:
                ElementTree.SubElement(case, "system-out").text = _clean(check.text)
            else:
                failure = ElementTree.SubElement(case, "failure", message=_clean(check.text))
                failure.text = _clean("\n".join(check.found))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Return `text` without characters that XML does not allow."""
    return controls_written_out(_NOT_XML.sub("?", text))
