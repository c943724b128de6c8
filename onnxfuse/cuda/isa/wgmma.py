"""Emit C++ wrappers of Hopper's warpgroup matrix instruction, `wgmma`."""

from onnxfuse.cuda.isa.factors import FactorType

ROWS = 64
"""Rows of a left factor that a warpgroup multiplies at once."""
WIDEST = 256
"""Maximum columns of one instruction."""


REGISTERS = 26
"""Registers of a thread besides the sums of a product (ptxas, CUDA 13.0)."""


def product(columns: int, factors: FactorType, *, right_rows: bool, regs: bool = False, fours: bool = False) -> str:
    """Return the function `wgmma` that accumulates a product of 64 x columns x 32 bytes in registers.

    `right_rows`: the right factor is stored [k, n]. `regs`: the left factor is in registers, not in shared memory.
    `fours`: accumulators are arrays [columns / 8][4]; else flat. More columns than WIDEST take two instructions.
    """
    first = columns if columns <= WIDEST else -(-columns // 128) * 64
    parts = [(begin, end) for begin, end in ((0, first), (first, columns)) if begin < end]
    kind = "const unsigned (&a)[4]" if regs else "unsigned long long a"
    shape = f"[{columns // 8}][4]" if fours else f"[{columns // 2}]"
    return (
        f"DEVICE void wgmma(float (&d){shape}, {kind}, unsigned long long b, int add) {{\n"
        + "".join(_instruction(*part, factors, right_rows, regs, fours) for part in parts)
        + "}\n"
    )


def _instruction(begin: int, end: int, factors: FactorType, right_rows: bool, regs: bool, fours: bool) -> str:
    """Return the instruction for columns `begin` to `end`: 128 bytes of the right factor each, in 16-byte units."""
    assert factors.ptx is not None
    count, terms, (left_type, right_type) = (end - begin) // 2, 32 // factors.bytes, factors.ptx
    sums = [f"d[{i // 4}][{i % 4}]" if fours else f"d[{i}]" for i in range(begin // 2, end // 2)]
    left = [f"a[{i}]" for i in range(4)] if regs else ["a"]
    names = ", ".join(f"%{count + i}" for i in range(len(left)))
    right = count + len(left)
    modifiers = "" if factors.is_integer else ", 1, 1"  # neither factor is negated
    if factors.bytes == 2:
        modifiers += f", {int(right_rows)}" if regs else f", 0, {int(right_rows)}"
    kind, before, after = "f32", "", ""
    if factors.is_integer:
        # The registers of the sums are floats to the kernel, and int32 to the instruction.
        kind, words = "s32", [f"s[{i}]" for i in range(count)]
        before = f"  int s[{count}] = {{{', '.join(f'(int)bits_of_float({s})' for s in sums)}}};\n"
        after = "".join(f"  {s} = float_of_bits((unsigned){w});\n" for s, w in zip(sums, words, strict=True))
        before, after, sums = f"  {{\n{before}", f"{after}  }}\n", words
    outputs = ", ".join(f'"+{"r" if factors.is_integer else "f"}"({s})' for s in sums)
    inputs = ", ".join(f'"{"r" if regs else "l"}"({a})' for a in left)
    return (
        before + f'  asm volatile("{{\\n\\t.reg .pred add;\\n\\tsetp.ne.b32 add, %{right + 1}, 0;\\n\\t"\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{end - begin}k{terms}.{kind}.{left_type}.{right_type} '
        f"{{{', '.join(f'%{i}' for i in range(count))}}}, {f'{{{names}}}' if regs else names}, %{right}, add"
        f'{modifiers};\\n\\t}}"\n'
        f'      : {outputs}\n      : {inputs}, "l"(b + {begin * 8}), "r"(add));\n' + after
    )
