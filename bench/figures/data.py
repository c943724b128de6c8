"""The figures that were measured, and of each row where, when and at which commit.

What the pages show is published: the rows of one run, at one commit on one kind of card. What is measured is in
progress until a run has all rows that are published; then it takes their place.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnxfuse.support.errors import ModelError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "data" / "figures.json"
"""What is published."""
PROGRESS = ROOT / "build" / "figures.json"
"""What is in progress on this machine."""


@dataclass(frozen=True)
class Stamp:
    """What a reader has to know to compare a row with others."""

    measured: str
    """ISO date and time."""
    commit: str
    """Abbreviated; with "+" where files differed from it."""
    card: str
    driver: str = ""
    """With the CUDA version; empty where nobody kept it."""
    onnxruntime: str = ""
    torch: str = ""

    @property
    def run(self) -> tuple[str, ...]:
        """Return what the rows of one run have in common."""
        return (self.commit, self.card, self.driver, self.onnxruntime)

    @property
    def told(self) -> str:
        """Return it in words."""
        driver = f"driver {self.driver}" if self.driver[:1].isdigit() else self.driver
        known = [self.card, driver, f"onnxruntime {self.onnxruntime}", f"torch {self.torch}" if self.torch else ""]
        return f"{self.measured[:10]} at commit {self.commit}: {', '.join(filter(None, known))}"


@dataclass(frozen=True)
class Row:
    """One row."""

    stamp: Stamp
    took: float
    """Seconds that measuring it took, once it was prepared; 0 where nobody kept it."""
    values: dict[str, Any]
    prepared: float = 0
    """Seconds that preparing it took, beside others; 0 where nobody kept it."""


Rows = dict[str, dict[str, Row]]
"""By part and name."""


def read(file: Path = FILE) -> Rows:
    """Return the rows of a file; none where there is no file. Raises ModelError for one that is damaged."""
    if not file.exists():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        stamps = [partial(Stamp, **run) for run in facts["runs"]]

        def row(run: int, measured: str, **more: Any) -> Row:
            return Row(stamps[run](measured=measured), **more)

        return {part: {name: row(**one) for name, one in rows.items()} for part, rows in facts["parts"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: no file of figures: {error}", "git checkout it, or measure anew.") from None


def write(rows: Rows, file: Path = FILE) -> None:
    """Write all rows, one a line; what reads the file meanwhile sees the old ones or the new ones."""
    runs: list[dict[str, str]] = []

    def line(name: str, row: Row) -> str:
        run = asdict(row.stamp)
        measured = run.pop("measured")
        if run not in runs:
            runs.append(run)
        facts = {"run": runs.index(run), "measured": measured, **asdict(row)}
        del facts["stamp"]
        facts["values"] = _rounded(row.values)
        return f"   {json.dumps(name)}: {json.dumps(facts)}"

    parts = [
        f"  {json.dumps(part)}: {{\n" + ",\n".join(line(name, row) for name, row in found.items()) + "\n  }"
        for part, found in rows.items()
    ]
    text = f'{{\n "runs": {json.dumps(runs)},\n "parts": {{\n' + ",\n".join(parts) + "\n }\n}\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


def _rounded(value: Any) -> Any:
    """Return measured numbers with the digits that mean something, and one to spare."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def merged(published: Rows, progress: Rows) -> Rows:
    """Return the newest of each row."""
    return {part: {**published.get(part, {}), **progress.get(part, {})} for part in (*published, *progress)}


def publish(published: Rows, progress: Rows) -> Rows:
    """Return the newest run if it has every row that is published, else what is published."""
    stamps = [row.stamp for rows in progress.values() for row in rows.values()]
    newest = max(stamps, key=lambda stamp: stamp.measured, default=None)
    found = {} if newest is None else _of_run(merged(published, progress), newest)
    whole = all(found.get(part, {}).keys() >= rows.keys() for part, rows in published.items())
    return found if whole else published


def _of_run(rows: Rows, stamp: Stamp) -> Rows:
    """Return the rows of the run of a stamp."""
    found = {part: {n: row for n, row in named.items() if row.stamp.run == stamp.run} for part, named in rows.items()}
    return {part: named for part, named in found.items() if named}
