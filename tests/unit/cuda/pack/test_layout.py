"""The index of a kernel pack: whatever its bytes, it is read or refused."""

import dataclasses
import hashlib
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.cuda.launch_programs.tape import VERSION
from onnxfuse.cuda.pack import layout
from onnxfuse.cuda.pack.layout import HEADER, PackError
from onnxfuse.cuda.planning.arch import Arch
from tests.support.pack import TARGETS, parts, read


def sealed(index: bytes, rest: bytes) -> bytes:
    """Return a pack of another index, with the right hash."""
    size = HEADER.size + len(index) + len(rest)
    head = HEADER.pack(
        layout.MAGIC, layout.VERSION, VERSION, size, len(index), hashlib.sha256(index).digest(), b"p" * 32
    )
    return head + index + rest


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
