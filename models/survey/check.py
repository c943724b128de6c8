"""Check one export, in a process of its own: `python -m models.survey.check FILE --stage cpu`.

Prints a line of JSON as each step begins, and the row at the end.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from models.survey.checks import STAGES, examined


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--stage", type=click.Choice(sorted(STAGES)), required=True)
@click.option("--arch", "archs", multiple=True, help="Compile kernels for these alone.")
def main(file: Path, stage: str, archs: tuple[str, ...]) -> None:
    """Take FILE through the steps of a stage."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not ours

    def say(line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=lines, flush=True)

    for line in examined(file, stage, archs, lambda step: say({"step": step})):
        say(line)
    sys.stderr.flush()
    os._exit(0)  # the row is written; no tear-down of a library spoils it


if __name__ == "__main__":
    main()
