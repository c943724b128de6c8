"""Search for dynamic sizes that a model accepts, if it rejects all default ones.

Audio models need a minimal window of samples, image models a multiple of something, some exactly the size that their
tables were made for. So the model's constants are tried first, then doublings and common sizes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files.external import is_external
from onnxfuse.graph.graph import bodies
from onnxfuse.verification.inputs.col2im_sizes import valid_sizes
from onnxfuse.verification.inputs.input_roles import sites
from onnxfuse.verification.inputs.inputs import Case, InputSpec, Shapes, cases, dimension

SEQUENCES = (
    32, 64, 128, 256, 512, 1024, 1500, 2048, 3000, 4096, 8192, 16000, 16384, 32000, 48000, 65536, 80000, 160000, 480000,
)  # fmt: skip
"""Doublings; whisper's frames before and after its stride; seconds of audio at 8 to 48 kHz, 10 and 30 of them."""
IMAGES = (112, 128, 160, 192, 224, 256, 299, 320, 384, 416, 448, 512, 640, 768, 800, 1024)
"""Edge lengths of images that classifiers, detectors and segmenters are trained on."""
CONSTANTS = 32
"""Number of sizes tried from the model's constants, most frequent first."""
SMALLEST, LARGEST = 2, 480_000
"""Range of constants that may be sizes."""

ELEMENTS = 1 << 24
"""Largest total number of input elements that is tried."""

Runs = Callable[[Case], bool]


def search_sizes(
    model: onnx.ModelProto, specs: Sequence[InputSpec], shapes: Shapes, runs: Runs, ended: Callable[[], bool]
) -> dict[str, tuple[int, ...]]:
    """Return values of the dynamic dimensions not in `shapes` with which the model runs.

    The first that runs, and those of an odd one, one four times as large and a batch of 3 that run. Empty if none was
    found before `ended` returns True, or if no dimension is free. `runs` tells whether the model accepts a case.
    """
    free = free_dimensions(specs, shapes)
    if not free:
        return {}

    def accepts(chosen: Mapping[str, int]) -> bool:
        one = cases(specs, (0,), {**shapes, **{name: (size,) for name, size in chosen.items()}})[0]
        return sum(math.prod(s) for s in one.shapes.values()) <= ELEMENTS and runs(one)

    for chosen, grown in _candidates(model, specs, free):
        if ended():
            break
        if not accepts(chosen):
            continue
        sets = [chosen]
        odd = {n: size + size // 8 + 1 if n in grown else size for n, size in chosen.items()}
        # Leave room for the other branches of the model, whose windows may be longer.
        large = {n: 4 * size if n in grown else size for n, size in chosen.items()}
        batched = {n: size if n in grown else 3 for n, size in chosen.items()}
        sets += [more for more in (odd, large, batched) if more not in sets and not ended() and accepts(more)]
        return {name: tuple(s[name] for s in sets) for name in free}
    return {}


def free_dimensions(specs: Sequence[InputSpec], shapes: Shapes) -> dict[str, str]:
    """Return the kind of each unspecified dynamic dimension: batch, sequence or image."""
    free: dict[str, str] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape):
            name = dimension(spec, axis, dim)
            if name is None or name in shapes or spec.name in shapes:
                continue
            kind = "image" if axis >= 2 and len(spec.shape) >= 4 else "sequence"
            # The only axis of an input counts its items: samples, tokens.
            kind = "batch" if axis == 0 and len(spec.shape) > 1 else kind
            free[name] = min(free.get(name, kind), kind)
    return free


def _candidates(
    model: onnx.ModelProto, specs: Sequence[InputSpec], free: Mapping[str, str]
) -> Iterator[tuple[dict[str, int], frozenset[str]]]:
    """Yield values for all dimensions at once, and those that are more than a batch of 1.

    All sequences have one size, and all images; or a single input has that size, and the others none, as the state of
    an LSTM.
    """
    for sizes in (one for site in sites(model, ops.Col2Im) for one in valid_sizes(site)):
        named = {n: size for n, size in sizes.items() if n in free}
        if named:
            yield {name: named.get(name, 1) for name in free}, frozenset(named)
    constants = _constants(model)
    from_constants = {*constants, *(2 * c for c in constants)}
    ladders = {"sequence": sorted({*from_constants, *SEQUENCES}), "image": sorted({*from_constants, *IMAGES})}
    long = frozenset(name for name, kind in free.items() if kind != "batch")
    alone = [frozenset(dimension(s, a, d) or "" for a, d in enumerate(s.shape)) & long for s in specs]
    groups = list(dict.fromkeys(group for group in (*alone, long) if group)) or [frozenset()]
    for step in range(max((len(ladders[free[name]]) for name in long), default=1)):
        for group in groups:
            sizes = {n: ladders[free[n]][min(step, len(ladders[free[n]]) - 1)] for n in group}
            yield {name: sizes.get(name, 1) for name in free}, group


def _constants(model: onnx.ModelProto) -> list[int]:
    """Return the integers among the constants and the weight extents, most frequent first."""
    counts: dict[int, int] = {}

    def note(tensor: TensorProto) -> None:
        small_integers = tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and not is_external(tensor)
        small_integers = small_integers and math.prod(tensor.dims) <= 8
        for size in (*tensor.dims, *(numpy_helper.to_array(tensor).reshape(-1).tolist() if small_integers else ())):
            if SMALLEST <= size <= LARGEST:
                counts[size] = counts.get(size, 0) + 1

    def walk(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            note(tensor)
        for node in graph.node:
            if node.op_type == ops.Constant and node.attribute and node.attribute[0].HasField("t"):
                note(node.attribute[0].t)
            for body in bodies(node):
                walk(body)

    walk(model.graph)
    return sorted(counts, key=lambda size: -counts[size])[:CONSTANTS]
