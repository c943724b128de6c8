"""An annotation is one line, whatever the text."""

from onnxfuse.reporting.annotations import annotations
from onnxfuse.reporting.checks import Check

NASTY = 'a<b>&"c"|d`e`\x00\x1b]]>\n::error::% ,'


def test_an_annotation_is_one_line_whatever_the_text() -> None:
    """No text can end the command or begin another."""
    (line,) = annotations([Check("g", NASTY, False, NASTY, file="a,b.toml", line=3), Check("g", "fine", True, "")])
    assert "\n" not in line
    assert line.startswith("::error file=a%2Cb.toml,line=3,title=onnxfuse g%3A a<b>")
    assert line.endswith("%0A::error::%25 ,")
