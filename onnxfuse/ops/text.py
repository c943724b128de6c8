"""Operators on text."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
        Trait.OPAQUE,
    ),
)
