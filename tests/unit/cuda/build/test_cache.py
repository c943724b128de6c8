"""The cache of compiled kernels: taken only where it is whole and ours, never needed, never larger than it may be."""

import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.cuda.build import cache

KEY, OTHER = "0" * 64, "f" * 64
CUBIN = b"\x7fELF and what a compiler makes" * 100


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, not made yet; warnings are told each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache._warn.cache_clear()
    return tmp_path / "onnxfuse"


def never() -> bytes:
    """Fail: the kernel should have been there."""
    raise AssertionError("made again")


def test_what_is_kept_is_not_made_again(place: Path) -> None:
    """By key; nobody else may look into the folder."""
    assert cache.get(KEY, lambda: CUBIN) == CUBIN
    assert cache.get(KEY, never) == CUBIN
    assert cache.get(OTHER, lambda: b"another") == b"another"
    assert cache.size()[0] == 2
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_programs_are_no_kernels(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor who counts kernels does not count them; where there is no room they go as kernels do."""
    cache.keep_programs(KEY, b"learned")
    cache.get(OTHER, lambda: CUBIN)
    assert cache.size()[0] == 1
    assert cache.find(KEY, cache.PROGRAMS) == b"learned"
    assert cache.find(KEY) is None
    monkeypatch.setattr(cache, "LIMIT", 0)
    cache.keep_programs(KEY, b"learned more")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\x7fELF" + b"anything that begins as a program does",
        lambda data: data[:-1],
        lambda data: data + b"more",
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: data.replace(bytes.fromhex(KEY), bytes.fromhex(OTHER)),
        lambda data: CUBIN,
    ],
    ids=["empty", "ELF", "cut", "longer", "a bit", "another key", "an entry of an older version"],
)
def test_a_damaged_entry_is_made_again_and_mended(place: Path, damage: Callable[[bytes], bytes]) -> None:
    """Whatever byte is wrong, the process runs what its compiler made; the next one finds it mended."""
    cache.get(KEY, lambda: CUBIN)
    (file,) = place.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert cache.get(KEY, lambda: CUBIN) == CUBIN
    assert cache.get(KEY, never) == CUBIN


@pytest.mark.parametrize("says_so", [False, True], ids=["longer than it says", "as long as it says"])
def test_an_entry_larger_than_the_memory_is_not_read(place: Path, says_so: bool) -> None:
    """A sparse file takes no room on the disk, and a terabyte where somebody reads it."""
    cache.get(KEY, lambda: CUBIN)
    (file,) = place.iterdir()
    os.truncate(file, 1 << 40)
    if says_so:
        with file.open("r+b") as stream:
            stream.seek(cache._HEADER - 8)
            stream.write(((1 << 40) - cache._HEADER).to_bytes(8, "little"))
    assert cache.get(KEY, lambda: CUBIN) == CUBIN
    assert cache.get(KEY, never) == CUBIN
    assert file.stat().st_size < 10_000


def test_an_entry_of_another_kernel_is_not_taken(place: Path) -> None:
    """A whole entry under a wrong name is none."""
    cache.get(KEY, lambda: CUBIN)
    (file,) = place.iterdir()
    file.rename(place / f"{OTHER}{cache.SUFFIX}")
    assert cache.get(OTHER, lambda: b"the right one") == b"the right one"


def test_a_link_in_the_cache_is_not_followed(place: Path, tmp_path: Path) -> None:
    """Where it leads may be anyone's."""
    cache.get(KEY, lambda: CUBIN)
    (file,) = place.iterdir()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY, lambda: b"made") == b"made"


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path.name, path)], ids=["FIFO", "folder", "circle"]
)
def test_what_is_no_file_is_not_waited_for(place: Path, make: Callable[[Path], None]) -> None:
    """Nor does it end the process, or what counts and clears the entries."""
    cache.get(OTHER, lambda: CUBIN)
    make(place / f"{KEY}{cache.SUFFIX}")
    open_before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a folder cannot be mended
        assert cache.get(KEY, lambda: CUBIN) == CUBIN
        assert cache.get(KEY, lambda: CUBIN) == CUBIN
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert cache.size()[0] == (1 if make is os.mkdir else 2)
    cache.evict(place)
    assert cache.get(OTHER, never) == CUBIN


def test_a_folder_that_others_could_write_is_closed(place: Path) -> None:
    """As older versions left it."""
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    cache.get(KEY, lambda: CUBIN)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_folder_of_another_user_is_neither_read_nor_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels would run in this process."""
    cache.get(KEY, lambda: CUBIN)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert cache.get(KEY, lambda: b"made") == b"made"
    assert len(list(place.iterdir())) == 1


def _file_in_its_place(place: Path, _: pytest.MonkeyPatch) -> None:
    place.write_text("")


def _no_home(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)


def _full_disk(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)


def _read_only(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)


@pytest.mark.parametrize("trouble", [_file_in_its_place, _no_home, _full_disk, _read_only])
def test_without_a_cache_kernels_are_compiled_in_memory(
    place: Path, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    """A warning, once, with what to do; no litter; the run goes on."""
    trouble(place, monkeypatch)
    with pytest.warns(RuntimeWarning, match="are not kept.*XDG_CACHE_HOME"):
        assert cache.get(KEY, lambda: CUBIN) == CUBIN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(KEY, lambda: CUBIN) == CUBIN
    assert not place.is_dir() or not list(place.iterdir())


def test_what_was_used_longest_ago_goes_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Using an entry keeps it; what a killed process left in the midst of writing goes, what is being written stays."""
    keys = [f"{n:064x}" for n in range(4)]
    for age, key in enumerate(reversed(keys)):
        cache.get(key, lambda: CUBIN)
        os.utime(place / f"{key}{cache.SUFFIX}", (10_000 + age, 10_000 + age))
    old, new = place / f"tmpold{cache.TEMPORARY}", place / f"tmpnew{cache.TEMPORARY}"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    cache.get(keys[3], never)  # the oldest until now
    monkeypatch.setattr(cache, "LIMIT", 2 * (len(CUBIN) + 200))
    cache.evict(place)
    left = {f.stem for f in place.glob(f"*{cache.SUFFIX}")}
    assert left == {keys[0], keys[3]}
    assert (old.exists(), new.exists()) == (False, True)
