"""The reference of Python, made of docstrings and signatures: `onnxfuse.__all__`, and the classes that it leads to."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

import onnxfuse
from onnxfuse.api.request.options import Options
from onnxfuse.support.errors import OnnxfuseError

LINE = 100
"""Characters of a signature on one line."""
TITLES = {"functions": "Functions", "values": "Reports and other values", "options": "Options", "errors": "Errors"}


Links = dict[type, tuple[str, str]]
"""What a class is called in the reference, and where it is told of."""


def pages() -> dict[str, str]:
    """Return the pages of the reference, by their names."""
    public = {name: getattr(onnxfuse, name) for name in onnxfuse.__all__}
    errors = [v for v in public.values() if inspect.isclass(v) and issubclass(v, Exception)]
    functions = [v for v in public.values() if inspect.isfunction(v)]
    given = list(reachable([Options]))
    reached = [c for c in reachable(_returned()) if c not in given]
    links = {c: (_called(c, reached), f"values.md#{_anchor(c)}") for c in reached}
    links |= {c: (_called(c, given), f"options.md#{_anchor(c)}") for c in given}
    return {
        "functions": _page("Functions", "What `import onnxfuse` offers.", (_function(f, links) for f in functions)),
        "values": _page(
            "Reports and other values",
            "What the functions return. Reports print as short tables, in notebooks as HTML; `.as_dict()` gives plain "
            "data, as `--json` of the commands does.",
            (_class(c, links) for c in reached),
        ),
        "options": _page(
            "Options", "What `onnxfuse.guard`, `dump` and `tune` take as `options=`.", (_class(c, links) for c in given)
        ),
        "errors": _page(
            "Errors",
            "All are subclasses of `onnxfuse.OnnxfuseError`: the message says what and where, `.hint` what to do next; "
            "`str(error)` has both.",
            (_error(e) for e in errors),
        ),
    }


def _page(title: str, about: str, entries: Iterator[str]) -> str:
    return "\n\n".join([f"# {title}", about, *entries]) + "\n"


@cache
def _named() -> dict[str, Any]:
    """Return what the annotations of public functions name: the imports of their modules, by their names there."""
    found: dict[str, Any] = {}
    public = (getattr(onnxfuse, name) for name in onnxfuse.__all__)
    for module in dict.fromkeys(inspect.getmodule(f) for f in public if inspect.isfunction(f)):
        for node in ast.walk(ast.parse(inspect.getsource(module))) if module is not None else ():
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("onnxfuse."):
                inner = importlib.import_module(node.module)
                found |= {alias.asname or alias.name: getattr(inner, alias.name, None) for alias in node.names}
    return found


def _returned() -> list[type]:
    """Return the classes that public functions return, in the order of the functions."""
    words = [w for name in onnxfuse.__all__ for w in _words(getattr(onnxfuse, name))]
    return list(dict.fromkeys(c for c in map(_named().get, words) if inspect.isclass(c)))


def _words(value: Any) -> list[str]:
    return re.findall(r"\w+", str(inspect.signature(value).return_annotation)) if inspect.isfunction(value) else []


def reachable(start: list[type]) -> Iterator[type]:
    """Yield classes, then those of onnxfuse that their public fields and properties are of, each once.

    What is further in is the library's own affair: `.as_dict()` has it as plain data.
    """
    yield from start
    seen = {*start, OnnxfuseError}
    for one in start:
        words = [w for _, _, annotation, _ in members(one) for w in re.findall(r"\w+", annotation)]
        for found in (getattr(inspect.getmodule(one), word, None) for word in words):
            if inspect.isclass(found) and found.__module__.startswith("onnxfuse.") and found not in seen:
                seen.add(found)
                yield found


def members(one: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, signature, type and docstring of a class's public fields, properties and methods, as written."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            yield node.target.id, node.target.id, ast.unparse(node.annotation), str(told or "")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            kinds = {ast.unparse(d) for d in node.decorator_list}
            returned = ast.unparse(node.returns) if node.returns else "None"
            arguments = (
                ""
                if "property" in kinds
                else f"({ast.unparse(node.args)})".replace("(self, ", "(").replace("(self)", "()")
            )
            yield node.name, node.name + arguments, returned, ast.get_docstring(node) or ""


def _called(one: type, others: list[type]) -> str:
    """Return a class's name; with the part of the library that it is of where several have the same one."""
    alike = [other for other in others if other.__name__ == one.__name__]
    return one.__name__ if len(alike) == 1 else f"{one.__name__} ({one.__module__.split('.')[1]})"


