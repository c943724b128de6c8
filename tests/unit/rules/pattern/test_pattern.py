"""A rule file may come from anyone: what it opens to is told before it is opened, and what it leaves out is told."""

import time
from pathlib import Path

import pytest

from onnxfuse.rules.language import rule_file
from onnxfuse.rules.pattern.pattern import MOST_ENDS, MOST_OPERATORS
from onnxfuse.support.errors import RuleError


def part(name: str, *patterns: str) -> str:
    """Return the tables of a part, one for each spelling."""
    return "".join(f"[[part.{name}]]\npattern = '''(x) => (y) {{ {p} }}'''\n" for p in patterns)


def rule(pattern: str, parts: str = "", more: str = "", template: str = "row") -> str:
    """Return a rule file with one anchor."""
    return (
        f'summary = "A rule."\n[fuse]\ntemplate = "{template}"\n[[fuse.anchor]]\n'
        f"pattern = '''{pattern}'''\n{more}\n{parts}"
    )


DOUBLED = part("P0", "y = Relu (x)") + "".join(part(f"P{n + 1}", f"a = P{n} (x) y = P{n} (a)") for n in range(40))
ENDS = part("P0", "y = Relu (x)", "y = Abs (x)") + "".join(
    part(f"P{n + 1}", f"a = Relu (x) y = P{n} (a)", f"a = Abs (x) y = P{n} (a)") for n in range(40)
)
FILES = {
    "doubled": (rule("(x) => (y) { v = P40 (x) y = Softmax (v) }", DOUBLED),
                f"128 operators, at most {MOST_OPERATORS} are read"),
    "ends": (rule("(x) => (y) { v = Softmax (x) y = P40 (v) }", ENDS), f"spellings, at most {MOST_ENDS} are read"),
    "nothing": (rule("(x) => () { y = Softmax (x) }"), "the pattern yields nothing"),
    "all for one": (rule("(x) => (y) { y = Softmax <_: string = @all> (x) }", template="library",
                         more="realize = '''(x) => (y) { y = Softmax <axis: int = @all> (x) }'''"),
                    "uses 'all' for one, in its anchor it stands for all other attributes"),
    "one for all": (rule("(x) => (y) { y = Softmax <axis: int = @one> (x) }", template="library",
                         more="realize = '''(x) => (y) { y = Softmax <_: string = @one> (x) }'''"),
                    "uses 'one' for all others, in its anchor it stands for one attribute"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_is_told(tmp_path: Path, name: str) -> None:
    """At once, with file and line."""
    text, told = FILES[name]
    path = tmp_path / "mine.toml"
    path.write_text(text)
    start = time.process_time()
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert time.process_time() - start < 3
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
