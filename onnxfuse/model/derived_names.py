"""Names of values that hold a value of the original in another form: its own name, then what the form is."""

CHANNELS_LAST = ".nhwc"
"""With its channels last."""
SHIFTED = ".shifted"
"""Of int8 in uint8 or of uint8 in int8, each number 128 higher or lower."""


def original_name(name: str) -> tuple[str, bool, bool]:
    """Return the original's name of a value, whether its channels are last here, and whether it is shifted.

    >>> original_name("a.shifted.nhwc")
    ('a', True, True)
    """
    plain = name.removesuffix(CHANNELS_LAST)
    own = plain.removesuffix(SHIFTED)
    return own, plain != name, own != plain
