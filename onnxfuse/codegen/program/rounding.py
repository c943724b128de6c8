"""Remove redundant roundings: a kernel that stores 16-bit values rounds them at the store."""

from dataclasses import replace

from onnx import TensorProto

from onnxfuse.codegen.program.program import Apply, BodyProgram, Output, Value

SIXTEEN_BITS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
COMMUTING = frozenset({"relu", "neg", "abs"})
"""Operations that return their argument, its negative or 0, and so commute with rounding."""


def rounded_once(program: BodyProgram) -> BodyProgram:
    """Return the program without roundings that are immediately followed by an output's own rounding.

    # Relu(Cast <to float16> (x)), stored in float16 -> Relu(x): norms of 16-bit images, computed in float32
    """
    values = list(program.values)
    return replace(program, outputs=tuple(_late(values, o) for o in program.outputs), values=tuple(values))


def _late(values: list[Value], output: Output) -> Output:
    """Return the output with an unrounded value, which is appended; the same output if there is none."""
    after, index = list[str](), output.value
    while isinstance(value := values[index], Apply) and value.op in COMMUTING and value.dtype == output.dtype:
        after.append(value.op)
        index = value.args[0]
    if not isinstance(value, Apply) or value.op != "cast" or output.dtype not in SIXTEEN_BITS:
        return output
    index = value.args[0]
    if value.dtype != output.dtype or values[index].dtype != TensorProto.FLOAT:
        return output
    for op in reversed(after):
        values.append(Apply(op, (index,), int(TensorProto.FLOAT)))
        index = len(values) - 1
    return replace(output, value=index)
