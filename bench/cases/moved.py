"""The families of fused data movement, as bodies: for the emulation, the GPU tests and the bandwidth table."""

import numpy as np

from bench.cases import ops
from onnxfuse.model.fused import FusedOp


def ints(**names: tuple[int, ...]) -> str:
    """Return Constant nodes of integer lists."""
    return " ".join(
        f"{name} = Constant <value_ints = [{', '.join(map(str, numbers))}]> ()" for name, numbers in names.items()
    )


def _op(text: str, dtype: int, inputs: int = 1) -> FusedOp:
    return ops.op(text, (dtype,) * inputs, (dtype,))


def rope(dtype: int, size: int) -> FusedOp:
    """x cos + rotate_half(x) sin, heads of `size` columns."""
    constants = ints(z=(0,), h=(size // 2,), e=(2**62,), a=(-1,))
    return _op(
        f"""(x, c, s) => (y) {{ {constants} p = Slice (x, z, h, a) q = Slice (x, h, e, a) n = Neg (q)
        r = Concat <axis = -1> (n, p) u = Mul (x, c) v = Mul (r, s) y = Add (u, v) }}""", dtype, 3,
    )  # fmt: skip


def ropes(dtype: int, size: int) -> FusedOp:
    """RoPE of queries and of fewer keys, [N, S, heads, size] each, by the same cosines and sines [N, S, 1, size]."""
    constants = ints(z=(0,), h=(size // 2,), e=(2**62,), a=(-1,))
    parts = " ".join(
        f"""p{n} = Slice ({x}, z, h, a) q{n} = Slice ({x}, h, e, a) n{n} = Neg (q{n})
        r{n} = Concat <axis = -1> (n{n}, p{n}) u{n} = Mul ({x}, c) v{n} = Mul (r{n}, s) y{n} = Add (u{n}, v{n})"""
        for n, x in enumerate("qk")
    )
    return ops.op(f"(q, k, c, s) => (y0, y1) {{ {constants} {parts} }}", (dtype,) * 4, (dtype,) * 2, "parallel")


def rope_and_cache(dtype: int, size: int) -> FusedOp:
    """RoPE of queries, and keys with RoPE behind those of a cache in another type."""
    constants = ints(z=(0,), h=(size // 2,), e=(2**62,), a=(-1,))
    parts = " ".join(
        f"""p{n} = Slice ({x}, z, h, a) q{n} = Slice ({x}, h, e, a) n{n} = Neg (q{n})
        r{n} = Concat <axis = -1> (n{n}, p{n}) u{n} = Mul ({x}, c) v{n} = Mul (r{n}, s) t{n} = Add (u{n}, v{n})"""
        for n, x in enumerate("kq")
    )
    text = f"""(k, q, c, s, old) => (y0, y1) {{ {constants} {parts} f = Cast <to = {dtype}> (old)
      y0 = Concat <axis = 2> (f, t0) y1 = Identity (t1) }}"""
    return ops.op(text, (dtype,) * 4 + (ops.FLOAT,), (dtype,) * 2, "parallel")


def swiglu(dtype: int) -> FusedOp:
    """silu(a) b of the two halves of a row."""
    text = "(x) => (y) { a, b = Split <axis = -1, num_outputs = 2> (x) s = Sigmoid (a) t = Mul (a, s) y = Mul (t, b) }"
    return _op(text, dtype)


def geglu(dtype: int) -> FusedOp:
    """a gelu(b) of the two halves of a row."""
    return _op("(x) => (y) { a, b = Split <axis = -1, num_outputs = 2> (x) g = Gelu (b) y = Mul (a, g) }", dtype)


def _rolled(by: int) -> str:
    return f"""{ints(z=(0,), k=(by,), e=(2**62,), one=(1,), two=(2,))}
      a = Slice (r, k, e, one) b = Slice (r, z, k, one) c = Concat <axis = 1> (a, b)
      d = Slice (c, k, e, two) f = Slice (c, z, k, two) rolled = Concat <axis = 2> (d, f)"""


def window_partition(dtype: int, height: int, width: int, channels: int, window: int = 7, shift: int = 3) -> FusedOp:
    """[N, H, W, C] -> rolled back by `shift` -> [N windows, window window, C], of shifted-window attention."""
    to = (-1, height // window, window, width // window, window, channels)
    return _op(
        f"""(r) => (y) {{ {_rolled(shift)} {ints(to=to, out=(-1, window * window, channels))}
        s = Reshape (rolled, to) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (s) y = Reshape (t, out) }}""", dtype,
    )  # fmt: skip


def window_reverse(dtype: int, height: int, width: int, channels: int, window: int = 7, shift: int = 3) -> FusedOp:
    """The way back, and the residual sum after it."""
    to = (-1, height // window, width // window, window, window, channels)
    return _op(
        f"""(x, h) => (y) {{ {ints(to=to, out=(-1, height, width, channels))}
        s = Reshape (x, to) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (s) r = Reshape (t, out) {_rolled(-shift)}
        y = Add (rolled, h) }}""", dtype, 2,
    )  # fmt: skip


def channel_shuffle(dtype: int, channels: int, side: int, groups: int = 2) -> FusedOp:
    """[N, C, H, W] with its groups of channels interleaved, and the ReLU after it."""
    constants = ints(a=(0, groups, channels // groups, side, side), b=(0, channels, side, side))
    return _op(
        f"""(x) => (y) {{ {constants} r = Reshape (x, a) t = Transpose <perm = [0, 2, 1, 3, 4]> (r)
        s = Reshape (t, b) y = Relu (s) }}""", dtype,
    )  # fmt: skip


def to_nhwc(dtype: int) -> FusedOp:
    """[N, C, H, W] -> [N, H, W, C] with a scale and a shift per channel."""
    return _op("(x, k, b) => (y) { t = Transpose <perm = [0, 2, 3, 1]> (x) m = Mul (t, k) y = Add (m, b) }", dtype, 3)


def to_nchw(dtype: int) -> FusedOp:
    """[N, H, W, C] -> ReLU -> [N, C, H, W]."""
    return _op("(x) => (y) { r = Relu (x) y = Transpose <perm = [0, 3, 1, 2]> (r) }", dtype)


def transpose_add(dtype: int) -> FusedOp:
    """Two matrices, one of them transposed."""
    return _op("(x, z) => (y) { t = Transpose <perm = [0, 2, 1]> (x) y = Add (t, z) }", dtype, 2)


def heads(dtype: int, heads_: int, size: int) -> FusedOp:
    """Bias, then [N, S, heads size] -> [N, heads, S, size]."""
    constants = ints(to=(0, 0, heads_, size))
    return _op(
        f"""(x, b) => (y) {{ {constants} a = Add (x, b) r = Reshape (a, to)
        y = Transpose <perm = [0, 2, 1, 3]> (r) }}""", dtype, 2,
    )  # fmt: skip


def concat_act(dtype: int) -> FusedOp:
    """The ReLU after a Concat of channels."""
    return _op("(x, z) => (y) { c = Concat <axis = 1> (x, z) y = Relu (c) }", dtype, 2)


def dense_layer(dtype: int, parts: int, axis: int = 3) -> FusedOp:
    """The norm and the ReLU over the Concat of all layers before."""
    names = ", ".join(f"x{i}" for i in range(parts))
    return _op(
        f"({names}, s, b) => (y) {{ c = Concat <axis = {axis}> ({names}) m = Mul (c, s) a = Add (m, b) y = Relu (a) }}",
        dtype, parts + 2,
    )  # fmt: skip


def pad_mul(dtype: int) -> FusedOp:
    """Zeros around a picture that is scaled."""
    return _op(f"(x, k) => (y) {{ {ints(p=(0, 0, 1, 1, 0, 0, 1, 1))} a = Pad (x, p) y = Mul (a, k) }}", dtype, 2)


def padded_by_itself(dtype: int, mode: str, *around: int) -> FusedOp:
    """Pad by so many of the value's own elements at both ends of each axis, and an activation."""
    return ops.op(
        f"""(x) => (y) {{ {ints(p=(*around, *around))} r = Relu (x) y = Pad <mode = "{mode}"> (r, p) }}""",
        (dtype,), (dtype,),
    )  # fmt: skip


def depth_to_space(dtype: int) -> FusedOp:
    """Pixel shuffle by 2 and the clamp after it."""
    return _op("(x) => (y) { a = DepthToSpace <blocksize = 2> (x) y = Relu (a) }", dtype)


def space_to_depth(dtype: int) -> FusedOp:
    """Pixel unshuffle by 2 and the activation after it."""
    return _op("(x) => (y) { a = SpaceToDepth <blocksize = 2> (x) y = Relu (a) }", dtype)


def slice_mul(dtype: int, start: int, end: int) -> FusedOp:
    """Some columns of a matrix, scaled."""
    return _op(
        f"(x, k) => (y) {{ {ints(s=(start,), e=(end,), a=(1,))} c = Slice (x, s, e, a) y = Mul (c, k) }}", dtype, 2
    )


def upsample_concat(dtype: int) -> FusedOp:
    """Nearest Resize by 2 beside a skip connection: the neck of a detector."""
    scales = "s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
    return _op(f"(x, z) => (y) {{ {scales} u = Resize (x, , s) y = Concat <axis = 1> (u, z) }}", dtype, 2)


def rope_of_projection(dtype: int, heads_: int, size: int) -> FusedOp:
    """A projection with its bias, [N, S, heads size], split into heads and turned by RoPE: [N, heads, S, size]."""
    constants = ints(to=(0, 0, heads_, size), z=(0,), h=(size // 2,), e=(2**62,), a=(-1,))
    return _op(
        f"""(w, b, c, s) => (y) {{ {constants} m = Add (w, b) t = Reshape (m, to)
        x = Transpose <perm = [0, 2, 1, 3]> (t) p = Slice (x, z, h, a) q = Slice (x, h, e, a) n = Neg (q)
        r = Concat <axis = -1> (n, p) u = Mul (x, c) v = Mul (r, s) y = Add (u, v) }}""", dtype, 4,
    )  # fmt: skip


def keys(dtype: int, heads_: int, size: int) -> FusedOp:
    """Bias and scale, then [N, S, heads size] -> [N, heads, size, S]: keys as a product wants them."""
    constants = ints(to=(0, 0, heads_, size))
    return _op(
        f"""(x, b, k) => (y) {{ {constants} a = Add (x, b) m = Mul (a, k) r = Reshape (m, to)
        y = Transpose <perm = [0, 2, 3, 1]> (r) }}""", dtype, 3,
    )  # fmt: skip


def packed_heads(dtype: int, heads_: int, size: int) -> FusedOp:
    """Bias, then Q, K and V of a packed projection, each [N, heads, S, size]: three outputs."""
    turned = " ".join(
        f"{n}4 = Reshape ({n}, to) y{i} = Transpose <perm = [0, 2, 1, 3]> ({n}4)" for i, n in enumerate("qkv")
    )
    text = f"""(x, b) => (y0, y1, y2) {{ {ints(to=(0, 0, heads_, size))} a = Add (x, b)
      q, k, v = Split <axis = -1, num_outputs = 3> (a) {turned} }}"""
    return ops.op(text, (dtype,) * 2, (dtype,) * 3)


def small(dtype: int) -> dict[str, tuple[FusedOp, list[tuple[int, ...]]]]:
    """Return each family by name with small shapes, even and odd: fast to emulate."""
    return {
        "rope": (rope(dtype, 64), [(2, 3, 5, 64), (5, 64), (5, 64)]),
        "rope of a projection": (rope_of_projection(dtype, 3, 16), [(2, 5, 48), (48,), (5, 16), (5, 16)]),
        "packed heads": (packed_heads(dtype, 3, 8), [(2, 5, 72), (72,)]),
        "keys": (keys(dtype, 2, 64), [(2, 40, 128), (128,), ()]),
        "keys of 197": (keys(dtype, 2, 24), [(1, 197, 48), (48,), ()]),
        "rope of 36": (rope(dtype, 36), [(2, 3, 5, 36), (5, 36), (5, 36)]),
        "swiglu": (swiglu(dtype), [(5, 96)]),
        "swiglu of 33": (swiglu(dtype), [(5, 66)]),
        "geglu": (geglu(dtype), [(3, 7, 64)]),
        "window partition": (window_partition(dtype, 14, 14, 16), [(2, 14, 14, 16)]),
        "window partition, 3 channels": (window_partition(dtype, 14, 7, 3), [(2, 14, 7, 3)]),
        "window reverse": (window_reverse(dtype, 14, 21, 8), [(6, 49, 8), (1, 14, 21, 8)]),
        "channel shuffle": (channel_shuffle(dtype, 16, 4), [(3, 16, 4, 4)]),
        "channel shuffle 7x7": (channel_shuffle(dtype, 6, 7, 3), [(2, 6, 7, 7)]),
        "to nhwc, 3": (to_nhwc(dtype), [(2, 3, 16, 20), (3,), (3,)]),
        "to nhwc, 64": (to_nhwc(dtype), [(2, 64, 9, 8), (64,), (64,)]),
        "to nhwc, 197": (to_nhwc(dtype), [(2, 197, 7, 7), (197,), (1,)]),
        "to nhwc, 300": (to_nhwc(dtype), [(1, 300, 3, 5), (300,), (300,)]),
        "to nchw, 3": (to_nchw(dtype), [(3, 16, 20, 3)]),
        "to nchw, 72": (to_nchw(dtype), [(2, 9, 9, 72)]),
        "to nchw, 197": (to_nchw(dtype), [(2, 7, 7, 197)]),
        "transpose + add": (transpose_add(dtype), [(2, 100, 72), (2, 72, 100)]),
        "transpose + add, odd": (transpose_add(dtype), [(3, 37, 71), (71, 37)]),
        "transpose + add, 2 columns": (transpose_add(dtype), [(3, 2, 531), (3, 531, 2)]),
        "heads": (heads(dtype, 4, 16), [(2, 9, 64), (64,)]),
        "heads of 5": (heads(dtype, 3, 5), [(2, 9, 15), (15,)]),
        "concat + act": (concat_act(dtype), [(2, 3, 4, 8), (2, 5, 4, 8)]),
        "concat + act 7x7": (concat_act(dtype), [(2, 3, 7, 7), (2, 5, 7, 7)]),
        "pad + mul": (pad_mul(dtype), [(2, 3, 6, 14), (3, 1, 1)]),
        "pad + mul, odd": (pad_mul(dtype), [(2, 3, 5, 9), (7, 1)]),
        "reflected images": (padded_by_itself(dtype, "reflect", 0, 3, 2, 0), [(2, 7, 5, 8)]),
        "reflected images, channels first": (padded_by_itself(dtype, "reflect", 0, 0, 3, 3), [(2, 3, 4, 6)]),
        "edges of volumes": (padded_by_itself(dtype, "edge", 0, 5, 1, 3, 0), [(2, 2, 3, 4, 8)]),
        "wrapped signals": (padded_by_itself(dtype, "wrap", 0, 0, 4), [(2, 3, 7)]),
        "depth to space": (depth_to_space(dtype), [(2, 12, 5, 16)]),
        "depth to space, odd": (depth_to_space(dtype), [(2, 8, 5, 7)]),
        "space to depth": (space_to_depth(dtype), [(2, 3, 6, 32)]),
        "slice + mul": (slice_mul(dtype, 8, 40), [(9, 72), (32,)]),
        "slice + mul, odd": (slice_mul(dtype, 3, 36), [(9, 71), (33,)]),
        "upsample + concat": (upsample_concat(dtype), [(2, 3, 4, 4), (2, 5, 8, 8)]),
    }


def large(dtype: int, megabytes: int) -> dict[str, tuple[FusedOp, tuple[tuple[int, ...], ...]]]:
    """Return each family by name on tensors of about this size: for the table of bandwidths."""
    elements = megabytes * 2**20 // int(ops.NUMPY[dtype]().itemsize)

    def per(*shape: int) -> int:
        return max(1, elements // int(np.prod(shape)))

    return {
        "rope 64": (rope(dtype, 64), ((per(32, 1024, 64), 32, 1024, 64), (1024, 64), (1024, 64))),
        "rope 128": (rope(dtype, 128), ((per(32, 1024, 128), 32, 1024, 128), (1024, 128), (1024, 128))),
        "bias + heads + rope 128": (
            rope_of_projection(dtype, 32, 128), ((per(1024, 4096), 1024, 4096), (4096,), (1024, 128), (1024, 128)),
        ),
        "swiglu 11008": (swiglu(dtype), ((per(22016), 22016),)),
        "geglu 3072": (geglu(dtype), ((per(6144), 6144),)),
        "geglu 3073": (geglu(dtype), ((per(6146), 6146),)),
        "window partition 56x56x128": (window_partition(dtype, 56, 56, 128), ((per(56, 56, 128), 56, 56, 128),)),
        "window reverse + add 56x56x128": (
            window_reverse(dtype, 56, 56, 128), ((64 * per(56, 56, 128), 49, 128), (per(56, 56, 128), 56, 56, 128)),
        ),
        "channel shuffle 116x28x28": (channel_shuffle(dtype, 116, 28), ((per(116, 28, 28), 116, 28, 28),)),
        "channel shuffle 464x7x7": (channel_shuffle(dtype, 464, 7), ((per(464, 7, 7), 464, 7, 7),)),
        "bias + heads 12x64": (heads(dtype, 12, 64), ((per(197, 768), 197, 768), (768,))),
        "bias + packed heads 12x64": (packed_heads(dtype, 12, 64), ((per(197, 2304), 197, 2304), (2304,))),
        "bias + keys 12x64, 512": (keys(dtype, 12, 64), ((per(512, 768), 512, 768), (768,), ())),
        "bias + keys 12x64, 197": (keys(dtype, 12, 64), ((per(197, 768), 197, 768), (768,), ())),
        "concat + relu 56x56": (concat_act(dtype), ((per(128, 56, 56), 64, 56, 56),) * 2),
        "dense layer 12x32": (
            dense_layer(dtype, 12), (*((per(384, 28, 28), 28, 28, 32),) * 12, (384,), (384,)),
        ),
        "concat + relu 7x7": (concat_act(dtype), ((per(1024, 7, 7), 512, 7, 7),) * 2),
        "pad + mul 56x56": (pad_mul(dtype), ((per(64, 56, 56), 64, 56, 56), (64, 1, 1))),
        "upsample + concat 56x56": (
            upsample_concat(dtype), ((per(128, 56, 56), 64, 28, 28), (per(128, 56, 56), 64, 56, 56)),
        ),
        "depth to space 256x56x56": (depth_to_space(dtype), ((per(256, 56, 56), 256, 56, 56),)),
        "space to depth 64x112x112": (space_to_depth(dtype), ((per(64, 112, 112), 64, 112, 112),)),
        "to nhwc 3x224x224": (to_nhwc(dtype), ((per(3, 224, 224), 3, 224, 224), (3,), (3,))),
        "to nhwc 64x56x56": (to_nhwc(dtype), ((per(64, 56, 56), 64, 56, 56), (64,), (64,))),
        "to nhwc 768x14x14": (to_nhwc(dtype), ((per(768, 14, 14), 768, 14, 14), (768,), (768,))),
        "to nhwc 2048x7x7": (to_nhwc(dtype), ((per(2048, 7, 7), 2048, 7, 7), (2048,), (2048,))),
        "to nchw 3x224x224": (to_nchw(dtype), ((per(3, 224, 224), 224, 224, 3),)),
        "to nchw 96x56x56": (to_nchw(dtype), ((per(96, 56, 56), 56, 56, 96),)),
        "to nchw 2048x7x7": (to_nchw(dtype), ((per(2048, 7, 7), 7, 7, 2048),)),
        "transpose + add 4096x4096": (transpose_add(dtype), ((per(4096, 4096), 4096, 4096),) * 2),
        "transpose + add 1025x2049": (
            transpose_add(dtype), ((per(1025, 2049), 1025, 2049), (per(1025, 2049), 2049, 1025)),
        ),
    }  # fmt: skip
