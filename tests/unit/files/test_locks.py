"""Locks between processes: a file that is being written stays, one that nobody writes goes."""

import errno
import fcntl
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from onnxfuse.files import locks


def held(path: Path) -> int:
    """Return a handle of a file that is locked."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    locks.lock(handle)
    return handle


def test_a_locked_file_is_not_removed(tmp_path: Path) -> None:
    """As soon as its process lets go it is, and one that is gone is no error."""
    file = tmp_path / "f"
    handle = held(file)
    locks.remove_unlocked(str(file))
    assert file.exists()
    os.close(handle)
    locks.remove_unlocked(str(file))
    assert not file.exists()
    locks.remove_unlocked(str(file))
    assert locks.RENAMES_OPEN_FILES


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """What it leads to is somebody else's."""
    (tmp_path / "f").touch()
    (tmp_path / "link").symlink_to(tmp_path / "f")
    locks.remove_unlocked(str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").exists()


def test_a_folder_is_locked_while_the_block_runs(tmp_path: Path) -> None:
    """Another one would wait for it."""
    other = os.open(tmp_path, os.O_RDONLY)
    with locks.folder_locked(tmp_path) as locked:
        assert locked
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is locked, and nothing is taken for litter."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = tmp_path / "f"
    os.close(held(file))
    locks.remove_unlocked(str(file))
    assert file.exists()
    with locks.folder_locked(tmp_path) as locked:
        assert not locked


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Return what Windows's locks were asked for and where in the file, in a process that has them alone."""
    asked = list[tuple[int, int, int]]()

    def locking(handle: int, how: int, count: int) -> None:
        asked.append((how, count, os.lseek(handle, 0, os.SEEK_CUR)))

    windows = SimpleNamespace(LK_LOCK=1, LK_UNLCK=0, locking=locking)
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", windows)
    return asked


def test_on_windows_a_file_stands_for_the_folder(tmp_path: Path, calls: list[tuple[int, int, int]]) -> None:
    """One byte of it, until the block ends, also by an error."""

    def fail() -> None:
        with locks.folder_locked(tmp_path) as locked:
            assert locked
            assert calls == [(1, 1, 0)]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert calls == [(1, 1, 0), (0, 1, 0)]


def test_on_windows_a_lock_may_be_held(
    tmp_path: Path, calls: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the block runs without it; as without any kind of lock."""

    def refuse(*_: int) -> None:
        raise OSError

    monkeypatch.setattr(locks.msvcrt, "locking", refuse)
    with locks.folder_locked(tmp_path) as locked:
        assert not locked
    monkeypatch.setattr(locks, "msvcrt", None)
    with locks.folder_locked(tmp_path) as locked:
        assert not locked
    assert calls == []


def test_on_windows_an_open_file_cannot_be_removed(
    tmp_path: Path, calls: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it needs no lock; elsewhere without locks nothing is removed."""
    file = tmp_path / "f"
    file.touch()
    locks.lock(0)
    locks.remove_unlocked(str(file))
    assert file.exists()
    monkeypatch.setattr(sys, "platform", "win32")
    locks.remove_unlocked(str(file))
    assert not file.exists()
    locks.remove_unlocked(str(file))
    assert calls == []
