"""The bytes of a kernel pack: what is written is read again, and nothing else is taken for a pack."""

import os
from pathlib import Path

import pytest

from onnxfuse.cuda.pack import file, layout
from onnxfuse.cuda.pack.layout import HEADER, PackError
from tests.support.pack import KERNELS, OPS, TARGETS, parts, read


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is trusted be remembered in a folder that was empty before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    data = parts()
    index = read(data)
    assert (index.targets, index.ops) == (TARGETS, OPS)
    assert [(k.entry, k.target) for k in index.kernels] == [(e, t) for e, t, _ in KERNELS]
    path = tmp_path / "m.onnx.kernels"
    path.write_bytes(data)
    pack = file.opened(path, named=True)
    assert [pack.image(k) for k in index.kernels] == [image for _, _, image in KERNELS]
    assert index.kernels[0].offset == index.kernels[2].offset  # what is equal is there once
    assert layout.sizes(index) == {"sm_90a": (2, 17), "compute_86": (1, 11)}


def test_a_pack_that_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    """A session that is open reads its own kernels, whatever has taken their place."""
    path, other = tmp_path / "m.onnx.kernels", tmp_path / "other"
    path.write_bytes(parts())
    pack = file.opened(path, named=True)
    other.write_bytes(b"something else")
    os.replace(other, path)
    assert pack.image(pack.index.kernels[1]) == b"second"


def test_an_open_pack_holds_one_handle(tmp_path: Path) -> None:
    """It goes with the pack; one that is none leaves none."""
    path = tmp_path / "m.onnx.kernels"
    path.write_bytes(parts())
    before = len(os.listdir("/proc/self/fd"))
    pack = file.opened(path, named=True)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del pack
    path.write_bytes(b"none")
    with pytest.raises(PackError):
        file.opened(path, named=False)
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_may_write_a_pack(tmp_path: Path) -> None:
    """One that everybody can write is taken where it is named; so is a link."""
    path, link = tmp_path / "m.onnx.kernels", tmp_path / "n.onnx.kernels"
    path.write_bytes(parts())
    link.symlink_to(path)
    path.chmod(0o666)
    assert file.opened(path, named=True).index == file.opened(link, named=True).index
    for place, words in ((path, "can be written by anyone"), (link, "is a link")):
        with pytest.raises(PackError, match=words):
            file.opened(place, named=False)
    with pytest.raises(PackError, match="can be written by anyone"):
        file.opened(link, named=False, links=True)
    path.chmod(0o644)
    file.trust(path)
    assert file.opened(link, named=False, links=True).path == link
    with pytest.raises(FileNotFoundError):
        file.opened(tmp_path / "nowhere", named=True)


def test_a_pack_that_was_not_compiled_here_is_trusted_once(tmp_path: Path) -> None:
    """Whoever unpacks a stranger's model owns its files: that they are his says nothing. Trust is in what a pack holds:
    a copy of it is trusted, another one under its name is not."""
    path, copy = tmp_path / "m.onnx.kernels", tmp_path / "other.onnx.kernels"
    path.write_bytes(parts())
    copy.write_bytes(parts())
    for _ in range(2):
        with pytest.raises(PackError, match=r"m\.onnx --trust-pack"):
            file.opened(path, named=False)
    assert file.trust(path).index == file.opened(path, named=False).index == file.opened(copy, named=False).index
    changed = b"".join(layout.packed('{"ranges": {"N": [1, 2]}}', TARGETS, OPS, KERNELS, b"p" * 32)[1])
    path.write_bytes(changed)
    with pytest.raises(PackError, match="was not compiled here"):
        file.opened(path, named=False)
    forged = parts()[: HEADER.size] + changed[HEADER.size :]
    path.write_bytes(forged + bytes(max(0, len(parts()) - len(forged))))
    with pytest.raises(PackError):
        file.opened(path, named=False)
