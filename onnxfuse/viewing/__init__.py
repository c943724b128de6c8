"""Serve the report as a page: a model before and after fusion, with details computed on request.

`view` opens it; `server` handles HTTP, `view_page` holds the models.
"""

import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onnxfuse.api.request.options import Options
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.support.progress import Steps, silent
from onnxfuse.viewing.server import Server, listen
from onnxfuse.viewing.times import read_times, times_of
from onnxfuse.viewing.view_page import ViewPage, ViewRequest

if TYPE_CHECKING:
    from onnxfuse.measure.profile import Profile


@dataclass(frozen=True)
class View:
    """A page that is served until `close`; in a `with` block until its end."""

    url: str
    _shown: ViewPage = field(repr=False)
    server: Server = field(repr=False)
    _thread: threading.Thread = field(repr=False)

    @property
    def summary(self) -> str:
        """A description of what it shows, in one line."""
        return self._shown.summary

    def close(self) -> None:
        """Stop serving; closing again has no effect."""
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def wait(self) -> None:
        """Return when it is closed, by another thread or ^C; raises the exception that ended the work behind
        the page."""
        while self._thread.is_alive() and self._shown.failed is None:
            self._thread.join(0.5)  # on some systems a join without a timeout ignores signals
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
    fused: "Model | None",
    *,
    profile: "Profile | str | Path | None",
    shapes: Mapping[str, Sequence[int]] | None,
    rules: Sequence[str | Path],
    host: str,
    port: int,
    browser: bool,
) -> View:
    """Serve the page of the models and return it; see `onnxfuse.view`."""
    times = None
    if isinstance(profile, str | Path):
        times = read_times(Path(profile))
    elif profile is not None:
        times = times_of(profile.as_dict())
    request = ViewRequest(
        path_or_proto(model),
        None if fused is None else path_or_proto(fused),
        Options(tuple(Path(r) for r in rules)),
        times,
        {name: tuple(sizes) for name, sizes in (shapes or {}).items()},
        "onnxfuse.view(...)",
        {},
    )
    return serve(request, host, port, browser=browser)


def serve(request: ViewRequest, host: str, port: int, *, browser: bool = False, progress: Steps = silent) -> View:
    """Serve the requested page and return it; raises the same errors as `view`."""
    page = ViewPage(request, progress)
    progress("listen")
    server = listen(page, host, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="onnxfuse view", daemon=True)
    thread.start()
    if browser:
        webbrowser.open(server.url)
    return View(server.url, page, server, thread)
