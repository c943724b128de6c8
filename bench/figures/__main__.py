"""Measure all figures and write the tables of the pages: `python -m bench.figures`; or a part of it.

`measure` runs what is not measured at this commit, and goes on where it was stopped: rows prepare side by side, then
each is timed alone on its card. `write` publishes the run once it is done and writes the tables of the pages, `check`
tells whether the pages have what is published.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import click

from bench import apart
from bench.figures import data, measuring, tables
from bench.figures.parts import PARTS
from models.sources import commit_of
from onnxfuse.support.errors import DeviceError, OnnxfuseError
from onnxfuse.support.process_pool import cores

TOGETHER = cores() * 3 // 2
"""Rows that prepare side by side: they wait for files and for the card, too, and each takes two to three GB."""
FILE = click.option(
    "--data", "file", type=click.Path(path_type=Path), default=data.PROGRESS, help="What is in progress."
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Measure everything and write the tables."""
    if context.invoked_subcommand is None:
        whole = _measured((), "", float("inf"), TOGETHER, "", data.PROGRESS, again=False)
        context.invoke(write)
        sys.exit(not whole)


@main.command()
@click.option("--only", multiple=True, metavar="PART[:ROW]", help=f"Of {', '.join(PARTS)}; may be repeated.")
@click.option("--cards", metavar="0,1", default="", help="The cards to measure on; by default all.")
@click.option(
    "--seconds", default=float("inf"), help="Begin no row that would not end within so many, end what does not."
)
@click.option("--together", default=TOGETHER, show_default=True, help="Rows that prepare side by side.")
@click.option("--commit", default="", help="Of the sources, where they are no clone.")
@click.option("--again", is_flag=True, help="Also what is measured at this commit already.")
@FILE
def measure(
    only: tuple[str, ...], cards: str, seconds: float, together: int, commit: str, again: bool, file: Path
) -> None:
    """Measure what is not measured at this commit; exit 1 where a row failed or is left."""
    sys.exit(not _measured(only, cards, seconds, together, commit, file, again=again))


def _measured(
    only: tuple[str, ...], cards: str, seconds: float, together: int, commit: str, file: Path, *, again: bool
) -> bool:
    """Measure, tell of each row, and return whether there is nothing left."""
    from onnxfuse.runtime.engine.cuda_provider import device_count

    began = time.monotonic()
    at = commit or commit_of(measuring.WRITTEN)
    todo = measuring.jobs(data.merged(data.read(), data.read(file)), at, only, again=again)
    chosen = [int(card) for card in cards.split(",") if card] or list(range(device_count()))
    if not chosen:
        raise DeviceError("no GPU here: figures are measured on one", "python -m bench.figures write needs none.")
    click.echo(f"{len(todo)} rows at commit {at} on {len(chosen)} card{'s' * (len(chosen) > 1)}")
    run = measuring.Run(at, [measuring.machine_of(c) for c in chosen], chosen, began + seconds, measuring.begun, file)
    run.measure(todo, together)
    for line in (*(f"FAILED {fault}" for fault in run.faults), *(f"left: {row}" for row in run.left)):
        click.echo(line)
    click.echo(f"{time.monotonic() - began:.0f} s in all")
    return not run.faults and not run.left


@main.command()
@click.argument("part", type=click.Choice(list(PARTS)))
@click.argument("row")
@click.option("--card", default=0)
@click.option("--in-turn", is_flag=True, help="Wait for a line of the standard input before anything is timed.")
def row(part: str, row: str, card: int, in_turn: bool) -> None:
    """Measure one row in this process and print it as JSON; nothing is kept."""
    measured = partial(PARTS[part].measure, **PARTS[part].rows[row], card=card)
    if in_turn:
        apart.attend()
        apart.leave(measured(turn=apart.wait))
    click.echo(json.dumps(measured()))


@main.command()
def machine() -> None:
    """Print the card, its driver, and versions as JSON."""
    apart.leave(measuring.machine())


@main.command()
@FILE
def write(file: Path = data.PROGRESS) -> None:
    """Publish the newest run once it has all rows that the pages show, and write their tables."""
    published, progress = data.read(), data.read(file)
    rows = data.publish(published, progress)
    data.write(rows)
    for page in (*tables.written(rows), *tables.chart_written(rows)):
        click.echo(f"written: {page}")
    if progress and rows == published:
        click.echo("not published: the newest run has not all rows that the pages show")


@main.command()
def check() -> None:
    """Exit 1 where a table of a page is not what was published."""
    faults = [*tables.faults(data.read()), *filter(None, [tables.chart_fault(data.read())])]
    for fault in faults:
        click.echo(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    try:
        main()
    except OnnxfuseError as error:
        sys.exit(f"error: {error}")
