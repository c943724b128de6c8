"""What the pages point to is there: files, headings, make targets; and what the workflows run."""

import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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


DEVELOPERS = ["HOW_IT_WORKS.md", "dev/ADDING.md", "dev/INTEGERS.md"]
FOLDERS = (ROOT, ROOT / "onnxfuse")
"""What paths on the pages for developers are below of."""


def without_blocks(page: str) -> str:
    return re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", DEVELOPERS)
def test_paths_that_the_pages_for_developers_name_are_there(page: str) -> None:
    """Files and folders; NAME, FOLDER and their like stand for what a reader writes, DIR for what a command writes."""
    named = set(
        re.findall(r"`(\.?[A-Za-z_\d]+(?:/[A-Za-z_\d.-]+)+/?|[a-z_\d]+\.(?:py|cuh?|cpp|toml))`", without_blocks(page))
    )
    assert named
    missing = {n for n in named if not any((folder / n).exists() for folder in FOLDERS)}
    assert not {n for n in missing if not re.search(r"NAME|FOLDER|ROOM|DIR|ARCH", n)} - ELSEWHERE


ELSEWHERE = {"main.py", "fuse.py", "attach.py", "template.py", "costs.py", "variant.py", "onnxfuse.toml"}
"""Files that stand in a folder that the same row names, or in a user's project."""


@pytest.mark.parametrize("page", DEVELOPERS)
def test_names_behind_a_path_are_in_that_file(page: str) -> None:
    """As in `files/io.py` (`load`), and in `launch_kernel` in `engine/op.cpp`."""
    text = without_blocks(page)
    behind = re.findall(r"`([\w/]+\.(?:py|cpp|h))`\s+\(((?:`\w+`(?:, )?)+)\)", text)
    before = re.findall(r"((?:`\w+`))\s+(?:in|of)\s+`([\w/]+\.(?:py|cpp|h))`", text)
    pairs = [*behind, *((path, names) for names, path in before)]
    for path, names in pairs:
        (source,) = [(folder / path).read_text(encoding="utf-8") for folder in FOLDERS if (folder / path).is_file()]
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", source), f"`{name}` is not in {path}"
    assert pairs or page == "dev/INTEGERS.md"


@pytest.mark.parametrize("page", DEVELOPERS)
def test_names_on_the_pages_for_developers_are_names_of_the_code(page: str) -> None:
    """Classes, functions, constants, make targets: a name that was changed is changed there, too."""
    named = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", without_blocks(page)))
    words = {
        word
        for name in named
        if not re.fullmatch(r"[\w.]+\.(?:py|cuh?|cpp|h|toml|md)", name)
        for word in name.split(".")
    }
    assert words
    assert sorted(words - words_of_the_code()) == []


@cache
def words_of_the_code() -> frozenset[str]:
    listed = subprocess.run(
        ["git", "ls-files", "onnxfuse", "engine", "rules/*.toml", "tests", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    sources = (ROOT / name for name in listed if re.search(r"\.(py|cuh?|cpp|h|toml)$|Makefile", name))
    own = Path(__file__)
    texts = (path.read_text(encoding="utf-8") for path in sources if path != own)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text)) | {Path(n).stem for n in listed}


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
            calls = re.findall(r"^make ([a-z-]+)", step["run"], re.MULTILINE)
            assert set(calls) <= TARGETS
            assert calls or workflow.stem == "release"


def test_modules_that_processes_are_started_with_are_there() -> None:
    """Their names are strings, which no import and no type checker checks; and those in texts are commands to copy."""
    written = re.compile(r'"-m", "([\w.]+)"|python -m ([a-z][a-z0-9_.]*[a-z0-9])')
    others = {"tf2onnx.convert"}  # of packages that need not be installed
    names = {
        (name, str(file.relative_to(ROOT)))
        for folder in ("bench", "docs", "models", "onnxfuse", "tests", "tools")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".md", ".toml")
        for names in written.findall(file.read_text(encoding="utf-8"))
        for name in {*names} - {"", *others}
    }
    assert len({name for name, _ in names}) > 20
    assert not [found for found in sorted(names) if importlib.util.find_spec(found[0]) is None]
