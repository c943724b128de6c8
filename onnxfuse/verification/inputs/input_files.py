"""Read real inputs from files and write generated ones: NumPy, JSON, or ONNX's `test_data_set_*` folders."""

import contextlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from onnxfuse.files import external, io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, filling, replacing, together
from onnxfuse.model.validate import check_tensor
from onnxfuse.support.bounded_text import read_file, read_json, read_text
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.verification.inputs.inputs import Case, InputSpec

Array = npt.NDArray[Any]

FORMS = (
    "Give a .npz with one array per input; a .npy or .pb for a model of one input; a .json of lists by input name; "
    "a folder of input_0.pb, input_1.pb, ..., of one .npy per input, or of test_data_set_*."
)


def load_cases(path: str | Path, specs: Sequence[InputSpec]) -> list[Case]:
    """Return a case per set of inputs in `path`, each validated against `specs`. Raises UsageError."""
    path = Path(path)
    if path.is_file():
        readers = {".npy": _read_npy, ".pb": _read_pb}
        if path.suffix == ".json":
            sets = _read_json(path, specs)
            names = [path.name] if len(sets) == 1 else [f"{path.name}[{n}]" for n in range(len(sets))]
            return [case_of(name, one, specs) for name, one in zip(names, sets, strict=True)]
        return [case_of(path.name, readers.get(path.suffix, _read_npz)(path, specs), specs)]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder", FORMS)
    if list(path.glob("*.npy")):
        arrays = {f.stem: x for f in sorted(path.glob("*.npy")) for x in _read_npy(f, specs, f.stem).values()}
        return [case_of(path.name, arrays, specs)]
    folders = [path] if (path / "input_0.pb").is_file() else sorted(path.glob("test_data_set_*"), key=_number)
    if not folders:
        raise UsageError(f"{path}: holds neither input_0.pb nor .npy nor test_data_set_*", FORMS)
    return [case_of(folder.name, _read_folder(folder, specs), specs) for folder in folders]


def save_cases(path: Path, plan: Sequence[Case]) -> None:
    """Write the inputs of the cases in a form that `given_cases` reads, one case at a time.

    A path ending in .npz takes a single case; any other is a folder of test_data_set_*, each written completely or not
    at all. Raises UsageError, and ModelError if nothing can be written: new files are removed then.
    """
    if path.suffix == ".npz" and len(plan) != 1:
        raise UsageError(f"{path}: a .npz holds one set of inputs, there are {len(plan)}", "Give a folder.")
    if path.suffix == ".npz":
        with as_model_error(path), replacing(path) as file:
            # NumPy's archive writer has no name for bfloat16, and stores its bytes.
            np.savez(file, **plan[0].make())  # type: ignore[arg-type]  # an input may be called as an option is
        return
    with contextlib.ExitStack() as folders:
        folders.enter_context(filling(path))
        for number, case in enumerate(plan):
            folder = path / f"test_data_set_{number}"
            for place in (folder, *folder.glob("*")):
                check_no_links(place, path)
            folders.enter_context(filling(folder))
            with together():
                for n, (name, array) in enumerate(case.make().items()):
                    tensor = numpy_helper.from_array(array, name)
                    io.write_bytes(folder / f"input_{n}.pb", tensor.SerializeToString(deterministic=True))


def case_of(name: str, inputs: Mapping[str, Array], specs: Sequence[InputSpec]) -> Case:
    """Return the case of `inputs` after validation: names, element types, ranks, fixed extents, dimension names."""
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
    return {n: _as_the_model_has_it(x, types.get(n)) for n, x in arrays.items()}


def _read_npy(path: Path, specs: Sequence[InputSpec], name: str | None = None) -> dict[str, Array]:
    """Return the array in `path`, for the input `name` or for the only input."""
    name = _only(path, specs) if name is None else name
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path}: is not a readable .npy: {error}", FORMS) from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path}: holds several arrays", "Call it .npz.")
    types = {s.name: s.array_type for s in specs}
    return {name: _as_the_model_has_it(array, types.get(name))}


def _as_the_model_has_it(x: Array, dtype: np.dtype[Any] | None) -> Array:
    """Convert NumPy's own representations to the model's: bfloat16 from raw bytes, strings from fixed-width ones."""
    if x.dtype.kind == "V" and dtype is not None:
        return x.view(dtype)
    return x.astype(object) if x.dtype.kind == "U" else x


def _read_pb(path: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    name = _only(path, specs)
    return {name: _read_tensor(path, specs[0])}


def _read_json(path: Path, specs: Sequence[InputSpec]) -> list[dict[str, Array]]:
    """Return the sets of inputs in `path`: an object of lists by input name, or a list of such objects.

    JSON has no element types: numbers are converted to the model's type, provided that only float digits are lost.
    """
    try:
        found = read_json(read_text(path))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: is not readable JSON: {error}", FORMS) from None
    sets = found if isinstance(found, list) else [found]
    if not sets or not all(isinstance(one, dict) for one in sets):
        raise UsageError(f"{path}: holds no object of inputs by name", FORMS)
    types = {s.name: s.array_type for s in specs}
    return [{n: _from_json(path, n, x, types[n]) if n in types else np.asarray(x) for n, x in s.items()} for s in sets]


def _from_json(path: Path, name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise UsageError(f"{path}: the rows of '{name}' are of different lengths", "Pad them.") from None
    fits = {"b": "b", "i": "iu", "u": "iu", "f": "fiu", "V": "fiu", "O": "U"}.get(dtype.kind, dtype.kind)
    if array.size and array.dtype.kind not in fits:
        raise UsageError(f"{path}: '{name}' holds {array.dtype}, the model wants {dtype}")
    converted = array.astype(dtype)
    if dtype.kind in "iu" and (converted != array).any():
        raise UsageError(f"{path}: '{name}' holds numbers that {dtype} does not")
    return converted


def _only(path: Path, specs: Sequence[InputSpec]) -> str:
    if len(specs) != 1:
        raise UsageError(f"{path}: holds one array, the model has the inputs {_names(s.name for s in specs)}", FORMS)
    return specs[0].name


def _read_folder(folder: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    files = sorted(folder.glob("input_*.pb"), key=_number)
    if len(files) != len(specs):
        raise UsageError(
            f"{folder}: {plural(files, 'input')}, the model has {len(specs)}",
            f"It wants input_0.pb to input_{len(specs) - 1}.pb, in the order {_names(s.name for s in specs)}.",
        )
    return {spec.name: _read_tensor(file, spec) for file, spec in zip(files, specs, strict=True)}


def _read_tensor(file: Path, spec: InputSpec) -> Array:
    tensor = TensorProto()
    try:
        tensor.ParseFromString(read_file(file))
        external.read([tensor] if external.is_external(tensor) else [], file)
        check_tensor(tensor)
        array = numpy_helper.to_array(tensor)
    except (DecodeError, ValueError, TypeError) as error:
        raise UsageError(f"{file}: does not hold a tensor: {error}", "It should be a serialized TensorProto.") from None
    except ModelError as error:
        raise UsageError(f"{file}: {error}", error.hint) from None
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
