"""What is served, and to whom: not to other sites' pages, not to who does not know the address, and no file."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import onnx
import pytest

import onnxfuse
from onnxfuse import view
from onnxfuse.explanation.explaining import Explained, explain
from onnxfuse.viewing import View

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch,64] x, float[64,64] w) => (float[batch,64] y)
{ [one] a = Relu (x) [two] b = Sigmoid (a) [three] c = Mul (a, b) [product] s = MatMul (c, w) [last] y = Tanh (s) }"""


def model() -> onnx.ModelProto:
    """Return three nodes that fuse, and two that do not: a product with what is no weight, and what is behind it."""
    return onnx.parser.parse_model(TEXT)


@pytest.fixture(scope="module")
def shown() -> Iterator[View]:
    """The model, being served."""
    with view(model()) as served:
        yield served


def ask(shown: View, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    """Return status, text and headers of an answer; `path` stands as it is behind the host."""
    place = urlsplit(shown.url)
    line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)
    line.request(method, path, headers={"Host": host or place.netloc})
    answer = line.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    line.close()
    return found


def below(shown: View, word: str) -> str:
    """Return the path of what the page may ask."""
    return urlsplit(shown.url).path + word


def test_the_page_is_at_its_address_alone(shown: View) -> None:
    """Nothing is told without the secret, and no path of a file is one of ours."""
    status, text, headers = ask(shown, below(shown, ""))
    assert (status, text.startswith("<!doctype html>")) == (200, True)
    for path in ("/", "/x/", "/favicon.ico", below(shown, "../../etc/passwd"), below(shown, "..%2f..%2fetc/passwd"),
                 below(shown, "page.css"), "//etc/passwd", "/" + "a" * 5000):  # fmt: skip
        status, text, _ = ask(shown, path)
        assert status == 404
        assert "onnx" not in text
    assert ask(shown, below(shown, ""), method="HEAD")[:2] == (200, "")
    assert ask(shown, below(shown, ""), method="POST")[0] == 501
    assert "Access-Control-Allow-Origin" not in headers


def test_what_the_page_may_do_is_said_to_the_browser(shown: View) -> None:
    """It runs its own script and asks its own server; it stands in no frame, and is kept nowhere."""
    headers = ask(shown, below(shown, ""))[2]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_a_name_that_was_turned_here_is_refused(shown: View, host: str) -> None:
    """DNS rebinding: the page of another site whose name now is our address sends that name."""
    port = urlsplit(shown.url).port
    assert ask(shown, below(shown, ""), host=f"{host}:{port}" if host else " ")[0] == 421


@pytest.mark.parametrize("host", ["[::1", "[", "]", "[v1.x", "\x7f"])
def test_what_is_no_host_is_refused(shown: View, host: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A bracket that nothing closes, and its like: an answer, and no traceback on the terminal."""
    assert ask(shown, below(shown, ""), host=host)[0] == 421
    assert ask(shown, "//[::1/")[0] in (400, 404)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_our_own_names_are_taken(shown: View, host: str) -> None:
    """A browser at a tunnel's end says localhost."""
    assert ask(shown, below(shown, ""), host=f"{host}:{urlsplit(shown.url).port}")[0] == 200


def test_a_kernel_is_made_on_request(shown: View) -> None:
    """At the shapes of the node, for the GPU that is asked for; the same text as the dump's plan has."""
    fused = onnxfuse.optimize(model())
    node = next(n for n in fused.graph.node if n.domain == "onnxfuse")
    word = f"kernel?op={node.op_type}&value={node.output[0]}&arch="
    status, text, _ = ask(shown, below(shown, word + "sm_80"))
    facts = json.loads(text)
    assert (status, facts["inputs"]) == (200, [[1, 64]])
    assert "__global__" in facts["launches"][0]["text"]
    status, text, _ = ask(shown, below(shown, word + "sm_1"))
    assert (status, json.loads(text)["error"]) == (422, "there is no such fused node, or no such GPU")


def test_the_reason_is_that_of_explain(shown: View) -> None:
    """The first row of `explain --at`."""
    found = explain(model(), at=("product",))
    _, rows = found.at("product")
    told = json.loads(ask(shown, below(shown, "why?node=product"))[1])["why"]
    assert told == f"gemm (1 of 1 matched, stopped at product): {rows[0][3]}"
    assert "'w' is not a constant" in told
    assert "took it with" in json.loads(ask(shown, below(shown, "why?node=two"))[1])["why"]


def test_a_large_model_is_shown_before_it_is_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is there at once, says what is done, and is that of both in the end."""
    seen = threading.Event()

    def slow(*arguments: Any, **options: Any) -> Explained:
        seen.wait(20)
        return explain(*arguments, **options)

    monkeypatch.setattr("onnxfuse.viewing.view_page.LARGE", 2)
    monkeypatch.setattr("onnxfuse.viewing.view_page.explain", slow)
    with view(model()) as served:
        assert served.summary == "model: 5 nodes, being optimized"
        first = ask(served, below(served, ""))[1]
        assert '"pending":true' in first
        assert 'data-side="after"' not in first
        assert json.loads(ask(served, below(served, "state"))[1])["step"]
        seen.set()
        while json.loads(ask(served, below(served, "state"))[1])["step"]:
            time.sleep(0.02)
        assert 'data-side="after"' in ask(served, below(served, ""))[1]
        assert served.summary == "model: 5 nodes -> 3, including 1 fused op"


def test_what_ends_the_work_behind_the_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the page, and to whoever waits for its end."""
    seen = threading.Event()

    def broken(*_: Any, **__: Any) -> Explained:
        seen.wait(20)
        raise onnxfuse.ModelError("the model is no model", "Export it again.")

    monkeypatch.setattr("onnxfuse.viewing.view_page.LARGE", 2)
    monkeypatch.setattr("onnxfuse.viewing.view_page.explain", broken)
    with view(model()) as served:
        seen.set()
        with pytest.raises(onnxfuse.ModelError, match="no model"):
            served.wait()
        told = json.loads(ask(served, below(served, "state"))[1])["failed"]
        assert told == "the model is no model Export it again."


def test_no_weight_is_in_the_page() -> None:
    """However it is asked: 2 MB of numbers leave the page as small as without them."""
    made = model()
    values = onnx.helper.make_tensor(
        "big", onnx.TensorProto.FLOAT, [512, 1024], b"\x41\x42\x43\x44" * 512 * 1024, raw=True
    )
    made.graph.initializer.append(values)
    made.graph.node.append(onnx.helper.make_node("Constant", [], ["c2"], value=values))
    made.graph.node.append(onnx.helper.make_node("Add", ["big", "c2"], ["z"]))
    made.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [512, 1024]))
    with view(made) as served:
        page = ask(served, below(served, ""))[1]
    assert len(page) < 200_000
    assert "ABCDABCD" not in page
    assert "big: float[512,1024] constant" in page


