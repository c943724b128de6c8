"""Writing: links and devices stay what they are, writers do not mix, and the killed leave nothing for good."""

import fcntl
import os
import resource
import signal
import stat
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.files import atomic_write, external, io, locks
from onnxfuse.files.atomic_write import SUFFIX, temporary
from onnxfuse.support import process_limits
from onnxfuse.support.errors import ModelError
from tests.fuzz import kills


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit so small that the weights go into a file beside the model."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", kills.LIMIT)


def names(folder: Path) -> list[str]:
    """Return what is in `folder`."""
    return sorted(p.name for p in folder.iterdir())


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    """A relative link, one to a link, one to what is not there yet."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.onnx").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real/m.onnx")
    (tmp_path / "again").symlink_to("link")
    (tmp_path / "new").symlink_to("real/new.onnx")
    for link, target in (("link", "m.onnx"), ("again", "m.onnx"), ("new", "new.onnx")):
        io.save(kills.model(1), tmp_path / link)
        assert (tmp_path / link).is_symlink()
        assert io.load(tmp_path / "real" / target).graph.name == "version 1"
    assert names(tmp_path / "real") == ["m.onnx", "new.onnx"]


def test_a_device_is_written_through(tmp_path: Path) -> None:
    """/dev/null is a device before and after; so is what a link leads to."""
    (tmp_path / "link").symlink_to(os.devnull)
    for path in (Path(os.devnull), tmp_path / "link"):
        io.save(kills.model(1), path)
        io.write_text(path, "text")
        assert stat.S_ISCHR(path.stat().st_mode)
    assert names(tmp_path) == ["link"]
    assert not list(Path("/dev").glob(f".null*{SUFFIX}"))


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    """Whoever reads it gets the whole model, and the pipe is still there."""
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    io.save(kills.model(3), pipe)
    reader.join()
    assert onnx.ModelProto.FromString(got[0]) == kills.model(3)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


@pytest.mark.usefixtures("beside")
def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """A folder, links in a circle; weights beside a device, or beside a link into another folder."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "link").symlink_to("folder/m.onnx")
    for place, told in (
        (tmp_path / "folder", "is a directory"),
        (tmp_path / "circle", "cannot be written"),
        (Path(os.devnull), "is not a regular file, and a model over 2 GB"),
        (tmp_path / "link", "is a link into .*folder"),
    ):
        with pytest.raises(ModelError, match=told):
            io.save(kills.model(1), place)
    assert names(tmp_path) == ["circle", "folder", "link"]
    assert names(tmp_path / "folder") == []


@pytest.mark.usefixtures("beside")
def test_an_error_between_the_data_and_the_model_leaves_the_old_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data is another file than the new one's."""
    path = tmp_path / "out.onnx"
    io.save(kills.model(1), path)
    replaced = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target) == path:
            raise OSError(28, "No space left on device")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ModelError, match="No space left"):
        io.save(kills.model(2), path)
    monkeypatch.undo()
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", kills.LIMIT)
    assert io.load(path).graph.name == "version 1"
    assert not kills.mixed(path)
    io.save(kills.model(3), path)
    assert len(names(tmp_path)) == 2


@pytest.mark.usefixtures("beside")
def test_the_data_of_a_former_model_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other models' data stays, whatever it is called; a model without data leaves none."""
    others = ["out.onnx.data", "other.onnx.0123456789abcdef.data", "out.onnx.0123.data"]
    for other in others:
        (tmp_path / other).write_bytes(b"not ours")
    for version in (1, 2):
        io.save(kills.model(version), tmp_path / "out.onnx")
    assert len(names(tmp_path)) == 2 + len(others)
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 10**9)
    io.save(kills.model(2), tmp_path / "out.onnx")
    assert names(tmp_path) == sorted(["out.onnx", *others])


def test_litter_is_collected_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    """The lock goes with its process."""
    path = tmp_path / "out.onnx"
    litter = tmp_path / f".out.onnx.abcd1234{SUFFIX}"
    anothers = tmp_path / f".other.onnx.abcd1234{SUFFIX}"
    for file in (litter, anothers):
        file.write_bytes(b"half a model")
    with temporary(path) as (_, living):
        io.save(kills.model(1), path)
        assert (litter.exists(), anothers.exists(), living.exists()) == (False, True, True)


