"""Operators on text."""

from onnxfuse.ops.registry import Operator, Trait

RegexFullMatch = Operator("RegexFullMatch", Trait.OPAQUE)
StringConcat = Operator("StringConcat", Trait.OPAQUE)
StringNormalizer = Operator("StringNormalizer", Trait.OPAQUE)
StringSplit = Operator("StringSplit", Trait.OPAQUE)
TfIdfVectorizer = Operator("TfIdfVectorizer", Trait.OPAQUE)
