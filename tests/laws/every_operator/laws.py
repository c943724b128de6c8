"""What holds for each graph: optimized it gives the same values of the same shapes, at other extents of its open
dimensions, too, comes out of optimizing again as it went in, and computes the same once its fusions are undone."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import bodies, nodes_of
from onnxfuse.passes.manager import verifying
from onnxfuse.support.errors import UsageError
from onnxfuse.verification.reference.float64_reference import REFERENCE_GAPS, reference_for
from onnxfuse.verification.variants.half_ties import within_half_errors
from tests.laws.every_operator import quantized_recipes, recipes
from tests.laws.every_operator.grow import EXTENTS, OPSETS, RUN, TYPES, Grower, RefusedError, finished, options
from tests.laws.every_operator.workers import EQUAL, REFUSED, REFUSED_MADE, Outcome

NODES, LONG = 14, 50
WIDE = 1_000_000
"""The first seed whose graph has the wider recipes, too, and weights in other forms: those below mean what they did."""
QUANTIZED = 2_000_000
"""The first seed whose graph is of quantized products and convolutions, and what tools write around them."""
PERTURBED = (4, 60)
"""Times that the original runs with each number one rounding step away: how far rounding brings it. Only what is off by
more than the first few show is looked at again: where two numbers tie, each run decides by a coin which one is chosen,
and of four coins all fall on the same side in one of eight."""
OTHERS = 2
"""Times that a graph with open dimensions runs at other extents."""
NOT_RUN = "does not run"
"""How what is seen of a model begins that ONNX Runtime refuses or fails on."""
ALLOWED = 8
"""Times as far as that, and so many rounding steps at the size of the output's largest number, an optimized model may
be off: it rounds elsewhere, and less or more often."""

COUNTING = {"Resize": 1, "Upsample": 1, "Range": 0}
"""Operators whose inputs, from this one on, are numbers that extents are counted by: no rounding step moves those."""


@dataclass(frozen=True)
class Case:
    """A model with inputs for it."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    dtype: int