def test_writers_that_are_killed_leave_no_mixture_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of `python -m tests.fuzz.kills`, which does it 500 times."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", io.PROTOBUF_LIMIT)  # set by the run, and set back here
    seen = kills.run(tmp_path, 25, 1)
    assert (seen["mixed"], seen["litter"]) == (0, 0)


# ---- data files


def _hub(folder: Path) -> Path:
    """Return a model as the cache of a model hub has it: links to files that are called by their hashes."""
    (folder / "blobs").mkdir(parents=True)
    snapshot = folder / "snapshots" / "1f2e"
    snapshot.mkdir(parents=True)
    onnx.save(kills.model(5), folder / "m.onnx", save_as_external_data=True, location="m.onnx_data", size_threshold=0)
    for name, blob in (("m.onnx", "aaaa"), ("m.onnx_data", "bbbb")):
        (folder / name).rename(folder / "blobs" / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot / "m.onnx"


def test_links_out_of_the_folder_are_followed_when_asked(tmp_path: Path) -> None:
    """Without being asked they are refused, with where they lead and the option that allows it."""
    path = _hub(tmp_path)
    with pytest.raises(ModelError, match=r"m\.onnx_data is a link to .*bbbb, outside the model's folder") as caught:
        io.load(path)
    assert "--follow-links" in caught.value.hint
    with external.following_links():
        assert not kills.mixed(path)
    with pytest.raises(ModelError):
        io.load(path)


@pytest.mark.parametrize("location", ["../m.data", "/etc/hostname", "a/../../m.data", "", "x\0y"])
def test_no_flag_lets_a_file_name_what_is_elsewhere(tmp_path: Path, location: str) -> None:
    """A link is made by who owns the folder, a name by who wrote the model."""
    odd = kills.model(1)
    tensor = odd.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "inner").mkdir()
    (tmp_path / "m.data").write_bytes(bytes(100_000))
    (tmp_path / "inner" / "m.onnx").write_bytes(odd.SerializeToString())
    with external.following_links(), pytest.raises(ModelError):
        io.load(tmp_path / "inner" / "m.onnx")


@pytest.mark.parametrize(("key", "value"), [("offset", "-1"), ("length", "x"), ("offset", "9" * 30), ("length", "4")])
def test_places_in_a_data_file_are_numbers_inside_it(tmp_path: Path, key: str, value: str) -> None:
    """Of as many bytes as the shape says."""
    onnx.save(kills.model(1), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    odd = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for fact in odd.graph.initializer[0].external_data:
        fact.value = value if fact.key == key else fact.value
    (tmp_path / "m.onnx").write_bytes(odd.SerializeToString())
    with pytest.raises(ModelError, match=r"m\.onnx: "):
        io.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("facts", [{}, {"length": str(1 << 40)}])
def test_no_more_is_read_of_a_data_file_than_the_shape_wants(tmp_path: Path, facts: dict[str, str]) -> None:
    """Whatever the file says, and however long it is: room is looked for and taken for the weight alone."""
    model = kills.model(3)
    tensor = model.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "w.data"} | facts).items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w.data").write_bytes(raw)
    os.truncate(tmp_path / "w.data", 1 << 40)
    if facts:
        with pytest.raises(ModelError, match=r"has 1099511627776 bytes of w.data, and its shape wants"):
            io.load(tmp_path / "m.onnx")
    else:
        assert io.load(tmp_path / "m.onnx").graph.initializer[0].raw_data == raw


