"""The front door: `import onnxfuse` and what it takes."""

from pathlib import Path

import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

import onnxfuse
from onnxfuse.model import io

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { a = Exp (x)  y = Neg (a) }'


@pytest.mark.parametrize("form", ["model", "path", "text path", "graphsurgeon"])
def test_a_model_is_taken_in_every_form(form: str, tmp_path: Path) -> None:
    """A ModelProto, a path, or a graph of onnx-graphsurgeon; what was given stays as it is."""
    plain = onnx.parser.parse_model(TEXT)
    io.save(plain, tmp_path / "m.onnx")
    forms = {
        "model": plain,
        "path": tmp_path / "m.onnx",
        "text path": str(tmp_path / "m.onnx"),
        "graphsurgeon": gs.import_onnx(plain),
    }
    made = onnxfuse.optimize(forms[form])
    assert [n.domain for n in made.graph.node] == ["onnxfuse"]
    assert len(plain.graph.node) == 2
    assert len(onnxfuse.explain(forms[form]).applied) == 1
    assert [n.op_type for n in onnxfuse.unfuse(made).graph.node] == ["Exp", "Neg"]
    profile = onnxfuse.profile(forms[form], made, shapes={"N": (3,)}, time=False)
    assert (profile.removed.count, profile.before.work.bytes, profile.after.work.bytes) == (1, 192, 96)
    report = onnxfuse.verify(forms[form], made, providers=["CPUExecutionProvider"], shapes={"N": (3,)})
    assert report.ok
