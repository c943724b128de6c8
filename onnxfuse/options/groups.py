"""Options that several functions and commands share, in groups that belong together."""

from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from onnxfuse.options.kinds import (
    AtLeastZero,
    Flag,
    InputSets,
    OptionalFlag,
    OptionalFraction,
    OptionalPath,
    OptionalPositive,
    Paths,
    Progress,
    Providers,
    Shapes,
    Steps,
    Strings,
    one_of,
)
from onnxfuse.options.schema import EVERYWHERE, Option

Precision = Literal["float16", "bfloat16", "mixed"]
"""Target types: all in one type, or float16 where the tolerance holds, else bfloat16, else float32."""
IoPrecision = Literal["float16", "bfloat16", "float32"]
SHORT_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""Other names of element types, which other tools use."""

ProviderWord = Literal["auto", "cpu", "cuda"]
CPU, CUDA = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]
PROVIDERS: dict[str, Any] = {"auto": None, "cpu": CPU, "cuda": CUDA}
"""Words of --provider, with ONNX Runtime's providers; None is CUDA where it works, the CPU elsewhere."""
BOTH: dict[str, Any] = {**PROVIDERS, "both": (CPU, CUDA), "cpu,cuda": (CPU, CUDA), "cuda,cpu": (CUDA, CPU)}
"""The same, with words for two: where the original and where the fused model runs."""

_rule = partial(Option, group="Rules")
_precision = partial(Option, group="Precision", needs=("precision",), toml=True, repeated=True, shown=False)
_running = partial(Option, group="Running")
SHAPE_FLAG = "--shape, --shapes"
"""The flag for sizes, for whatever they are."""

# An option is a row of a table.
# fmt: off
Skip = Annotated[Strings, _rule((), "Skip this rule.", "--skip", "RULE", complete="rules", toml=True, repeated=True)]
Also = Annotated[Strings, _rule((), "Also apply this optional rule (`onnxfuse rules` lists them).", "--also", "RULE",
    complete="optional rules", toml=True, repeated=True)]


class Rules(TypedDict, total=False):
    """Folders of rules."""

    rules: Annotated[Paths, _rule((), "Folder of rules in addition to the shipped ones.", "--rules", "DIR", toml=True,
        repeated=True)]


class MadeWith(TypedDict, total=False):
    """Folders of the rules that made a model."""

    rules: Annotated[Paths, _rule((), "Folder of custom rules that made the fused model.", "--rules", "DIR",
        repeated=True)]


class ChosenRules(Rules, total=False):
    """Which rules apply."""

    only: Annotated[Strings, _rule((), "Apply only this rule.", "--only", "RULE",
        complete="rules", repeated=True)]
    skip: Skip
    also: Also
    require: Annotated[Strings, _rule((), 'Fail unless the rule applied this often: "gemm>=3", "gemm==3"; a name '
        "alone means at least once.", "--require", "RULE[>=N|==N]", on_command="Exit code 4; as in onnxfuse.toml.",
        in_python="Raises RequirementError, which says why.")]


class CustomOps(TypedDict, total=False):
    """Operators of the user's own."""

    custom_ops: Annotated[Paths, Option((), "Library of custom operators for ONNX Runtime to load.", "--custom-ops",
        "LIB.so", repeated=True)]


class LowerPrecision(TypedDict, total=False):
    """Conversion to lower precision."""

    precision: Annotated[Precision | None, one_of(Precision, SHORT_TYPES), Option(None, "Convert float32 to this type "
        "wherever outputs stay within {tolerance} of a float64 reference; nodes kept in float32 are listed with the "
        "reason. fp16 and bf16 are accepted, too.", "--precision", group="Precision", toml=True, repeated=True)]
    inputs: Annotated[InputSets, Option((), "Real inputs to measure errors on; generated ones by default.", "--inputs",
        "PATH", group="Precision", needs=("precision", "guard"), repeated=True, in_python="Files, or arrays by name.")]
    tolerance: Annotated[OptionalFraction, _precision(None, "With {precision}: allowed relative RMS error of outputs; "
        "default 20 unit roundoffs (0.0098).", "--tolerance", "X")]
    io_precision: Annotated[IoPrecision, one_of(IoPrecision, SHORT_TYPES), _precision("float32",
        "With {precision}: new type of float32 inputs and outputs; unchanged by default.", "--io-precision", "TYPE")]
    keep_fp32: Annotated[Strings, _precision((), "With {precision}: pin this node, operator or name pattern to "
        "float32.", "--keep-fp32", "NODE")]
    seconds: Annotated[OptionalPositive, Option(None, "With {precision}: seconds for measuring, and again for trials; "
        "default 300.", "--time", "S", group="Precision", needs=("precision",), repeated=True)]


