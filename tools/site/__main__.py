"""Build the site: `python -m tools.site`, into build/site; `--serve` shows it on this machine.

A link that leads nowhere, a page that no menu has and a menu entry without a page are errors. The site holds all that
it shows: it makes no request, and works from a folder without a server.
"""

import logging
import re
import shutil
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from onnxfuse.support.errors import UsageError
from tools.site.pages import ROOT, Menu, menu, pages

LOOK = Path(__file__).with_name("look")
ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=[\"']?(https?:[^\"' >]+)")
"""What a page would ask another host for; a link that a reader may follow is none."""


def written(folder: Path) -> None:
    """Write the Markdown of all pages, and what the theme adds, into `folder`; what was there before is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    shutil.copytree(LOOK, folder / "look")


def built(folder: Path, sources: Path) -> None:
    """Make the site of the Markdown in `sources`; raises mkdocs' Abort where a page is not right, or not whole."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(sources), site_dir=str(folder), nav=_nav(menu()), strict=True
    )
    build(config)
    for page in folder.rglob("*.html"):
        if found := ELSEWHERE.search(page.read_text(encoding="utf-8")):
            raise Abort(f"{page.relative_to(folder)} asks another host: {found[1]}")


def _nav(entries: Menu) -> list[dict[str, object]]:
    """Return a menu as mkdocs writes it."""
    return [{title: inner if isinstance(inner, str) else _nav(inner)} for title, inner in entries]


@click.command()
@click.option("--out", default="build/site", show_default=True, type=click.Path(path_type=Path))
@click.option("--serve", is_flag=True, help="Show it on http://127.0.0.1:8000 until ^C.")
def main(out: Path, serve: bool) -> None:
    """Build the documentation site; exit 1 where a link or a page is missing."""
    from mkdocs.exceptions import Abort

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    sources = out.with_name(f"{out.name}.pages").resolve()
    try:
        written(sources)
        built(out.resolve(), sources)
    except (Abort, UsageError) as error:
        sys.exit(f"the site is not right: {error}")
    click.echo(f"{len(list(out.rglob('*.html')))} pages: {out}/index.html")
    if serve:
        handler = partial(SimpleHTTPRequestHandler, directory=str(out))
        with ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
            server.serve_forever()


if __name__ == "__main__":
    main()