def case(seed: int) -> Case:
    """Return the model of a seed."""
    rng = np.random.default_rng(seed)
    types, opsets = (quantized_recipes.TYPES, quantized_recipes.OPSETS) if seed >= QUANTIZED else (TYPES, OPSETS)
    dtype, opset = types[int(rng.integers(len(types)))], int(rng.choice(opsets))
    g = Grower(rng, dtype, opset=opset)
    quantized = seed >= QUANTIZED
    quantized_recipes.begin(g) if quantized else recipes.begin(g, seed >= WIDE)
    most = NODES if seed < WIDE or g.chance(0.8) else LONG
    wanted, tries = int(rng.integers(2, most)), 0
    while len(g.nodes) < wanted and tries < 8 * most:
        tries += 1
        with contextlib.suppress(RefusedError):
            quantized_recipes.step(g) if quantized else recipes.step(g, seed >= WIDE and g.chance(0.5))
    model = _model(g)
    if seed >= WIDE:
        model = respelled(g, model)
    if dtype not in RUN:
        return Case(model, g.feeds, dtype)
    half = retyped(model, RUN[dtype], dtype)
    try:
        onnx.checker.check_model(retyped(_every_type(g, model), RUN[dtype], dtype), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return Case(model, g.feeds, RUN[dtype])  # some operator does not take that type
    return Case(half, g.feeds, dtype)


def _every_type(g: Grower, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that declares the element type of each value: behind an operator that is none of ONNX's, the
    checker knows none, and does not see what does not take it."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    declared = {v.name for v in (*typed.graph.value_info, *typed.graph.output)}
    for value in (o for n in typed.graph.node for o in n.output if o in g.found and o not in declared):
        element = helper.np_dtype_to_tensor_dtype(g.found[value].dtype)
        typed.graph.value_info.append(helper.make_tensor_value_info(value, element, None))
    return typed


def _model(g: Grower) -> onnx.ModelProto:
    made = [o for n in g.nodes for o in n.output if o in g.found]
    read = {v for n in g.nodes for v in n.input}
    ends = [o for o in made if o not in read]
    outputs = dict.fromkeys(ends[:4] or made[-1:] or list(g.feeds)[:1])
    if made and g.chance(0.3):
        outputs[g.pick(made)] = None
    declared = [_declared(g, o) for o in outputs]
    inputs = [_declared(g, x, whole=True) for x in g.feeds]
    graph = helper.make_graph(g.nodes, "random", inputs, declared, g.weights)
    return finished(graph, g.opset, g.functions)


def respelled(g: Grower, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as another exporter would write it: weights as nodes, in a form that the operator set has, or as
    inputs with a default; nodes without names; shapes of all values."""
    if g.chance(0.2):
        for node in nodes_of(model.graph):
            node.name = ""
    for tensor in list(model.graph.initializer):
        if g.chance(0.25):
            array = numpy_helper.to_array(tensor)
            written: dict[str, Any] = {"value": tensor}
            short = array.ndim < 2 and array.size and array.dtype in (np.int64, np.float32)
            if g.opset >= 12 and short and g.chance(0.5):
                word = "int" if array.dtype == np.int64 else "float"
                written = {f"value_{word}s": array.tolist()} if array.ndim else {f"value_{word}": array.item()}
            model.graph.initializer.remove(tensor)
            model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], f"c_{tensor.name}", **written))
        elif g.chance(0.05):
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return onnx.shape_inference.infer_shapes(model) if g.chance(0.3) else model


def _declared(g: Grower, name: str, *, whole: bool = False) -> onnx.ValueInfoProto:
    array = g.found[name]
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    if not whole and g.chance(0.5):
        return helper.make_tensor_value_info(name, dtype, None)
    free = g.chance(0.5)
    by_size = g.chance(0.5)
    shape = [
        (f"n{n}" if by_size else f"{name}_{i}") if n and free and g.chance(0.5) else n
        for i, n in enumerate(array.shape)
    ]
    return helper.make_tensor_value_info(name, dtype, shape)


# ---- types


def retyped(model: onnx.ModelProto, was: int, becomes: int) -> onnx.ModelProto:
    """Return a model, with its functions, in which everything of one element type is of another."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = [*nodes_of(made.graph), *(n for f in made.functions for n in nodes_of(f))]
    graphs = [made.graph, *(body for n in nodes for body in bodies(n))]
    for value in (v for g in graphs for v in (*g.input, *g.output, *g.value_info)):
        if value.type.tensor_type.elem_type == was:
            value.type.tensor_type.elem_type = becomes
    weights = [t for g in graphs for t in g.initializer]
    for tensor in (*weights, *(a.t for n in nodes for a in n.attribute if a.HasField("t"))):
        if tensor.data_type == was:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(becomes))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "stash_type") and attribute.i == was:
                attribute.i = becomes
    return made


# ---- laws


def broken(one: Case) -> str | None:
    """Return the law that the model of a case breaks, with what is seen; None where all hold."""
    before = run(one.model, one.feeds, one.dtype)
    if isinstance(before, str):
        return None  # no law for what ONNX Runtime does not run
    said = _broken(one, before)
    return None if said is not None and said.startswith(REFUSED_MADE) else said


def _broken(one: Case, before: list[np.ndarray]) -> str | None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with verifying():
                made = onnxfuse.optimize(one.model)
            again = onnxfuse.optimize(made)
        except Exception as error:
            return f"raises {type(error).__name__}: {error}"
    blamed = next((str(w.message) for w in told if "report it" in str(w.message)), None)
    if blamed is not None:
        return f"blames itself: {blamed}"
    if made.SerializeToString(deterministic=True) != again.SerializeToString(deterministic=True):
        return f"not idempotent: {_ops(made)} -> {_ops(again)}"
    with warnings.catch_warnings(action="ignore"):  # it tells what rewrites have changed for good
        plain = onnxfuse.unfuse(made)
    if any(n.domain == DOMAIN for n in nodes_of(plain.graph)) or any(f.domain == DOMAIN for f in plain.functions):
        return "not undone: fused ops are left"
    refused = None
    for what, model in (("optimized", made), ("undone", plain)):
        said = differs(one, model, before)
        if said is not None and said.startswith(NOT_RUN) and by_reference(one, model, before):
            refused = f"{REFUSED_MADE}: {what}: {said}: {_ops(made)}"
        elif said is not None:
            return f"{what}: {said}: {_ops(made)}"
    for other in at_other_extents(one) if refused is None else ():
        said = differs(other, made)
        if said is not None:
            return f"at other extents: {said}, inputs {[x.shape for x in other.feeds.values()]}: {_ops(made)}"
    return refused


def by_reference(one: Case, model: onnx.ModelProto, before: list[np.ndarray]) -> bool:
    """Return whether ONNX Runtime alone is to blame for a model that it does not run.

    Its plain nodes, inlined by onnx, do not run there either, and onnx's reference computes from them what the original
    does.
    """
    inlined = onnx.inliner.inline_local_functions(model, convert_version=False)
    if not isinstance(run(inlined, one.feeds, one.dtype), str):
        return False
    try:
        found = ReferenceEvaluator(inlined).run(None, one.feeds)
    except Exception:  # onnx has no errors of its own; what its reference does not run proves nothing
        return False
    after = [np.asarray(x) for x in found]
    return _off(one, before, after) is None


def at_other_extents(one: Case) -> Iterator[Case]:
    """Yield a case with inputs of other shapes, as its open dimensions allow: those that the original runs on."""
    named = {d.dim_param for i in one.model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    rng = np.random.default_rng(len(one.model.graph.node))
    for _ in range(OTHERS if named else 0):
        drawn = {name: int(rng.choice(EXTENTS)) for name in sorted(named)}
        feeds = {}
        for value in one.model.graph.input:
            if value.name not in one.feeds:
                continue  # an input with a default
            shape = [drawn.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = np.resize(one.feeds[value.name], shape)
        found = run(one.model, feeds, one.dtype)
        if not isinstance(found, str) and all(
            _declared_so(output, array.shape, drawn) and np.isfinite(array).all()
            for output, array in zip(one.model.graph.output, found, strict=True)
        ):
            yield Case(one.model, feeds, one.dtype)


def _declared_so(value: onnx.ValueInfoProto, shape: tuple[int, ...], drawn: dict[str, int]) -> bool:
    """Return whether a value of that shape is what a model declares: what contradicts it is no case."""
    if not value.type.tensor_type.HasField("shape"):
        return True
    dims = value.type.tensor_type.shape.dim
    return len(dims) == len(shape) and all(
        n == (drawn.get(d.dim_param, n) if d.dim_param else d.dim_value) for d, n in zip(dims, shape, strict=True)
    )


def differs(one: Case, model: onnx.ModelProto, before: list[np.ndarray] | None = None) -> str | None:
    """Return where a model differs from that of a case, which computes `before`, by more than rounding; or None."""
    if before is None:
        ran = run(one.model, one.feeds, one.dtype)
        if isinstance(ran, str):
            return f"the original does not run: {ran}"
        before = ran
    after = run(model, one.feeds, one.dtype)
    return f"{NOT_RUN}: {after}" if isinstance(after, str) else _off(one, before, after)


def _off(one: Case, before: list[np.ndarray], after: list[np.ndarray]) -> str | None:
    """Return where `after` is not what the model of a case computes, `before`, by more than rounding; or None."""
    names = [o.name for o in one.model.graph.output]
    for name, was, now in zip(names, before, after, strict=True):
        if (was.dtype, was.ndim) != (now.dtype, now.ndim):
            return _other_type(name, was, now)
    if all(np.array_equal(was, now) for was, now in zip(before, after, strict=True)):
        return None
    said = None
    for times in PERTURBED:
        allowed = _allowed(one, before, times)
        far = (_beyond(*each) for each in zip(names, before, after, allowed, strict=True))
        said = next(filter(None, far), None)
        if said is None:
            return None
    return None if _as_near_to_float64(one, before, after) else said


def _as_near_to_float64(one: Case, before: list[np.ndarray], after: list[np.ndarray]) -> bool:
    """Return whether each number of `after` is at most twice as far from the float64 reference as that of `before` is,
    and an ulp: what is rounded less often differs from the original and is no worse.

    Perturbed inputs do not show how far the original is off where it computes on constants alone. False where the
    reference has no more digits than the model, or does not compute it.
    """
    model = one.model if one.dtype not in RUN else retyped(one.model, one.dtype, RUN[one.dtype])
    try:
        reference = reference_for(model, "float64", [{name: x.shape for name, x in one.feeds.items()}])
        exact = reference.evaluate(one.feeds)
    except (UsageError, *REFERENCE_GAPS):
        return False
    if not reference.wider_than(helper.tensor_dtype_to_np_dtype(one.dtype)):
        return False
    truths = [exact[output.name] for output in model.graph.output]
    return all(_as_near(*each, _step(one.dtype)) for each in zip(truths, before, after, strict=True))


def _as_near(truth: np.ndarray, was: np.ndarray, now: np.ndarray, step: float) -> bool:
    if not truth.shape == was.shape == now.shape:
        return False
    was_off, now_off = (np.abs(x.astype(np.float64) - truth) for x in (was, now))
    ulp = 0.0 if now.dtype.kind != "f" else np.fmax(step * np.abs(truth), float(np.finfo(now.dtype).smallest_subnormal))
    return bool(((now == was) | (now_off <= 2 * was_off + ulp)).all())


def _beyond(name: str, was: np.ndarray, now: np.ndarray, allowed: np.ndarray) -> str | None:
    """Return how an output differs by more than is allowed, which is inf where its shape hangs on a rounding: how many
    numbers are unique."""
    if was.shape != now.shape:
        return None if np.isposinf(allowed).any() else _other_type(name, was, now)
    off = np.abs(now.astype(np.float64) - was.astype(np.float64))
    return None if (off <= allowed).all() else f"'{name}' is off by {np.nanmax(off - allowed):g} more than rounding"


def _other_type(name: str, was: np.ndarray, now: np.ndarray) -> str:
    return f"'{name}' is {now.dtype}{list(now.shape)}, not {was.dtype}{list(was.shape)}"


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], dtype: int) -> list[np.ndarray] | str:
    """Return what a model computes, or why it does not run."""
    if dtype in RUN:
        model = retyped(model, dtype, RUN[dtype])
    settings = options()
    opset = next(o.version for o in model.opset_import if not o.domain)
    inlined = (n for f in model.functions for n in nodes_of(f))
    if opset == 10 and any(n.op_type == "Slice" for n in (*nodes_of(model.graph), *inlined)):
        # Its inference gives an open extent's name to a part of it, too: a buffer of the one is taken for the other.
        settings.enable_mem_reuse = False
    try:
        found: list[np.ndarray] = ort.InferenceSession(model.SerializeToString(), settings).run(None, feeds)
    except Exception as error:
        return f"{error}"
    return found


def _ops(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def _step(dtype: int) -> float:
    steps: dict[int, float] = {
        TensorProto.FLOAT16: 2.0**-10,
        TensorProto.BFLOAT16: 2.0**-7,
        TensorProto.DOUBLE: 2.0**-52,
    }
    return steps.get(dtype, 2.0**-23)


def _allowed(one: Case, before: list[np.ndarray], times: int) -> list[np.ndarray]:
    """Return how far each element may be off: what moving every number by a rounding step moves it, and some steps;
    of a quantized model of float16 also what values within its rounding errors move."""
    step, rng = _step(one.dtype), np.random.default_rng(0)
    counted = {v for n in one.model.graph.node if n.op_type in COUNTING for v in n.input[COUNTING[n.op_type] :]}
    spread = [np.zeros(y.shape) for y in before]
    # ONNX Runtime keeps float32 between nodes of float16 on the CPU. Before integers the rounding to float16 matters.
    halves = within_half_errors(one.model) if one.dtype == TensorProto.FLOAT16 else ()
    found = (evaluate(one.feeds) for evaluate in halves)
    runs = [[values[output.name] for output in one.model.graph.output] for values in found]

    def moved(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        return np.asarray(array * (1 + step * rng.choice((-1, 1), array.shape))).astype(array.dtype)

    for _ in range(times):
        model = onnx.ModelProto()
        model.CopyFrom(one.model if one.dtype not in RUN else retyped(one.model, one.dtype, RUN[one.dtype]))
        for tensor in model.graph.initializer:
            if tensor.name in counted:
                continue
            tensor.CopyFrom(numpy_helper.from_array(moved(numpy_helper.to_array(tensor)), tensor.name))
        after = run(model, {k: moved(x) for k, x in one.feeds.items()}, TensorProto.FLOAT)
        if isinstance(after, str):
            raise AssertionError(f"the original runs, and does not with numbers that are a rounding step away: {after}")
        runs.append(after)
    for after in runs:
        for i, (was, now) in enumerate(zip(before, after, strict=True)):
            if now.shape == was.shape:
                far = np.abs(now.astype(np.float64) - was.astype(np.float64))
                # The root of a number that is none any more, beside a rounding step, tells nothing of rounding.
                spread[i] = np.maximum(spread[i], np.where(np.isfinite(far), far, 0))
            else:
                spread[i][...] = np.inf  # its shape hangs on a rounding
    return [ALLOWED * (s + _ulp(y, step)) for s, y in zip(spread, before, strict=True)]


def _ulp(output: np.ndarray, step: float) -> float:
    """Return a rounding step at the size of the largest number: no less than the type's smallest number."""
    if output.dtype.kind != "f":
        return 0.0
    size = float(np.abs(output.astype(np.float64)).max(initial=0))
    return max(step * size, float(np.finfo(output.dtype).smallest_subnormal) if size else 0.0)


def tried(seed: int) -> Outcome:
    """Return what becomes of the graph of one seed."""
    nodes = 0
    try:
        one = case(seed)
        nodes = len(one.model.graph.node)
        before = run(one.model, one.feeds, one.dtype)
        if isinstance(before, str):
            return Outcome(seed, REFUSED, before, nodes)
        said = _broken(one, before)
    except Exception as error:  # the law itself failed: as much of a finding
        return Outcome(seed, "the law raises", f"{type(error).__name__}: {error}", nodes)
    if said is None:
        return Outcome(seed, EQUAL, "", nodes)
    kind, _, text = said.partition(":")
    return Outcome(seed, kind, text.strip(), nodes)


def original(seed: int) -> Outcome:
    """Return that all that is run of one seed was run without onnxfuse: this process lived through it."""
    one = case(seed)
    before = run(one.model, one.feeds, one.dtype)
    for _ in at_other_extents(one):
        pass
    return Outcome(seed, REFUSED if isinstance(before, str) else EQUAL, "", len(one.model.graph.node))
