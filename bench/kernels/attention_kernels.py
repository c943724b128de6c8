"""The time of attention's kernels alone, ours and the library's two: `python -m bench.kernels.attention_kernels`.

Microseconds of one launch among many in a CUDA graph, in turns, medians: neither side pays for its host code. `kept`
holds all keys of a head in shared memory, `streamed` takes any length, `1 by 64` are warpgroups of a block on Hopper by
keys at a time; the library's op is MultiHeadAttention as it
runs by default (cuDNN) and with the CUDA provider's option sdpa_kernel=1 (flash attention). In float32, where both
round factors to TF32, it runs by default, and beside it torch's function and torch's two products with a softmax
between. Grouped keys are repeated before the library's op, as it wants them. What is chosen where rests on these
numbers. Needs torch. Rows are named as they are printed: `... attention_kernels 32x12x512x64:causal`; a type that no
row says is that of --dtype.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
import torch

from bench.cases import ops
from bench.cases.attentions import Case
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention import few, kept, sm90, streamed
from onnxfuse.cuda.templates.attention.variant import AttentionVariant
from onnxfuse.cuda.templates.attention.work import work
from onnxfuse.measure.timing.binding import REFUSALS, DeviceBinding, ort_values, outputs_of, warmed
from onnxfuse.measure.timing.stopwatch import interleaved, warm
from onnxfuse.support.errors import KernelError, UsageError
from onnxfuse.verification.run.sessions import CUDA

LAUNCHES, ROUNDS = 50, 7
MOST_PRODUCTS = 2**40
"""Multiplications of all launches of a graph, about: of long ones it holds fewer."""
LIBRARY = {"cuDNN": {}, "flash": {"sdpa_kernel": "1"}}
"""The library's ways, by the options of the CUDA provider; in float32 there is the default one."""
REFUSED: tuple[type[Exception], ...] = (*REFUSALS, UsageError)
NUMPY: Mapping[int, np.dtype[Any]] = {t: np.dtype(ops.NUMPY[t]) for t in (HALF, BRAIN, FLOAT)}
TORCH: Mapping[int, torch.dtype] = {HALF: torch.float16, BRAIN: torch.bfloat16, FLOAT: torch.float32}
TEXT: Mapping[int, str] = {HALF: "float16", BRAIN: "bfloat16", FLOAT: "float"}
NAMES = {"float16": HALF, "bfloat16": BRAIN, "float32": FLOAT}

ROWS = (
    "1x12x128x64", "8x12x384x64", "32x12x128x64", "32x12x200x64", "32x12x512x64", "4x12x2048x64",
    "1x12x128x64:causal", "8x12x384x64:causal", "32x12x128x64:causal", "32x12x200x64:causal", "32x12x512x64:causal",
    "4x12x2048x64:causal", "8x16x2048x128", "8x16x2048x128:causal", "32x12x512x64:mask", "2048x3x49x32:bias",
    "32x12x512x64:bfloat16", "4x12x2048x64:causal:bfloat16", "1x16/4x1,1024x128", "8x16/4x1,1024x128",
    "1x32/8x1,4096x128", "8x32/8x1,4096x128", "1x12x1,1024x64:mask", "32x12x1,197x64", "4x16/4x512x128:causal",
    "8x12x512x64:local", "8x12x512x64:rows", "4x16/4x512x128:rows", "8x5x4096x64",
)  # fmt: skip


FLOAT_ROWS = (
    "1x12x128x64:mask", "32x12x128x64:mask", "32x12x128x64", "32x12x197x64", "1x12x197x64", "1x12x512x64",
    "8x12x512x64:causal", "32x12x512x64", "2x12x2048x64", "2x12x4096x64:causal", "16x16x128x128", "8x16x1024x128",
    "2048x3x49x32:bias", "4x8x1024x192",
)  # fmt: skip
"""Those of float32, among them what rules/attention/attention.toml tells of the nodes."""


MASKS = {"rows": lambda apart: apart <= 0, "local": lambda apart: abs(apart) <= 64}
"""Masks by query and key: whether a key so far behind the query is seen."""


def inputs_of(name: str, case: Case) -> list[np.ndarray]:
    """Return drawn inputs; a mask of numbers is what its row says."""
    random = np.random.default_rng(0)
    drawn = [random.standard_normal(s, np.float32).astype(NUMPY[case.dtype]) for s in case.shapes()]
    for mark in name.split(":")[1:]:
        if mark in MASKS:
            seen = MASKS[mark](np.arange(case.keys) - np.arange(case.queries)[:, None])
            drawn[3][...] = np.where(seen, 0, -60000)
    return drawn


