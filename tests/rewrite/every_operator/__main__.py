"""Try the laws on random graphs of every operator; exit 1 where one is broken.

    python -m tests.rewrite.every_operator --seeds 0:50000 --jobs 16

A failure is printed with its seed, and tried again by `--seeds N:N+1 --show`, which prints the model, too.
"""

import argparse
import multiprocessing
import sys
from collections import Counter

import onnx

from tests.rewrite.every_operator.laws import case, tried


def main() -> int:
    """Run the seeds, print what is broken as it is found, and how many graphs held."""
    parser = argparse.ArgumentParser(prog="python -m tests.rewrite.every_operator")
    parser.add_argument("--seeds", default="0:1000", metavar="FIRST:END")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the models")
    asked = parser.parse_args()
    first, end = (int(part) for part in asked.seeds.split(":"))
    if asked.show:
        for seed in range(first, end):
            one = case(seed)
            print(onnx.printer.to_text(one.model), {k: x.shape for k, x in one.feeds.items()})
    kinds, done, nodes = Counter[str](), 0, 0
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=2000) as pool:
        for seed, said, size in pool.imap_unordered(tried, range(first, end), chunksize=20):
            done, nodes = done + 1, nodes + size
            if said is not None:
                kinds[said.partition(":")[0]] += 1
                print(f"seed {seed}: {said[:600]}", flush=True)
            if done % 1000 == 0:
                print(f"... {done} graphs, {kinds.total()} broken", flush=True)
    print(f"{done} graphs of {nodes} nodes, {kinds.total()} broken: {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
