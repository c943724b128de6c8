"""What the files for contributors say agrees with the project."""

import re
import tomllib
from pathlib import Path

import pytest
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


def test_each_package_has_its_place_in_the_table_of_tests() -> None:
    """Once, with folders and files that exist and hold tests."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[\w`, ]+`) \| (.*tests/.*) \|$", text, re.MULTILINE)
    packages = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    folders = [f.parent.name for f in (ROOT / "onnxfuse").glob("*/__init__.py")]
    assert sorted(packages) == sorted(folders)
    for _, places in rows:
        for place in re.findall(r"`(tests/[\w/.]+)`", places):
            path = ROOT / place
            assert path.is_file() or [*path.rglob("test_*.py")], place


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem)
def test_a_workflow_runs_what_the_makefile_has(workflow: Path) -> None:
    """By targets that exist, and actions by a commit that nobody can move."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    commands = " ".join(step.get("run", "") for step in steps)
    called = set(re.findall(r"\bmake ([\w-]+)", commands))
    assert called
    assert called <= targets
    for step in steps:
        if "uses" in step:
            assert re.search(r"@[0-9a-f]{40}$", step["uses"]), step["uses"]


def test_hooks_and_templates_are_read_by_what_they_are_for() -> None:
    """Hooks name commands that exist, with the keys that pre-commit wants; fields of issue templates have ids."""
    commands = {f.stem.removesuffix("_") for f in (ROOT / "onnxfuse" / "cli" / "commands").glob("*.py")}
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")):
        assert {"id", "name", "entry", "language"} <= hook.keys()
        program, command, *_ = hook["entry"].split()
        assert program == "onnxfuse"
        assert command in commands
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml"):
        template = yaml.safe_load(file.read_text(encoding="utf-8"))
        ids = [field["id"] for field in template["body"] if field["type"] != "markdown"]
        assert {"name", "description", "body"} <= template.keys()
        assert len(ids) == len({*ids}) > 0


def test_owners_are_of_folders_that_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert all(path == "*" or (ROOT / path.strip("/")).is_dir() for path in paths)
