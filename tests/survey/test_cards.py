"""What the workers of one card do at the same time, and what not."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.survey import cards
from models.survey.cards import LOCK, RACERS, in_company, racing, undisturbed


def beside(how: str, folder: Path) -> subprocess.Popen[str]:
    """Return another worker, which has come to be on the card this way and stays until it is told."""
    said = "from models.survey.cards import *\nwith " + how + ":\n print('there', flush=True)\n input()"
    worker = subprocess.Popen(
        [sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={LOCK: str(folder / "card"), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdout.readline() == "there\n"
    return worker


def test_who_wants_the_card_alone_waits_for_the_others_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who come later wait behind it; one that does not end its step in time is borne with."""
    monkeypatch.setenv(LOCK, str(tmp_path / "card"))
    monkeypatch.setattr(cards, "PATIENCE_FOR_THE_CARD", 0.3)
    other = beside("in_company()", tmp_path)
    with in_company():
        pass  # beside each other
    began = time.monotonic()
    with undisturbed():
        assert time.monotonic() - began >= 0.3
        later = subprocess.Popen([sys.executable, "-c", "from models.survey.cards import *\nwith in_company(): pass"],
                                 env={LOCK: str(tmp_path / "card"), "PYTHONPATH": ":".join(sys.path)})  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):
            later.wait(2.0)
    assert later.wait(30.0) == 0
    other.communicate("\n", timeout=30)
    monkeypatch.setattr(cards, "PATIENCE_FOR_THE_CARD", 60.0)
    began = time.monotonic()
    with undisturbed():
        assert time.monotonic() - began < 10.0


def test_so_many_races_hold_their_sessions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one waits for its turn, and says so."""
    monkeypatch.setenv(LOCK, str(tmp_path / "card"))
    others = [beside("racing(lambda *_: None)", tmp_path) for _ in range(RACERS)]
    told = list[str]()

    def tell(step: str, done: int, total: int) -> None:
        told.append(step)
        others[0].communicate("\n", timeout=30)

    with racing(tell):
        assert told == ["waiting for its turn"]
    for other in others[1:]:
        other.communicate("\n", timeout=30)


def test_who_is_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a survey around it there are no files."""
    monkeypatch.delenv(LOCK, raising=False)
    with in_company(), undisturbed(), racing(lambda *_: pytest.fail("waits")):
        pass
