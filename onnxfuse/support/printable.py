"""Escape names from untrusted files for display on terminals, in logs and in reports."""

import re


def printable(text: str) -> str:
    """Return `text` with everything escaped that a terminal or a log would interpret: controls, bidirectional marks.

    Line ends are kept. Lines that begin like a GitHub workflow command (`::error`, `##[error]`) are escaped.

    >>> printable("a\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    escaped = controls_written_out(text)
    escaped = re.sub(r"^(\s*):(?=:)", r"\1\\x3a", escaped, flags=re.MULTILINE)
    return escaped.replace("##[", "#\\x23[")


def controls_written_out(text: str) -> str:
    """Return `text` with control and invisible characters other than line ends escaped."""
    return _CONTROLS.sub(lambda found: _written_out(found[0]), text)


_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Unicode's control characters, invisible formats such as right-to-left, surrogates, and other line ends."""


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
