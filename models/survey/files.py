"""Models in files: written as the commands write them, opened by their path as users open them.

Weights may be beside a model. What is checked of the model in memory says nothing of the file that was written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.api.optimize.optimizing import Optimized, written
from onnxfuse.files import io
from onnxfuse.support.error_text import plainly
from onnxfuse.support.errors import OnnxfuseError

SHOWN = 400
"""Characters of a message that a row keeps."""


def write(make: Callable[[], Optimized], file: Path) -> Optimized:
    """Write what is made, as the commands do: its weights beside it where those of its source are beside that."""
    file.parent.mkdir(exist_ok=True)
    with written(make, file) as made:
        return made


def opened(path: Path, providers: list[str]) -> Any:
    """Return the session that ONNX Runtime alone opens by a path; raises what it raises."""
    import onnxruntime

    from onnxfuse.verification.run import sessions

    options = onnxruntime.SessionOptions()
    options.log_severity_level = sessions.SILENT
    return onnxruntime.InferenceSession(
        str(path), options, providers=providers, enable_fallback=0, disabled_optimizers=[sessions.CRASHES_IN_HALF]
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in each file of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def looks(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change of each file of a folder."""
    return {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(folder.iterdir()) if f.is_file()}


def size(path: Path) -> int:
    """Return the bytes of an export with all that is in its folder."""
    return sum(length for length, _ in looks(path.parent).values())


def difference(before: Path, after: Path) -> str:
    """Return in what two files of models differ, empty where not in a byte of them or of their data."""
    ours, theirs = contents(before.parent), contents(after.parent)
    if ours == theirs:
        return ""
    if ours.keys() != theirs.keys():
        return f"{', '.join(ours)} beside {', '.join(theirs)}"
    a, b = ([f"{n.op_type}({n.name})" for n in io.load(f).graph.node] for f in (before, after))
    if len(a) != len(b):
        return f"{len(a)} nodes become {len(b)}"
    files = ", ".join(name for name in ours if ours[name] != theirs[name])
    return next((f"{x} becomes {y}" for x, y in zip(a, b, strict=True) if x != y), f"not in its nodes, in {files}")


def outside(path: Path) -> list[int]:
    """Return of a model in a file how many tensors are in it, and how many in other files."""
    model = onnx.load(path, load_external_data=False)
    apart = sum(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    return [len(model.graph.initializer) - apart, apart]


def why_not(path: Path, providers: list[str], cases: list[Mapping[str, Any]]) -> str:
    """Return why ONNX Runtime does not open a file by its path, or run the cases; empty where it does."""
    from onnxfuse.verification.run import sessions

    try:
        session = opened(path, providers)
        for case in cases:
            sessions.run(session, case)
    except failures() as error:
        return line(error)
    return ""


def failures() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises, and what we raise around it."""
    from onnxfuse.verification.run import sessions

    return (OnnxfuseError, *sessions.ORT_ERRORS)


def line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {plainly(error)}".split())[:SHOWN]
