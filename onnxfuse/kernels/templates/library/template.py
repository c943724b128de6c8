"""The template without kernels."""

from onnxfuse.kernels.templates.template import Template

TEMPLATES = (Template("library", 60, "none, `realize` does the work", None),)