def case_of(name: str, dtype: int = HALF) -> Case:
    """Return what a row says: batch x heads x sequence x size, then its mask and type, if that is not `dtype`.

    `rows`: a causal mask as numbers; `local`: one that shows 64 keys before and behind each query.

    `16/4` are heads on 4 of keys, `1,1024` are queries and keys where those are not as many.
    """
    sizes, *marks = name.split(":")
    batch, many, sequences, size = sizes.split("x")
    heads, _, few = many.partition("/")
    queries, _, more = sequences.partition(",")
    keys = int(more or queries)
    bias = {"mask": (int(batch), 1, 1, keys), "bias": (1, int(heads), int(queries), keys)}
    bias |= dict.fromkeys(MASKS, (int(batch), 1, int(queries), keys))
    return Case(
        int(batch), int(heads), int(queries), keys, int(size), next((NAMES[m] for m in marks if m in NAMES), dtype),
        next((bias[m] for m in marks if m in bias), None), "causal" in marks, group=int(heads) // int(few or heads),
    )  # fmt: skip


def launches(case: Case) -> int:
    """Return how many launches a graph holds."""
    products = case.batch * case.heads * case.queries * case.keys * case.size * 2
    return min(LAUNCHES, max(4, MOST_PRODUCTS // products))


# ---- ours


def ways(case: Case) -> dict[str, Variant | None]:
    """Return our kernels by name: the choice for any length, each way to stream, and the kernel for short ones."""
    mine, arch = work(case.op(), case.shapes()), cuda.arch_of(0)
    shared = few.candidates(mine, arch) if few.takes(mine, arch) else ()
    return {
        "ours": None,
        **{f"{w.warps} in {w.parts}": AttentionVariant(queries=w) for w in shared},
        **{
            f"{w.warps}x{w.tiles}x{w.step}{f'x{w.stages}' if w.stages else ''}": AttentionVariant(queries=w)
            for w in streamed.candidates(mine, arch)
        },
        **{
            f"{w.warps // 4} by {w.step}": AttentionVariant(queries=w)
            for w in sm90.ways(mine)
            if sm90.takes(mine, True, arch)
        },
        "kept": AttentionVariant(queries=kept.choose(mine, arch)),
    }


def ours(case: Case, tuning: Variant | None, arrays: list[np.ndarray]) -> timing.Work | None:
    """Return what launches our kernel, checked against the library's numbers beside; None where it has no plan."""
    op = replace(case.op(), open_length=True)
    try:
        plan = cuda.plan(op if tuning is None else case.op(), case.shapes(), True, cuda.arch_of(0), tuning)
    except KernelError:
        return None
    tensors = on_the_gpu(case, arrays)
    result = torch.empty(plan.output_shapes[0], device="cuda", dtype=TORCH[case.dtype])
    launch = timing.launcher(plan, [t.data_ptr() for t in (*tensors, result)])
    launch()
    torch.cuda.synchronize()
    q, k, v = (t.float() for t in heads_of(case, tensors, 1))
    bias = tensors[3].float() if case.bias is not None else None
    added = bias[:1] if bias is not None else None
    truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=case.causal)
    torch.testing.assert_close(
        result[:1].float(), truth.transpose(1, 2).reshape(result[:1].shape), rtol=2e-2, atol=2e-2
    )
    return timing.keeping(launch, (tensors, result))


def heads_of(case: Case, tensors: list[torch.Tensor], batch: int) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values of the first ones of the batch, as many heads of each."""
    apart = [t[:batch].view(batch, t.shape[1], -1, case.size).transpose(1, 2) for t in tensors[:3]]
    return (apart[0], *(t.repeat_interleave(case.group, 1) for t in apart[1:]))


def on_the_gpu(case: Case, arrays: list[np.ndarray]) -> list[torch.Tensor]:
    """Return the inputs as torch has them."""
    return [torch.from_numpy(x.view(np.uint8)).cuda().view(TORCH[case.dtype]) for x in arrays]


# ---- torch's, in float32


def torch_ways(case: Case, arrays: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """Return torch's function and its two products with a softmax between, both from factors rounded to TF32.

    As exporters write them: heads apart before, side by side after.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    given = on_the_gpu(case, arrays)
    bias = given[3] if case.bias is not None else None
    causal = torch.full((case.queries, case.keys), -torch.inf, device="cuda").triu(1) if case.causal else None

    def heads() -> tuple[torch.Tensor, ...]:
        return heads_of(case, given, case.batch)

    def merged(y: torch.Tensor) -> torch.Tensor:
        return y.transpose(1, 2).reshape(given[0].shape)

    def function() -> torch.Tensor:
        q, k, v = heads()
        added = bias if bias is None else bias.expand(case.batch, case.heads, case.queries, case.keys)
        return merged(torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=case.causal))

    def products() -> torch.Tensor:
        q, k, v = heads()
        scores = q @ k.transpose(-1, -2) * case.factor
        for mask in (bias, causal):
            scores = scores if mask is None else scores + mask
        return merged(torch.softmax(scores, -1) @ v)

    return {"torch SDPA": function, "torch products": products}


# ---- the library's


