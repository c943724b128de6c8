"""Attention by our kernel, by ONNX Runtime's op and by the plain nodes, in turns: `python -m bench.kernels.attentions`.

What the choice of the rule attention rests on, and RoPE beside ONNX Runtime's RotaryEmbedding. Microseconds; the kernel
as its plan chooses it, with --variants also in its fastest variant. The sessions are those of `optimize --tune`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import onnx

from onnxfuse.cuda.dispatch.measurements import Timed
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes
from onnxfuse.measure.tune import candidate_times, tune
from onnxfuse.measure.tune.candidates import Candidate
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.shapes.inference import infer


@dataclass(frozen=True)
class Layer:
    """One self attention: a number for each extent, and how it is masked."""

    batch: int
    sequence: int
    heads: int = 12
    size: int = 64
    mask: str = ""
    """`padding`: an addend by key; `causal`: an addend that is known to be causal; `bias`: an addend by head."""
    dtype: str = "float16"
    past: int = 0
    """Keys in the cache of a step of decoding; 0 = there is none."""
    few: int = 0
    """Heads of keys in it."""

    @classmethod
    def named(cls, name: str) -> "Layer":
        """Return the layer whose `name` this is; raises ValueError where it is none."""
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)(?: (padding|causal|bias)| on (\d+) past (\d+))?", name)
        if found is None:
            raise ValueError(
                f"'{name}' is no layer, expected one like '8x12x512x64 causal' or '8x16x1x128 on 4 past 1023'"
            )
        batch, heads, sequence, size = map(int, found.groups()[:4])
        few, past = (int(n or 0) for n in found.groups()[5:])
        return cls(batch, sequence, heads, size, found[5] or "", past=past, few=few)

    @property
    def name(self) -> str:
        """Batch x heads x sequence x size, and the mask or the cache."""
        cache = f"on {self.few} past {self.past}" if self.past else ""
        return f"{self.batch}x{self.heads}x{self.sequence}x{self.size} {self.mask}{cache}".strip()

    def model(self) -> onnx.ModelProto:
        """Return the layer between its projections, as exporters write it."""
        if self.past:
            return self._step()
        b, s, h, d = self.batch, self.sequence, self.heads, self.size
        element, scale, low = ELEMENTS[self.dtype]
        row = f"{element}[{b},{s},{h * d}]"
        masks = {"padding": f", {element}[{b},1,1,{s}] mask", "bias": f", {element}[1,{h},{s},{s}] mask"}
        given = masks.get(self.mask, "")
        mask = "masked = Add (t, mask)" if given else "masked = Identity (t)"
        if self.mask == "causal":
            mask = """keys = Unsqueeze (places, front)  queries = Unsqueeze (places, back)
              keep = LessOrEqual (keys, queries)  masked = Where (keep, t, low)"""
        return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({row} q, {row} k, {row} v{given}) => ({row} y)
        <int64[4] split = {{0, 0, {h}, {d}}}, int64[3] join = {{0, 0, -1}}, int64[1] front = {{0}},
         int64[1] back = {{1}}, int64 zero = {{0}}, int64 one = {{1}}, int64 n = {{{s}}}> {{
          scale = Constant <value = {element} {{{scale}}}> ()  low = Constant <value = {element} {{{low}}}> ()
          places = Range (zero, n, one)
          q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
          k4 = Reshape (k, split)  kt = Transpose <perm = [0,2,3,1]> (k4)
          v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
          m = MatMul (qh, kt)  t = Mul (m, scale)  {mask}
          p = Softmax <axis = -1> (masked)  c = MatMul (p, vh)
          ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)
        }}""")

    def _step(self) -> onnx.ModelProto:
        """Return a step of decoding beside its cache, which grows; heads of queries share those of the keys."""
        b, s, h, d, few = self.batch, self.sequence, self.heads, self.size, self.few
        element, scale, _ = ELEMENTS[self.dtype]
        given = ", ".join(f"{element}[{b},{few},{self.past},{d}] {n}p, {element}[{b},{s},{few * d}] {n}" for n in "kv")
        grown = ", ".join(f"{element}[{b},{few},{self.past + s},{d}] {n}a" for n in "kv")
        heads = " ".join(
            f"{n}4 = Reshape ({n}, apart)  {n}h = Transpose <perm = [0,2,1,3]> ({n}4)"
            f"  {n}a = Concat <axis = 2> ({n}p, {n}h)  {n}5 = Unsqueeze ({n}a, two)"
            f"  {n}r = Expand ({n}5, times)  {n}w = Reshape ({n}r, many)"
            for n in "kv"
        )
        return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({element}[{b},{s},{h * d}] q, {given}) => ({element}[{b},{s},{h * d}] y, {grown})
        <int64[4] split = {{0, 0, {h}, {d}}}, int64[3] join = {{0, 0, -1}}, int64[4] apart = {{0, 0, {few}, {d}}},
         int64[1] two = {{2}}, int64[5] times = {{1, 1, {h // few}, 1, 1}}, int64[4] many = {{0, {h}, -1, {d}}}> {{
          scale = Constant <value = {element} {{{scale}}}> ()
          q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)  {heads}
          kt = Transpose <perm = [0,1,3,2]> (kw)  m = MatMul (qh, kt)  t = Mul (m, scale)
          p = Softmax <axis = -1> (t)  c = MatMul (p, vw)
          ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)
        }}""")


ELEMENTS = {"float16": ("float16", "12288", "64511"), "float32": ("float", "0.125", "-65504.0")}
"""An element type in ONNX's text, with 0.125 and -65504 as that has them: 16-bit numbers by their bits."""

