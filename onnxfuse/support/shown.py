"""Values as messages quote them."""


def shown(value: object) -> str:
    """Return a value quoted for a message: one line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
