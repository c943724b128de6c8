"""`--undo` says what of the original is back and what is not: by operator, and by the rule that rewrote it."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.model import ledger
from onnxfuse.support.errors import ModelError
from tests.cli.conftest import Command


def network() -> onnx.ModelProto:
    """Return a convolution with its norm and Relu, and shape arithmetic that folds."""
    rng = np.random.default_rng(0)
    weights = {"w": (4, 3, 3, 3), "scale": (4,), "shift": (4,), "mean": (4,), "var": (4,)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("Identity", ["r"], ["i"], "same"),
        helper.make_node("Tanh", ["i"], ["t"], "tanh"),
        helper.make_node("Exp", ["t"], ["y"], "exp"),
    ]
    given = [helper.make_tensor_value_info("x", 1, ["N", 3, 8, 8])]
    found = [helper.make_tensor_value_info("y", 1, ["N", 4, 6, 6])]
    tensors = [numpy_helper.from_array(rng.uniform(0.5, 1, s).astype(np.float32), n) for n, s in weights.items()]
    graph = helper.make_graph(nodes, "g", given, found, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_was_folded_is_told_by_rule_and_operator(tmp_path: Path, onnxfuse_command: Command) -> None:
    """A BatchNormalization in the weights does not come back; the chain behind it does, node by node."""
    onnx.save(network(), tmp_path / "in.onnx")
    assert onnxfuse_command("optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")).code == 0
    words = ("optimize", "--undo", str(tmp_path / "out.onnx"), str(tmp_path / "plain.onnx"))
    back = json.loads(onnxfuse_command(*words, "--json").out)["back"]
    plain = onnx.load(tmp_path / "plain.onnx")
    assert back["rewrites"] == {"batchnorm": 1}
    assert back["operators"] == {
        "BatchNormalization": {"original": 1, "after": 0},
        "Identity": {"original": 1, "after": 0},
        "Add": {"original": 0, "after": 1},
    }
    assert back["nodes"] == {"original": 6, "back": 2, "after": 5}  # relu and exp: the others read other values
    assert not plain.metadata_props
    told = " ".join(onnxfuse_command(*words).out.split())
    assert "2 of the original's 6 nodes are back as they were; 4 are not, and 3 are in their place" in told
    assert "batchnorm 1" in told
    assert "BatchNormalization 1 0" in told


def test_optimizing_twice_keeps_the_first_ledger() -> None:
    """The second run's original is the first one's, and its rewrites are added."""
    once = onnxfuse.optimize(network())
    twice = onnxfuse.optimize(once)
    assert once == twice
    kept = ledger.read(twice)
    assert kept is not None
    assert (sum(kept.operators.values()), dict(kept.rewrites)) == (6, {"batchnorm": 1})


def test_sizes_and_precision_that_stay_are_told() -> None:
    """What the options took away is no rule's."""
    low = onnxfuse.optimize(network(), shapes={"N": 2}, precision="float16")
    with pytest.warns(UserWarning, match="made for x=2x3x8x8 only; weights and nodes are in float16"):
        onnxfuse.unfuse(low)


def test_a_whole_undo_is_silent_and_one_without_a_ledger_says_so(tmp_path: Path, onnxfuse_command: Command) -> None:
    """Python warns of what is not back alone; a file of an earlier version does not know."""
    plain = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 8] x) => (float[N, 8] y) { a = Tanh (x) y = Exp (a) }""")
    made = onnxfuse.optimize(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [n.op_type for n in onnxfuse.unfuse(made).graph.node] == ["Tanh", "Exp"]
    ledger.remove(made)
    onnx.save(made, tmp_path / "old.onnx")
    done = onnxfuse_command("optimize", "--undo", str(tmp_path / "old.onnx"), str(tmp_path / "plain.onnx"))
    assert "the file has lost its record of them" in " ".join(done.out.split())
    onnx.save(plain, tmp_path / "never.onnx")
    done = onnxfuse_command("optimize", "--undo", str(tmp_path / "never.onnx"), str(tmp_path / "plain.onnx"))
    assert "nothing to undo: the file has no fused op" in done.out


def test_a_damaged_ledger_is_told() -> None:
    """Anything may stand in a file."""
    made = onnxfuse.optimize(network())
    ledger.remove(made)
    made.metadata_props.add(key=ledger.METADATA, value='{"operators": 3}')
    with pytest.raises(ModelError, match="is not as onnxfuse writes it"):
        onnxfuse.unfuse(made)
