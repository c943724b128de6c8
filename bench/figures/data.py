"""The figures that were measured, and of each row where, when and at which commit."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.support.errors import ModelError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "figures.json"


@dataclass(frozen=True)
class Stamp:
    """What a reader has to know to compare a row with others."""

    measured: str
    """ISO date and time; of rows from before this file was kept, of the commit that wrote them into a page."""
    commit: str
    """Abbreviated; with "+" where files differed from it."""
    card: str
    driver: str = ""
    """With the CUDA version; empty where nobody kept it."""
    onnxruntime: str = ""
    torch: str = ""

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
        parts = json.loads(file.read_text(encoding="utf-8"))
        return {
            part: {name: Row(**{**row, "stamp": Stamp(**row["stamp"])}) for name, row in rows.items()}
            for part, rows in parts.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: no file of figures: {error}", "git checkout it, or measure anew.") from None


def write(rows: Rows, file: Path = FILE) -> None:
    """Write all rows; what reads the file meanwhile sees the old ones or the new ones."""
    text = json.dumps({p: {n: asdict(row) for n, row in part.items()} for p, part in rows.items()}, indent=1)
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(text + "\n", encoding="utf-8")
    os.replace(beside, file)


def stamps(rows: Rows) -> Iterator[Stamp]:
    """Yield the stamps of all rows."""
    for part in rows.values():
        yield from (row.stamp for row in part.values())


def newest(rows: Rows) -> Stamp | None:
    """Return the stamp of what was measured last."""
    return max(stamps(rows), key=lambda stamp: stamp.measured, default=None)
