"""What the pages point to is there: files, headings, make targets; and what the workflows run."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.replace("`", "").lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Links within the repository; code is left out, and so are pages with marks to fill in."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        place = page if not path else (page.parent / path)
        assert place.exists(), f"{target} is not there"
        if heading:
            assert heading in anchors(place), f"{target}: there is no such heading"


@pytest.mark.parametrize("page", ["HOW_IT_WORKS.md", "dev/ADDING.md", "dev/INTEGERS.md"])
def test_files_that_the_pages_for_developers_name_are_there(page: str) -> None:
    """Below the package or the repository; NAME, FOLDER and their like stand for what a reader writes."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`([a-z_\d/.]+/[A-Za-z_\d]+\.(?:py|cuh?|cpp|h|toml|md))`", text))
    assert named
    missing = [n for n in named if not any((folder / n).is_file() for folder in (ROOT, ROOT / "onnxfuse"))]
    assert not [n for n in missing if not re.search(r"NAME", n)], missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_are_there(page: Path) -> None:
    named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= TARGETS


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_run_what_there_is_and_pin_what_they_use(workflow: Path) -> None:
    """By the hash of a commit, which nobody can move; and they may only read."""
    facts = yaml.safe_load(workflow.read_text())
    assert facts["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        else:
            command, target = step["run"].split()
            assert (command, target in TARGETS) == ("make", True)
