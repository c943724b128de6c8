"""The commands: their arguments and options, and their help."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from onnxfuse.options.functions import BenchRun, CiChecks, CompileKernels, ExportFolder, ProfileRun, VerifyRun, View
from onnxfuse.options.groups import (
    SHAPE_FLAG,
    Also,
    CustomOps,
    Links,
    LowerPrecision,
    ModelSettings,
    Optimizing,
    ProviderWord,
    Rules,
    Seed,
    Skip,
)
from onnxfuse.options.kinds import (
    STRINGS,
    AtLeastOne,
    Flag,
    InputSets,
    Kind,
    OptionalFactor,
    OptionalFlag,
    OptionalPath,
    OptionalText,
    Shapes,
    Strings,
    one_of,
)
from onnxfuse.options.schema import EVERYWHERE, Argument, Option

_command = partial(Option, group="Output")
_everywhere = partial(Option, False, group=EVERYWHERE)
_measured = partial(Option, group="Measured times")
_report = partial(Option, None, group="Reports", writes=True)
TOP = 12
"""Rows of a table of `profile`."""
STREAM = "-"
"""Stands for standard input or output in place of a model's name."""

Model = Annotated[Path, Argument("IN.onnx", "model")]
FusedModel = Annotated[Path, Argument("MODEL.onnx")]
OptionalModel = Annotated[Path | None, Argument("[OUT.onnx]", "model", required=False)]
Shell = Literal["bash", "zsh", "fish"]

# An option is a row of a table.
# fmt: off


class Shared(Links, total=False):
    """Options of every command."""

    quiet: Annotated[Flag, _everywhere("Print no results; the exit code is the verdict.", "-q, --quiet")]
    verbose: Annotated[Flag, _everywhere("Print each step and its time, on stderr.", "-v, --verbose")]
    traceback: Annotated[Flag, _everywhere("After an internal error (exit 70), print the traceback to report.",
        "--traceback")]


class Common(Shared, total=False):
    """Options of every command that reports."""

    as_json: Annotated[Flag, _everywhere("Print every fact as JSON.", "--json")]


class Reports(TypedDict, total=False):
    """Report files."""

    report: Annotated[OptionalPath, _report("Write a self-contained HTML report.", "--report", "FILE.html")]
    junit: Annotated[OptionalPath, _report("Write the checks as JUnit XML.", "--junit", "FILE.xml")]
    markdown: Annotated[OptionalPath, _report('Append the report to FILE.md, such as "$GITHUB_STEP_SUMMARY".',
        "--markdown", "FILE.md")]


class CiReports(Reports, total=False):
    """Report files of `ci`."""

    sarif: Annotated[OptionalPath, _report("Write the failed checks as SARIF, for code scanning.", "--sarif",
        "FILE.sarif")]
    badge: Annotated[OptionalPath, _report("Write a badge with the number of models that pass.", "--badge", "FILE.svg")]


class OptimizeCommand(Optimizing, Reports, Common, total=False):
    """Apply the fusion rules to IN.onnx and write OUT.onnx.

    OUT.onnx runs in any ONNX Runtime, on any provider; with onnxfuse and a GPU its fused ops run as CUDA kernels.
    Nothing is written unless every step succeeds. Several models, or all of a folder, go to -o DIR, or replace their
    inputs with --in-place; - is standard input or output.
    """

    models: Annotated[tuple[Path, ...], Argument("IN.onnx... [OUT.onnx]", many=True)]
    output: Annotated[OptionalPath, _command(None, "Output folder for several models, or output file for one.",
        "-o, --output", "DIR")]
    in_place: Annotated[Flag, _command(False, "Overwrite each IN.onnx; the original is lost.", "--in-place")]
    dry_run: Annotated[Flag, _command(False, "Write nothing, and report what would be written; with {require}, also "
        "whether it is met. OUT.onnx may be left out.", "--dry-run", excludes=("dump", "compile", "tune"))]
    external_data: Annotated[OptionalFlag, _command(None, "Store weights in a file next to OUT.onnx, or in it; default "
        "as in IN.onnx, and external above 2 GB. Small weights and shape constants stay in it.",
        "--external-data/--no-external-data")]
    guard_inputs: Annotated[InputSets, Option((), "Real inputs for {guard}, instead of {inputs}.", "--guard-inputs",
        "PATH", needs=("guard",))]
    tune: Annotated[Flag, _measured(False, "Measure candidates on the GPU that have no times yet, and choose the "
        "fastest.", "--tune")]
    undo: Annotated[Flag, _command(False, "Replace the fused ops of IN.onnx by the nodes of their bodies.", "--undo",
        excludes=("only", "skip", "also", "require", "guard", "tune", "tuning", "strict_fp32", "freeze_initializers",
            "precision", "dump", "compile", "shapes"))]
    dump: Annotated[OptionalPath, _command(None, "Write every phase and kernel to this folder.", "--dump", "DIR",
        writes=True)]
    compile: Annotated[Flag, Option(False, "Also write OUT.onnx.kernels, like onnxfuse compile.", "--compile",
        group="Kernels")]
    archs: Annotated[tuple[str, ...], Kind(STRINGS.type, STRINGS.expected, "list", many=True), Option((),
        "Target architectures of {compile} and {dump}; default that of this machine's GPU; without one, "
        "{compile} takes all that are supported and {dump} sm_90a.", "--arch", "sm_NN[,...]", group="Kernels",
        needs=("dump", "compile"))]