def test_small_weights_are_read_from_the_models_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are known without the large weights, wherever the process happens to be."""
    text = "g (float[2,6] x) => (float[a,b] y) <int64[2] to = {4,3}> { y = Reshape (x, to) }"
    made = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([4, 3]), "to"))
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    onnx.save(made, tmp_path / "there" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "here" / "m.data").write_bytes(np.array([3, 4]).tobytes())  # another model's
    monkeypatch.chdir(tmp_path / "here")
    light = io.load(tmp_path / "there" / "m.onnx", weights=False)
    assert list(numpy_helper.to_array(light.graph.initializer[0])) == [4, 3]


# ---- what goes wrong, or is not there


def test_no_link_is_followed_below_a_folder_that_was_named(tmp_path: Path) -> None:
    """The folder itself may be one: its owner made it, and named it."""
    (tmp_path / "real").mkdir()
    named = tmp_path / "named"
    named.symlink_to("real")
    atomic_write.check_no_links(named / "sub" / "out.onnx", named)
    atomic_write.check_no_links(tmp_path / "out.onnx", named)  # elsewhere
    (named / "sub").symlink_to(tmp_path)
    with pytest.raises(ModelError, match=r"out.onnx: is not written: .*named/sub is a link, to "):
        atomic_write.check_no_links(named / "sub" / "out.onnx", named)


def test_two_names_of_one_file(tmp_path: Path) -> None:
    """By links of both kinds; also of a file that is not there yet."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"")
    (tmp_path / "hard").hardlink_to(old)
    (tmp_path / "link").symlink_to("new")
    for path, other, same in (
        (old, tmp_path / "hard", True), (old, tmp_path / "." / "old", True), (new, tmp_path / "link", True),
        (old, new, False), (new, tmp_path / "newer", False),
    ):  # fmt: skip
        assert atomic_write.same_file(path, other) is same


def test_one_file_is_replaced_when_its_block_ends_well(tmp_path: Path) -> None:
    """Outside of `together`, and within it where it is asked for at once; else not at all."""
    path = tmp_path / "out"
    for text, at_once in ((b"one", False), (b"two", True)):
        with atomic_write.together() if at_once else nullcontext():
            with atomic_write.replacing(path, at_once=at_once) as file:
                file.write(text)
            assert path.read_bytes() == text
    with suppress(KeyError), atomic_write.replacing(path) as file:
        file.write(b"three")
        raise KeyError
    assert (path.read_bytes(), names(tmp_path)) == (b"two", ["out"])


def test_what_is_appended_goes_where_the_block_fails(tmp_path: Path) -> None:
    """A new file is deleted, an old one is as it was; not where another process has appended since."""
    new, old, shared = (tmp_path / name for name in ("new", "old", "shared"))
    old.write_bytes(b"old")
    with suppress(KeyError), atomic_write.together():
        for path in (new, old, shared):
            atomic_write.add(path, b" and more")
        assert old.read_bytes() == b"old and more"
        with shared.open("ab") as another:
            another.write(b" of another")
        raise KeyError
    assert names(tmp_path) == ["old", "shared"]
    assert (old.read_bytes(), shared.read_bytes()) == (b"old", b" and more of another")


def test_a_disk_that_is_full_half_way_leaves_nothing_appended(tmp_path: Path) -> None:
    """The first bytes that had room are cut off again. /dev/full has no end to cut."""
    path = tmp_path / "log"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
    try:
        with pytest.raises(ModelError, match="log: cannot be written: File too large"):
            atomic_write.add(path, b" and more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == b"old"
    with pytest.raises(ModelError, match="/dev/full: cannot be written: No space left"):
        atomic_write.add(Path("/dev/full"), b"more")


def test_blocks_within_blocks_end_with_the_outer_one(tmp_path: Path) -> None:
    """What was written is put in its place by then; what would be undone stays."""
    undone = list[str]()
    path = tmp_path / "f"
    with atomic_write.together():
        with atomic_write.together():
            atomic_write.at_failure(lambda: undone.append("undone"))
            with atomic_write.replacing(path) as file:
                file.write(b"new")
        assert not path.exists()
        with atomic_write.filling(tmp_path):
            pass
    assert path.read_bytes() == b"new"
    assert undone == []
    atomic_write.at_failure(lambda: undone.append("no block"))
    assert undone == []


def test_where_open_files_cannot_be_renamed_they_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    for renames in (True, False):
        monkeypatch.setattr(locks, "RENAMES_OPEN_FILES", renames)
        with temporary(tmp_path / "f") as (file, name):
            atomic_write.replace_file(file, name, tmp_path / "f")
            assert file.closed is not renames


def test_new_folders_go_with_what_was_made_in_them(tmp_path: Path) -> None:
    """Those that were there stay, in the block itself and in the one around it."""
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "there" / "a" / "b"):
        with suppress(KeyError), atomic_write.filling(folder):
            (folder / "file").write_bytes(b"")
            raise KeyError
        assert not (tmp_path / "there" / "a").exists()
    with suppress(KeyError), atomic_write.together():
        with atomic_write.filling(tmp_path / "there" / "a" / "b"):
            pass
        raise KeyError
    assert names(tmp_path / "there") == ["file"]


