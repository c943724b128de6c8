"""HTTP server of the page, for one person: at an unguessable address, and inaccessible to pages of other sites.

A request is one of a few keywords followed by numbers and names; no file path is ever derived from it.
"""

import ipaddress
import json
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from onnxfuse.support.errors import OnnxfuseError, UsageError

PATIENCE = 30.0
"""Seconds for a request to arrive, so that a stalled one does not block a thread."""


class Shown(Protocol):
    """The served content."""

    page: str
    policy: str
    """Content security policy of the page."""

    @property
    def answers(self) -> Mapping[str, Callable[[Mapping[str, str]], Mapping[str, Any]]]:
        """Request handlers by keyword."""


class Server(ThreadingHTTPServer):
    """Serves one page, and the data that it requests, below a secret path."""

    daemon_threads = True
    allow_reuse_port = False

    def __init__(self, page: Shown, host: str, port: int) -> None:
        self.shown = page
        self.host = host
        self.secret = secrets.token_urlsafe(16)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the DNS lookup of the machine's own name that the standard library's server does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """Return the address of the page."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        name = f"[{anywhere}]" if ":" in anywhere else anywhere
        return f"http://{name}:{self.server_port}/{self.secret}/"

    def is_ours(self, host: str) -> bool:
        """Return whether a request's Host header is an address or our own name.

        A page of another site whose name resolves here (DNS rebinding) sends that name.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # an unclosed bracket, and other invalid hosts
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", self.host.lower())
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections; report others as the standard library does."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def listen(page: Shown, host: str, port: int) -> Server:
    """Return the server, bound and not yet serving; raises UsageError if it cannot be bound."""
    try:
        return Server(page, host, port)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}"
        raise UsageError(
            f"cannot listen at {host}, port {port}: {why}", "Without --port a free one is taken; --host is 127.0.0.1."
        ) from None


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "onnxfuse", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer with the page or with data."""
        if not self.server.is_ours(self.headers.get("Host", "")):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this host is not served here\n")
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", "this is no address\n")
            return
        secret, _, word = address.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "nothing here: use the complete address that was printed\n")
        elif not word:
            self._send(HTTPStatus.OK, "text/html", self.server.shown.page)
        elif word in self.server.shown.answers:
            self._answer(self.server.shown.answers[word], dict(parse_qsl(address.query)))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "nothing here\n")

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def _answer(self, answer: Callable[[Mapping[str, str]], Mapping[str, Any]], query: Mapping[str, str]) -> None:
        try:
            facts, status = answer(query), HTTPStatus.OK
        except OnnxfuseError as error:
            facts, status = {"error": f"{error}", "hint": error.hint}, HTTPStatus.UNPROCESSABLE_ENTITY
        self._send(status, "application/json", json.dumps(facts))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", errors="backslashreplace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", self.server.shown.policy),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: the terminal belongs to the command."""
