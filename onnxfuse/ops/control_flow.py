"""Control flow, sequences and optionals."""

from onnxfuse.ops.registry import Operator, Trait

If = Operator("If", Trait.HAS_BODY)
Loop = Operator("Loop", Trait.HAS_BODY)
Scan = Operator("Scan", Trait.HAS_BODY)
SequenceMap = Operator("SequenceMap", Trait.HAS_BODY)

SequenceAt = Operator("SequenceAt")
SequenceConstruct = Operator("SequenceConstruct")
SequenceEmpty = Operator("SequenceEmpty")
SequenceErase = Operator("SequenceErase")
SequenceInsert = Operator("SequenceInsert")
SequenceLength = Operator("SequenceLength")
SplitToSequence = Operator("SplitToSequence")
ConcatFromSequence = Operator("ConcatFromSequence")
Optional = Operator("Optional")
OptionalGetElement = Operator("OptionalGetElement")
OptionalHasElement = Operator("OptionalHasElement")
