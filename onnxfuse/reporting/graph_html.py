"""HTML around the graphs of one model: tools, the two drawings, and a panel for node details."""

from collections.abc import Mapping
from html import escape
from typing import Any

from onnxfuse.support.plurals import agreeing, plural

HINT = "Drag to move, scroll to zoom, + unfolds a fused op; arrow keys follow edges, / searches."


def graph_html(index: int, graphs: Mapping[str, Any]) -> str:
    """Return the HTML for the graphs of the model with this index on the page; the page's script fills it."""
    fused = any("fused" in n for graph in graphs.values() for n in graph["nodes"])
    unfold = '<button data-unfold aria-pressed="false">unfold all</button>' if fused else ""
    panes = "".join(
        f"<figure><figcaption><b>{escape(side)}</b> {_nodes(graph)}</figcaption>"
        f'<div class="pane" data-graph="{index}" data-side="{escape(side)}"></div></figure>'
        for side, graph in graphs.items()
    )
    sides = _choice("show-side", ("both", *graphs), "both") if len(graphs) > 1 else ""
    return (
        f'<div class="work" data-work="{index}"><div class="tools"><div class="finding">'
        '<input type="search" placeholder="find a node, an operator or a tensor" role="combobox" '
        f'aria-expanded="false" aria-controls="found{index}" aria-label="find" data-find="{index}">'
        f'<ul class="found" id="found{index}" role="listbox" hidden></ul></div>'
        f"{_choice('colour', ('rules', 'bytes', 'time'), 'rules')}{sides}{unfold}"
        f'<button data-fit="{index}">fit</button></div><div class="legend"></div>'
        f'<div class="stage"><div class="panes">{panes}</div><aside class="details" data-details="{index}" '
        f'aria-live="polite"><p class="hint">Click a node to see its details here, and to mark its counterpart in '
        f'the other graph.</p><p class="hint">{escape(HINT)}</p></aside></div></div>'
    )


def _choice(name: str, values: tuple[str, ...], chosen: str) -> str:
    buttons = "".join(
        f'<button data-{name}="{escape(v)}" aria-pressed="{str(v == chosen).lower()}">{escape(v)}</button>'
        for v in values
    )
    return f'<div class="choice" role="group" aria-label="{name.replace("-", " ")}">{buttons}</div>'


def _nodes(graph: Mapping[str, Any]) -> str:
    shown, constants = sum(n["op"] not in ("input", "output") for n in graph["nodes"]), graph["constants"]
    hidden = f", {constants} of them {agreeing(constants, 'a Constant', 'Constants')}, not drawn" if constants else ""
    return f"{plural(shown + constants, 'node')}{hidden}"
