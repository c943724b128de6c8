"""Real inputs from files: read as they are, refused with a reason where they do not suit the model."""

import errno
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.files import io
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.inputs.input_files import case_of, load_cases, save_cases
from onnxfuse.verification.inputs.input_roles import InputRole
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import InputSpec, cases
from tests.support.verification.small_models import text_model

SPECS = [
    InputSpec("x", TensorProto.FLOAT, ("n", 4), InputRole("number")),
    InputSpec("ids", TensorProto.INT64, ("n",), InputRole("number")),
]
X, IDS = np.arange(8, dtype=np.float32).reshape(2, 4), np.arange(2)
ADD = "g (float[n, 4] x, int64[n] ids) => (float[n, 4] y, int64[n] z) { y = Relu(x)  z = Identity(ids) }"


def test_an_npz_is_one_case(tmp_path: Path) -> None:
    """Arrays by input name, in any order."""
    np.savez(tmp_path / "in.npz", ids=IDS, x=X)
    (case,) = load_cases(tmp_path / "in.npz", SPECS)
    assert (case.name, case.seed, case.shapes) == ("in.npz", None, {"x": (2, 4), "ids": (2,)})
    np.testing.assert_array_equal(case.make()["x"], X)


def test_an_npz_may_hold_bfloat16(tmp_path: Path) -> None:
    """NumPy stores it as raw bytes; the model knows better."""
    spec = InputSpec("x", TensorProto.BFLOAT16, (3,), InputRole("number"))
    values = np.array([1, 2, 3], ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", x=values)
    (case,) = load_cases(tmp_path / "in.npz", [spec])
    np.testing.assert_array_equal(case.make()["x"], values)


def test_test_data_sets_are_a_case_each(tmp_path: Path) -> None:
    """A folder of test_data_set_* in the order of their numbers, or one of them; outputs in them are not needed."""
    for n in (10, 2):
        _save(tmp_path / f"test_data_set_{n}", ("x", X + n), ("", IDS))
    found = load_cases(tmp_path, SPECS)
    assert [c.name for c in found] == ["test_data_set_2", "test_data_set_10"]
    assert [float(c.make()["x"][0, 0]) for c in found] == [2.0, 10.0]
    assert [c.name for c in load_cases(tmp_path / "test_data_set_10", SPECS)] == ["test_data_set_10"]


def test_real_inputs_take_the_place_of_made_up_ones(tmp_path: Path) -> None:
    """verify runs the files and the arrays given, and nothing else."""
    np.savez(tmp_path / "in.npz", ids=IDS, x=X)
    plain = text_model(ADD)
    report = verify(
        plain, plain, inputs=[tmp_path / "in.npz", {"x": -X, "ids": IDS}], providers=["CPUExecutionProvider"]
    )
    assert report.ok
    assert [c.name for c in report.cases] == ["in.npz", "inputs 1"]
    with pytest.raises(UsageError, match="shapes are those of the real inputs"):
        verify(plain, plain, inputs=tmp_path / "in.npz", shapes={"n": [1]}, providers=["CPUExecutionProvider"])


def test_real_inputs_that_the_original_refuses_are_a_usage_error() -> None:
    """They are not left out in silence as made-up ones are."""
    plain = text_model("g (int64[n] i) => (float[n] y) { y = Gather(t, i) }", t=np.zeros(4, "f"))
    with pytest.raises(UsageError, match="the original fails on inputs 0"):
        verify(plain, plain, inputs={"i": np.array([9])}, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X}, "in: lacks 'ids'"),
        ({"x": X, "ids": IDS, "z": IDS}, "in: has 'z', which the model does not have"),
        ({"x": X, "idz": IDS}, "in: lacks 'ids', and has 'idz'"),
        ({"x": X.astype(np.float64), "ids": IDS}, "in: 'x' is float64, the model wants float32"),
        ({"x": X[0], "ids": IDS}, "in: 'x' has shape 4, the model wants nx4"),
        ({"x": X[:, :3], "ids": IDS}, "in: 'x' has shape 2x3, the model wants nx4"),
        ({"x": X, "ids": IDS[:1]}, "in: dimension n is 2 in 'x' and 1 in 'ids'"),
    ],
)
def test_arrays_that_do_not_suit_the_model(inputs: dict[str, np.ndarray], message: str) -> None:
    """Names, types, ranks, fixed sizes and dimension names are checked before anything runs."""
    with pytest.raises(UsageError, match=message):
        case_of("in", inputs, SPECS)


