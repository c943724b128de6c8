"""One session runs again and again at shapes that alternate, as a server does: the same bits each time, and right.

What one launch sets on a function, a stream or the session, and another relies on, shows no earlier than in the second
round.
"""

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxfuse
from models import layers
from models.network import Form, start
from models.survey.checks import ROUNDS, STAGES, Broken, Examined, Refused, changing
from models.survey.samples import FOLDER, SUFFIX, unpacked
from models.weights import seeded
from onnxfuse.runtime import cuda_unusable
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.run import sessions
from tests.models import small, u2net
from tests.support.kernels import random_models
from tests.support.kernels.random_models import KINDS
from tests.support.random_graphs import ANCHORS, models
from tests.support.small import assert_within_budget, doubled, evaluate, halved, optimize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_unusable() is not None, reason=f"needs a GPU: {cuda_unusable()}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
EXACT_PRODUCTS = [("CUDAExecutionProvider", {"use_tf32": "0"})]
Feeds = dict[str, np.ndarray]


def images(dtype: str, *shapes: tuple[int, ...]) -> list[Feeds]:
    rng = np.random.default_rng(0)
    return [{"image": rng.standard_normal(shape).astype(dtype)} for shape in shapes]


def holds(original: onnx.ModelProto, cases: list[Feeds], providers: list[str] = CUDA) -> None:
    """The optimized model gives the same bits in each round over the cases, and is right beside its original."""
    fused = onnxfuse.optimize(original)
    assert changing(onnxfuse.session(fused, providers=providers), cases, ROUNDS) == set()
    report = onnxfuse.verify(original, fused, inputs=cases, providers=providers, isolate=False)
    assert not report.problems, report.summary
    assert [r.fault for r in report.rows if r.verdict == "mismatch"] == []


@pytest.mark.parametrize(
    ("dtype", "large", "other"),
    [("float16", (1, 3, 320, 320), (2, 3, 224, 288)), ("float32", (8, 3, 320, 320), (1, 3, 320, 320))],
    ids=["float16", "float32"],
)
def test_u2net(dtype: str, large: tuple[int, ...], other: tuple[int, ...]) -> None:
    """At the paper's widths, where launches of one function differ in their shared memory."""
    holds(u2net.build(dtype), images(dtype, large, other))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("seed", range(8))
def test_random_convolutions(seed: int, dtype: str) -> None:
    """Wide enough for tiles in shared memory: channels, kernels, dilations and joins by chance."""
    holds(convolutions(seed, dtype), images(dtype, (1, 32, 65, 72), (4, 32, 40, 33)))


def convolutions(seed: int, dtype: str) -> onnx.ModelProto:
    """Return convolutions of which some read two values before them; batch, height and width are open."""
    random, net = Random(seed), start("convolutions", Form(dtype), seeded(seed))
    values = [(net.input("image", net.dtype, (net.form.batch, 32, "height", "width")), 32)]
    for number in range(6):
        x, width = values[-1]
        if random.random() < 0.5:
            other, more = random.choice(values)
            x, width = net.Concat(x, other, axis=1), width + more
        side, dilation, channels = random.choice((1, 3)), random.choice((1, 2, 4)), random.choice((32, 64, 96, 128))
        at = net.at(f"conv{number}")
        weight = at.weight("weight", (channels, width, side, side), std=(2 / (side * side * width)) ** 0.5)
        y = at.Conv(x, weight, at.weight("bias", (channels,), std=layers.BIAS), kernel_shape=[side] * 2,
                    dilations=[dilation] * 2, pads=[dilation * (side // 2)] * 4)  # fmt: skip
        values.append((at.Relu(y), channels))
    net.output("y", values[-1][0], (net.form.batch, values[-1][1], "height", "width"))
    return net.model


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("anchor", ANCHORS)
@given(data=st.data())
@settings(max_examples=6)
def test_random_graphs(anchor: str, dtype: str, data: st.DataObject) -> None:
    """Each round at each size, the kernels err at most twice as much as the original, plus one rounding step."""
    model = data.draw(models(anchor))
    model = halved(model) if dtype == "float16" else model
    made, _ = optimize(model)
    ours, theirs = (onnxfuse.session(m, providers=EXACT_PRODUCTS) for m in (made, model))
    rng, names, shape = np.random.default_rng(0), ("x", "r"), ANCHORS[anchor][1][1:]
    cases = [{n: (2 * rng.standard_normal((rows, *shape))).astype(dtype) for n in names} for rows in (3, 65)]
    assert changing(ours, cases, ROUNDS) == set()
    if anchor == "conv_batchnorm":
        return  # a folded weight is rounded once more: test_laws.py knows by how much
    # All cases are judged at once: in one of a few numbers the original may be exact by luck.
    truths = [evaluate(doubled(model), {n: a.astype(np.float64) for n, a in case.items()}) for case in cases]
    befores, afters = ([session.run(None, case) for case in cases] for session in (theirs, ours))
    for at, output in enumerate(model.graph.output):
        for before, after in zip(befores, afters, strict=True):
            assert before[at].shape == after[at].shape, output.name
        true, own, found = (np.concatenate([x[at].ravel() for x in of_case]) for of_case in (truths, befores, afters))
        assert_within_budget(output.name, true, own, found)


def passes(file: Path, folder: Path) -> None:
    """Every step of the survey's stage for GPUs but the race, `repeated` among them."""
    one = Examined(file, folder, ())
    try:
        for step in STAGES["gpu"]:
            step(one)
    except Refused as why:
        pytest.skip(f"ONNX Runtime does not run the original: {why}")
    except Broken as fault:
        pytest.fail(str(fault))


@pytest.mark.parametrize("path", sorted(FOLDER.glob(f"*{SUFFIX}")), ids=lambda p: p.name.removesuffix(SUFFIX))
def test_samples_of_the_survey(path: Path, tmp_path: Path) -> None:
    """Exports whose weights are drawn anew."""
    file = tmp_path / "model.onnx"
    onnx.save(unpacked(path.read_bytes()), file)
    passes(file, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", small.SIZES)
def test_architectures(name: str, dtype: str, tmp_path: Path) -> None:
    """The sample models at small sizes."""
    file = tmp_path / "model.onnx"
    onnx.save(small.build(name, dtype=dtype), file)
    passes(file, tmp_path)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", range(4))
def test_random_models_run_again_beside_each_other(kind: str, seed: int) -> None:
    """Models of one kind share functions: four of them, each in a session of its own, run in turns."""
    made = [random_models.model(f"repeated {seed} {number}", kind=kind) for number in range(4)]
    opened = []
    for case in made:
        given = {name: np.asarray(value) for name, value in case.feeds.items()}
        try:
            sessions.run(sessions.ort_session(case.model, CUDA), given)
        except sessions.ORT_ERRORS + (ModelError,):  # noqa: RUF005 - a tuple of types to mypy
            continue  # ONNX Runtime has no kernel for some operators in some types
        opened.append((case.model, given, sessions.with_kernels(onnxfuse.optimize(case.model), CUDA)))
    assert opened, "ONNX Runtime runs none of them"
    first = [sessions.run(session, given) for _, given, session in opened]
    for _ in range(ROUNDS - 1):
        for (model, given, session), before in zip(opened, first, strict=True):
            for name, value in sessions.run(session, given).items():
                if value.tobytes() != before[name].tobytes():
                    assert name in changing(sessions.ort_session(model, CUDA), [given], ROUNDS), name