LAYERS = (
    Layer(32, 128, mask="padding"), Layer(32, 197), Layer(32, 256, mask="padding"), Layer(32, 256), Layer(32, 512),
    Layer(8, 512, mask="causal"), Layer(1, 128, mask="padding"), Layer(1, 197), Layer(32, 77, 8, mask="causal"),
    Layer(32, 128, mask="causal"), Layer(2048, 49, 3, 32, "bias"), Layer(16, 128, 16, 128), Layer(2, 4096),
    Layer(2, 4096, mask="causal"), Layer(1, 512), Layer(1, 1, 16, 128, past=1023, few=4),
    Layer(8, 1, 16, 128, past=1023, few=4),
)  # fmt: skip


def timed(layer: Layer, *, variants: bool) -> dict[str, Timed | None]:
    """Return the time of each way, None for a way that there is not or that failed."""
    watch, rules, found = candidate_times.on_gpu(), rule_file.by_default(rule_file.shipped()), dict[str, Timed | None]()

    def time(work: TuningTask, candidates: Sequence[Candidate]) -> Sequence[Timed]:
        if work.op.rule != "attention":
            return [Timed(c.kind, c.tuning, failed="not asked") for c in candidates]
        asked = [c for c in candidates if variants or c.tuning is None]
        times = watch.time(work, asked)
        for one in times:
            kind = "library" if one.kind == "fused" and work.op.template == "library" else one.kind
            if one.microseconds is not None:
                best = found.get(kind if one.tuning is None else "variant")
                if best is None or one.microseconds < (best.microseconds or 0):
                    found[kind if one.tuning is None else "variant"] = one
            elif one.tuning is None:
                print(f"  {one.name}: {one.failed}")
        return times

    tune(layer.model(), rules, {}, stopwatch=candidate_times.Stopwatch(watch.machine, watch.arch, time))
    return found


# ---- RoPE