def _anchor(one: type) -> str:
    return f"{one.__module__}.{one.__qualname__}".replace(".", "-").lower()


def _title(one: type) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def _function(function: Any, links: Links) -> str:
    told = inspect.getdoc(function) or ""
    parts = [f"## {function.__name__}", f"```python\nonnxfuse.{_signature(function)}\n```", *listed(told)]
    return "\n\n".join([*parts, *_seen(_words(function), _named(), links)])


def _signature(function: Any) -> str:
    """Return the signature of a public function; on several lines where one is too short."""
    signature = inspect.signature(function)
    parts, keyword_only = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{one.name}: {_type(one.annotation)}{default}")
    returned = _type(signature.return_annotation)
    text = f"{function.__name__}({', '.join(parts)}) -> {returned}"
    inner = "".join(f"    {part},\n" for part in parts)
    return text if len(text) <= LINE else f"{function.__name__}(\n{inner}) -> {returned}"


def _type(annotation: Any) -> str:
    """Return a type as it is written."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:collections\.abc|pathlib|typing)\.", "", text).replace("NoneType", "None")


def _class(one: type, links: Links) -> str:
    rows = []
    for _, signature, annotation, told in members(one):
        words = " ".join(prose(told))
        kind = _code(annotation.strip("'"))
        rows.append(f"| {_code(signature)} | {kind} | {words} |")
    table = "| | type | |\n|---|---|---|\n" + "\n".join(rows)
    names = [w for _, _, annotation, _ in members(one) for w in re.findall(r"\w+", annotation)]
    scope = vars(inspect.getmodule(one)) if inspect.getmodule(one) else {}
    own = one.__doc__ or ""
    about = [] if own.startswith(f"{one.__name__}(") else list(prose(inspect.cleandoc(own)))
    return "\n\n".join([
        f"## {links[one][0]} {{ #{_anchor(one)} }}", f"`{_title(one)}`", *about, *([table] if rows else []),
        *_seen(names, scope, {c: link for c, link in links.items() if c is not one}),
    ])  # fmt: skip


def _seen(words: list[str], scope: Any, links: Links) -> Iterator[str]:
    """Yield where the classes among `words` are told of."""
    found = dict.fromkeys(c for c in map(scope.get, words) if inspect.isclass(c) and c in links)
    if found:
        yield "See " + ", ".join("[{}]({})".format(*links[c]) for c in found) + "."


def _error(error: type) -> str:
    code = getattr(error, "exit_code", None)
    told = "" if code is None else f" Exit code {code}."
    return f"## {error.__name__}\n\n" + " ".join(prose(inspect.getdoc(error) or "")) + told


def _code(text: str) -> str:
    return f"`{text}`"


def listed(text: str) -> Iterator[str]:
    """Yield the paragraphs of a function's docstring, each argument that one tells of on a line of its own."""
    for block in prose(text):
        items = block.startswith(("```", "- ")) or re.split(r"(?<=[.)]) (?=(?:`\w+`(?:, )?)+: |Raises [A-Z])", block)
        if items is True or len(items) == 1:
            yield block
            continue
        for is_argument, group in groupby(items, key=lambda item: item.startswith("`")):
            lines = list(group)
            yield "\n".join(f"- {line}" for line in lines) if is_argument else " ".join(lines)


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring as Markdown; examples as code, lists as lists."""
    for block in filter(None, text.strip().split("\n\n")):
        if block.lstrip().startswith(">>>") or all(line.startswith("    ") for line in block.splitlines()):
            yield f"```python\n{inspect.cleandoc(block)}\n```"
        elif block.startswith("- "):
            yield "\n".join(f"- {_words_as_markdown(line.removeprefix('- '))}" for line in block.splitlines())
        else:
            yield _words_as_markdown(block)


def _words_as_markdown(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else markdown(p) for p in parts)


def markdown(text: str) -> str:
    """Return words in which Markdown and HTML see nothing but words."""
    return re.sub(r"([\\*_\[\]`])", r"\\\1", text).replace("<", "&lt;")
