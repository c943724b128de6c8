"""Read real inputs from files and write generated ones: NumPy, JSON, or ONNX's `test_data_set_*` folders."""

import contextlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.files import io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, filling, replacing, together
from onnxfuse.support.bounded_text import read_json, read_text
from onnxfuse.support.close_match import no_such_file
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.verification.inputs.inputs import Case, InputSpec
from onnxfuse.verification.inputs.value_files import read_value, serialized
from onnxfuse.verification.run.tensors import output_of, tensors_of, values_of

Array = npt.NDArray[Any]

KINDS = {
    list: "Give a list of arrays.",
    dict: "Give a dict of numbers by key.",
    np.ndarray: "Give an array.",
}
"""What to give for a sequence, a map, a tensor."""

MAGIC = (b"PK", b"\x93NUMPY")
"""How a .npz and a .npy begin."""

FORMATS = (
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
        raise UsageError(no_such_file(path, "file or folder"), FORMATS)
    if list(path.glob("*.npy")):
        arrays = {f.stem: x for f in sorted(path.glob("*.npy")) for x in _read_npy(f, specs, f.stem).values()}
        return [case_of(path.name, arrays, specs)]
    folders = (
        [path] if (path / "input_0.pb").is_file() or not specs else sorted(path.glob("test_data_set_*"), key=_number)
    )
    if not folders:
        raise UsageError(f"{path}: holds neither input_0.pb nor .npy nor test_data_set_*", FORMATS)
    return [case_of(folder.name, _read_folder(folder, specs), specs) for folder in folders]


def save_cases(path: Path, plan: Sequence[Case], specs: Sequence[InputSpec]) -> None:
    """Write the inputs of the cases in a form that `given_cases` reads, one case at a time.

    A path ending in .npz takes a single case; any other is a folder of test_data_set_*, each written completely or not
    at all. Raises UsageError, and ModelError if nothing can be written: new files are removed then.
    """
    if path.suffix == ".npz" and len(plan) != 1:
        raise UsageError(f"{path}: a .npz holds one set of inputs, there are {len(plan)}", "Give a folder.")
    if path.suffix == ".npz":
        with as_model_error(path), replacing(path) as file:
            # NumPy's archive writer has no name for bfloat16, and stores its bytes.
            arrays = {n: x.astype(str) if x.dtype.kind == "O" else x for n, x in plan[0].make().items()}
            np.savez(file, **arrays)  # type: ignore[arg-type]  # an input may be called as an option is
        return
    types = {s.name: s.type_ for s in _fed_inputs(specs)}
    with contextlib.ExitStack() as folders:
        folders.enter_context(filling(path))
        for index, case in enumerate(plan):
            folder = path / f"test_data_set_{index}"
            for entry in (folder, *folder.glob("*")):
                check_no_links(entry, path)
            folders.enter_context(filling(folder))
            with together():
                values = values_of(case.make(), types)
                for n, (name, type_) in enumerate(types.items()):
                    io.write_bytes(folder / f"input_{n}.pb", serialized(name, values.get(name), type_))


def case_of(name: str, inputs: Mapping[str, Any], specs: Sequence[InputSpec]) -> Case:
    """Return the case of `inputs` after validation: names, element types, ranks, fixed extents, dimension names.

    A sequence is a list of arrays, a map a dict, and what is optional may be None or missing; their parts may be there
    instead, as `tensors_of` names them.
    """
    by_name = {s.name: s for s in _fed_inputs(specs)}
    values: dict[str, Any] = dict.fromkeys(s.name for s in specs if s.optional)
    values |= values_of(inputs, {n: s.type_ for n, s in by_name.items()})
    missing, extra = by_name.keys() - values.keys(), values.keys() - by_name.keys()
    if missing or extra:
        faults = [f"lacks {_names(missing)}"] * bool(missing) + [
            f"has {_names(extra)}, which the model does not have"
        ] * bool(extra)
        raise UsageError(f"{name}: {', and '.join(faults)}", f"The model's inputs are {_names(by_name)}.")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in by_name.values():
        _check_value(name, spec, values[spec.name], sizes)
    numbers = {s.name: s.array_type for s in by_name.values() if s.type_.startswith("map(")}
    arrays = tensors_of({n: values[n] for n in by_name}, [n for n, s in by_name.items() if s.optional], numbers)
    shapes = {n: _shape(values[n]) for n in by_name if values[n] is not None}
    return Case(name, None, shapes, lambda: arrays)


def _fed_inputs(specs: Sequence[InputSpec]) -> list[InputSpec]:
    """Return the specs of the model's inputs: without the keys of maps, which are parts."""
    return [s for s in specs if s.known_keys is None]


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a value; of a sequence, its length and the largest extents of its entries."""
    if isinstance(value, Mapping):
        return (len(value),)
    if isinstance(value, list):
        return (len(value), *map(max, zip(*(x.shape for x in value), strict=False)))
    return tuple(value.shape)


def _check_value(name: str, spec: InputSpec, value: Any, sizes: dict[str, tuple[int, str]]) -> None:
    if value is None and spec.optional:
        return
    kind = list if spec.sequence else dict if spec.type_.startswith("map(") else np.ndarray
    if not isinstance(value, kind):
        raise UsageError(
            f"{name}: '{spec.name}' is a {type(value).__name__}, the model wants a {kind.__name__}"
            + f" ({spec.type_})" * bool(spec.type_),
            KINDS[kind],
        )
    if isinstance(value, dict):
        if not value:
            raise UsageError(f"{name}: '{spec.name}' has no key", "ONNX Runtime takes no empty map.")
        return
    if isinstance(value, list):
        entry = replace(spec, shape=spec.shape[1:], type_="")
        for n, one in enumerate(value):
            # Entries may differ in an extent that has a name, too: they are checked one by one.
            _check_value(name, replace(entry, name=f"{spec.name}[{n}]"), one, {})
        return
    _check(name, spec, value, sizes)


def _check(name: str, spec: InputSpec, x: Array, sizes: dict[str, tuple[int, str]]) -> None:
    if x.dtype != spec.array_type:
        raise UsageError(
            f"{name}: '{spec.name}' is {x.dtype}, the model wants {spec.array_type}",
            f"Convert it: numpy.asarray(x, {str(spec.array_type)!r}).",
        )
    declared = "x".join("?" if d is None else str(d) for d in spec.shape) or "scalar"
    actual = "x".join(map(str, x.shape)) or "scalar"
    if x.ndim != len(spec.shape):
        raise UsageError(f"{name}: '{spec.name}' has shape {actual}, the model wants {declared}")
    for dim, extent in zip(spec.shape, x.shape, strict=True):
        if isinstance(dim, int) and dim != extent:
            raise UsageError(f"{name}: '{spec.name}' has shape {actual}, the model wants {declared}")
        if isinstance(dim, str):
            size, first = sizes.setdefault(dim, (extent, spec.name))
            if size != extent:
                raise UsageError(
                    f"{name}: dimension {dim} is {size} in '{first}' and {extent} in '{spec.name}'",
                    "A dimension name stands for one size everywhere.",
                )


def _read_npz(path: Path, specs: Sequence[InputSpec]) -> dict[str, Array]:
    types = {s.name: s.array_type for s in specs}
    composite = [s.name for s in specs if s.type_]
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{path}: holds one array without a name", FORMATS)
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: {_unreadable(path, '.npz', error)}", FORMATS) from None
    return {n: _in_model_type(x, types.get(n, types.get(output_of(n, composite)))) for n, x in arrays.items()}


def _unreadable(path: Path, kind: str, error: Exception) -> str:
    """Return why NumPy read nothing: it takes any file that begins as none of its own for a pickle, and says so."""
    try:
        with path.open("rb") as file:
            begins = file.read(max(map(len, MAGIC)))
    except OSError:
        return f"is not a readable {kind}: {error}"
    return f"is not a readable {kind}: {error}" if begins.startswith(MAGIC) else "is no file of NumPy's"


def _read_npy(path: Path, specs: Sequence[InputSpec], name: str | None = None) -> dict[str, Array]:
    """Return the array in `path`, for the input `name` or for the only input."""
    name = _only_input(path, specs) if name is None else name
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path}: {_unreadable(path, '.npy', error)}", FORMATS) from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path}: holds several arrays", "Call it .npz.")
    types = {s.name: s.array_type for s in specs}
    return {name: _in_model_type(array, types.get(name))}


def _in_model_type(x: Array, dtype: np.dtype[Any] | None) -> Array:
    """Convert NumPy's own representations to the model's: bfloat16 from raw bytes, strings from fixed-width ones."""
    if x.dtype.kind == "V" and dtype is not None:
        return x.view(dtype)
    return x.astype(object) if x.dtype.kind == "U" else x


def _read_pb(path: Path, specs: Sequence[InputSpec]) -> dict[str, Any]:
    name = _only_input(path, specs)
    return {name: _read_value(path, specs[0])}


def _read_json(path: Path, specs: Sequence[InputSpec]) -> list[dict[str, Any]]:
    """Return the sets of inputs in `path`: an object of lists by input name, or a list of such objects.

    A sequence is a list of its entries, a map an object, and what is optional may be null. JSON has no element types:
    numbers are converted to the model's type, provided that only float digits are lost.
    """
    try:
        document = read_json(read_text(path))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: is not readable JSON: {error}", FORMATS) from None
    sets = document if isinstance(document, list) else [document]
    if not sets or not all(isinstance(one, dict) for one in sets):
        raise UsageError(f"{path}: holds no object of inputs by name", FORMATS)
    by_name = {s.name: s for s in specs}
    return [
        {n: _value_from_json(path, n, x, by_name[n]) if n in by_name else np.asarray(x) for n, x in s.items()}
        for s in sets
    ]


def _value_from_json(path: Path, name: str, value: Any, spec: InputSpec) -> Any:
    if value is None and spec.optional:
        return None
    if spec.sequence and isinstance(value, list):
        return [_from_json(path, f"{name}[{n}]", x, spec.array_type) for n, x in enumerate(value)]
    if spec.type_.startswith("map(") and isinstance(value, dict):
        return _map_from_json(path, name, value, spec)
    return _from_json(path, name, value, spec.array_type)


def _map_from_json(path: Path, name: str, value: dict[str, Any], spec: InputSpec) -> dict[Any, Any]:
    """Return a map: the keys of an object in JSON are always text."""
    try:
        keys = [int(key) if spec.type_.startswith("map(int64") else key for key in value]
    except ValueError:
        raise UsageError(f"{path}: '{name}' has a key that is no integer", f"The model wants {spec.type_}.") from None
    return dict(zip(keys, _from_json(path, name, list(value.values()), spec.array_type).tolist(), strict=True))


def _from_json(path: Path, name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise UsageError(f"{path}: the rows of '{name}' are of different lengths", "Pad them.") from None
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "fiu", "V": "fiu", "O": "U"}.get(dtype.kind, dtype.kind)
    if array.size and array.dtype.kind not in kinds:
        raise UsageError(f"{path}: '{name}' holds {array.dtype}, the model wants {dtype}")
    converted = array.astype(dtype)
    if dtype.kind in "iu" and (converted != array).any():
        raise UsageError(f"{path}: '{name}' holds numbers that {dtype} cannot represent")
    return converted


def _only_input(path: Path, specs: Sequence[InputSpec]) -> str:
    if len(specs) != 1:
        raise UsageError(f"{path}: holds one array, the model has the inputs {_names(s.name for s in specs)}", FORMATS)
    return specs[0].name


def _read_folder(folder: Path, specs: Sequence[InputSpec]) -> dict[str, Any]:
    files, inputs = sorted(folder.glob("input_*.pb"), key=_number), _fed_inputs(specs)
    if len(files) != len(inputs):
        raise UsageError(
            f"{folder}: {plural(files, 'input')}, the model has {len(inputs)}",
            f"It wants input_0.pb to input_{len(inputs) - 1}.pb, in the order {_names(s.name for s in inputs)}.",
        )
    return {spec.name: _read_value(file, spec) for file, spec in zip(files, inputs, strict=True)}


def _read_value(file: Path, spec: InputSpec) -> Any:
    name, value = read_value(file, spec.type_ or "tensor")
    if name and name != spec.name:
        raise UsageError(
            f"{file}: holds '{name}', the model's input there is '{spec.name}'",
            "Number the files in the order of the model's inputs.",
        )
    return value


def _number(path: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)(?:\.pb)?$", path.name)
    return (int(digits.group(1)) if digits else 0, path.name)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in names)
