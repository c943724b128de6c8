"""Control flow, sequences and optionals."""

from onnxfuse.ops.inputs import BRANCH, DATA, Count, Parts, ScanLength, SequenceIndex
from onnxfuse.ops.registry import Operator, Trait

__all__ = [
    "ConcatFromSequence", "If", "Loop", "Optional", "OptionalGetElement", "OptionalHasElement", "Scan", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
    "SplitToSequence",
]  # fmt: skip

If = Operator("If", Trait.HAS_BODY, inputs={"cond": BRANCH})
Loop = Operator("Loop", Trait.HAS_BODY, inputs={"M": Count(), "cond": BRANCH, "v_initial": DATA})
Scan = Operator("Scan", Trait.HAS_BODY, inputs={"sequence_lens": ScanLength(), "initial_state_and_scan_inputs": DATA})
SequenceMap = Operator("SequenceMap", Trait.HAS_BODY)

SequenceAt = Operator("SequenceAt", Trait.CARRIES, inputs={"input_sequence": DATA, "position": SequenceIndex()})
SequenceConstruct = Operator("SequenceConstruct")
SequenceEmpty = Operator("SequenceEmpty")
SequenceErase = Operator("SequenceErase", Trait.CARRIES, inputs={"input_sequence": DATA, "position": SequenceIndex()})
SequenceInsert = Operator(
    "SequenceInsert", inputs={"input_sequence": DATA, "tensor": DATA, "position": SequenceIndex()}
)
SequenceLength = Operator("SequenceLength")
SplitToSequence = Operator("SplitToSequence", inputs={"input": DATA, "split": Parts("input", ("axis", 0))})
ConcatFromSequence = Operator("ConcatFromSequence", Trait.CARRIES, inputs={"input_sequence": DATA})
Optional = Operator("Optional", Trait.CARRIES, inputs={"input": DATA})
OptionalGetElement = Operator("OptionalGetElement", Trait.CARRIES, inputs={"input": DATA})
OptionalHasElement = Operator("OptionalHasElement")
