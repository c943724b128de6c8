"""`python -m models.survey`: export, check, and write what was found."""

import fnmatch
import os
import re
import shlex
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from models.sources import commit_of
from models.survey import WAYS
from models.survey.checks import NO_ARCH, STAGES
from models.survey.report import written
from models.survey.workers import Settings, read, survey
from onnxfuse.cuda.planning.arch import SUPPORTED
from onnxfuse.runtime import cuda_unusable


@click.command()
@click.option("--stage", type=click.Choice(sorted(STAGES)), default="cpu", show_default=True)
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), default="survey", show_default=True)
@click.option("--only", default="", help="Only subjects whose name this regular expression finds.")
@click.option("--ways", default="*", help="Only these ways, as --list names them: 'trace * float16 *'.")
@click.option("--first", is_flag=True, help="Of these ways only a subject's first: its exporter's defaults.")
@click.option("--shard", default="0/1", help="Every n-th subject from the i-th one: i/n.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes at once.")
@click.option("--cards", default=1, show_default=True, help="GPUs that they share.")
@click.option("--seconds", default=36_000.0, help="When all ends; what is not done is done by the next call.")
@click.option("--limit", default=240.0, show_default=True, help="Seconds of one export, and of one step of a check.")
@click.option("--side", default=128, show_default=True, help="Images are so large, where the model takes them.")
@click.option("--arch", "archs", multiple=True, type=click.Choice([*(a.name for a in SUPPORTED), NO_ARCH]),
              help="Compile kernels for these alone, or for none; planned they are for all.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the exports in OUT/exports.")
@click.option("--list", "listing", is_flag=True, help="List subjects and ways, and stop.")
@click.option("--again", is_flag=True, help="Do once more what failed.")
@click.option("--compiled", is_flag=True, help="Time torch.compile, too, of what the stage gpu has timed.")
@click.option("--commit", default="", help="Of the sources, where they are no clone.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as Markdown.")
@click.option("--rows", "places", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="Survey nothing: report on the rows of this folder or file, or of several.")  # fmt: skip
def main(
    stage: str, folder: Path, only: str, ways: str, shard: str, jobs: int, cards: int, seconds: float, limit: float,
    side: int, archs: tuple[str, ...], keep: bool, listing: bool, again: bool, compiled: bool, commit: str,
    report: Path | None, places: tuple[Path, ...], first: bool,
) -> None:  # fmt: skip
    """Export models of every family, take each export through everything that onnxfuse promises, and report."""
    if places:
        if report is None:
            raise click.UsageError("--rows says what a report is made of: name its file by --report FILE")
        report.write_text(written(read(*places)), encoding="utf-8")
        return
    from models.survey.catalogue import subjects

    deadline = time.monotonic() + seconds
    found, missing = subjects()
    start, _, count = shard.partition("/")
    chosen = [s for s in found if re.search(only, s.name)][int(start) :: int(count or 1)]
    numbers = tuple(n for n, way in enumerate(WAYS) if fnmatch.fnmatch(str(way), ways))
    for source, why in missing.items():
        click.echo(f"{source}: not surveyed: {why}")
    if listing:
        for subject in chosen:
            click.echo(f"{subject.name:50} {subject.family}")
        click.echo("\n".join(str(WAYS[n]) for n in numbers))
        return
    unusable = cuda_unusable() if stage == "gpu" else None
    if unusable:
        raise click.ClickException(f"the stage gpu needs a GPU: {unusable}. The stage cpu needs none.")
    verdicts: Counter[str] = Counter()

    def tell(row: Mapping[str, Any]) -> None:
        verdicts[row["verdict"]] += 1
        shown = f" {row['over']}x" if "over" in row else ""
        shown += f", batch 1 {row['alone']['over']}x" if "alone" in row else ""
        why = f" {row['step']}: {row['error'][:160]}" if row["error"] else ""
        click.echo(f"{row['verdict']:9} {row['subject']}, {row['way']}{shown}{why}")

    # Neighbours are alike: far ones first show the breadth where the time does not suffice.
    order = sorted(chosen, key=lambda s: zlib.crc32(s.name.encode()))
    run = _run(stage, cards, commit or commit_of([str(report)] if report is not None else []))
    settings = Settings(
        stage, folder, numbers, jobs, cards, limit, deadline, side, archs, keep, again, compiled, first, run
    )
    left = survey(order, settings, tell)
    done = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
    click.echo(done or ("nothing was done" if left else "nothing was left to do"))
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        click.echo(f"left after {seconds:.0f} s: {left[0]}{more}; the same command goes on")
    if report is not None:
        report.write_text(written(read(folder)), encoding="utf-8")


def _run(stage: str, cards: int, commit: str) -> str:
    """Return what a reader has to know of a run: its command, when, at which commit, and on which cards."""
    told = [
        f"`python -m models.survey {shlex.join(sys.argv[1:])}`",
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"commit {commit}",
    ]
    if stage == "gpu":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[:cards]
        told += [f"{count} {name}" for name, count in Counter(names).items()]
    return ", ".join(told)


if __name__ == "__main__":
    main()
