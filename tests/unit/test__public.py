"""Errors and hints of Python functions name keywords, not flags."""

import pytest

import onnxfuse
from onnxfuse._public import say_in_python
from onnxfuse.options import functions


def test_sizes_in_a_hint_are_a_dict_in_python() -> None:
    """Or a list of dicts where the keyword takes several; a range, a placeholder and a command stay as they are."""
    told = {
        "Choose them: --shape N=8 --shape M=9.": "Choose them: `{}`.",
        "--shape N=1,2 is two": "`{name}` N=1,2 is two",
        "onnxfuse optimize --shape N=8": "onnxfuse optimize --shape N=8",
    }
    for group, name, value in (
        (functions.Tune, "sizes", "sizes=[{'N': 8, 'M': 9}]"), (functions.Optimize, "shapes", "shapes={'N': 8, 'M': 9}")
    ):  # fmt: skip
        for command, keyword in told.items():
            error = onnxfuse.UsageError("m", command)
            say_in_python(error, group)
            assert error.hint == keyword.format(value, name=name)


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("say --follow-links; else copy it", "say `follow_links=True`; else copy it"),
        ("Export with --no-batch.", "Export with `batch=False`."),
    ],
)
def test_a_switch_in_a_hint_has_its_value_in_python(hint: str, told: str) -> None:
    """As it is typed; what is wrong names the keyword alone."""
    error = onnxfuse.UsageError("--batch: there is no such dimension", hint)
    say_in_python(error, functions.ExportLibrary)
    assert (f"{error}", error.hint) == ("`batch`: there is no such dimension", told)
