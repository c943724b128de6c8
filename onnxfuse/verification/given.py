"""Real inputs from files: a `.npz` with one array per input, or ONNX's own `test_data_set_*` folders."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from onnxfuse.model.errors import UsageError
from onnxfuse.verification.inputs import Case, InputSpec

Array = npt.NDArray[Any]

FORMS = "Give a .npz with one array per input, a folder of input_0.pb, input_1.pb, ..., or a folder of test_data_set_*."


def given_cases(path: str | Path, specs: Sequence[InputSpec]) -> list[Case]:
    """Return a case per set of inputs in `path`, each checked against `specs`. Raises UsageError."""
    path = Path(path)
    if path.is_file():
        return [case_of(path.name, _read_npz(path, specs), specs)]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder", FORMS)
    folders = [path] if (path / "input_0.pb").is_file() else sorted(path.glob("test_data_set_*"), key=_number)
    if not folders:
        raise UsageError(f"{path}: holds neither input_0.pb nor test_data_set_*", FORMS)
    return [case_of(folder.name, _read_folder(folder, specs), specs) for folder in folders]


def case_of(name: str, inputs: Mapping[str, Array], specs: Sequence[InputSpec]) -> Case:
    """Return the case of `inputs`, checked: names, element types, ranks, fixed extents, dimension names."""
    wanted = {s.name: s for s in specs}
    missing, extra = wanted.keys() - inputs.keys(), inputs.keys() - wanted.keys()
    if missing or extra:
        faults = [f"lacks {_names(missing)}"] * bool(missing) + [f"has {_names(extra)}, no input of the model"] * bool(
            extra
        )
        raise UsageError(f"{name}: {', and '.join(faults)}", f"The model's inputs are {_names(wanted)}.")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        _check(name, spec, inputs[spec.name], sizes)
    arrays = {s.name: inputs[s.name] for s in specs}
    return Case(name, None, {n: x.shape for n, x in arrays.items()}, lambda: arrays)


def _check(name: str, spec: InputSpec, x: Array, sizes: dict[str, tuple[int, str]]) -> None:
    if x.dtype != spec.array_type:
        raise UsageError(
            f"{name}: '{spec.name}' is {x.dtype}, the model wants {spec.array_type}",
            f"Convert it: numpy.asarray(x, {str(spec.array_type)!r}).",
        )
    declared = "x".join("?" if d is None else str(d) for d in spec.shape) or "scalar"
    found = "x".join(map(str, x.shape)) or "scalar"
    if x.ndim != len(spec.shape):
        raise UsageError(f"{name}: '{spec.name}' has shape {found}, the model wants {declared}")
    for dim, extent in zip(spec.shape, x.shape, strict=True):
        if isinstance(dim, int) and dim != extent:
            raise UsageError(f"{name}: '{spec.name}' has shape {found}, the model wants {declared}")
        if isinstance(dim, str):
            size, first = sizes.setdefault(dim, (extent, spec.name))
            if size != extent:
                raise UsageError(
                    f"{name}: dimension {dim} is {size} in '{first}' and {extent} in '{spec.name}'",
                    "A dimension name means one number everywhere.",
                )


def _read_npz(path: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    types = {s.name: s.array_type for s in specs}
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{path}: holds one array without a name", FORMS)
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: is not a readable .npz: {error}", FORMS) from None
    # NumPy stores the types that it does not know, bfloat16, as raw bytes.
    return {n: x.view(types[n]) if x.dtype.kind == "V" and n in types else x for n, x in arrays.items()}


def _read_folder(folder: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    files = sorted(folder.glob("input_*.pb"), key=_number)
    if len(files) != len(specs):
        raise UsageError(
            f"{folder}: {len(files)} inputs, the model has {len(specs)}",
            f"It wants input_0.pb to input_{len(specs) - 1}.pb, in the order {_names(s.name for s in specs)}.",
        )
    return {spec.name: _read_tensor(file, spec) for file, spec in zip(files, specs, strict=True)}


def _read_tensor(file: Path, spec: InputSpec) -> Array:
    tensor = TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
        array = numpy_helper.to_array(tensor)
    except (DecodeError, ValueError, TypeError) as error:
        raise UsageError(f"{file}: does not hold a tensor: {error}", "It should be a serialized TensorProto.") from None
    if tensor.name and tensor.name != spec.name:
        raise UsageError(
            f"{file}: holds '{tensor.name}', the model's input there is '{spec.name}'",
            "Number the files in the order of the model's inputs.",
        )
    return np.asarray(array)


def _number(path: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)(?:\.pb)?$", path.name)
    return (int(digits.group(1)) if digits else 0, path.name)


def _names(names: object) -> str:
    return ", ".join(f"'{n}'" for n in names)  # type: ignore[attr-defined]
