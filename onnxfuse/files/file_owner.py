"""Whether a file belongs to this user: what others wrote is not run."""

import os
import stat

READ_UNBLOCKED = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags to open a file for reading; opening a FIFO does not block."""
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag to refuse a link; Windows has none, and lets only administrators and developers make links."""


def is_mine(status: os.stat_result, *, or_root: bool = False) -> bool:
    """Return whether the file of this status belongs to this user, or to root.

    Windows has no user numbers; there the folders of a user are closed to other users.
    """
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() or (or_root and status.st_uid == 0)


def open_to_others(status: os.stat_result) -> bool:
    """Return whether anyone may write to the file; on Windows the bits do not say so."""
    return hasattr(os, "geteuid") and bool(status.st_mode & stat.S_IWOTH)
