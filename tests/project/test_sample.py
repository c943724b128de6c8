"""`make test` takes some cases of tests that have many: which ones, and that the rest is there without `--sample`."""

from types import SimpleNamespace
from typing import Any

from hypothesis.internal.conjecture import providers

from tests.conftest import SAMPLED, SHARE, pytest_collection_modifyitems

MANY = SHARE + 4


def sampled(names: list[str], *, asked: bool = True) -> tuple[list[str], int]:
    """Return the names that stay, and how many are told as left out."""
    told: list[Any] = []
    config: Any = SimpleNamespace(
        getoption=lambda _: asked,
        hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items)),
    )
    items: list[Any] = [Named(name) for name in names]
    pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items], len(told)


class Named:
    """A test by its name."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def cases(test: str, count: int) -> list[str]:
    return [f"{test}[{number}]" for number in range(count)]


def test_of_many_cases_a_part_stays_in_their_order() -> None:
    given = cases(f"{SAMPLED[0]}test_a.py::test_one", MANY)
    found, told = sampled(given)
    assert len(found) == 2
    assert found == [name for name in given if name in found]
    assert told == MANY - len(found)
    assert set(sampled(given[::-1])[0]) == set(found)


def test_few_cases_and_other_tests_stay() -> None:
    given = [*cases(f"{SAMPLED[0]}test_a.py::test_two", 1), *cases("tests/test_b.py::test_three", MANY)]
    assert sampled(given) == (given, 0)


def test_without_being_asked_all_stay() -> None:
    given = cases(f"{SAMPLED[0]}test_a.py::test_one", MANY)
    assert sampled(given, asked=False) == (given, 0)


def test_examples_are_drawn_from_no_constants_of_the_code() -> None:
    """They would be others wherever other tests ran before."""
    assert not hasattr(providers, "_get_local_constants") or len(providers._get_local_constants()) == 0
