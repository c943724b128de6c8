"""tests/unit mirrors the package: a module that makes decisions has a file of tests of its own."""

import pytest

from tools import mirror

WITHOUT = 27
"""Modules without one. It may only fall: a new module brings its tests, and a test that finds its place lowers it."""


def test_modules_without_tests_of_their_own_become_fewer() -> None:
    """`python -m tools.mirror` lists them."""
    without = [str(module.relative_to(mirror.ROOT)) for module in mirror.without()]
    assert len(without) == WITHOUT, f"now {len(without)}, of which those with most decisions: {without[:5]}"


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("files/io.py", "unit/files/test_io.py"),
        ("cli/commands/bench.py", "cli/test_bench.py"),
        ("explanation/inspecting.py", "cli/test_inspect.py"),
        ("cuda/templates/gemm/sm90.py", "emulator/test_gemm.py"),
    ],
)
def test_the_tests_of_a_module_are_found_by_its_name(module: str, tests: str) -> None:
    """In tests/unit, as its command shows it, or in the emulator by its template."""
    assert mirror.own_tests(mirror.PACKAGE / module) == mirror.TESTS / tests


def test_no_file_of_tests_stands_for_a_module_that_is_gone() -> None:
    """A folder of tests/unit is one of the package."""
    folders = {f.parent.relative_to(mirror.TESTS / "unit") for f in (mirror.TESTS / "unit").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (mirror.PACKAGE / folder).is_dir()] == []
