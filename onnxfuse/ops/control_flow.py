"""Control flow, sequences and optionals."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "If Loop Scan SequenceMap",
        Trait.HAS_BODY,
    ),
    *entries(
        "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement",
    ),
)
