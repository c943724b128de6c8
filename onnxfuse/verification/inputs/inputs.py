"""Generate inputs on which two models are compared: seeded, signed, wide-range and edge values, in several shapes.

Uniform numbers in [0, 1) are never used: they cannot distinguish Relu from Identity.
"""

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse.model.validate import MOST_ELEMENTS
from onnxfuse.shapes.extent_values import name_sizes
from onnxfuse.shapes.types import DeclaredExtent, value_types
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.verification.inputs.counted_values import counted_values
from onnxfuse.verification.inputs.input_roles import InputRole, unnamed
from onnxfuse.verification.run.floats import float_type
from onnxfuse.verification.run.tensors import PRESENT, tensors_of

Array = npt.NDArray[Any]
Shapes = Mapping[str, Sequence[int]]

KINDS = ("normal", "small", "wide", "edge")
"""normal: the standard normal distribution. small: the same times 2^-8, where an epsilon under a root matters. wide:
either sign, log-uniform magnitudes. edge: zeros of both signs, ones, corners of activations, the smallest normal and
denormal numbers, and a row of zeros, among normal ones. Additionally, once: large, magnitudes up to the type's range,
as far as the original accepts them."""

COMPOSITE = ("absent", "empty", "uneven")
"""Cases that only sequences and optionals have: without a value, without an entry, of entries of several shapes."""

WIDE_EXPONENTS = {2: (-12, 5), 4: (-20, 10), 8: (-20, 10)}
"""Exponents of two of the wide kind by bytes per element: squares summed over thousands mostly still fit the type."""

LARGE_FROM = 8
"""Smallest exponent of two of large inputs; the largest is what the model accepts."""

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, -6.0)
"""Zeros, ones, and the corners of HardSigmoid, HardSwish and Relu6; the type's tiny numbers are added."""

BATCH_SIZES, SEQUENCE_SIZES, IMAGE_SIZES = (1, 3, 8), (16, 7, 1), (64, 33, 96)
"""Default sizes of a dynamic dimension: at axis 0, elsewhere, and from axis 2 on in rank 4."""
VOLUME_SIZES = (32, 17, 24)
"""The same from axis 2 on in rank 5 and above: 8 volumes of 96 along each edge have 7 million positions, for which a
float64 convolution from 8 to 8 channels takes a minute."""

Generator = np.random.Generator


@dataclass(frozen=True)
class InputSpec:
    """A graph input to be fed."""

    name: str
    dtype: int
    """`onnx.TensorProto.DataType`."""
    shape: tuple[DeclaredExtent, ...]
    """Of a sequence, that of its entries stacked along a first axis."""
    role: InputRole
    type_: str = ""
    """ONNX Runtime's name of the type where it is no tensor: `seq(tensor(float))`."""
    known_keys: tuple[int | str, ...] | None = None
    """For the keys of a map: those that its readers know."""

    @property
    def optional(self) -> bool:
        """Whether the input may be fed nothing."""
        return self.type_.startswith("optional(")

    @property
    def sequence(self) -> bool:
        """Whether it is a sequence, or an optional one."""
        return "seq(" in self.type_

    @property
    def array_type(self) -> np.dtype[Any]:
        """NumPy name of the element type."""
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.dtype))


@dataclass(frozen=True)
class Case:
    """One set of inputs, created when `make` is called so that only one is in memory; picklable if generated."""

    name: str
    """The kind, or the origin of real inputs."""
    seed: int | None
    """None for real inputs."""
    shapes: Mapping[str, tuple[int, ...]]
    make: Callable[[], dict[str, Array]]

    @property
    def generated(self) -> bool:
        """Whether the inputs were generated."""
        return self.seed is not None