class VerifyCommand(VerifyRun, CustomOps, Seed, Reports, Common, total=False):
    """Run ORIGINAL and FUSED on the same inputs; exit 0 only if FUSED is as accurate as ORIGINAL.

    The error of FUSED against a reference of higher precision may be at most twice that of ORIGINAL plus one rounding
    step of the output's type; with --rtol or --atol, the difference of the two is judged instead. On CUDA every fused
    op must also have run as its kernel.
    """

    original: Annotated[Path, Argument("ORIGINAL", "model")]
    fused: Annotated[Path, Argument("FUSED", "model")]
    seed_count: Annotated[AtLeastOne, Option(1, "Number of seeds, starting at {seed}.", "--seeds", "N",
        group="Running")]


class BenchCommand(BenchRun, CustomOps, Reports, Common, total=False):
    """Time IN.onnx at each of ONNX Runtime's settings, and OUT.onnx, on the same inputs, interleaved.

    Without OUT.onnx, IN.onnx is optimized in memory. The speed-up is the original's best median over the fused model's.
    Several --shape sizes are combined in order: batch=1,8 with sequence=128,512 runs 1x128 and 8x512.
    """

    original: Model
    fused: OptionalModel
    memory: Annotated[Flag, Option(False, "Show the GPU memory that the fused model uses, by purpose, next to the "
        "original's.", "--memory")]
    min_speedup: Annotated[OptionalFactor, Option(None, "Exit 4 if the speed-up is below X at any shape.",
        "--min-speedup", "X")]


class CompareCommand(Common, total=False):
    """Compare two results of `onnxfuse bench --json`, shape by shape.

    BEFORE and AFTER may be of two versions of onnxfuse, of two fused files, or of two cards: what differs in the
    environment is named. A difference is one where the intervals of the medians are apart.
    """

    before: Annotated[Path, Argument("BEFORE.json")]
    after: Annotated[Path, Argument("AFTER.json")]
    max_slowdown: Annotated[OptionalFactor, Option(None, "Exit 4 if a fused model became slower by more than this "
        "factor (1.05 allows 5%), beyond measurement noise.", "--max-slowdown", "X")]


class ProfileCommand(ProfileRun, CustomOps, Reports, Common, total=False):
    """Report how bytes, operations and time of IN.onnx are distributed, compared with those of OUT.onnx.

    Without OUT.onnx, IN.onnx is optimized in memory; if it already contains fused ops it is profiled alone. Device
    memory traffic is counted from shapes: each node reads each input once and writes each output once. On CUDA CUPTI
    traces every kernel (pip install 'onnxfuse[profile]'), and ONNX Runtime's profiler identifies the node that launched
    it; on the CPU the profiler times the nodes themselves.
    """

    model: Model
    fused: OptionalModel
    alone: Annotated[Flag, Option(False, "Profile IN.onnx only; do not optimize it for comparison.", "--alone")]
    top: Annotated[AtLeastOne, _command(TOP, "Rows of each table.", "--top", "N")]
    nodes: Annotated[Flag, _command(False, "One row per node in the tables, instead of per kind.", "--nodes")]


