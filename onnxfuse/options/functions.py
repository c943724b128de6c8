"""Options of the functions of `import onnxfuse`, and of the library's functions behind them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from onnxfuse.options.groups import (
    BOTH,
    SHAPE_FLAG,
    CustomOps,
    Isolated,
    Links,
    MadeWith,
    NamesSteps,
    OnProvider,
    Optimizing,
    Rules,
    Seed,
    ShowsProgress,
    Sizes,
    Tf32,
)
from onnxfuse.options.kinds import (
    ONE_OR_MORE_INPUTS,
    OPTION_DICTS,
    PROFILE,
    PROVIDERS,
    SIZE_SETS,
    STRINGS,
    AtLeastOne,
    AtLeastZero,
    Flag,
    Inputs,
    Kind,
    OptionalCount,
    OptionalFlag,
    OptionalFolder,
    OptionalPath,
    OptionalPositive,
    OptionalSizes,
    OptionalText,
    PackFile,
    Positive,
    Providers,
    Ranges,
    Strings,
    Text,
    Tolerances,
    integer,
    integers,
    one_of,
)
from onnxfuse.options.schema import Option

LOCAL = "127.0.0.1"
"""Default host of the viewer: the loopback address, which other machines do not reach."""
RUNS, ROUNDS, PATIENCE = 20, 10, 60.0
"""Of `bench`: timed runs per round, rounds, and seconds for a setting of the original to open and warm up."""
BENCHED = 60.0
"""Of `bench`: seconds for the timed runs of all shapes."""
PROFILED = 10
"""Of `profile`: profiled runs."""

Truth = Literal["auto", "float64", "float32"]
NotFinite = Literal["equal", "fail"]
Provider = str | tuple[str, Mapping[str, Any]]

# An option is a row of a table.
# fmt: off


class Optimize(Optimizing, Links, NamesSteps, total=False):
    """Keywords of `optimize`."""


class Guard(Links, NamesSteps, total=False):
    """Keywords of `guard`."""


class Dump(Links, NamesSteps, total=False):
    """Keywords of `dump`."""

    arch: Annotated[OptionalText, Option(None, "Architecture that kernels are compiled for; default that of the GPU "
        "here, or H200.")]
    shapes: Annotated[OptionalSizes, Option(None, "Sizes of dynamic dimensions, for the launch plans.")]


class Tune(Links, NamesSteps, total=False):
    """Keywords of `tune`."""

    sizes: Annotated[Sequence[Mapping[str, int]], SIZE_SETS, Option((),
        "Sets of sizes of the dynamic dimensions to measure at.", SHAPE_FLAG)]


class Kernels(MadeWith, total=False):
    """What kernels are compiled for."""

    archs: Annotated[Sequence[str], Kind(STRINGS.type, STRINGS.expected, "list", many=True), Option((),
        "Target GPU architectures; default that of this machine's GPU, else all that are supported.", "--arch",
        "sm_NN[,...]", group="Kernels")]
    shapes: Annotated[Ranges, Option(None, "Range or size of a dimension; default 1..32 for the first one of an input, "
        "1..512 for others.", SHAPE_FLAG, "NAME=N..M", group="Kernels")]
    ptx: Annotated[OptionalFlag, Option(None, "Include PTX, which later GPUs compile for themselves; default if no "
        "GPU is named and none is here.", "--ptx/--no-ptx", group="Kernels")]


class CompileKernels(Kernels, total=False):
    """Options of `compile` and of its command."""

    target: Annotated[OptionalPath, Option(None, "Output file; default beside the model.", "-o, --output", "FILE",
        writes=True)]


class Compile(CompileKernels, Links, ShowsProgress, total=False):
    """Keywords of `compile`."""


class ExportFolder(Kernels, total=False):
    """Options of `export_library` and of its command."""

    at: Annotated[OptionalText, Option(None, "Path of the folder as the server sees it; default where it is written.",
        "--at", "PATH")]
    batch: Annotated[OptionalFlag, Option(None, "Whether Triton batches requests along the common first dimension; "
        "default if there is one.", "--batch/--no-batch")]


class ExportLibrary(ExportFolder, Links, ShowsProgress, total=False):
    """Keywords of `export_library`."""


class Explain(Rules, CustomOps, Links, total=False):
    """Keywords of `explain`."""


class Unfuse(Links, total=False):
    """Keywords of `unfuse`."""


class RunsKernels(MadeWith, total=False):
    """How the fused ops of a session run."""

    kernels: Annotated[PackFile, Option(None, "Kernel pack that `compile` wrote; default the one beside the model's "
        "file, False uses none.")]


class OpenSession(RunsKernels, CustomOps, total=False):
    """Keywords of `session`."""

    wait_for_kernels: Annotated[Flag, Option(False, "Let a run of a new shape wait until its kernels are compiled; by "
        "default another kernel that gives the same bits serves until then, where there is one (never with the "
        "provider's `enable_cuda_graph`).")]
    memory_limit: Annotated[OptionalCount, Option(None, "Bytes of one GPU's memory for weights, values and kernels' "
        "scratch memory together; what cannot fit raises MemoryLimitError, which says how much would do.")]
    dump: Annotated[OptionalPath, Option(None, "Folder for every fused op's body, kernel and launch plan.")]
    provider_options: Annotated[Sequence[Mapping[str, Any]] | None, OPTION_DICTS, Option(None,
        "ONNX Runtime's own, one for each provider.")]
    disabled_optimizers: Annotated[Sequence[str] | None, STRINGS, Option(None, "ONNX Runtime's own.")]


class Runner(RunsKernels, total=False):
    """Keywords of `runner`."""

    graphs: Annotated[AtLeastZero, Option(8, "Largest number of CUDA graphs that are kept.")]
    providers: Annotated[Sequence[Provider] | None, PROVIDERS, Option(None, "As for `session`.")]
    memory_limit: Annotated[OptionalCount, Option(None, "As for `session`; CUDA graphs come on top.")]


class Register(RunsKernels, total=False):
    """Keywords of `register`."""

    tf32: Annotated[OptionalFlag, Option(None, "False goes with the provider option `use_tf32` 0: no kernel rounds "
        "float32 to TF32, products keep its digits, and what else would round keeps its body; None is False for a "
        "model made with `strict_fp32`.")]


class ExplainGraph(Rules, Isolated, Links, total=False):
    """Keywords of `explain_graph`."""


class Compared(Tf32, MadeWith, total=False):
    """How two models are compared."""

    seeds: Annotated[Sequence[int], integers(0), Option((0,), "Seeds of generated inputs.")]
    providers: Annotated[Providers, Option(None, "Execution provider of both models; default CUDA where it works; "
        "there every fused op must run as its kernel.", "--providers, --provider",
        on_command="cpu,cuda: the original on the CPU, the fused model on CUDA.",
        in_python="ONNX Runtime's, as a list.", group="Running", words=BOTH, repeated=True)]
    fused_providers: Annotated[Providers, Option(None, "Where the fused model runs, if elsewhere.")]
    truth: Annotated[Truth, one_of(Truth), Option("auto", "Precision of the reference that errors are measured "
        "against; auto is float64 unless the model is too large.", "--truth", group="Tolerance")]
    rtol: Annotated[Tolerances, Option(None, "Relative tolerance instead of the error budget.", "--rtol",
        on_command="NAME is an output or a type.", in_python="A number, or numbers by output or type.",
        group="Tolerance")]
    atol: Annotated[Tolerances, Option(None, "Absolute tolerance, likewise.", "--atol", group="Tolerance")]
    nan: Annotated[NotFinite, one_of(NotFinite), Option("equal",
        "Whether NaN and infinity in both models count as equal, or as a mismatch.", "--nan", group="Tolerance")]
    top_k: Annotated[Sequence[int] | None, integers(1), Option(None,
        "Report top-K agreement over the last axis, for every output; default 1 and 5 for class scores.", "--top-k",
        "K", group="Tolerance")]
    seconds: Annotated[OptionalPositive, Option(None, "Time limit in seconds for the cases, and again for doubtful "
        "ones; cases beyond it are skipped, and reported; default 300.", "--time", "S", group="Limits")]
    memory: Annotated[OptionalCount, Option(None, "Memory limit for the values of a case; default half of the free "
        "memory.", "--memory", "GB", on_command="In gigabytes.", in_python="In bytes.", group="Limits",
        from_flag=lambda gigabytes: int(gigabytes * 1000000000.0))]


class VerifyRun(Compared, Sizes, total=False):
    """Options of the comparison behind `verify`."""

    inputs: Annotated[Inputs | Sequence[Inputs] | None, ONE_OR_MORE_INPUTS, Option(None,
        "Real inputs: .npz, .npy, .json, .pb, or a folder with input_0.pb or test_data_set_*. Generated ones by "
        "default.", "--inputs", "PATH", in_python="Also arrays by name; one of these, or a list.", group="Inputs",
        repeated=True)]
    save_inputs: Annotated[OptionalPath, Option(None, "Save the inputs to this folder (or .npz, for a single set), for "
        "use with {inputs}.", "--save-inputs", "PATH", group="Inputs", writes=True)]
    bisect: Annotated[OptionalFolder, Option(None, "After a mismatch, name the fused op or rule at fault, and write "
        "the smallest failing model to this folder.", "--bisect", "DIR", writes=True)]


class Verify(VerifyRun, CustomOps, Isolated, Links, ShowsProgress, total=False):
    """Keywords of `verify`."""


class Timed(OnProvider, Tf32, Seed, MadeWith, total=False):
    """How two models are timed."""

    runs: Annotated[AtLeastOne, Option(RUNS, "Timed runs per round, or as many as fit into {seconds}.", "--runs", "N",
        group="Running")]
    rounds: Annotated[AtLeastOne, Option(ROUNDS, "Interleaved rounds over all settings; as few as 5 if they do not fit "
        "into {seconds}.", "--rounds", "N", group="Running")]
    seconds: Annotated[Positive, Option(BENCHED, "Time limit in seconds for the timed runs of all shapes; starting "
        "and warming up comes on top.", "--time", "S", group="Running")]
    patience: Annotated[Positive, Option(PATIENCE, "Skip a setting of the original that does not start within this "
        "many seconds.", "--patience", "SECONDS", group="Running")]


class BenchRun(Timed, Sizes, total=False):
    """Options of the measurement behind `bench`."""

    plot: Annotated[OptionalPath, Option(None, "Plot latency by shape and the roofline; .png, .svg or .pdf.", "--plot",
        "FILE.png", group="Reports", writes=True)]


class Bench(BenchRun, CustomOps, Isolated, Links, ShowsProgress, total=False):
    """Keywords of `bench`."""


class Profiled(OnProvider, Tf32, Seed, total=False):
    """How runs are profiled."""

    time: Annotated[Flag, Option(True, "", "--no-time",
        on_command="Only count bytes and operations from shapes; run nothing.",
        in_python="False only counts bytes and operations from shapes, and runs nothing.")]
    cuda_graph: Annotated[Flag, Option(False, "Time the kernels in a CUDA graph, without host launch overhead.",
        "--cuda-graph", group="Running")]
    runs: Annotated[AtLeastOne, Option(PROFILED, "Number of profiled runs.", "--runs", "N", group="Running")]


class ProfileRun(Profiled, Sizes, total=False):
    """Options of the measurement behind `profile`."""

    trace: Annotated[OptionalPath, Option(None, "Write one run as a Chrome trace.", "--trace", "FILE.json",
        group="Reports", writes=True)]


class Profile(ProfileRun, CustomOps, Isolated, Links, ShowsProgress, total=False):
    """Keywords of `profile`."""

    alone: Annotated[Flag, Option(True, "Profile the model only; False optimizes it for comparison.")]


class CiChecks(TypedDict, total=False):
    """What `ci` checks."""

    update: Annotated[Flag, Option(False, "Write the lock file from the current results.", "--update")]
    locked: Annotated[Flag, Option(False, "Fail for any difference from the lock file, not only for regressions: "
        "also of requirements, checks, options, opsets and rules.", "--locked")]
    names: Annotated[Strings, Option((), "Check this model only.", "--model", "NAME")]
    bench: Annotated[Flag, Option(True, "", "--no-bench", on_command="Skip timing, on machines without the GPU.",
        in_python="False skips timing, on machines without the GPU.")]


class Ci(CiChecks, CustomOps, Links, NamesSteps, total=False):
    """Keywords of `ci`."""


class View(Sizes, Rules, Links, total=False):
    """Keywords of `view`."""

    profile: Annotated[Any, PROFILE, Option(None, "Color the nodes by time, from `onnxfuse profile --json` of the same "
        "files.", "--profile", "FILE.json", in_python="Or what `profile` returned.")]
    host: Annotated[Text, Option(LOCAL, "Address to listen on.", "--host", "ADDRESS", group="Server")]
    port: Annotated[int, integer(0, 65535), Option(0, "Port to listen on; default a free one.", "--port", "N",
        group="Server", shown=False)]
    browser: Annotated[Flag, Option(False, "Open the page in the browser.")]