def cases(specs: Sequence[InputSpec], seeds: Sequence[int], shapes: Shapes | None = None) -> list[Case]:
    """Return the cases of one verification: each kind per seed, and each set of shapes at least once as `normal`.

    `shapes` maps a dimension name to the values it takes in turn, or an input name to its shape. Raises UsageError.
    """
    sets = shape_sets(specs, shapes or {})
    plan = []
    for seed in seeds:
        # At least two normal cases: the original's own error in one case can be small by chance.
        normal = [("normal", n) for n in range(max(len(sets), 2))]
        rest = [(kind, n) for n, kind in enumerate(KINDS[1:])]
        plan += [(seed, kind, repeat, sets[repeat % len(sets)]) for kind, repeat in normal + rest]
    usual = [_case(specs, seed, kind, repeat, chosen) for seed, kind, repeat, chosen in plan]
    return [*usual, *(case for seed in seeds for case in composite_cases(specs, seed, sets))]


def composite_cases(
    specs: Sequence[InputSpec], seed: int, sets: Sequence[Mapping[str, tuple[int, ...]]]
) -> Iterator[Case]:
    """Yield the cases named in COMPOSITE, at one of the sets of shapes.

    `absent` and `empty` apply to all inputs that can be so, and to each alone; `uneven` to an axis of a sequence that
    no name makes equal everywhere.
    """
    for name, candidates in (("absent", [s for s in specs if s.optional]), ("empty", [s for s in specs if s.sequence])):
        for chosen in ([candidates] if len(candidates) > 1 else []) + [[s] for s in candidates]:
            shapes = dict(sets[0])
            if name == "empty":
                shapes |= {s.name: (0, *shapes[s.name][1:]) for s in chosen}
            base = _case(specs, seed, "normal", 0, shapes)
            without = tuple(s.name for s in chosen) if name == "absent" else ()
            yield replace(base, name=name, make=partial(_absent, base, without))
    longest = {s.name: max(sets, key=lambda one: min(one[s.name][0], 3)) for s in specs if s.sequence}
    for spec in (s for s in specs if s.sequence):
        for axis, dim in enumerate(spec.shape):
            if axis and dim == unnamed(f"{spec.name}[]", axis - 1) and longest[spec.name][spec.name][0] > 1:
                base = _case(specs, seed, "normal", 0, dict(longest[spec.name]))
                yield replace(base, name="uneven", make=partial(_uneven, base, spec.name, axis - 1))


def _absent(base: Case, names: Collection[str]) -> dict[str, Array]:
    arrays = base.make()
    return {**arrays, **{name: np.asarray(False) for name in (f"{n}{PRESENT}" for n in names)}}


def _uneven(base: Case, name: str, axis: int) -> dict[str, Array]:
    """Return the inputs of `base` with the entries of a sequence shortened along an axis, each by another number."""
    arrays = base.make()
    entries = [
        x.take(range(max(x.shape[axis] - n, 1)), axis=axis) if x.shape[axis] else x
        for n, x in enumerate(np.asarray(one) for one in arrays.pop(name))
    ]
    return {**arrays, **tensors_of({name: entries})}