class RulesCommand(Rules, Common, total=False):
    """List the fusion rules, or explain the rule NAME with models before and after it.

    With --test every example of NAME, of the rules of --rules DIR, or of all rules is run: exits 1 if one fails. With
    --new NAME --from IN.onnx --at NODE a new rule file is written into --rules DIR, by default the current folder.
    """

    name: Annotated[str | None, Argument("[NAME]", "text", required=False, complete="rules")]
    test: Annotated[Flag, Option(False, "Test each rule on its examples: fusions, refusals, numerical results.",
        "--test")]
    new: Annotated[Flag, Option(False, "Create the rule NAME: a file with a pattern and an example extracted from a "
        "model.", "--new")]
    model: Annotated[OptionalPath, Option(None, "With {new}: the model.", "--from", "IN.onnx")]
    at: Annotated[Strings, Option((), "With {new}: the node, value or name pattern to extract.", "--at", "NODE",
        complete="nodes")]
    rewrite: Annotated[Flag, Option(False, "With {new}: a rule that replaces the nodes by others, which you write, "
        "even if one kernel could compute them.", "--rewrite", needs=("new",))]
    predicates: Annotated[Flag, Option(False, "List the predicates available in `where`.", "--predicates",
        excludes=("test", "new"))]


class ExplainCommand(Rules, CustomOps, LowerPrecision, ModelSettings, Common, total=False):
    """Explain what fuses in IN.onnx, what does not, and why. Writes nothing.

    With the options of `onnxfuse optimize` that made a file, it explains that file.
    """

    source: Annotated[Path, Argument("IN.onnx", "model")]
    only: Annotated[Strings, Option((), "Consider only this rule.", "--only, --rule", "NAME", group="Rules",
        complete="rules", repeated=True)]
    skip: Skip
    also: Also
    tuning: Annotated[OptionalPath, Option(None, "Show and apply the times of optimize --tune; default those stored in "
        "IN.onnx.", "--tuning", "FILE", repeated=True)]
    shapes: Annotated[Shapes, Option(None, "Explain the model specialized to this size of a dynamic dimension "
        "(batch=8) or shape of an input.", SHAPE_FLAG, "NAME=N", repeated=True)]
    near: Annotated[Flag, Option(False, "Rank near misses over the whole model, with hints.", "--near")]
    at: Annotated[Strings, Option((), "Explain this node, value, operator or pattern: the cause, then the rules' "
        "furthest attempts.", "--at", "NODE", complete="nodes")]
    cost: Annotated[OptionalText, Option(None, "Show the candidates for this node, their estimated or measured "
        "microseconds, and who decided.", "--cost", "NODE", complete="nodes")]
    graph: Annotated[Flag, Option(False, "Show what prevents a CUDA graph of the optimized model, and why; needs a "
        "GPU.", "--graph")]
    everything: Annotated[Flag, Option(False, "Print every row.", "--all")]


class InspectCommand(Common, total=False):
    """Describe MODEL.onnx: sizes, inputs, outputs, dynamic dimensions, weights, operators, and fused ops.

    Nothing is run, and no external weights are read.
    """

    model: Annotated[Path, Argument("MODEL.onnx", "outline")]


class ViewCommand(View, Common, total=False):
    """Show MODEL.onnx before and after fusion in the browser, until ^C. Nothing is run, nothing is written.

    Without FUSED.onnx, MODEL.onnx is optimized in memory; if it already contains fused ops it is shown alone. Fused ops
    unfold into their bodies; a panel shows each node's types, bytes, body and CUDA source, and for an unfused one the
    reason. Colors show rules, estimated bytes, or the times of --profile.
    """

    model: Annotated[Path, Argument("MODEL.onnx", "model")]
    fused: Annotated[Path | None, Argument("[FUSED.onnx]", "model", required=False)]
    no_browser: Annotated[Flag, Option(False, "Only print the address, without opening a browser.", "--no-browser",
        group="Server")]


class CompileCommand(CompileKernels, Common, total=False):
    """Write MODEL.onnx.kernels, with which sessions of MODEL.onnx need not plan or compile for shapes in its ranges.

    MODEL.onnx is an output of `onnxfuse optimize`. Needs no GPU.
    """

    model: FusedModel
    trust_pack: Annotated[Flag, Option(False, "Let sessions use the pack next to MODEL.onnx, compiled elsewhere by "
        "somebody you trust to run code here. Compiles nothing.", "--trust-pack",
        excludes=("archs", "shapes", "ptx", "target"))]


