"""Operators on text."""

from onnxfuse.ops.inputs import data
from onnxfuse.ops.registry import Operator, Trait

__all__ = ["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"]

RegexFullMatch = Operator("RegexFullMatch", Trait.OPAQUE)
StringConcat = Operator("StringConcat", Trait.OPAQUE)
StringNormalizer = Operator("StringNormalizer", Trait.OPAQUE)
StringSplit = Operator("StringSplit", Trait.OPAQUE)
TfIdfVectorizer = Operator("TfIdfVectorizer", Trait.OPAQUE, inputs=data("X"))
