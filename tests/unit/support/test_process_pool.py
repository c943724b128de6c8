"""Work on all cores: results in order, errors raised, nothing left behind."""

import os
import time

import pytest

from onnxfuse.support.errors import KernelError
from onnxfuse.support.process_pool import EndedError, Workers


def square(n: int) -> tuple[int, int]:
    return n * n, os.getpid()


def refuse(n: int) -> int:
    if n == 2:
        raise KernelError("two is too many", "take one")
    time.sleep(0.01)
    return n


def end(n: int) -> int:
    os._exit(3)


def unsendable(n: int) -> object:
    return lambda: n


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    done: list[int] = []
    with Workers(processes) as workers:
        found = workers.spread(square, range(9), done.append)
        again = workers.spread(square, range(9))
    assert [value for value, _ in found] == [n * n for n in range(9)]
    assert sorted(done) == list(range(1, 10))
    assert len({pid for _, pid in [*found, *again]}) <= processes
    assert (os.getpid() in {pid for _, pid in found}) == (processes == 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_raised_is_raised(processes: int) -> None:
    with pytest.raises(KernelError, match="two is too many") as raised, Workers(processes) as workers:
        workers.spread(refuse, range(100))
    assert raised.value.hint == "take one"


def test_a_process_that_ends_is_told() -> None:
    with pytest.raises(EndedError, match="was ended"), Workers(2) as workers:
        workers.spread(end, range(4))


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(EndedError, match="cannot be sent"), Workers(2) as workers:
        workers.spread(unsendable, range(4))


def test_nothing_is_done_of_nothing() -> None:
    with Workers() as workers:
        assert workers.spread(square, []) == []
        assert not workers.pipes
