"""Declaration of the template without kernels."""

from onnxfuse.cuda.planning.template import Template

TEMPLATES = (Template("library", 60, "none, `realize` does the work", None),)