def test_every_form_of_a_file_gives_the_same_inputs(tmp_path: Path) -> None:
    """NumPy's two forms, JSON, ONNX's tensors, a folder of arrays: one set of inputs, of the model's types."""
    np.savez(tmp_path / "both.npz", x=X, ids=IDS)
    one = {"x": X.tolist(), "ids": IDS.tolist()}
    (tmp_path / "both.json").write_text(json.dumps(one))
    (tmp_path / "twice.json").write_text(json.dumps([one, one]))
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "x.npy", X)
    np.save(tmp_path / "arrays" / "ids.npy", IDS)
    _save(tmp_path / "tensors", ("x", X), ("ids", IDS))
    for name, count in (("both.npz", 1), ("both.json", 1), ("twice.json", 2), ("arrays", 1), ("tensors", 1)):
        cases = load_cases(tmp_path / name, SPECS)
        assert len(cases) == count
        for case in cases:
            made = case.make()
            assert made["x"].dtype == np.float32
            assert made["ids"].dtype == np.int64
            np.testing.assert_array_equal(made["x"], X)
            np.testing.assert_array_equal(made["ids"], IDS)
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    for name in ("x.npy", "x.pb"):
        np.testing.assert_array_equal(load_cases(tmp_path / name, SPECS[:1])[0].make()["x"], X)


@pytest.mark.parametrize("name", ["saved", "saved.npz"])
def test_what_is_saved_is_read_again(name: str, tmp_path: Path) -> None:
    """Made-up inputs go to files and come back bit for bit, bfloat16 too."""
    specs = [*SPECS, InputSpec("b", TensorProto.BFLOAT16, ("n", 3), InputRole("number"))]
    plan = cases(specs, (0,))[: 1 if name.endswith("npz") else None]
    save_cases(tmp_path / name, plan, specs)
    back = load_cases(tmp_path / name, specs)
    assert len(back) == len(plan)
    for ours, theirs in zip(plan, back, strict=True):
        for key, array in ours.make().items():
            assert theirs.make()[key].dtype == array.dtype
            assert theirs.make()[key].tobytes() == array.tobytes()


def test_places_where_nothing_can_be_saved(tmp_path: Path) -> None:
    """Several sets in one archive, and a folder that is a file."""
    plan = cases(SPECS, (0,))
    with pytest.raises(UsageError, match=r"a \.npz holds one set of inputs, there are"):
        save_cases(tmp_path / "x.npz", plan, SPECS)
    (tmp_path / "file").write_text("")
    for place in ("file", "file/deeper", "file/x.npz"):
        with pytest.raises(ModelError, match="cannot be written"):
            save_cases(tmp_path / place, plan[: 1 if place.endswith("npz") else None], SPECS)


