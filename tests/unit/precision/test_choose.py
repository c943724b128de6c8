"""As few nodes as possible stay float32: by trials, of which each says how much of the contract is used."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto

from onnxfuse.precision.choose import _enough, _merged, _needed, _reasons, _without_room
from onnxfuse.precision.plan import FLOAT
from onnxfuse.precision.sensitive_nodes import NodeGroup
from onnxfuse.precision.trial import fewest

BF16 = TensorProto.BFLOAT16


class Trials:
    """Trials whose outcome is how much of the contract the nodes use that are not float32."""

    def __init__(self, uses: Callable[[Mapping[str, int]], float], patience: int = 10**6) -> None:
        self.uses, self.left, self.count = uses, patience, 0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.count >= self.left

    def run(self, kept: Mapping[str, int]) -> Any:
        """Return what these nodes in float32 give."""
        self.count += 1
        severity = self.uses(kept)
        return SimpleNamespace(ok=severity <= 1, judged=SimpleNamespace(severity=severity))


def groups(count: int) -> list[NodeGroup]:
    """Return groups of one node each."""
    return [NodeGroup(float(count - n), {f"n{n}": f"why {n}"}) for n in range(count)]


def needing(*names: str) -> Callable[[Mapping[str, int]], float]:
    """Return the use of a contract that is met where these nodes are float32."""
    return lambda kept: 0.5 if all(kept.get(name) == FLOAT for name in names) else 2.0


@pytest.mark.parametrize("needed", [("n0",), ("n3",), ("n1", "n6"), ("n0", "n7")])
def test_enough_are_the_fewest_groups_that_hold(needed: tuple[str, ...]) -> None:
    """The most severe ones are tried first, twice as many each time; then those that are not needed go again."""
    trial: Any = Trials(needing(*needed))
    found = _enough(trial, {}, [], groups(8))
    assert [name for g in found for name in g.reasons] == list(needed)
    assert trial.count < 2**8


def test_if_no_number_is_enough_all_are_kept() -> None:
    """Later trials may still find what else is needed; after the time limit what was tried stays."""
    never: Any = Trials(lambda kept: 2.0)
    assert len(_enough(never, {}, [], groups(5))) == 5
    late: Any = Trials(needing("n6"), patience=1)
    assert len(_enough(late, {}, [], groups(8))) >= 1


def test_of_groups_the_nodes_that_are_needed_stay() -> None:
    """One by one: a group goes back as far as it may have to. Those that are pinned are not asked about."""
    trial: Any = Trials(needing("pinned", "b"))
    kept = _needed(trial, [{"pinned": FLOAT}], [{"a": FLOAT, "b": FLOAT}, {"c": FLOAT}])
    assert kept == [{"b": FLOAT}]
    hopeless: Any = Trials(lambda _: 2.0)
    assert _needed(hopeless, [], [{"a": FLOAT, "b": FLOAT}]) == [{"a": FLOAT}, {"b": FLOAT}]


def test_where_none_stands_out_as_many_are_converted_as_the_contract_has_room_for() -> None:
    """Each node's rounding uses a tenth of it, by squares, but for one that is too much alone."""

    def uses(kept: Mapping[str, int]) -> float:
        low = [n for n in range(16) if f"n{n}" not in kept]
        return float(sum(10.0 if n == 5 else 0.1 for n in low)) ** 0.5

    trial: Any = Trials(uses)
    stay = {name for g in _without_room(trial, {}, [], groups(16)) for name in g.reasons}
    assert "n5" in stay
    assert uses(dict.fromkeys(stay, FLOAT)) <= 1.0
    assert 4 <= 16 - len(stay) <= 10
    assert trial.count < 40


def test_a_search_without_success_ends() -> None:
    """After twice as many failures as it takes to reach one node; all stay float32."""
    trial: Any = Trials(lambda kept: 3.0 if len(kept) < 64 else 0.5)
    assert len(_without_room(trial, {}, [], groups(64))) == 64
    assert trial.count <= 2 * (64).bit_length() + 1


def test_groups_that_disagree_about_a_node_leave_it_float32() -> None:
    assert _merged([{"a": BF16, "b": BF16}, {"a": FLOAT}, {"b": BF16}]) == {"a": FLOAT, "b": BF16}


def test_the_first_reason_of_a_node_is_told() -> None:
    assert _reasons([NodeGroup(1.0, {"a": "first"}), NodeGroup(2.0, {"a": "second", "b": "other"})]) == {
        "a": "first", "b": "other",
    }  # fmt: skip


@pytest.mark.parametrize("needed", [{1}, {0, 5}, {2, 3, 4}, set()])
def test_fewest_is_minimal_whatever_is_needed(needed: set[int]) -> None:
    """No element of it can go."""
    assert set(fewest(list(range(6)), lambda chosen: needed <= set(chosen), lambda: False)) == needed
