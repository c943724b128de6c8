"""The bytes of a kernel pack: what is written is read again, and nothing else is taken for a pack."""

import dataclasses
import hashlib
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.cuda.launch_programs.tape import VERSION
from onnxfuse.cuda.pack import file, layout
from onnxfuse.cuda.pack.layout import HEADER, PTX, PackEntry, PackError, StoredProgram, Target
from onnxfuse.cuda.planning.arch import Arch

TARGETS = (Target(Arch("sm_90a", 132)), Target(Arch("sm_86", 132, 1536), PTX))


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is trusted be remembered in a folder that was empty before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


OPS = (
    PackEntry(
        "Gelu_1",
        b"g" * 32,
        (10, 10),
        (10,),
        (0,),
        (StoredProgram(0, True, (0, 1), b"tape"), StoredProgram(1, False, (2,), b"")),
    ),
    PackEntry("Norm_2", b"n" * 32, (1, 7), (1, 1), (), (), (1,)),
)
KERNELS = [("gelu", 0, b"first image"), ("gelu", 0, b"second"), ("gelu", 1, b"first image")]


def parts() -> bytes:
    return b"".join(layout.packed('{"ranges": {}}', TARGETS, OPS, KERNELS, b"p" * 32)[1])


def read(data: bytes) -> layout.PackIndex:
    head = layout.head_of(data[: HEADER.size], len(data))
    return layout.index_of(data[HEADER.size : HEADER.size + head.index], head)


def sealed(index: bytes, rest: bytes) -> bytes:
    """Return a pack of another index, with the right hash."""
    size = HEADER.size + len(index) + len(rest)
    head = HEADER.pack(
        layout.MAGIC, layout.VERSION, VERSION, size, len(index), hashlib.sha256(index).digest(), b"p" * 32
    )
    return head + index + rest


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


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_byte_of_an_index_leads_astray(data: st.DataObject) -> None:
    """With the right hash over wrong words: it is refused, or every number in it is in its bounds."""
    whole = parts()
    head = layout.head_of(whole[: HEADER.size], len(whole))
    index, rest = bytearray(whole[HEADER.size : HEADER.size + head.index]), whole[HEADER.size + head.index :]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(index) - 4))
        word = data.draw(st.sampled_from([0, 1, 2, 3, 7, 255, 2**16, 2**31, 2**32 - 1]))
        struct.pack_into("<I", index, at, word)
    cut = data.draw(st.sampled_from([len(index), len(index) - 1, 5, 0]))
    try:
        found = read(sealed(bytes(index[:cut]), rest))
    except PackError:
        return
    size = HEADER.size + cut + len(rest)
    assert all(HEADER.size + cut <= k.offset <= k.offset + k.size <= size for k in found.kernels)
    assert all(k.target < len(found.targets) for k in found.kernels)
    for program in (p for op in found.ops for p in op.programs):
        assert all(found.kernels[n].target == program.target for n in program.kernels)


def test_what_says_that_it_has_much_takes_no_memory() -> None:
    """Counts and lengths of 4 billion in a file of 200 bytes end at once."""
    for index in (
        struct.pack("<I", 2**32 - 1),
        struct.pack("<II", 0, 2**32 - 1),
        struct.pack("<III", 0, 0, 2**32 - 1),
        struct.pack("<IIII", 0, 0, 0, 2**32 - 1),
    ):
        with pytest.raises(PackError, match="ends too early"):
            read(sealed(index, b""))
    with pytest.raises(PackError, match="more behind its end"):
        read(sealed(struct.pack("<IIII", 0, 0, 0, 0) + b"more", b""))
    head = HEADER.pack(layout.MAGIC, layout.VERSION, VERSION, 2**50, 2**40, b"", b"")
    with pytest.raises(PackError, match="more than there can be"):
        layout.head_of(head, 2**50)


@pytest.mark.parametrize(
    ("at", "words"), [(8, f"version {layout.VERSION + 1}.{VERSION}"), (12, f"version {layout.VERSION}.{VERSION + 1}")]
)
def test_another_version_is_told(at: int, words: str) -> None:
    data = bytearray(parts())
    data[at] += 1
    with pytest.raises(PackError, match=re.escape(words)):
        read(bytes(data))


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


def test_a_gpu_that_contradicts_itself_is_refused() -> None:
    """What a plan may rely on, as shared memory, follows from the architecture; a pack cannot say otherwise."""
    lying = dataclasses.replace(TARGETS[0], arch=Arch("sm_90a", 0))
    with pytest.raises(PackError, match="there is not"):
        read(b"".join(layout.packed("", (lying,), (), [], b"p" * 32)[1]))


def test_the_format_is_told() -> None:
    """docs/KERNEL_PACK.md, which others read packs by, has this version and these sizes."""
    text = (Path(__file__).parents[4] / "docs" / "KERNEL_PACK.md").read_text()
    assert f"version {layout.VERSION}" in text
    assert f"`OFLP`, version {VERSION}" in text
    assert f"{HEADER.size} bytes" in text
    assert layout.MAGIC.decode() in text
