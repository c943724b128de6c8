"""The ways of the survey: the first of each exporter is what it does when nobody asks for anything."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from models.survey import AS_EXPORTED, DYNAMO, INSIDE, OPTIMUM, SCATTERED, TRACE, WAYS, Way, place
from models.survey.catalogue import EXPORTERS, SOURCES, ways_of
from tests.survey.exports import exported


def test_the_first_way_of_every_exporter_is_its_default() -> None:
    """Opset and place of the weights are the exporter's own; torch.export, torch's default, comes before tracing."""
    for source in SOURCES:
        first = WAYS[ways_of(f"{source}:any")[0]]
        assert (first.opset, first.dtype, first.weights) == (None, "float32", AS_EXPORTED)
    assert [(WAYS[n].exporter, WAYS[n].bare) for n in ways_of("timm:any")[:2]] == [(DYNAMO, True), (TRACE, True)]
    for source, (exporter,) in EXPORTERS.items():
        assert {WAYS[n].exporter for n in ways_of(f"{source}:any")} == {exporter}


def test_each_way_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Rows are found by it, and each export has a folder, for files beside it."""
    assert len({str(way) for way in WAYS}) == len(WAYS)
    assert len({place(tmp_path, "plain:tcn", way).parent for way in WAYS}) == len(WAYS)
    assert str(WAYS[0]) == "dynamo default float32 static"
    assert place(tmp_path, "a:b", Way(TRACE, 18, "float32", True, weights=OPTIMUM)).name == "model.onnx"


class Torch(SimpleNamespace):
    """Stands in for torch: what its exporter is called with is kept, and a file is written."""

    def __init__(self) -> None:
        self.called: dict[str, Any] = {}
        super().__init__(onnx=SimpleNamespace(export=self.export))

    def export(self, module: Any, args: Any, path: str, **more: Any) -> None:
        self.called = more
        exported(INSIDE if more.get("external_data") is False else AS_EXPORTED, Path(path))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    """The stand-in for torch, where the module that exports imports it."""
    stand_in = Torch()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.delitem(sys.modules, "models.survey.by_torch", raising=False)
    yield stand_in
    sys.modules.pop("models.survey.by_torch", None)


def called(torch: Torch, way: Way, path: Path) -> dict[str, Any]:
    """Return what torch's exporter is called with besides the module, its inputs and the file."""
    by_torch = importlib.import_module("models.survey.by_torch")
    axes = way.opened({"x": {0: "batch"}})
    by_torch._write(None, {"x": None}, axes if any(axes.values()) else {}, 1, way, path)
    by_torch._move_weights(path, way.weights)
    return torch.called


def test_a_way_says_what_it_leaves_at_the_default(torch: Torch, tmp_path: Path) -> None:
    """The first two pass nothing but which exporter it is; what others ask for they pass."""
    assert called(torch, WAYS[0], tmp_path / "a.onnx") == {"dynamo": True}
    assert called(torch, WAYS[1], tmp_path / "b.onnx") == {"dynamo": False}
    names = {"input_names": ["x"], "output_names": ["y0"]}
    dynamic = Way(DYNAMO, None, "float32", True, weights=AS_EXPORTED)
    assert called(torch, dynamic, tmp_path / "c.onnx") == {
        "dynamo": True, "dynamic_shapes": (({0: "batch"},),), **names}  # fmt: skip
    assert called(torch, Way(TRACE, 17, "float32", True), tmp_path / "d.onnx") == {
        "dynamo": False, "opset_version": 17, "external_data": False, "dynamic_axes": {"x": {0: "batch"}}, **names
    }  # fmt: skip


@pytest.mark.parametrize("weights", [AS_EXPORTED, INSIDE, OPTIMUM, SCATTERED])
def test_weights_are_where_a_way_has_them(weights: str, torch: Torch, tmp_path: Path) -> None:
    """As many files as the layout has, and the same numbers in each."""
    way = Way(DYNAMO, 18, "float32", False, weights=weights)
    path = place(tmp_path, "plain:any", way)
    called(torch, way, path)
    names = {f.name.removeprefix(path.stem) for f in path.parent.iterdir()}
    assert names == {
        AS_EXPORTED: {".onnx", ".onnx.data"}, INSIDE: {".onnx"}, OPTIMUM: {".onnx", ".onnx_data"},
        SCATTERED: {".onnx", "weight", "last"},
    }[weights]  # fmt: skip
    plain = onnx.load(exported(INSIDE, tmp_path / "plain.onnx"))
    assert [t.raw_data for t in onnx.load(path).graph.initializer] == [t.raw_data for t in plain.graph.initializer]
