"""`onnxfuse view`: the page's address is printed, and ^C ends it."""

import json
import urllib.request
from pathlib import Path

import pytest

from onnxfuse.cli.commands import view
from onnxfuse.viewing import View
from tests.cli.conftest import Command


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a visitor saw while the command waited, until ^C."""
    seen = list[str]()

    def wait(self: View) -> None:
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            seen.append(answer.read().decode())
        seen.append(self.url)
        raise KeyboardInterrupt

    monkeypatch.setattr(View, "wait", wait)
    return seen


def test_the_page_is_served_until_it_is_ended(folder: Path, onnxfuse_command: Command, visited: list[str]) -> None:
    """It exits as a success, and nobody answers any more."""
    result = onnxfuse_command("view", "in.onnx", "--no-browser")
    page, url = visited
    assert result.code == 0
    assert url in result.out
    assert "^C ends it" in result.out
    assert "<html" in page
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


def test_programs_get_the_address_as_json(folder: Path, onnxfuse_command: Command, visited: list[str]) -> None:
    """At once, on one line: they read it while the page is served."""
    facts = json.loads(onnxfuse_command("view", "in.onnx", "--no-browser", "--json").out)
    assert (facts["ok"], facts["url"]) == (True, visited[1])


@pytest.mark.parametrize(("variables", "platform", "opened"), [
    ({"DISPLAY": ":0"}, "linux", True), ({"WAYLAND_DISPLAY": "w"}, "linux", True), ({}, "linux", False),
    ({}, "darwin", True), ({}, "win32", True),
])  # fmt: skip
def test_a_browser_is_opened_where_there_is_a_display(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], platform: str, opened: bool
) -> None:
    """Not on a server."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert view._has_display() is opened


def test_a_file_that_is_no_profile_is_refused(folder: Path, onnxfuse_command: Command) -> None:
    """Before anything is served."""
    (folder / "times.json").write_text("{}")
    result = onnxfuse_command("view", "in.onnx", "--no-browser", "--profile", "times.json")
    assert result.code == 3
    assert "times.json: is not what onnxfuse profile --json prints" in result.err
