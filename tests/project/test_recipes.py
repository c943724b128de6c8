"""docs/MODELS_FROM.md is run: each recipe on a small model in the layout that its library expects."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import models
import onnxfuse
from tests.support.files_of_tools import file
from tests.support.page_runner import run
from tests.support.small import halved

PAGE = Path(__file__).parents[2] / "docs" / "MODELS_FROM.md"
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
SIZES: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "intermediate": 128, "vocabulary": 97, "positions": 40}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(92))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a repository as hubs have them, in the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "repo" / "onnx").mkdir(parents=True)
    onnx.save(models.build("bert_base", **SIZES), tmp_path / "repo" / "onnx" / "model.onnx")
    return tmp_path


def section(title: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run the section of the page; return how many commands ran."""
    (name,) = (name for name in SECTIONS if name.startswith(title))
    (folder / "section.md").write_text(SECTIONS[name], encoding="utf-8")
    return run(folder / "section.md", folder, capsys)


def test_a_hubs_folders_and_its_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The graph below `onnx`; in the cache links into `blobs`, for the model and for its data."""
    cache, blobs = folder / "hub" / "snapshots" / "abc" / "onnx", folder / "hub" / "blobs"
    cache.mkdir(parents=True)
    blobs.mkdir()
    kept = onnx.load(folder / "repo" / "onnx" / "model.onnx")
    onnx.save(kept, blobs / "model", save_as_external_data=True, location="model.onnx_data", size_threshold=1000)
    (blobs / "model.onnx_data").rename(blobs / "data")
    (cache / "model.onnx").symlink_to("../../../blobs/model")
    (cache / "model.onnx_data").symlink_to("../../../blobs/data")
    assert section("A model hub's folders", folder, capsys) == 3
    assert same(folder / "repo" / "onnx" / "model.onnx", folder / "fused.onnx")
    assert {path.name for path in blobs.iterdir()} == {"model", "data"}


def same(original: Path, fused: Path) -> bool:
    """Whether both give the same for a sentence."""
    ids = np.ones((1, 5), np.int64)
    inputs = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}
    results = [
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for path in (original, fused)
    ]
    return bool(np.allclose(results[0], results[1], rtol=1e-4, atol=1e-5))


def test_a_file_of_the_builder_of_genai(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float16; all but what computes shapes is fused."""
    (folder / "llama").mkdir()
    onnx.save(halved(file("genai-decoder-layer")), folder / "llama" / "model.onnx")
    assert section("onnxruntime-genai", folder, capsys) == 1
    left = [n.op_type for n in onnx.load(folder / "llama" / "fused.onnx").graph.node if n.domain != "onnxfuse"]
    assert sorted(left) == ["Cast", "Gather", "Shape"]


@pytest.fixture
def repository(folder: Path) -> Path:
    """The same with a configuration, a tokenizer and the fused file, for the libraries that want them."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    repo = folder / "repo"
    (repo / "vocab.txt").write_text("\n".join(VOCABULARY))
    transformers.BertConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=40, architectures=["BertModel"],
    ).save_pretrained(repo)  # fmt: skip
    words = tokenizers.BertWordPieceTokenizer(str(repo / "vocab.txt"))
    transformers.BertTokenizerFast(tokenizer_object=words._tokenizer).save_pretrained(repo)
    onnx.save(onnxfuse.optimize(repo / "onnx" / "model.onnx"), repo / "onnx" / "model_fused.onnx")
    return folder


def test_optimum(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its model runs our session."""
    pytest.importorskip("optimum.onnxruntime", exc_type=ImportError)
    section("Optimum", repository, capsys)


def test_sentence_transformers(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its ONNX backend runs our session, and embeds the same."""
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    pytest.importorskip("optimum.onnxruntime", exc_type=ImportError)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    facts = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(modules)
    ]
    (repository / "repo" / "modules.json").write_text(json.dumps(facts))
    (repository / "repo" / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (repository / "repo" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    section("Sentence Transformers", repository, capsys)


LIBRARY = """
import onnxruntime
from onnxruntime import InferenceSession

def with_options(weight, options=None):
    return onnxruntime.InferenceSession(weight, options, providers=["CPUExecutionProvider"])

def by_keyword(path):
    options = onnxruntime.SessionOptions()
    return InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
"""


def test_libraries_that_open_sessions_themselves(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways in which they call ONNX Runtime give our session, for a fused file and for any other."""
    onnx.save(onnxfuse.optimize(folder / "repo" / "onnx" / "model.onnx"), folder / "fused.onnx")
    theirs = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", theirs)  # what the page sets is undone
    section("Libraries that open sessions", folder, capsys)
    library: dict[str, Any] = {}
    exec(textwrap.dedent(LIBRARY), library)
    for opened in (library["with_options"](folder / "fused.onnx"), library["by_keyword"](folder / "fused.onnx")):
        assert isinstance(opened, theirs)
        assert len(opened.fused) > 3
    assert library["by_keyword"](folder / "repo" / "onnx" / "model.onnx").fused == ()


def test_tf2onnx(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Channels last around a convolution: both Transposes go."""
    assert section("tf2onnx", folder, capsys) == 1
    assert "Transpose" not in {node.op_type for node in onnx.load(folder / "keras.fused.onnx").graph.node}
