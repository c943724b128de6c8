"""A search for the nodes that stay: short where none stands out, and what ends it."""

import pytest

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options
from onnxfuse.precision import Lowering
from onnxfuse.precision.trial import Trial
from onnxfuse.support.errors import ModelError
from tests.cli.conftest import Command, folder, onnxfuse_command  # noqa: F401 - fixtures
from tests.support.precision import model_of
from tests.unit.precision.test_convert import ROUNDINGS


def test_a_search_that_ended_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """More time may convert more of it; where nothing that holds was found, that is the reason."""
    nodes = "".join(f"x{n + 1} = Sin(x{n}) " for n in range(16))
    model = model_of(f"g (float[2,8] x) => (float[2,8] y) {{ x0 = Tanh(x) {nodes} y = Tanh(x16) }}")
    asked = Options(precision=Lowering("float16", tolerance=2e-4))

    def ended_after(trials: int) -> None:
        late = property(lambda trial: trial.__dict__.__setitem__("cut", trial.count >= trials) or trial.cut)
        monkeypatch.setattr(Trial, "over", late)

    ended_after(2)
    made = optimize(model, asked)
    assert made.lowered is not None
    assert made.lowered.out_of_time
    assert "allow more with --time" in made.lowered.hint
    ended_after(0)
    with pytest.raises(ModelError, match="does not meet the contract") as caught:
        optimize(model, asked)
    assert "allow more with --time" in caught.value.hint


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_where_no_node_stands_out_the_search_is_short(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty roundings that add up: what has room is converted, without a trial of each node; the file says more."""
    trials: list[Trial] = []
    start = Trial.__post_init__

    def counted(trial: Trial) -> None:
        trials.append(trial)
        start(trial)

    monkeypatch.setattr(Trial, "__post_init__", counted)
    model = model_of(ROUNDINGS)
    loose = optimize(model, Options(precision=Lowering("float16", tolerance=0.5))).lowered
    assert loose is not None
    assert not loose.kept
    made = optimize(model, Options(precision=Lowering("float16", tolerance=share * loose.error))).lowered
    assert made is not None
    assert made.error <= share * loose.error
    assert 2 <= len(made.kept) < made.nodes
    assert trials[-1].count <= 45
    assert not made.out_of_time
    assert f"with --tolerance {made.plain_error:.2g} none of them would have to stay float32" in made.hint
    again = optimize(model, Options(precision=Lowering("float16", tolerance=made.plain_error))).lowered
    assert again is not None
    assert not again.kept