@pytest.mark.parametrize("there", [False, True])
def test_inputs_that_do_not_fit_the_disk_leave_nothing(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half a file and no half a set; what was in the folder stays."""
    plan, place = cases(SPECS, (0,)), tmp_path / "deep" / "saved"
    if there:
        place.mkdir(parents=True)
        (place / "test_data_set_9").mkdir()
    before = sorted(tmp_path.rglob("*"))
    left = [3]
    write = io.write_bytes

    def full(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ModelError(f"{path}: cannot be written: {os.strerror(errno.ENOSPC)}")
        write(path, data)

    monkeypatch.setattr(io, "write_bytes", full)
    with pytest.raises(ModelError, match="No space left"):
        save_cases(place, plan, SPECS)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not readable JSON"),
        ("3", "holds no object of inputs by name"),
        ("[]", "holds no object of inputs by name"),
        ('{"x": [[1, 2], [3]], "ids": [1]}', "the rows of 'x' are of different lengths"),
        ('{"x": [[1, 2, 3, 4]], "ids": [1.5]}', "'ids' holds float64, the model wants int64"),
        ('{"x": [["a", 2, 3, 4]], "ids": [1]}', "'x' holds <U"),
        ('{"x": [[1, 2, 3, 4]], "ids": [9223372036854775808]}', "'ids' holds numbers that int64 cannot represent"),
        ('{"x": [[1, 2, 3, 4]]}', "lacks 'ids'"),
        ('{"x": [[1, 2, 3, 4]], "ids": [1], "z": 1}', "has 'z', which the model does not have"),
    ],
)
def test_json_that_does_not_suit_the_model(text: str, message: str, tmp_path: Path) -> None:
    """Nothing is guessed: what is not the model's is told."""
    (tmp_path / "in.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_cases(tmp_path / "in.json", SPECS)


def test_files_that_cannot_be_inputs(tmp_path: Path) -> None:
    """Each fault names the file."""
    np.save(tmp_path / "one.npy", X)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "array.npz").write_bytes((tmp_path / "one.npy").read_bytes())
    (tmp_path / "empty").mkdir()
    _save(tmp_path / "few", ("x", X))
    _save(tmp_path / "swapped", ("ids", IDS), ("x", X))
    _save(tmp_path / "broken", ("x", X), ("ids", IDS))
    (tmp_path / "broken" / "input_1.pb").write_bytes(b"\xff\xff\xff")
    for name, message in (
        ("none.npz", "no such file"),
        ("one.npy", "holds one array, the model has the inputs .x., .ids."),
        ("text.npz", "is no file of NumPy's"),
        ("array.npz", "array.npz: holds one array without a name"),
        ("empty", "holds neither"),
        ("few", "1 input, the model has 2"),
        ("swapped", "input_0.pb: holds 'ids', the model's input there is 'x'"),
        ("broken", "input_1.pb: does not hold a tensor"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            load_cases(tmp_path / name, SPECS)
        assert name in str(caught.value)
        assert caught.value.hint


def test_an_archive_is_no_single_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(UsageError, match=r"x\.npy: holds several arrays") as caught:
        load_cases(tmp_path / "x.npy", SPECS[:1])
    assert caught.value.hint == "Call it .npz."


def _save(folder: Path, *tensors: tuple[str, np.ndarray]) -> None:
    folder.mkdir()
    for n, (name, values) in enumerate(tensors):
        (folder / f"input_{n}.pb").write_bytes(numpy_helper.from_array(values, name).SerializeToString())


def test_strings_come_from_every_form_that_has_them(tmp_path: Path) -> None:
    """They are compared as they are; JSON and NumPy store them each in their own way, and both are read."""
    made = text_model("g (string[n] s) => (string[n] t) { t = StringConcat(s, s) }")
    strings = np.array(["a", "long", ""], object)
    (tmp_path / "s.json").write_text('{"s": ["a", "long", ""]}')
    np.savez(tmp_path / "s.npz", s=strings.astype(str))
    np.save(tmp_path / "s.npy", strings.astype(str))
    specs = input_specs(made)
    save_cases(tmp_path / "sets", [case_of("x", {"s": strings}, specs)], specs)
    for name in ("s.json", "s.npz", "s.npy", "sets"):
        (case,) = load_cases(tmp_path / name, input_specs(made))
        np.testing.assert_array_equal(case.make()["s"], strings)
        assert verify(made, made, inputs=tmp_path / name, providers=["CPUExecutionProvider"]).ok
    other = text_model("g (string[n] s) => (string[n] t) { e = Identity(s)  t = Identity(e) }")
    report = verify(made, other, inputs=tmp_path / "s.json", providers=["CPUExecutionProvider"])
    assert report.outputs[0].fault == "the strings differ"