class ModelSettings(TypedDict, total=False):
    """What holds for every node of the model that is made."""

    strict_fp32: Annotated[Flag, Option(False, "Use no kernel that rounds float32 to TF32; recorded in the model, "
        "so that onnxfuse always opens it with use_tf32 0.", "--strict-fp32", repeated=True)]
    freeze_initializers: Annotated[Flag, Option(False, "Turn weights that are also graph inputs into constants, which "
        "callers cannot override.", "--freeze-initializers", toml=True, repeated=True)]


class Optimizing(ChosenRules, CustomOps, LowerPrecision, ModelSettings, total=False):
    """What decides how a model is optimized."""

    guard: Annotated[Flag, Option(False, "Run each fusion on inputs, and revert any that exceeds the error budget.",
        "--guard")]
    tuning: Annotated[OptionalPath, Option(None, "Choose by the times in this file, with or without a GPU.", "--tuning",
        "FILE", on_command="With --tune they are stored there.", in_python="`tune` writes it, and `onnxfuse optimize "
        "--tune`. If they are of another GPU, driver or ONNX Runtime, a warning says so and the rules decide.",
        group="Measured times", writes=True, repeated=True)]
    shapes: Annotated[Shapes, Option(None, "Specialize the model to this size of a dynamic dimension (batch=8) or "
        "shape of an input.", SHAPE_FLAG, "NAME=N", on_command="With --dump, --tune, --tuning and --compile the "
        "dimension stays dynamic; then give the sizes (batch=1,32) or the range (batch=1..32) to prepare for.",
        repeated=True)]


class Links(TypedDict, total=False):
    """Weights outside the model's folder."""

    follow_links: Annotated[Flag, Option(False, "Follow symbolic links to external data outside the model's folder, as "
        "in model-hub caches.", "--follow-links", group=EVERYWHERE, repeated=True)]


class Sizes(TypedDict, total=False):
    """Sizes at which a model runs."""

    shapes: Annotated[Shapes, _running(None, "Size of a dynamic dimension (batch=32), or the shape of an input "
        "(x=1x3x224x224). Several sizes are run one after the other (batch=1,8).", SHAPE_FLAG, "NAME=SIZES",
        repeated=True)]


class OnProvider(TypedDict, total=False):
    """Where both models run."""

    providers: Annotated[Providers, _running(None, "Execution provider; default CUDA where it works.",
        "--provider, --providers", words=PROVIDERS, repeated=True, in_python="ONNX Runtime's, as a list.")]


class Tf32(TypedDict, total=False):
    """Whether float32 products may be rounded."""

    use_tf32: Annotated[OptionalFlag, _running(None, "ONNX Runtime's CUDA option use_tf32, for both models; default 0 "
        "if the fused model was made with {strict_fp32}, else 1.", "--tf32/--no-tf32")]


class Seed(TypedDict, total=False):
    """Seed of generated inputs."""

    seed: Annotated[AtLeastZero, _running(0, "Seed of the inputs.", "--seed", "N")]


class Isolated(TypedDict, total=False):
    """Where work is done for a Python caller."""

    isolate: Annotated[Flag, Option(True, "Run the models in a new process, which takes a second to start, so that a "
        "crash of ONNX Runtime or of the GPU is reported, and leaves this process and its GPU as they are; False runs "
        "them here.")]


class NamesSteps(TypedDict, total=False):
    """Progress by steps."""

    progress: Annotated[Steps, Option(None, "True shows a bar, False none, None one in a notebook only; a function is "
        "called with each step.")]


class ShowsProgress(TypedDict, total=False):
    """Progress by amounts."""

    progress: Annotated[Progress, Option(None, "True shows a bar, False none, None one in a notebook only; a function "
        "is called with each step, how much of it is done and of what.")]
