"""Hopper's warpgroup products, as C++: a function around one `wgmma` instruction."""


def product(name: str, columns: int, dtype: str, *, right_rows: bool, held: bool = False, fours: bool = False) -> str:
    """Return the function `name` that adds a product of 64 x columns x 32 bytes to sums in registers.

    `right_rows`: the right factor lies [k, n]. `held`: the left one is in registers, not in shared memory.
    `fours`: sums are arrays [columns / 8][4]; else they are flat.
    """
    count, terms = columns // 2, "8" if dtype == "tf32" else "16"
    sums = [f"d[{i // 4}][{i % 4}]" if fours else f"d[{i}]" for i in range(count)]
    left = [f"a[{i}]" for i in range(4)] if held else ["a"]
    places = ", ".join(f"%{count + i}" for i in range(len(left)))
    right = count + len(left)
    ways = "" if dtype == "tf32" else f", {int(right_rows)}" if held else f", 0, {int(right_rows)}"
    kind, constraint = ("const unsigned (&a)[4]", "r") if held else ("unsigned long long a", "l")
    shape = f"[{columns // 8}][4]" if fours else f"[{count}]"
    outputs = ", ".join(f'"+f"({s})' for s in sums)
    inputs = ", ".join(f'"{constraint}"({a})' for a in left)
    return (
        f"DEVICE void {name}(float (&d){shape}, {kind}, unsigned long long b, int add) {{\n"
        f'  asm volatile("{{\\n\\t.reg .pred add;\\n\\tsetp.ne.b32 add, %{right + 1}, 0;\\n\\t"\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{columns}k{terms}.f32.{dtype}.{dtype} '
        f"{{{', '.join(f'%{i}' for i in range(count))}}}, {f'{{{places}}}' if held else places}, %{right}, add, 1, 1"
        f'{ways};\\n\\t}}"\n'
        f'      : {outputs}\n      : {inputs}, "l"(b), "r"(add));\n}}\n'
    )
