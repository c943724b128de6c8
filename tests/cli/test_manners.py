"""How every command behaves in a shell: quiet, verbose, colours, completion, and a doctor that tells what to mend."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest

from onnxfuse.options import COMMANDS
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
SEQUENCE = "\x1b["


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process in which nothing decides about colours but `more`."""
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return plain | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"} | more


COLD = sys.executable, "-m", "onnxfuse"
"""The command where its start matters; elsewhere `warm_onnxfuse`."""


def on_a_terminal(onnxfuse: Sequence[str], folder: Path, *arguments: str, **more: str) -> str:
    """Return what the command prints when both its outputs are a terminal."""
    ours, theirs = pty.openpty()
    command = [*onnxfuse, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment(**more), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b"".join(_read(ours))
        process.wait()
    os.close(ours)
    return text.decode()


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other end is closed: how a terminal says so
            return
        if not data:
            return
        yield data


def run(onnxfuse: Sequence[str], folder: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own, its outputs pipes."""
    command = [*onnxfuse, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, check=False)


def test_colours_only_on_a_terminal_and_not_with_no_color(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """A pipe gets plain text; NO_COLOR keeps colours out of a terminal too."""
    assert SEQUENCE + "1;32m" in on_a_terminal(warm_onnxfuse, folder, "explain", "in.onnx")
    assert "32m" not in on_a_terminal(warm_onnxfuse, folder, "explain", "in.onnx", NO_COLOR="1")
    assert SEQUENCE not in run(warm_onnxfuse, folder, "explain", "in.onnx").stdout


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("arguments", [("optimize", "in.onnx", "out.onnx"), ("explain", "in.onnx"), ("rules",)])
def test_quiet_prints_no_results(onnxfuse_command: Command, arguments: tuple[str, ...]) -> None:
    """The exit code is the verdict; JSON, when asked for, and errors are printed all the same."""
    result = onnxfuse_command(*arguments, "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert json.loads(onnxfuse_command(*arguments, "-q", "--json").out)["ok"] is True
    assert "no such file" in onnxfuse_command("explain", "nowhere.onnx", "-q").err


@pytest.mark.usefixtures("folder")
def test_verbose_names_each_step_on_stderr(onnxfuse_command: Command) -> None:
    """One line per phase with its time; standard output stays what it is."""
    plain, told = (onnxfuse_command("explain", "in.onnx", *more) for more in ((), ("-v",)))
    assert told.out == plain.out
    assert [line.split(":")[0] for line in told.err.splitlines()] == [
        "load", "normalize", "rewrite", "layout", "fuse", "attach bodies", "check", "with product",
    ]  # fmt: skip


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_knows_quiet_and_verbose(onnxfuse_command: Command, command: str) -> None:
    """One spelling everywhere."""
    out = onnxfuse_command(command, "--help").out
    assert "-q, --quiet" in out
    assert "-v, --verbose" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(onnxfuse_command: Command, shell: str) -> None:
    """A script that asks this very command."""
    result = onnxfuse_command("completion", shell)
    assert result.code == 0
    assert f"_ONNXFUSE_COMPLETE={shell}_complete" in result.out


def test_completion_of_an_unknown_shell_is_exit_2(onnxfuse_command: Command) -> None:
    """With the shells there are."""
    result = onnxfuse_command("completion", "tcsh")
    assert result.code == 2
    assert "bash" in result.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("onnxfuse opt", "optimize"),
        ("onnxfuse optimize --requ", "--require"),
        ("onnxfuse rules lay", "layer_norm"),
        ("onnxfuse explain --rule softm", "softmax"),
        ("onnxfuse explain --only softm", "softmax"),
        ("onnxfuse explain in.onnx --at pro", "product"),
        ("onnxfuse explain in.onnx --cost pro", "product"),
        ("onnxfuse config opt", "optimize"),
    ],
)
def test_commands_options_and_rules_complete(
    folder: Path, warm_onnxfuse: Sequence[str], words: str, expected: str
) -> None:
    """What the shell's script asks for."""
    done = run(
        warm_onnxfuse, folder, _ONNXFUSE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
    )
    assert expected in [line.partition(",")[2] for line in done.stdout.splitlines()]


ASKED = [
    ("onnxfuse opt", "optimize"),
    ("onnxfuse optimize --requ", "--require"),
    ("onnxfuse rules lay", "layer_norm"),
    ("onnxfuse explain --rule softm", "softmax"),
    ("onnxfuse optimize in.o", "in.onnx"),
]
"""What stands on the command line when Tab is pressed, and the word that it becomes."""


@pytest.fixture
def scripts(folder: Path, warm_onnxfuse: Sequence[str]) -> Path:
    """Return a folder with a command `onnxfuse` and the script of each shell, beside a model `in.onnx`."""
    (folder / "bin").mkdir()
    (folder / "bin" / "onnxfuse").write_text(f'#!/bin/sh\nexec {shlex.join(warm_onnxfuse)} "$@"\n')
    (folder / "bin" / "onnxfuse").chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (folder / f"completion.{shell}").write_text(run(warm_onnxfuse, folder, "completion", shell).stdout)
    return folder


@pytest.mark.parametrize(("typed", "completed"), ASKED[:-1])
def test_bash_completes_with_its_script(scripts: Path, typed: str, completed: str) -> None:
    """Loaded by the shell itself; files are left to bash's own completion, which a script cannot ask."""
    words = f"COMP_WORDS=({typed}) COMP_CWORD={typed.count(' ')}"
    lines = f"source completion.bash; {words}; _onnxfuse_completion onnxfuse; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    assert completed in _said(scripts, "bash", "--norc", "-c", lines)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: apt install fish")
@pytest.mark.parametrize(("typed", "completed"), ASKED)
def test_fish_completes_with_its_script(scripts: Path, typed: str, completed: str) -> None:
    """Loaded by the shell itself, which is then asked as its Tab key asks."""
    said = _said(scripts, "fish", "--no-config", "-c", f"source completion.fish; complete -C '{typed}'")
    assert completed in [line.partition("\t")[0] for line in said]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: apt install zsh")
@pytest.mark.parametrize(("typed", "completed"), ASKED)
def test_zsh_completes_with_its_script(scripts: Path, typed: str, completed: str) -> None:
    """Loaded after compinit, on a terminal: Tab writes the rest of the word."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=scripts, env=_shell_environment(scripts), stdin=theirs, stdout=theirs, stderr=theirs
    ) as zsh:
        os.close(theirs)
        try:
            os.write(ours, b"autoload -Uz compinit && compinit -u -D; source completion.zsh; PS1='ready'$PS1\n")
            _read_until(ours, "ready> ")
            os.write(ours, f"{typed}\t".encode())
            _read_until(ours, f"{typed.rpartition(' ')[0]} {completed}")
        finally:
            zsh.kill()
            os.close(ours)


def _read_until(descriptor: int, text: str) -> None:
    """Read what a terminal shows until `text` stands there; after half a minute without it, fail with what was read."""
    shown = ""
    while text not in shown:
        if not select.select([descriptor], [], [], 30)[0]:
            pytest.fail(f"the terminal shows {shown!r}, expected {text!r}")
        shown += os.read(descriptor, 65536).decode()


def _said(folder: Path, *command: str) -> list[str]:
    """Return the lines that a shell prints."""
    environment = _shell_environment(folder)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def _shell_environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return environment(PATH=path, HOME=str(folder), TERM="dumb", PS1="> ")


def test_a_command_that_is_told_to_end_leaves_no_half_written_file(folder: Path) -> None:
    """As `timeout` and the runners of pipelines do it; the exit code is the one that shells give for the signal."""
    script = """
import os, signal
from onnxfuse.cli.main import main
from onnxfuse.files import io
io._stream = lambda model, file: (file.write(b"half"), os.kill(os.getpid(), signal.SIGTERM))
main(["optimize", "in.onnx", "out.onnx"])
"""
    before = set(os.listdir(folder))
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment(), check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert set(os.listdir(folder)) == before


@pytest.mark.parametrize("module", ["click", "rich", "onnxfuse.cli.commands.optimize", "onnx", "numpy", "onnxruntime"])
def test_a_command_that_is_stopped_shows_no_traceback(folder: Path, module: str) -> None:
    """Also while it still reads its modules in: here that of each of them."""
    (folder / "sitecustomize.py").write_text(f"""
import os, signal, sys
class Stop:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
""")
    call = [sys.executable, "-m", "onnxfuse", "optimize", "in.onnx", "out.onnx"]
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        call, cwd=folder, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (128 + signal.SIGINT, "", "")
    assert not (folder / "out.onnx").exists()


def test_a_command_can_be_stopped_from_its_first_moment_on() -> None:
    """Nothing but what stops it is imported before: Python would answer ^C by a traceback meanwhile."""
    code = "import sys; sys.path.insert(0, {!r}); import {}; print(*sorted(sys.modules))"
    found = [
        set(subprocess.check_output([sys.executable, "-S", "-c", code.format(str(ROOT), names)], text=True).split())
        for names in ("onnxfuse.cli", "__future__, os, signal, types")
    ]
    assert {name for name in found[0] - found[1] if not name.startswith("onnxfuse")} == set()


# ---- doctor


def findings(out: str) -> dict[str, dict[str, str]]:
    """Return the doctor's findings by what was looked at."""
    return {f["what"]: f for f in json.loads(out)["findings"]}


@pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="there is a GPU here: CUDA works or is broken, never absent"
)
def test_doctor_without_a_gpu_is_fine(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """CUDA is absent, not broken; everything else is told with its version."""
    done = run(warm_onnxfuse, folder, "doctor", "--json")
    found = findings(done.stdout)
    assert done.returncode == 0
    assert found["CUDA"]["verdict"] == "absent"
    assert "driver" in found["CUDA"]["mend"]
    assert found["NVRTC"]["verdict"] == "ok"
    assert found["rules"]["fact"].endswith("rules")
    text = run(warm_onnxfuse, folder, "doctor").stdout
    assert text.startswith("ok: models run on the CPU, through the bodies")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here, and CUDA may well work")
def test_doctor_wants_cuda_when_told_so(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """Exit 5, and the way to mend it."""
    done = run(warm_onnxfuse, folder, "doctor", "--provider", "cuda")
    assert done.returncode == 5
    assert done.stdout.startswith("1 to fix: CUDA")
    assert "-> " in done.stdout


DRIVER = """int cuInit(unsigned flags) { return 999; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuGetErrorString(int code, const char** words) { *words = "unknown error"; return 0; }
"""


def test_doctor_tells_a_driver_that_is_there_and_does_not_start(folder: Path) -> None:
    """With a driver CUDA counts as wanted: exit 5, unless the CPU is all that is asked for."""
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-o", "libcuda.so.1", "driver.c"], cwd=folder, check=True)
    done = run(COLD, folder, "doctor", "--json", LD_LIBRARY_PATH=str(folder))
    found = findings(done.stdout)["CUDA"]
    assert done.returncode == 5
    assert json.loads(done.stdout)["cuda_wanted"] is True
    assert "cuInit returned 999" in found["fact"]
    assert (found["verdict"], "nvidia-smi" in found["mend"]) == ("broken", True)
    assert run(COLD, folder, "doctor", "--provider", "cpu", LD_LIBRARY_PATH=str(folder)).returncode == 0


@pytest.mark.parametrize(("providers", "verdict"), [("CUDA", ""), ("CPU", "broken")])
def test_doctor_tells_a_second_onnxruntime_by_what_it_does(folder: Path, providers: str, verdict: str) -> None:
    """The package without CUDA has the name of onnxruntime-gpu's module: it matters only where it is what is loaded."""
    (folder / "onnxruntime-1.0.dist-info").mkdir()
    (folder / "onnxruntime-1.0.dist-info" / "METADATA").write_text("Name: onnxruntime\nVersion: 1.0\n")
    script = f"""
import onnxruntime
from onnxfuse.cli.main import main
onnxruntime.get_available_providers = lambda: ["{providers}ExecutionProvider"]
main(["doctor", "--json", "--provider", "cuda"])
"""
    more = environment(PYTHONPATH=f"{folder}:{ROOT}")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=more, capture_output=True, text=True, check=False)
    found = findings(done.stdout).get("onnxruntime (conflict)", {"verdict": "", "mend": ""})
    assert (found["verdict"], "uninstall" in found["mend"]) == (verdict, verdict == "broken")


def test_doctor_tells_a_cache_that_cannot_be_written(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """With the step that mends it."""
    (folder / "file").write_text("not a folder")
    done = run(warm_onnxfuse, folder, "doctor", "--json", XDG_CACHE_HOME=str(folder / "file"))
    cache = findings(done.stdout)["kernel cache"]
    assert done.returncode == 5
    assert (cache["verdict"], "XDG_CACHE_HOME" in cache["mend"]) == ("broken", True)


@pytest.mark.parametrize("call", ["rules", "--help", "optimize in.onnx - -q", "inspect in.onnx --json"])
def test_whoever_stops_reading_gets_no_verdict(folder: Path, warm_onnxfuse: Sequence[str], call: str) -> None:
    """Exit code 1 would be a mismatch: it is that of a process ended by the signal."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [*warm_onnxfuse, *call.split()]
    with os.fdopen(theirs, "w") as pipe:
        done = subprocess.run(command, cwd=folder, env=environment(), stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("call", "code", "told"),
    [
        ("explain in.onnx --json >/dev/full", 5, "No space left"),
        ("explain nope.onnx --json >/dev/full", 3, "no such file"),
        ("explain nope.onnx 2>/dev/full", 3, ""),
        ("explain --nope 2>/dev/full", 2, ""),
        ("optimize in.onnx out.onnx -v 2>/dev/full", 0, ""),
        ("explain nope.onnx --json >/dev/full 2>&1", 3, ""),
    ],
)
def test_a_stream_that_takes_nothing_is_no_verdict(
    folder: Path, warm_onnxfuse: Sequence[str], call: str, code: int, told: str
) -> None:
    """The exit code says the same as ever, and the error goes to the other stream where that is left."""
    done = subprocess.run(
        f"{shlex.join(warm_onnxfuse)} {call}", shell=True, cwd=folder, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr, told in done.stderr) == (code, False, True), done.stderr


@pytest.mark.parametrize("stream", [">/dev/full", "--json >/dev/full"])
@pytest.mark.parametrize(
    "call",
    [
        "optimize in.onnx new.onnx", "optimize --undo in.onnx new.onnx", "optimize in.onnx --in-place", "ci --update",
        "optimize in.onnx new.onnx --report new.html",
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_not_written(folder: Path, warm_onnxfuse: Sequence[str], call: str, stream: str) -> None:
    """Exit 5, and the folder is as it was: nobody has to guess whether a file is whole."""
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\noutput = "new.onnx"\nverify = false\n')
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    done = subprocess.run(
        f"{shlex.join(warm_onnxfuse)} {call} {stream}", shell=True, cwd=folder, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "No space left" in done.stderr) == (5, True), done.stderr
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_reader_who_goes_does_not_undo_the_work(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """It has read what it wanted: the file is there, and the exit code is that of the signal."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [*warm_onnxfuse, "optimize", "in.onnx", "out.onnx"]
    with os.fdopen(theirs, "w") as pipe:
        done = subprocess.run(command, cwd=folder, env=environment(), stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
    assert (folder / "out.onnx").exists()


def test_closed_streams_lead_nowhere(tmp_path: Path) -> None:
    """No file that is written gets the number of a stream, and nothing fails for want of one."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { t = Relu(x)  y = Tanh(t) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    command = f"{sys.executable} -m onnxfuse optimize in.onnx out.onnx <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), check=False).returncode == 0
    assert len(onnx.load(tmp_path / "out.onnx").functions) == 1


@pytest.mark.parametrize("arguments", [("verify", "in.onnx", "in.onnx"), ("profile", "in.onnx", "--provider", "cpu")])
def test_no_thread_runs_where_a_command_forks(folder: Path, arguments: tuple[str, ...]) -> None:
    """A progress bar that a thread animates holds locks, of the terminal too; a child forked meanwhile would wait."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys, threading\n"
        "def forked(event, _):\n"
        "    if event == 'os.fork':\n"
        "        os.write(1, f'forked with {threading.active_count()} thread\\n'.encode())\n"
        "sys.addaudithook(forked)\n"
    )
    printed = on_a_terminal(COLD, folder, *arguments, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    assert "forked with 1 thread" in printed
    assert set(re.findall(r"forked with (\d+)", printed)) == {"1"}
