"""What the files for contributors say agrees with the project."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^(ruff|clang-format)==(\S+)$")


def _pinned(requirements: list[str]) -> dict[str, str]:
    return {match[1]: match[2] for r in requirements if (match := PINNED.match(r))}


def test_commit_hooks_run_the_formatters_of_make_check() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    expected = _pinned(project["optional-dependencies"]["dev"])
    assert set(expected) == {"ruff", "clang-format"}
    for hook in hooks:
        ((name, version),) = _pinned(hook["additional_dependencies"]).items()
        assert version == expected[name], hook["id"]


def test_the_changelog_has_a_section_for_what_is_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## Unreleased$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] in text
