"""Tests on a GPU: each worker has a card of its own as long as there are enough, else workers share them evenly."""

import pytest

from tests.gpu.conftest import card

TWO = "GPU 0: NVIDIA L4 (UUID: GPU-a)\nGPU 1: NVIDIA L4 (UUID: GPU-b)\n"


@pytest.mark.parametrize(
    ("worker", "listed", "chosen"),
    [("gw0", TWO, "0"), ("gw1", TWO, "1"), ("gw12", TWO, "0"), ("gw3", "", None), ("master", TWO, None)],
)
def test_workers_take_cards_in_turns(worker: str, listed: str, chosen: str | None) -> None:
    """None where no card is listed, or nothing runs beside this process."""
    assert card(worker, listed) == chosen