class ExportLibraryCommand(ExportFolder, Common, total=False):
    """Write DIR with the model, the library and the kernels to serve MODEL.onnx from C++, C#, Java or Triton.

    MODEL.onnx is an output of `onnxfuse optimize`. DIR is also a model of a Triton repository. Needs no GPU.
    """

    model: FusedModel
    folder: Annotated[Path, Argument("DIR")]


class InitCommand(Common, total=False):
    """Write a first onnxfuse.toml into FOLDER, by default this one, from the models in it and below.

    Each model gets a table with its path and output; the sizes that you serve and a lower precision are comments to
    edit. Models with fused ops, hidden folders and installed packages are left out.
    """

    folder: Annotated[Path, Argument("[FOLDER]", "folder", required=False)]
    force: Annotated[Flag, Option(False, "Replace an onnxfuse.toml that is there.", "--force")]


class CiCommand(CiChecks, CustomOps, CiReports, Common, total=False):
    """Check the models of CONFIG against its requirements, and against its lock file.

    CONFIG defaults to the onnxfuse.toml of this folder, or of the nearest parent that has one; a pyproject.toml with
    [[tool.onnxfuse.model]] is read, too. Each [[model]] has the key path, and may have those below; verify = false
    turns verification off. The exit code is 1 for a numerical mismatch, 2 for a mistake in the files or the call, 3 for
    a model that cannot be read or written, 4 for a requirement that is not met or a regression against the lock, and 5
    for a missing device; of several models the first of 5, 3, 2, 1 and 4 counts. The lock does not record weights. An
    output is written only if all checks of its model pass.
    """

    config: Annotated[Path | None, Argument("[CONFIG]", required=False)]


class DoctorCommand(Common, total=False):
    """Report what is installed, what works and what is missing, with the command that fixes it.

    Exits 5 if something that should work here does not: a required package, or CUDA if there is a driver for it
    (--provider cuda: always, --provider cpu: never).
    """

    provider: Annotated[ProviderWord, one_of(ProviderWord), Option("auto",
        "Required provider; auto requires CUDA if there is an NVIDIA driver.", "--provider")]


class ConfigCommand(Common, total=False):
    """List every option with its value here and the origin of the value: default, flag, or onnxfuse.toml.

    Without COMMAND the options of all commands are listed, with their defaults. With COMMAND and its own arguments
    these are the values with which `onnxfuse COMMAND ARGUMENTS` would run: `onnxfuse config optimize --only gemm`.
    With ci the options of each model of onnxfuse.toml are listed. Nothing is run.
    """

    call: Annotated[tuple[str, ...], Argument("[COMMAND [ARGUMENTS]]", "rest", required=False, many=True,
        complete="commands")]
    schema: Annotated[Flag, Option(False, "Print the JSON schema of onnxfuse.toml.", "--schema")]


class DocsCommand(Common, total=False):
    """List the pages of the documentation, show PAGE, or find WORDS in all pages.

    The pages come with the package: `onnxfuse docs pipeline` shows one as text, `onnxfuse docs external data` finds the
    lines that have both words.
    """

    words: Annotated[tuple[str, ...], Argument("[PAGE | WORDS...]", "text", required=False, many=True,
        complete="pages")]


class CompletionCommand(Shared, total=False):
    """Print the completion script for SHELL.

    Install it:

    onnxfuse completion bash >> ~/.bashrc

    onnxfuse completion zsh >> ~/.zshrc

    onnxfuse completion fish > ~/.config/fish/completions/onnxfuse.fish

    zsh loads it after compinit: a ~/.zshrc without that needs 'autoload -Uz compinit && compinit' before it.
    """

    shell: Annotated[Shell, Argument("{bash|zsh|fish}", "words", words=("bash", "zsh", "fish"))]


GROUPS: dict[str, type] = {
    "optimize": OptimizeCommand,
    "verify": VerifyCommand,
    "bench": BenchCommand,
    "compare": CompareCommand,
    "profile": ProfileCommand,
    "rules": RulesCommand,
    "explain": ExplainCommand,
    "inspect": InspectCommand,
    "view": ViewCommand,
    "compile": CompileCommand,
    "export-library": ExportLibraryCommand,
    "init": InitCommand,
    "ci": CiCommand,
    "doctor": DoctorCommand,
    "config": ConfigCommand,
    "docs": DocsCommand,
    "completion": CompletionCommand,
}
"""The arguments and options of each command."""
