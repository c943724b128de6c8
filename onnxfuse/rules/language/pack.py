"""Rule packs: rules distributed with other packages, discovered by entry points of the group `onnxfuse.rules`.

A pack's `pyproject.toml` names the location of its rule files; the pack's version is that of the package:

    [project.entry-points."onnxfuse.rules"]
    acme = "acme_rules"            # the folder of this package holds .toml rule files
"""

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfuse.model import metadata
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.bounded_text import read_json
from onnxfuse.support.errors import ModelError, RuleError

GROUP = "onnxfuse.rules"

METADATA = f"{DOMAIN}.packs"
"""Key in a model's `metadata_props`: the packs whose rules changed it, with their versions, as JSON."""


@dataclass(frozen=True)
class RulePack:
    """A folder of rules in an installed package."""

    name: str
    """The entry point's name."""
    package: str
    """The package that provides it, with version, as "acme-rules 1.2"."""
    folder: Path


def packs() -> tuple[RulePack, ...]:
    """Return the installed packs, by name. Raises RuleError for one whose folder does not exist."""
    result = []
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.name):
        package = "a package without a name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        try:
            spec = importlib.util.find_spec(entry.value)
        except (ImportError, ValueError):
            spec = None
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not folders:
            raise RuleError(
                f"the rule pack '{entry.name}' of {package}: there is no package '{entry.value}'",
                f"Mend the entry point of {GROUP}, or uninstall {package.partition(' ')[0]}.",
            )
        result.append(RulePack(entry.name, package, Path(folders[0])))
    return tuple(result)


def rules() -> tuple[Rule, ...]:
    """Return the rules of all packs; raises RuleError for a name that two packs share, or that a shipped rule has."""
    by_name: dict[str, Rule] = {}
    for pack in packs():
        for one in rule_file.load(pack.folder):
            other = by_name[one.name].pack if one.name in by_name else "onnxfuse"
            if one.name in by_name or one.name in rule_file.shipped_files():
                raise RuleError(
                    f"{one.path}: the rule pack of {pack.package} has a rule '{one.name}', and so has {other}",
                    "Rename one of the files, or uninstall one of the packages: a rule goes by its file's name.",
                )
            by_name[one.name] = replace(one, pack=pack.package)
    return tuple(by_name.values())


def select(folders: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return the shipped rules, those of the user's folders, which override others by name, and those of packs."""
    own = rule_file.select(folders)
    names = {r.name for r in own}
    return (*own, *(r for r in rules() if r.name not in names))


def versions(used: Iterable[Rule]) -> dict[str, str]:
    """Return the packages of these rules, each with its version."""
    named = {r.pack for r in used if r.pack}
    return {package: version for package, _, version in (one.rpartition(" ") for one in sorted(named))}


def record(model: ModelProto, used: Iterable[Rule]) -> None:
    """Add the packs whose rules changed a model to its metadata."""
    versions_used = {**recorded(model), **versions(used)}
    if versions_used:
        metadata.set_entry(model, METADATA, json.dumps(versions_used, sort_keys=True))


def recorded(model: ModelProto) -> dict[str, str]:
    """Return the packs recorded in a model, with versions. Raises ModelError for invalid metadata."""
    text = metadata.entry(model, METADATA)
    if text is None:
        return {}
    try:
        content = read_json(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(word, str) for word in content.values()):
        raise ModelError(
            f"the metadata {METADATA} is not as onnxfuse writes it", "A tool changed it: optimize the original again."
        )
    return content
