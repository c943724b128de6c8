"""All subjects of the survey, from every source that is installed."""

from importlib import import_module
from typing import Any

from models.survey import Made, Subject, Way

SOURCES = {
    "plain": "models.survey.plain", "timm": "models.survey.from_timm", "torchvision": "models.survey.from_torchvision",
    "transformers": "models.survey.from_transformers",
}  # fmt: skip
"""The word before the colon -> the module that makes it."""


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


def make(name: str, way: Way, side: int) -> Made:
    """Return the model of a subject's name, on images of `side` where it takes them; raises what its source raises.

    Traced exports have eager attention, the others SDPA, where the source knows both.
    """
    source, _, inner = name.partition(":")
    options: dict[str, Any] = {} if source == "plain" else {"side": side}
    if source == "transformers":
        options["attention"] = "sdpa" if way.dynamo else "eager"
    made: Made = import_module(SOURCES[source]).make(inner, **options)
    return made
