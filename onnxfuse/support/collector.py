"""Python's cyclic garbage collector, run less often while a model is optimized."""

import contextlib
import gc
import threading
from collections.abc import Iterator

OBJECTS = 50_000
"""New objects between two collections. Each visits the live ones, which a graph has hundreds of thousands of, and
almost none are in cycles.
"""

_LOCK = threading.Lock()
_RUNNING: list[tuple[int, int, int]] = []
"""The thresholds found by each of the blocks that run now, in several threads; the first are the process's own."""


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect garbage every OBJECTS new objects, if at all, in the `with` block or in the function so decorated."""
    with _LOCK:
        own = _RUNNING[0] if _RUNNING else gc.get_threshold()
        _RUNNING.append(own)
        if own[0]:  # 0 switches collection off
            gc.set_threshold(max(own[0], OBJECTS), *own[1:])
    try:
        yield
    finally:
        with _LOCK:
            _RUNNING.pop()
            if not _RUNNING:
                gc.set_threshold(*own)
