"""The table of what is mutated: a kind makes a mutant from a random generator, and tries it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz import models, texts


@dataclass(frozen=True)
class Kind:
    """One kind of hostile input."""

    make: Callable[[Random], bytes]
    """The same generator gives the same mutant."""
    attempt: Callable[[bytes, Path], str]
    """Tries a mutant in an empty folder and returns the class of what became of it; raises FaultError."""


KINDS: dict[str, Kind] = {
    "bytes": Kind(models.changed_bytes, models.attempt),
    "structure": Kind(models.changed_structure, models.attempt),
    "fused": Kind(models.changed_fused, models.attempt),
    "rules": Kind(texts.changed_rule, texts.attempt_rule),
    "toml": Kind(texts.changed_configuration, texts.attempt_configuration),
}
