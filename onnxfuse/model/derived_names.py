"""Names of values that hold a value of the original in another form: its own name, then what the form is."""

import re

CHANNELS_LAST = ".nhwc"
"""With its channels last."""
SHIFTED = ".shifted"
"""Of int8 in uint8 or of uint8 in int8, each number 128 higher or lower."""


_FORM = re.compile(rf"(?P<own>.*?)(?P<shifted>{re.escape(SHIFTED)})?(?P<last>{re.escape(CHANNELS_LAST)})?(_\d+)?")
"""A value that has its form twice has the second one numbered."""


def original_name(name: str) -> tuple[str, bool, bool]:
    """Return the original's name of a value, whether its channels are last here, and whether it is shifted.

    >>> original_name("a.shifted.nhwc")
    ('a', True, True)
    >>> original_name("a.nhwc_1")
    ('a', True, False)
    >>> original_name("a_1")
    ('a_1', False, False)
    """
    found = _FORM.fullmatch(name)
    if found is None or not (found["shifted"] or found["last"]):
        return name, False, False
    return found["own"], bool(found["last"]), bool(found["shifted"])
