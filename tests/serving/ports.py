"""Ports for the servers of tests."""

import socket


def free_port() -> int:
    """Return a port that nothing listens to now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
