"""SARIF 2.1.0, which code scanning reads: each failed check as a result at its line of onnxfuse.toml."""

import json
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from onnxfuse.reporting.checks import Check
from onnxfuse.support.printable import controls_written_out

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(checks: Sequence[Check], version: str) -> str:
    """Return the failed checks as SARIF of this version of onnxfuse; without any it says that all held."""
    failed = [check for check in checks if not check.ok]
    rules = {_rule(check): check for check in failed}
    driver = {
        "name": "onnxfuse",
        "version": version,
        "rules": [{"id": rule, "shortDescription": {"text": _clean(one.name)}} for rule, one in rules.items()],
    }
    run = {"tool": {"driver": driver}, "results": [_result(check) for check in failed]}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(check: Check) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": _rule(check),
        "level": "error",
        "message": {"text": _clean("\n".join((f"{check.group}: {check.found[0]}", *check.found[1:])))},
        # The same failure of the same model is one alert, however its figures move.
        "partialFingerprints": {"check/v1": f"{_clean(check.group)}/{_rule(check)}"},
    }
    if check.file:
        place = {"artifactLocation": {"uri": PurePath(check.file).as_posix()}, "region": {"startLine": check.line or 1}}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _rule(check: Check) -> str:
    """Return the kind of a check as a word: its name without the number that is required."""
    name = re.sub(r"[<>=\s]+[\d.]+$", "", check.name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "check"


def _clean(text: str) -> str:
    return controls_written_out(text)