def large_tops(specs: Sequence[InputSpec]) -> tuple[int, ...]:
    """Return exponents of two to which inputs are scaled up in turn, the largest first.

    Beyond those of the kinds, up to near the range of the widest type; empty if no value can be larger.
    """
    tops = [_top(s) for s in specs if _can_be_larger(s)]
    usual = min((WIDE_EXPONENTS.get(s.array_type.itemsize, (0, 10))[1] for s in specs if _can_be_larger(s)), default=0)
    return (
        tuple(dict.fromkeys(t for t in (max(tops) // n for n in (1, 2, 4, 6, 9)) if t > max(usual, LARGE_FROM)))
        if tops
        else ()
    )


def large_case(specs: Sequence[InputSpec], seed: int, shapes: Mapping[str, tuple[int, ...]], top: int) -> Case:
    """Return the case whose values have magnitudes up to 2^top, in these shapes by input."""
    return Case("large", seed, shapes, partial(_generate, tuple(specs), shapes, "large", top, seed))


def _can_be_larger(spec: InputSpec) -> bool:
    """Return whether an input can hold larger values than the usual ones: bytes already use their full range."""
    kind, size = spec.array_type.kind, spec.array_type.itemsize
    return spec.dtype != TensorProto.BOOL and (
        kind in "fV" or (kind in "iu" and size > 1 and spec.role.kind == "number")
    )


def _top(spec: InputSpec) -> int:
    dtype = spec.array_type
    if dtype.kind in "iu":
        return 8 * dtype.itemsize - (2 if dtype.kind == "i" else 0)
    return math.frexp(float_type(dtype).largest)[1] - (2 if dtype == np.float16 else 8)


def shape_sets(specs: Sequence[InputSpec], shapes: Shapes) -> list[dict[str, tuple[int, ...]]]:
    """Return the sets of input shapes to run: one size per dimension name within a set, all names varied together."""
    fixed, values = _read_shapes(specs, shapes)
    for spec in specs:
        for axis, dim in enumerate(spec.shape):
            key = dimension(spec, axis, dim)
            if key is not None and key not in fixed and key not in values:
                values[key] = _default_sizes(spec, axis)
    count = max((len(v) for v in values.values()), default=1)
    sets = []
    for n in range(count):
        chosen = {**{k: v[n % len(v)] for k, v in values.items()}, **fixed}
        sets.append({s.name: tuple(_extent(s, a, d, chosen) for a, d in enumerate(s.shape)) for s in specs})
    for name, shape in (item for chosen in sets for item in chosen.items()):
        if math.prod(shape) > MOST_ELEMENTS:
            raise UsageError(
                f"input '{name}' would be of shape {'x'.join(map(str, shape))}, which no tensor can have",
                "Give a size that it can have: --shape NAME=SIZES.",
            )
    return [s for n, s in enumerate(sets) if s not in sets[:n]]


def with_declared(specs: Sequence[InputSpec], fused: onnx.ModelProto, shapes: Shapes | None) -> Shapes:
    """Return `shapes` with the sizes that `fused` declares for dynamic dimensions not in it.

    A file that was specialized to some sizes of the original accepts no others.
    """
    types = value_types(fused.graph)
    declared: dict[str, Sequence[int]] = {}
    for spec in specs:
        theirs = types[spec.name].shape if spec.name in types else None
        for axis, (dim, size) in enumerate(zip(spec.shape, theirs or (), strict=False)):
            name = dimension(spec, axis, dim)
            if name is not None and isinstance(size, int):
                declared.setdefault(name, (size,))
    return {**declared, **(shapes or {})}


def perturb(inputs: Mapping[str, Array], seed: int) -> dict[str, Array] | None:
    """Return `inputs` with every other normal float perturbed by one ulp; None if there is no such float."""
    rng = np.random.default_rng(seed)
    perturbed = {}
    for name, x in inputs.items():
        if x.dtype.kind not in "fV" or x.size == 0:
            perturbed[name] = x
            continue
        normal = np.isfinite(x) & (np.abs(x.astype(np.float64)) >= 2 * float_type(x.dtype).tiny)
        step = rng.integers(-1, 2, x.shape) * normal
        bits = f"i{x.dtype.itemsize}"
        perturbed[name] = (np.ascontiguousarray(x).view(bits) + step.astype(bits)).view(x.dtype)
    return None if all(perturbed[n] is x for n, x in inputs.items()) else perturbed


def _case(specs: Sequence[InputSpec], seed: int, kind: str, repeat: int, shapes: dict[str, tuple[int, ...]]) -> Case:
    return Case(kind, seed, shapes, partial(_generate, tuple(specs), shapes, kind, repeat, seed))


def _generate(
    specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]], kind: str, repeat: int, seed: int
) -> dict[str, Array]:
    sizes = sizes_of(specs, shapes)
    return {s.name: _values(s, shapes[s.name], kind, repeat, seed, sizes) for s in specs}


def _keys(rng: Generator, spec: InputSpec, count: int) -> Array:
    """Return distinct keys of a map: of several, one that its readers do not know."""
    known_keys = list(spec.known_keys or ())
    integer_keys = spec.dtype == TensorProto.INT64
    first = max((k for k in known_keys if isinstance(k, int)), default=-1) + 1
    chosen = [known_keys[n] for n in rng.permutation(len(known_keys))][: count - (count > 1)]
    fresh = [first + n if integer_keys else f"key {n}" for n in rng.permutation(count - len(chosen))]
    return np.array([*chosen, *fresh], np.int64 if integer_keys else object)


def sizes_of(specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the integers for the names of dynamic dimensions, for inputs of these shapes."""
    named = [
        (dimension(s, a, d), size)
        for s in specs
        for a, (d, size) in enumerate(zip(s.shape, shapes[s.name], strict=True))
    ]
    sizes = {name: size for name, size in named if name is not None}
    return name_sizes(sizes)


def _values(
    spec: InputSpec, shape: tuple[int, ...], kind: str, repeat: int, seed: int, sizes: Mapping[str, int]
) -> Array:
    # The random stream depends on the name, not on the position: an input inserted in front changes no other.
    rng = np.random.default_rng([seed, repeat, zlib.crc32(kind.encode()), zlib.crc32(spec.name.encode())])
    dtype = spec.array_type
    if spec.known_keys is not None:
        return _keys(rng, spec, math.prod(shape))
    if spec.role.kind not in ("number", "mask") and dtype.kind in "iufV":
        return counted_values(rng, spec.role, shape, sizes, edge=kind == "edge").astype(dtype)
    if (spec.dtype == TensorProto.BOOL or spec.role.kind == "mask") and all(d == 1 for d in spec.shape):
        # A flag, not a mask: the first two cases take both branches.
        return np.full(shape, repeat == 0 if kind == "normal" else rng.integers(0, 2)).astype(dtype)
    if kind == "large" and _can_be_larger(spec):
        if dtype.kind in "iu":
            return _large_integers(rng, dtype, shape, min(repeat, _top(spec)))
        magnitudes = 2.0 ** rng.uniform(LARGE_FROM, max(min(repeat, _top(spec)), LARGE_FROM), shape)
        return np.asarray(magnitudes * rng.choice([-1, 1], shape)).astype(dtype)
    if spec.dtype == TensorProto.BOOL:
        return _mask(rng, shape, kind).astype(np.bool_)
    if dtype.kind in "iu":
        return _integers(rng, spec, shape, kind)
    if dtype.kind in "fV" and dtype.itemsize in WIDE_EXPONENTS:
        return _floats(rng, dtype, shape, kind)
    raise UsageError(
        f"input '{spec.name}' is of type {TensorProto.DataType.Name(spec.dtype)}: no values can be generated for it",
        "onnxfuse verify takes real ones: --inputs FILE.json.",
    )


def _large_integers(rng: Generator, dtype: np.dtype[Any], shape: tuple[int, ...], top: int) -> Array:
    """Return integers below 2^top of magnitudes from 2^LARGE_FROM on, including odd ones, of both signs."""
    bits = rng.integers(LARGE_FROM, max(top, LARGE_FROM), shape, endpoint=True).astype(np.uint64)
    half = np.left_shift(np.uint64(1), bits - np.uint64(1))
    magnitudes = rng.integers(half, half + (half - np.uint64(1)), dtype=np.uint64, endpoint=True).astype(dtype)
    return np.asarray(magnitudes if dtype.kind == "u" else magnitudes * rng.choice([-1, 1], shape).astype(dtype))


def _floats(rng: Generator, dtype: np.dtype[Any], shape: tuple[int, ...], kind: str) -> Array:
    x = rng.standard_normal(shape)
    if kind == "small":
        x = x * 2.0**-8
    if kind == "wide":
        low, high = WIDE_EXPONENTS[dtype.itemsize]
        x = np.copysign(2.0 ** rng.uniform(low, high, shape), x)
    if kind == "edge":
        facts = float_type(dtype)
        edges = np.array([*EDGES, facts.tiny, -facts.tiny, facts.denormal, -facts.denormal, facts.eps])
        x = np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), x)
        if len(shape) > 1 and x.size > shape[-1]:
            x[(0,) * (len(shape) - 1)] = 0.0
    return np.asarray(x).astype(dtype)


def _integers(rng: Generator, spec: InputSpec, shape: tuple[int, ...], kind: str) -> Array:
    info = np.iinfo(spec.array_type)
    if spec.role.kind == "mask" and info.bits > 8:  # Bytes that are cast to float are pixels, not a mask.
        return _mask(rng, shape, kind).astype(spec.array_type)
    low, high = (info.min, info.max) if info.bits == 8 else (max(info.min, -100), 100)
    x = rng.integers(low, high, shape, endpoint=True)
    if kind == "edge":
        x = np.where(rng.random(shape) < 0.5, rng.choice([0, 1, low, high], shape), x)
        neighbors = [v + d for v in spec.role.choices for d in (-1, 0, 1) if info.min <= v + d <= info.max]
        if neighbors:
            x = np.where(rng.random(shape) < 0.5, rng.choice(np.array(neighbors, spec.array_type), shape), x)
    return x.astype(spec.array_type)


def _mask(rng: Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Return zeros and ones with at least one 1 per row: padded rows as from tokenizers; random for kind `wide`."""
    if not shape or 0 in shape:
        return np.ones(shape, np.int64)
    columns = shape[-1]
    if kind == "wide":
        mask = rng.integers(0, 2, shape)
        mask[..., 0] = 1
        return mask
    lengths = rng.integers(1, columns, (*shape[:-1], 1), endpoint=True)
    return np.asarray(np.arange(columns) < lengths).astype(np.int64)


def _read_shapes(specs: Sequence[InputSpec], shapes: Shapes) -> tuple[dict[str, int], dict[str, Sequence[int]]]:
    """Return the dimensions fixed by an input's shape, and the values of the others."""
    inputs = {s.name: s for s in specs}
    names = {dimension(s, a, d) for s in specs for a, d in enumerate(s.shape)} - {None}
    fixed: dict[str, int] = {}
    values: dict[str, Sequence[int]] = {}
    for key, extents in shapes.items():
        # A scalar input has an empty shape.
        if any(n < 0 for n in extents) or (not extents and key not in inputs):
            raise UsageError(
                f"shape {key}={_extents_text(extents)}: sizes are integers from 0", "For example batch=1,7."
            )
        if key in inputs:
            _fix_extents(inputs[key], tuple(extents), fixed)
        elif key in names:
            values[key] = extents
        else:
            valid_names = sorted(str(n) for n in {*inputs, *names})
            raise UsageError(
                f"shape {key}: no input or dimension has that name.{did_you_mean(key, valid_names)}",
                f"There are: {', '.join(valid_names)}.",
            )
    return fixed, {k: v for k, v in values.items() if k not in fixed}


def _fix_extents(spec: InputSpec, shape: tuple[int, ...], fixed: dict[str, int]) -> None:
    declared = "x".join("?" if d is None else str(d) for d in spec.shape)
    if len(shape) != len(spec.shape):
        raise UsageError(f"shape {spec.name}={_extents_text(shape)}: the input has rank {len(spec.shape)} ({declared})")
    for axis, (dim, extent) in enumerate(zip(spec.shape, shape, strict=True)):
        key = dimension(spec, axis, dim)
        expected = dim if key is None else fixed.setdefault(key, extent)
        if expected != extent:
            raise UsageError(
                f"shape {spec.name}={_extents_text(shape)}: axis {axis} must be {expected} (the input is {declared})",
                "A dimension name stands for one size everywhere.",
            )


def dimension(spec: InputSpec, axis: int, dim: DeclaredExtent) -> str | None:
    """Return the name of a dynamic dimension, generated if it has none; None for a fixed one."""
    if isinstance(dim, int):
        return None
    return dim if dim is not None else unnamed(spec.name, axis)


def _default_sizes(spec: InputSpec, axis: int) -> Sequence[int]:
    if axis == 0:
        return BATCH_SIZES
    if axis < 2 or len(spec.shape) < 4:
        return SEQUENCE_SIZES
    return IMAGE_SIZES if len(spec.shape) == 4 else VOLUME_SIZES


def _extent(spec: InputSpec, axis: int, dim: DeclaredExtent, chosen: Mapping[str, int]) -> int:
    key = dimension(spec, axis, dim)
    return chosen[key] if key is not None else int(dim or 0)


def _extents_text(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents))
