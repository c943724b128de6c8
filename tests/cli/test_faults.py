"""What no command expects, and names that want to be obeyed."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.cli.base import report_files
from onnxfuse.cli.main import main
from onnxfuse.passes import pipeline
from tests.cli.conftest import Command

EVIL = "\x1b[31mred\x07 \u202eright"
ORDER = "::error file=a::b"


def _fail(*_: object, **__: Any) -> None:
    raise KeyError(f"what is not there{EVIL}")


@pytest.mark.usefixtures("folder")
def test_a_fault_of_ours_has_a_code_of_its_own(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """70, one line with its kind and place, what to do; nothing is written; 1 stays the code of wrong numbers."""
    monkeypatch.setattr(pipeline, "run", _fail)
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    assert (done.code, done.out) == (70, "")
    assert "error: internal error of onnxfuse: KeyError" in done.err
    assert "(optimize_pipeline.py:" in done.err
    assert "--traceback" in done.err
    assert "\x1b" not in done.err
    assert not Path("out.onnx").exists()
    facts = json.loads(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--json").out)
    assert (facts["ok"], facts["exit_code"]) == (False, 70)


@pytest.mark.usefixtures("folder")
def test_the_report_to_send_is_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--traceback prints the whole of it and the versions."""
    monkeypatch.setattr(pipeline, "run", _fail)
    with pytest.raises(SystemExit) as left:
        main(["optimize", "in.onnx", "out.onnx", "--traceback"])
    told = capsys.readouterr().err
    assert left.value.code == 70
    assert "Traceback (most recent call last)" in told
    assert f"onnxfuse {onnxfuse.__version__}" in told
    assert "\x1b" not in told


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_no_fault(
    onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Also where it comes while what is compiled runs, which makes an error of its own of it."""

    def interrupted(*_: object, **__: Any) -> None:
        try:
            signal.raise_signal(number)
        except BaseException:
            raise ImportError("import numpy failed") from None

    monkeypatch.setattr(pipeline, "run", interrupted)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        done = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert (done.code, done.err) == (128 + number, "")


def test_a_name_is_no_sign(onnxfuse_command: Command) -> None:
    """`:x:` stays what it is."""
    assert "a:x:b.onnx: no such file" in onnxfuse_command("optimize", "a:x:b.onnx", "out.onnx").err


def test_what_is_not_installed_is_told_and_hides_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The versions are told where a package is missing, too: from a source tree, or without the GPU's packages."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(report_files, "version", missing)
    monkeypatch.setattr(pipeline, "run", _fail)
    with pytest.raises(SystemExit) as left:
        main(["optimize", str(folder / "in.onnx"), "out.onnx", "--traceback"])
    assert left.value.code == 70
    assert "onnxruntime-gpu not installed" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_memory_that_runs_out_is_the_machines(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 5."""

    def hungry(*_: object, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(pipeline, "run", hungry)
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    assert done.code == 5
    assert "memory" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EAGAIN])
def test_what_the_system_has_run_out_of_is_the_machines(
    onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Exit 5 in its words, wherever it is met."""

    def short(*_: object, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pipeline, "run", short)
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    assert (done.code, os.strerror(number) in done.err) == (5, True), done.err


@pytest.mark.usefixtures("folder")
def test_no_place_for_temporary_files_is_told(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a TMPDIR that is none and nothing else to take."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    done = onnxfuse_command("verify", "in.onnx", "in.onnx", "--provider", "cpu")
    assert (done.code, "no folder for temporary files" in done.err) == (5, True), done.err


def test_too_few_open_files_are_not_told_as_a_missing_folder(folder: Path) -> None:
    """Where no file can be opened any more, no folder for temporary ones is found, either."""
    script = """
import os, resource, tempfile
from onnxfuse.cli.main import main
from onnxfuse.passes import pipeline
def hungry(*_, **__):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    tempfile.tempdir = None
    os.open(os.devnull, os.O_RDONLY)
pipeline.run = hungry
main(["optimize", "in.onnx", "out.onnx"])
"""
    path = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Too many open files" in done.stderr) == (5, True), done.stderr
    assert "Traceback" not in done.stderr


def test_names_are_printed_and_not_obeyed(folder: Path, onnxfuse_command: Command) -> None:
    """Control characters are written out, and no line begins as a command of GitHub's workflows; in files the same."""
    odd = onnx.load(folder / "in.onnx")
    for node, name in zip(odd.graph.node, (f"{EVIL}", ORDER, f"a\n{ORDER}", "##[error]c"), strict=False):
        node.name = name
    onnx.save(odd, folder / f"{EVIL}.onnx")
    reports = ("--report", "r.html", "--junit", "r.xml", "--markdown", "r.md")
    for call in (
        ("optimize", f"{EVIL}.onnx", "out.onnx", *reports),
        ("optimize", f"{EVIL}.onnx", "out.onnx", "--require", "attention", *reports),
        ("explain", f"{EVIL}.onnx"),
        ("explain", f"{EVIL}.onnx", "--near"),
        ("explain", f"{EVIL}.onnx", "--at", ORDER),
        ("profile", f"{EVIL}.onnx", "--no-time", "--nodes"),
        ("optimize", f"{EVIL}-not-there.onnx", "out.onnx"),
        (f"opt{EVIL}",),
    ):
        done = onnxfuse_command(*call)
        texts = [done.out, done.err, *(p.read_text() for p in folder.glob("r.*"))]
        assert done.out + done.err, call
        for text in texts:
            assert not set(text) & {"\x1b", "\x07", "\u202e"}, call
        for line in (done.out + done.err).splitlines():
            assert not line.lstrip().startswith("::"), call
            assert "##[" not in line, call


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_name_that_onnx_runtime_does_not_take_is_told(folder: Path, onnxfuse_command: Command, command: str) -> None:
    """Its names are UTF-8, those of the system are bytes."""
    name = os.fsdecode(b"\xff.onnx")
    (folder / "in.onnx").rename(folder / name)
    done = onnxfuse_command(command, name, name, "--provider", "cpu")
    assert (done.code, "is not UTF-8" in done.err) == (3, True), done.err


@pytest.mark.usefixtures("folder")
def test_onnx_runtime_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """It would quote the file past every escape, in colours: what it refuses is told by us alone."""
    empty = onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], []), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(empty, "empty.onnx")
    with pytest.raises(SystemExit) as left:
        main(["verify", "empty.onnx", "empty.onnx", "--provider", "cpu"])
    told = capfd.readouterr().err
    assert left.value.code == 3
    assert "ONNX Runtime cannot open" in told
    assert "\x1b" not in told
    assert "[E:onnxruntime" not in told


def test_a_command_lets_onnx_runtime_send_and_keep_nothing(folder: Path) -> None:
    """It would tell its makers of each session, by files in HOME and TMPDIR, and complain of a HOME that takes none."""
    (folder / "scratch").mkdir()
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/dev/null", "TMPDIR": str(folder / "scratch")}
    place = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")}
    command = [sys.executable, "-m", "onnxfuse", "explain", "in.onnx"]
    done = subprocess.run(command, cwd=folder, env=place | here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((folder / "scratch").iterdir())