def test_a_fused_model_is_shown_alone_and_two_side_by_side() -> None:
    """Nothing is optimized where the fused model is given."""
    fused = onnxfuse.optimize(model())
    with view(fused) as alone:
        page = ask(alone, below(alone, ""))[1]
        assert ('data-side="before"' in page, 'data-side="after"' in page) == (False, True)
        assert "_repr_html_" not in page
        assert alone.url in alone._repr_html_()
    with view(model(), fused) as both:
        page = ask(both, below(both, ""))[1]
        assert ('data-side="before"' in page, 'data-side="after"' in page) == (True, True)


def profiled(path: Path, names: tuple[str, ...] = ("one", "two")) -> Path:
    """Write what `profile --json` prints of a model, as far as it is read."""
    nodes = [{"name": n, "op": "Relu", "us": 2.0 + i, "device_us": None} for i, n in enumerate(names)]
    side = {"nodes": nodes}
    facts = {"ok": True, "command": "profile", "shapes": {"x": [7, 64]}, "before": side, "after": None}
    path.write_text(json.dumps(facts))
    return path


def test_a_profile_tells_times_and_shapes(tmp_path: Path) -> None:
    """By the names of nodes, at the shapes that ran."""
    with view(model(), profile=profiled(tmp_path / "p.json")) as served:
        page = ask(served, below(served, ""))[1]
    assert '"us":2.0' in page
    assert '"reads":1792' in page  # 7 rows of 64 floats


def test_a_profile_of_another_model_is_told(tmp_path: Path) -> None:
    """It names no node of this one."""
    with pytest.raises(onnxfuse.UsageError, match="names no node of this model"):
        view(model(), profile=profiled(tmp_path / "p.json", ("p", "q")))


def test_a_port_that_is_taken_is_told(shown: View) -> None:
    """With what to do."""
    with pytest.raises(onnxfuse.UsageError, match="cannot listen at"):
        view(model(), port=int(urlsplit(shown.url).port or 0))


def test_the_address_is_json_where_json_is_asked_for(tmp_path: Path) -> None:
    """In the documented form, for what opens the page itself."""
    onnx.save(model(), tmp_path / "m.onnx")
    call = [sys.executable, "-m", "onnxfuse", "view", "m.onnx", "--json", "--no-browser"]
    process = subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = "".join(iter(process.stdout.readline, "}\n")) + "}"
    process.terminate()
    process.communicate(timeout=20)
    facts = json.loads(text)
    form = json.loads((resources.files("onnxfuse.reporting") / "schema.json").read_text())
    jsonschema.Draft202012Validator(form).validate(facts)
    assert (facts["command"], facts["url"][:17]) == ("view", "http://127.0.0.1:")


@pytest.mark.parametrize(
    ("patience", "counted"), [(600, "5 nodes -> 3, including 1 fused op"), (0, "5 nodes, being optimized")]
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_prints_one_line_and_ends_cleanly(
    tmp_path: Path, number: int, code: int, patience: float, counted: str
) -> None:
    """^C is how it is meant to end: exit 0, and nothing on standard error, whether or not the model is optimized by
    then: on a busy machine that takes longer than the address waits for it."""
    onnx.save(model(), tmp_path / "m.onnx")
    program = (
        "from onnxfuse.cli.main import main\nfrom onnxfuse.viewing import view_page\n"
        f"view_page.PATIENCE = {patience}\nmain()"
    )
    call = [sys.executable, "-c", program, "view", "m.onnx", "--no-browser"]
    process = subprocess.Popen(
        call, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert re.fullmatch(rf"m\.onnx: {counted}: http://127\.0\.0\.1:\d+/[\w-]{{22}}/  \(\^C ends it\)\n", line)
    assert (process.returncode, out, err) == (code, "", "")
