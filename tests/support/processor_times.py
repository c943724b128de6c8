"""Processor time of tests, their fixtures and the processes they start: `pytest --processor-times`."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

SLOWEST = 25
"""Tests that are listed one by one."""


RUNNING = set[int]()
"""Children that serve more than one test: what they compute is counted while they run, not with the test that ends."""


def spent() -> float:
    """Return the seconds that this process, its ended children and those that serve many tests have computed."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(map(_computed, RUNNING))


def _computed(process: int) -> float:
    """Return the seconds of a process of Linux that has not been waited for, and of its ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class ProcessorTimes:
    """Adds up seconds by test, in each worker of pytest-xdist, and prints them by folder where all come together."""

    def __init__(self) -> None:
        self.seconds: Any = Counter()  # of floats

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what a test takes, with the fixtures that are made for it."""
        before = spent()
        result = yield
        self.seconds[item.nodeid] += spent() - before
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's seconds to the process that prints."""
        workeroutput = getattr(session.config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput["processor_times"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the seconds of a worker that has ended."""
        self.seconds.update(getattr(node, "workeroutput", {}).get("processor_times", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the seconds of each folder, of each file of it, and of the slowest tests."""
        terminalreporter.section(f"processor time: {sum(self.seconds.values()):.0f} s")
        folders, files = Counter[str](), Counter[str]()
        for test, seconds in self.seconds.items():
            path = PurePosixPath(test.partition("::")[0])
            files[str(path)] += seconds
            folders.update({str(folder): seconds for folder in path.parents if folder.parts})
        for title, counted in (("folder", folders), ("file", files), ("test", self.seconds)):
            for name, seconds in counted.most_common(SLOWEST if counted is not folders else None):
                terminalreporter.write_line(f"{seconds:9.1f} s  {title:6}  {name}")
