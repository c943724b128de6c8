"""What setup.py says of the wheel that it builds."""

import runpy
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools", reason="setup.py is run where setuptools is installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("library", "platform"),
    [
        (b"..GLIBC_2.2.5..GLIBC_2.18..", "manylinux_2_28_x86_64"),
        (b"..GLIBC_2.36..GLIBC_2.2.5..", "manylinux_2_36_x86_64"),
        (b"", "manylinux_2_28_x86_64"),
    ],
)
def test_a_wheel_is_for_the_glibc_that_its_library_asks_for(
    library: bytes, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the functions that it is linked against, and never older than what the dependencies need."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **facts: None)
    assert runpy.run_path("setup.py")["with_glibc"]("linux_x86_64", library) == platform
