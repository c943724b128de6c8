"""Render reports for people and machines from the dictionaries that the commands' own reports provide.

HTML (one self-contained page), JUnit XML, Markdown for a step summary, annotations for GitHub's log, SARIF for code
scanning, a badge.
"""

from onnxfuse.reporting.annotations import annotations
from onnxfuse.reporting.badge import badge
from onnxfuse.reporting.checks import Check, checks
from onnxfuse.reporting.graph import graph_of
from onnxfuse.reporting.junit import junit
from onnxfuse.reporting.markdown import markdown
from onnxfuse.reporting.page import page, policy
from onnxfuse.reporting.sarif import sarif

__all__ = ["Check", "annotations", "badge", "checks", "graph_of", "junit", "markdown", "page", "policy", "sarif"]
