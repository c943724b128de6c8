"""A badge for a README: how many models pass, as a small SVG that needs no service."""

from html import escape

GREEN, RED, GREY = "#1a7f37", "#cf222e", "#5b6b7b"
LETTER, PAD = 7.0, 8
"""Pixels of a letter, and beside the text."""


def badge(label: str, message: str, *, ok: bool) -> str:
    """Return the badge: the label on grey, the message on green or red."""
    left, right = (round(len(text) * LETTER) + 2 * PAD for text in (label, message))
    texts = "".join(
        f'<text x="{x}" y="14" text-anchor="middle">{escape(text)}</text>'
        for x, text in ((left / 2, label), (left + right / 2, message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(message)}"><clipPath id="r">'
        f'<rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="{GREY}"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{GREEN if ok else RED}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )
