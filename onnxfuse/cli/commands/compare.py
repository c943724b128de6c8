"""`onnxfuse compare`: compare two results of `onnxfuse bench --json`."""

from typing import Unpack

from onnxfuse.cli.base.console import print_result
from onnxfuse.options.commands import CompareCommand
from onnxfuse.reporting.bench_comparison import compare
from onnxfuse.support.errors import EXPECTATION_NOT_MET


def command(**given: Unpack[CompareCommand]) -> int:
    """Run the command and print its result."""
    compared, most = compare(given["before"], given["after"]), given["max_slowdown"]
    missed = most is not None and bool(compared.slower(most))
    facts = {"ok": not missed, **compared.as_dict()}
    print_result("compare", facts, compared.screen(), as_json=given["as_json"])
    return EXPECTATION_NOT_MET if missed else 0
