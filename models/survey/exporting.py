"""Export what is asked for, in a process of its own: `echo plain:tcn 0 | python -m models.survey.exporting FOLDER`.

Each line that it reads is a subject's name and the position of a way in `WAYS`. It answers with a line of JSON: where
the file is, or what the exporter said.
"""

import json
import logging
import os
import shutil
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from models.survey import REFUSALS, WAYS, place
from models.survey.catalogue import export


@dataclass(frozen=True)
class Exported:
    """What became of one way."""

    file: str
    """Empty where there is none."""
    error: str
    seconds: float
    static: bool
    """The exporter could not keep the dimensions open, and the sizes of the example are fixed."""


def exported(name: str, number: int, folder: Path, side: int) -> Exported:
    """Return what became of way `number` of the subject."""
    began, way = time.perf_counter(), WAYS[number]
    path = place(folder, name, way)
    static, error = False, ""
    try:
        shutil.rmtree(path.parent, ignore_errors=True)  # of an earlier call: data files are appended to
        path.parent.mkdir(parents=True)
        static = export(name, way, side, path)
    except REFUSALS as refused:
        shutil.rmtree(path.parent, ignore_errors=True)
        error = f"{type(refused).__name__}: {' '.join(str(refused).split())}"[:300]
    return Exported("" if error else str(path), error, round(time.perf_counter() - began, 1), static)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--side", default=128)
def main(folder: Path, side: int) -> None:
    """Export into FOLDER."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what exporters print is not ours
    for asked in sys.stdin:
        name, number = asked.split()
        print(json.dumps(asdict(exported(name, int(number), folder, side))), file=lines, flush=True)


if __name__ == "__main__":
    main()
