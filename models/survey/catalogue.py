"""All subjects of the survey, from every source that is installed."""

from importlib import import_module
from pathlib import Path
from typing import Any

from models.survey import DYNAMO, TORCH, WAYS, Made, Subject, Way

SOURCES = {
    "plain": "models.survey.plain", "timm": "models.survey.from_timm", "torchvision": "models.survey.from_torchvision",
    "transformers": "models.survey.from_transformers", "keras": "models.survey.from_keras",
    "paddle": "models.survey.from_paddle",
}  # fmt: skip
"""The word before the colon -> the module that makes it."""

EXPORTERS = {"keras": ("tf2onnx",), "paddle": ("paddle2onnx",)}
"""What exports the models of a source; those that are not here are torch's."""


def subjects() -> tuple[tuple[Subject, ...], dict[str, str]]:
    """Return every subject, and for each source that is not there the reason."""
    found: list[Subject] = []
    missing: dict[str, str] = {}
    for source, module in SOURCES.items():
        try:
            found += list(import_module(module).subjects())
        except ImportError as error:
            missing[source] = str(error)
    return tuple(found), missing


def ways_of(name: str) -> tuple[int, ...]:
    """Return the positions in WAYS of the ways to export a subject, the exporter's defaults first."""
    exporters = EXPORTERS.get(name.partition(":")[0], TORCH)
    return tuple(n for n, way in enumerate(WAYS) if way.exporter in exporters)


def make(name: str, way: Way, side: int) -> Made:
    """Return the torch model of a subject's name, on images of `side` where it takes them; raises what its source does.

    Traced exports have eager attention, the others SDPA, where the source knows both.
    """
    source, _, inner = name.partition(":")
    options: dict[str, Any] = {} if source == "plain" else {"side": side}
    if source == "transformers":
        options["attention"] = "sdpa" if way.exporter == DYNAMO else "eager"
    made: Made = import_module(SOURCES[source]).make(inner, **options)
    return made


def export(name: str, way: Way, side: int, path: Path) -> bool:
    """Write one export to `path`, return whether its dimensions had to be fixed; raises what source or exporter does.

    Models of torch are made by their source and exported by one module; other sources export their own.
    """
    source, _, inner = name.partition(":")
    if source in EXPORTERS:
        import_module(SOURCES[source]).export(inner, path)
        return False
    static: bool = import_module("models.survey.by_torch").export(name, way, side, path)
    return static