def test_a_folder_that_another_process_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold what is not ours."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "theirs").touch()
    asked = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda path: next(asked, True) if path == there else os.path.isdir(path))
    with suppress(KeyError), atomic_write.filling(there):
        raise KeyError
    assert names(there) == ["theirs"]


def test_a_temporary_file_that_another_process_collects_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock anybody takes it for litter."""
    lock, collected = fcntl.flock, list[Path]()

    def late(handle: int, how: int) -> None:
        if not collected:
            (file,) = tmp_path.iterdir()
            collected.append(file)
            file.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with temporary(tmp_path / "out.onnx") as (file, name):
        file.write(b"x")
        assert collected != [name]
        assert name.exists()


def test_where_there_are_no_locks_nothing_is_taken_for_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is still written; who locks a folder is told that it is not locked."""

    def unsupported(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    litter = tmp_path / f".out.onnx.abcd1234{SUFFIX}"
    litter.write_bytes(b"half a model")
    with locks.folder_locked(tmp_path) as locked:
        assert locked
    monkeypatch.setattr(fcntl, "flock", unsupported)
    io.save(kills.model(1), tmp_path / "out.onnx")
    assert names(tmp_path) == [litter.name, "out.onnx"]
    with locks.folder_locked(tmp_path) as locked:
        assert not locked


def test_litter_that_is_gone_by_then_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f".out.abcd1234{SUFFIX}").write_bytes(b"")
    opens = os.open

    def gone(name: str | Path, *how: int) -> int:
        Path(name).unlink()
        return opens(name, *how)

    monkeypatch.setattr(os, "open", gone)
    atomic_write.collect(tmp_path / "out")
    assert names(tmp_path) == []


def test_a_long_name_is_cut_between_letters(tmp_path: Path) -> None:
    """File systems want at most 255 bytes, some of them whole UTF-8 letters."""
    with temporary(tmp_path / ("a" + "é" * 120)) as (_, name):
        assert name.name.startswith(".a" + "é" * 99 + ".")
        name.name.encode("utf-8", errors="strict")


def test_there_is_room_for_more_files_within_a_block() -> None:
    """As far as the system allows, and no longer than that."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = (before[0] // 2, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lower)
    try:
        for files, limit in ((10, lower[0] + 10), (0, lower[0])):
            with process_limits.open_files(files):
                assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_target_that_can_be_no_file_is_told_before_anything_is_computed(tmp_path: Path) -> None:
    """A folder, and what is in no folder; a name that is free is fine."""
    atomic_write.writable(tmp_path / "free.onnx")
    with pytest.raises(ModelError, match="is a directory"):
        atomic_write.writable(tmp_path)
    with pytest.raises(ModelError, match=f"the folder {tmp_path}/none does not exist"):
        atomic_write.writable(tmp_path / "none" / "out.onnx")
    with pytest.raises(ModelError, match="File name too long"):
        atomic_write.writable(tmp_path / ("x" * 300))


def test_a_forked_child_replaces_its_files_itself(tmp_path: Path) -> None:
    """As the one that looks for a fault does for its command: the block of its parent knows nothing of them."""
    with atomic_write.together():
        child = os.fork()
        if not child:
            with atomic_write.together():
                io.write_text(tmp_path / "found", "text")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        io.write_text(tmp_path / "later", "text")
        assert "later" not in names(tmp_path)
    assert names(tmp_path) == ["found", "later"]
    assert (tmp_path / "found").read_text() == "text"
