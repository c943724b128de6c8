"""Whose a file is, and who may write to it."""

import os
import stat

import pytest

from onnxfuse.files import file_owner

ME, ROOT, OTHER = 1000, 0, 1001


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who is everybody."""
    monkeypatch.setattr(os, "geteuid", lambda: ME)


def status(owner: int, mode: int = 0o644) -> os.stat_result:
    """Return what the system says of a file of this owner."""
    return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, 100, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("owner", "mine", "mine_or_roots"), [(ME, True, True), (ROOT, False, True), (OTHER, False, False)]
)
def test_a_file_is_its_owners(owner: int, mine: bool, mine_or_roots: bool) -> None:
    """What root installed may be taken for one's own where it is asked for."""
    assert file_owner.is_mine(status(owner)) is mine
    assert file_owner.is_mine(status(owner), or_root=True) is mine_or_roots


@pytest.mark.parametrize(("mode", "open_"), [(0o644, False), (0o664, False), (0o646, True), (0o777, True)])
def test_a_file_is_open_to_others_by_its_bits(mode: int, open_: bool) -> None:
    """A group is no others."""
    assert file_owner.open_to_others(status(ME, mode)) is open_


def test_on_windows_folders_are_closed_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no numbers of users, and the bits say nothing."""
    monkeypatch.delattr(os, "geteuid")
    assert file_owner.is_mine(status(OTHER))
    assert not file_owner.open_to_others(status(OTHER, 0o777))
