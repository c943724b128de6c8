"""Sizes and rates with their units, for people."""


def megabytes(size: int) -> str:
    """Format the size of a file."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def size_text(size: float) -> str:
    """Format a number of bytes."""
    return _in_units(size, "B")


def flops_text(count: float) -> str:
    """Format a number of floating-point operations."""
    return _in_units(count, "FLOP")


def digits(value: float) -> str:
    """Format a number by four digits or more, never by a power of ten: 0.8626, 411.5, 43000."""
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"


def _in_units(value: float, unit: str) -> str:
    """Format three digits and a prefix: 616 MB, 4.02 kFLOP, 236 B."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return (
                f"{value / size:.3g} {prefix}{unit}" if value < 999.5 * size else f"{value / size:.0f} {prefix}{unit}"
            )
    return f"{value:.0f} {unit}"