def model(case: Case, count: int) -> onnx.ModelProto:
    """Return so many of the library's op beside each other; sessions must not put equal ones together."""
    element = TEXT[case.dtype]
    shapes = [f"{element}[{','.join(map(str, s))}] {n}" for n, s in zip("qkvb", case.shapes(), strict=False)]
    extra, whole = (", , , w", "") if case.bias is not None else ("", "")
    if case.bias is not None:
        # The op reads a mask of all scores; it is made once, not in each launch.
        whole = f"""to = Constant <value_ints = [{case.bias[0]}, {case.bias[1]}, {case.queries}, {case.keys}]> ()
          w = Expand (b, to)"""
    few = case.heads // case.group
    sizes = f"""to5 = Constant <value_ints = [0, 0, {few}, 1, {case.size}]> ()
      times = Constant <value_ints = [1, 1, 1, {case.group}, 1]> ()  flat = Constant <value_ints = [0, 0, -1]> ()"""

    def repeated(name: str, i: int) -> str:
        many = f"{name}5{i} = Reshape ({name}, to5) {name}r{i} = Expand ({name}5{i}, times)"
        return f"{many} {name}{i} = Reshape ({name}r{i}, flat)"

    # Grouped keys are repeated before each op, as the rule attention writes it.
    ops = " ".join(
        (f"{repeated('k', i)} {repeated('v', i)}" if case.group > 1 else "")
        + f" y{i} = com.microsoft.MultiHeadAttention <num_heads = {case.heads}, unidirectional = {int(case.causal)}>"
        f" (q, {f'k{i}, v{i}' if case.group > 1 else 'k, v'}{extra})"
        for i in range(count)
    )
    whole += sizes if case.group > 1 else ""
    q = case.shapes()[0]
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g ({", ".join(shapes)}) => '
        f"({element}[{','.join(map(str, q))}] y0) {{ {whole} {ops} }}"
    )


def bound(case: Case, options: dict[str, str], arrays: list[np.ndarray], graph: bool) -> DeviceBinding:
    """Return the session of the library's way with its inputs, warm."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    chosen = {**options, **({"enable_cuda_graph": "1"} if graph else {})}
    proto = model(case, launches(case)).SerializeToString()
    values = ort_values(dict(zip("qkvb", arrays, strict=False)))
    plain = onnxruntime.InferenceSession(proto, settings, providers=[(CUDA, options)])
    outputs = outputs_of(plain, values, "measured")
    session = onnxruntime.InferenceSession(proto, settings, providers=[(CUDA, chosen)])
    return warmed(session, values, outputs)


def library(case: Case, options: dict[str, str], arrays: list[np.ndarray]) -> tuple[DeviceBinding | None, str]:
    """Return what runs the library's op, and a mark: `*` where no CUDA graph is made of it, and host code counts."""
    for graph in (True, False):
        try:
            return bound(case, options, arrays, graph), "" if graph else "*"
        except REFUSED as error:
            reason = str(error).splitlines()[0][:100]
    return None, reason


def measured(name: str, case: Case) -> dict[str, str]:
    """Return the time of each way as it is shown."""
    arrays = inputs_of(name, case)
    count = launches(case)
    # What a graph reads and writes lives as long as it is replayed.
    mine = {n: made for n, tuning in ways(case).items() if (made := ours(case, tuning, arrays)) is not None}
    single = case.dtype == FLOAT
    both = {**mine, **(torch_ways(case, arrays) if single else {})}
    graphs = {name: timing.graph_of([made] * count) for name, made in both.items()}
    theirs = {"library": LIBRARY["cuDNN"]} if single else LIBRARY
    sessions = {name: library(case, options, arrays) for name, options in theirs.items()}
    runs: dict[str, Callable[[], None]] = {name: partial(_replayed, graph) for name, graph in graphs.items()}
    runs |= {name: session.run for name, (session, _) in sessions.items() if session is not None}
    warm(runs.values(), 2)
    times = interleaved(list(runs.values()), ROUNDS, 1)
    taken = {name: 1e6 * statistics.median(each) / count for name, each in zip(runs, times, strict=True)}
    marks = {name: mark for name, (_, mark) in sessions.items()}
    return {
        name: f"{taken[name]:.1f}{marks.get(name, '')}" if name in taken else marks[name]
        for name in (*graphs, *sessions)
    }


def _replayed(graph: torch.cuda.CUDAGraph) -> None:
    graph.replay()
    torch.cuda.synchronize()


@click.command()
@click.argument("rows", nargs=-1)
@click.option("--dtype", type=click.Choice(list(NAMES)), default="float16", show_default=True)
def main(rows: tuple[str, ...], dtype: str) -> None:
    """Print a line for each row."""
    print(f"{torch.cuda.get_device_name()}, onnxruntime {onnxruntime.__version__}; microseconds, * = with host code")
    for name in rows or (FLOAT_ROWS if dtype == "float32" else ROWS):
        case = case_of(name, NAMES[dtype])
        products = 4 * case.batch * case.heads * case.queries * case.keys * case.size / (2 if case.causal else 1)
        found = measured(name, case)
        best = float(found["ours"])
        print(
            f"{name:30s} "
            + "  ".join(f"{way} {shown}" for way, shown in found.items())
            + f"  ours {products / best / 1e6:.0f} TFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
