"""The contract of a repository's models: requirements in `onnxfuse.toml`, last results in `onnxfuse.lock`."""

from onnxfuse.contract.config import LOCK, Contract, ModelEntry, Requirement, nearest, read
from onnxfuse.contract.lock import (
    Change,
    Lock,
    ModelLock,
    beyond_tolerance,
    compare,
    lock_model,
    read_lock,
    rule_hashes,
    write_lock,
)

__all__ = [
    "LOCK",
    "Change",
    "Contract",
    "Lock",
    "ModelEntry",
    "ModelLock",
    "Requirement",
    "beyond_tolerance",
    "compare",
    "lock_model",
    "nearest",
    "read",
    "read_lock",
    "rule_hashes",
    "write_lock",
]
