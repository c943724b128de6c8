"""`python -m tests.support.verification.peers`: which tool sees which planted fault, each with its defaults.

polygraphy: what `polygraphy run in.onnx --onnxrt` and the same of out.onnx compare: its data loader, its tolerances.
onnxsim: `onnxsim.model_checking.compare`, which it runs after it has simplified a model, with its defaults.
Both are no dependencies of the tests: pip install polygraphy onnxsim.
"""

import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import click
import onnx

from onnxfuse.passes import pipeline
from onnxfuse.verification import verify
from tests.support.verification import mutants
from tests.support.verification.mutants import MUTANTS

CPU = ["CPUExecutionProvider"]
BATCH = 2
"""Both tools want fixed shapes, or take 1 for what is open; a batch of 1 hides what happens along it."""


def by_polygraphy(plain: onnx.ModelProto, wrong: onnx.ModelProto) -> str:
    """Return what polygraphy's Comparator says with its defaults: caught, missed, or its error."""
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc, DataLoader

    runners = [OnnxrtRunner(SessionFromOnnx(m.SerializeToString()), name=n) for n, m in (("in", plain), ("out", wrong))]
    results = Comparator.run(runners, data_loader=DataLoader())
    return "missed" if bool(Comparator.compare_accuracy(results, compare_func=CompareFunc.simple())) else "caught"


def by_onnxsim(plain: onnx.ModelProto, wrong: onnx.ModelProto) -> str:
    """Return what onnxsim's check says with its defaults."""
    from onnxsim import model_checking

    return "missed" if model_checking.compare(wrong, plain, verbose=False) else "caught"


def by_onnxfuse(plain: onnx.ModelProto, wrong: onnx.ModelProto) -> str:
    """Return what `onnxfuse verify` says with its default options."""
    return "missed" if verify(plain, wrong, providers=CPU).ok else "caught"


def fixed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a fixed batch."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    return copy


TOOLS = {"onnxfuse": by_onnxfuse, "polygraphy": by_polygraphy, "onnxsim": by_onnxsim}


@click.command(help=__doc__)
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
def main(dtype: str) -> None:
    """Print one row per fault, how many each tool has caught, and how often it cries wolf without a fault."""
    warnings.simplefilter("ignore")
    chosen = [m for m in MUTANTS if dtype == "float32" or not m.float32_only]
    caught, cried = dict.fromkeys(TOOLS, 0), dict.fromkeys(TOOLS, 0)
    print(f"| {'planted fault, ' + dtype:36} | {' | '.join(TOOLS)} |\n|---|---|---|---|")
    for mutant in chosen:
        plain = fixed(mutants.original(mutant, dtype))
        right = fixed(mutants.original(mutant, dtype))
        pipeline.run(right)
        with tempfile.TemporaryDirectory() as folder:
            wrong = fixed(mutants.fused(mutant, Path(folder), dtype)[0])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            verdicts = {name: (tool(plain, wrong), tool(plain, right)) for name, tool in TOOLS.items()}
        for name, (on_wrong, on_right) in verdicts.items():
            caught[name] += on_wrong == "caught"
            cried[name] += on_right == "caught"
        print(f"| {mutant.name:36} | {' | '.join(v for v, _ in verdicts.values())} |", flush=True)
    print(f"| {'caught':36} | {' | '.join(f'{n} of {len(chosen)}' for n in caught.values())} |")
    print(f"| {'false alarms without the fault':36} | {' | '.join(f'{n} of {len(chosen)}' for n in cried.values())} |")


if __name__ == "__main__":
    main()
