"""The report as a page that is served: a model before and after, with what is made on request beside it.

`view` opens it; `server` speaks HTTP, `showing` knows the models.
"""

import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import TracebackType
from typing import Self

from onnxfuse.api.options import Options, Progress, silent
from onnxfuse.api.source import Model, plain
from onnxfuse.viewing.server import Server, listen
from onnxfuse.viewing.showing import Asked, Showing
from onnxfuse.viewing.times import Times

LOCAL = "127.0.0.1"
"""Nobody on another machine can ask."""


@dataclass(frozen=True)
class View:
    """A page that is being served until `close`; in a `with` block until its end."""

    url: str
    _shown: Showing = field(repr=False)
    server: Server = field(repr=False)
    _thread: threading.Thread = field(repr=False)

    @property
    def summary(self) -> str:
        """What it shows, in one line."""
        return self._shown.summary

    def close(self) -> None:
        """End it; to do so again is no mistake."""
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def wait(self) -> None:
        """Return when it is closed, from another thread or by ^C; raises what ended the work behind the page."""
        while self._thread.is_alive() and self._shown.failed is None:
            self._thread.join(0.5)  # a join without an end hears no signal on every system
        if self._shown.failed is not None:
            raise self._shown.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<p>{escape(self.summary)}: <a href="{url}" target="_blank" rel="noopener">{url}</a></p>'


def view(
    model: Model,
    fused: "Model | None" = None,
    *,
    options: Options | None = None,
    profile: Times | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    host: str = LOCAL,
    port: int = 0,
    browser: bool = False,
    call: str = "",
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> View:
    """Return the page of `model` and `fused`, which is being served; as `onnxfuse.view`.

    `profile`: see `times`. `call`, `environment`: what the page tells of how it was made. Raises ModelError,
    UsageError, RuleError.
    """
    asked = Asked(
        plain(model),
        None if fused is None else plain(fused),
        options or Options(),
        profile,
        shapes or {},
        call,
        environment or {},
    )
    shown = Showing(asked, progress)
    progress("listen")
    server = listen(shown, host, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="onnxfuse view", daemon=True)
    thread.start()
    if browser:
        webbrowser.open(server.url)
    return View(server.url, shown, server, thread)
