"""JUnit files: valid XML, whose times add up."""

from xml.etree import ElementTree

from onnxfuse.reporting.checks import Check, checks
from onnxfuse.reporting.junit import junit

NASTY = 'a<b>&"c"|d`e`\x00\x1b]]>\n::error::% ,'


def test_the_times_of_junit_add_up() -> None:
    """A suite takes what the command took, however many promises it holds."""
    row = {"output": "y", "error": 1.0, "budget": 2.0, "verdict": "ok", "fault": ""}
    verified = {"outputs": [row, {**row, "output": "z"}], "problems": [], "seconds": 2.5}
    blocks = [{"dimensions": {"n": n}, "speedup": 2.0, "verdict": "2.00x over default"} for n in (1, 2)]
    benched = {"blocks": blocks, "seconds": 3.0}
    for command, facts, seconds in (("verify", verified, "2.500"), ("bench", benched, "3.000")):
        suite = ElementTree.fromstring(junit(checks(command, facts)).encode())[0]
        assert suite.attrib["time"] == seconds


def test_junit_is_xml_whatever_the_text() -> None:
    """What XML cannot hold becomes a question mark."""
    root = ElementTree.fromstring(junit([Check(NASTY, NASTY, False, NASTY), Check("b", "c", True, NASTY)]).encode())
    (failure,) = root.findall(".//failure")
    assert failure.text is not None
    assert failure.text.startswith('a<b>&"c"|d`e`??]]>')