@dataclass(frozen=True)
class Rotation:
    """Queries [batch, sequence, heads * size] of LLaMA, turned by their positions."""

    batch: int
    sequence: int
    heads: int
    size: int

    def model(self, *, library: bool) -> onnx.ModelProto:
        """Return the nodes as LLaMA has them, or ONNX Runtime's op in their place; both from the same two tables."""
        b, s, h, d = self.batch, self.sequence, self.heads, self.size
        row, table = f"float16[{b},{s},{h * d}]", f"float16[{s},{d // 2}]"
        theirs = f"""places = Unsqueeze (range, first)  all = Expand (places, sizes)
          y = com.microsoft.RotaryEmbedding <num_heads = {h}> (x, all, cos, sin)"""
        ours = """x4 = Reshape (x, split)  h = Transpose <perm = [0,2,1,3]> (x4)
          c = Concat <axis = -1> (cos, cos)  s = Concat <axis = -1> (sin, sin)
          c4 = Unsqueeze (c, fronts)  s4 = Unsqueeze (s, fronts)
          straight = Mul (h, c4)
          left = Slice (h, none, half, last)  right = Slice (h, half, end, last)
          back = Neg (right)  turned = Concat <axis = -1> (back, left)
          across = Mul (turned, s4)  r = Add (straight, across)
          t = Transpose <perm = [0,2,1,3]> (r)  y = Reshape (t, join)"""
        return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({row} x, {table} cos, {table} sin) => ({row} y)
        <int64[4] split = {{0, 0, {h}, {d}}}, int64[3] join = {{0, 0, -1}}, int64[1] none = {{0}},
         int64[2] fronts = {{0, 1}}, int64[1] first = {{0}}, int64[1] half = {{{d // 2}}},
         int64[1] end = {{{d}}}, int64[1] last = {{3}},
         int64[2] sizes = {{{b}, {s}}}, int64[{s}] range = {{{", ".join(map(str, range(s)))}}}> {{
          {theirs if library else ours}
        }}""")


ROTATIONS = (Rotation(1, 128, 32, 128), Rotation(1, 512, 32, 128), Rotation(8, 512, 16, 64), Rotation(4, 1024, 32, 128))


def rotated(rotation: Rotation) -> Sequence[Timed]:
    """Return the time of the fused nodes and of ONNX Runtime's op; raises where the nodes are not one kernel."""
    ours, theirs = (rotation.model(library=library) for library in (False, True))
    pipeline.run(ours)
    (op,) = fused_ops(ours).values()
    (node,) = fused_nodes(ours.graph)[op.name]
    work = TuningTask(op, input_shapes(node, every_type(infer(ours).graph)) or (), ours, theirs)
    times = candidate_times.on_gpu().time(work, [Candidate("fused", ours), Candidate("alone", theirs)])
    for one in times:
        if one.failed:
            raise RuntimeError(f"{work.op.name} {one.kind}: {one.failed}")
    return times


class LayerType(click.ParamType[Layer]):
    """A layer on the command line."""

    name = "layer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Layer:
        """Return the layer of that name."""
        try:
            return Layer.named(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("layers", nargs=-1, type=LayerType())
@click.option("--variants", is_flag=True, help="Time every variant of the kernel, too.")
@click.option("--rope/--no-rope", default=True)
@click.option("--dtype", type=click.Choice(list(ELEMENTS)), default="float16", show_default=True)
def main(layers: tuple[Layer, ...], variants: bool, rope: bool, dtype: str) -> None:
    """Print a line for each layer: how long each way takes, and which the rule takes by itself.

    A layer is named as it is printed, such as '8x12x512x64 causal'; without any, those of the table and RoPE.
    """
    for layer in (replace(one, dtype=dtype) for one in layers or LAYERS):
        model = layer.model()
        pipeline.run(model)
        taken = {"attention": "kernel", "library": "library", "": "nodes"}[
            next((op.template for op in fused_ops(model).values() if op.rule == "attention"), "")
        ]
        found = timed(layer, variants=variants)
        told = ", ".join(
            f"{ {'fused': 'kernel', 'alone': 'nodes'}.get(kind, kind) } {one.microseconds:.1f}"
            + (f" ({one.tuning})" if kind == "variant" else "")
            for kind, one in found.items()
            if one is not None
        )
        print(f"{layer.name}: {told}; the rule takes the {taken}", flush=True)
    for rotation in ROTATIONS if rope and not layers else ():
        kernel, library = rotated(rotation)
        print(f"{rotation}: kernel {kernel.microseconds:.1f}, RotaryEmbedding {library.microseconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
