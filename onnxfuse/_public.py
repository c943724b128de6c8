"""Public functions, made of the schema of options: signature, docstring, checks, and errors in the words of Python."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeVar

from onnxfuse.api.request.settings import settings
from onnxfuse.options import kinds
from onnxfuse.options.kinds import Kind, unexpected
from onnxfuse.options.schema import check_together, fields, options_section, parameters, read
from onnxfuse.support.errors import OnnxfuseError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
CALL = re.compile(r"onnxfuse [a-z][^;:]*")
"""A command in a message: its flags are the command's."""
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)((?: [^\s=]+=\d+(?!\d|[,.x]\d|\.\.)(?: \1(?= ))?)*)")
"""A flag, and the sizes by name that it gives, repeated or not."""
SIZE = re.compile(r"(\S+)=(\d+)")


def model(name: str, value: Any) -> Any:
    """Return a model in any accepted form."""
    from onnxfuse.files.model_source import is_model  # ONNX is imported only when a model is examined.

    if not is_model(value):
        called = "model" if name == "model" else f"{name} model"
        raise UsageError(
            f"the {called} is of the type {type(value).__name__}; expected a ModelProto, a path, or an "
            "onnx-graphsurgeon Graph"
        )
    return value


def opened_model(name: str, value: Any) -> Any:
    """Return a model for a session, which may also be bytes."""
    from onnx import ModelProto

    return _of_type(name, value, (str, Path, bytes, ModelProto), "a ModelProto, its bytes, or a path")


def _options(name: str, value: Any) -> Any:
    from onnxfuse.api.request.options import Options

    return _of_type(name, value, (Options,), "an onnxfuse.Options")


def _session_options(name: str, value: Any) -> Any:
    from onnxruntime import SessionOptions

    return _of_type(name, value, (SessionOptions,), "an onnxruntime.SessionOptions")


def _of_type(name: str, value: Any, types: tuple[type, ...], expected: str) -> Any:
    if not isinstance(value, types):
        raise unexpected(name, value, Kind(Any, expected))
    return value


POSITIONAL: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("model", "original", "fused"), model),
    **dict.fromkeys(("file", "folder", "config"), kinds.PATH.read),
    "inputs": kinds.INPUTS.read,
    "providers": kinds.PROVIDERS.read,
    "options": _options,
    "session_options": _session_options,
}
"""Readers of the arguments that are no options."""


def public(group: type, *, model: Callable[[str, Any], Any] = model) -> Callable[[F], F]:
    """Return a decorator for a public function whose keywords are the options of `group`.

    `model` reads the argument of that name. The function gets every argument checked and converted; type
    checkers see the group, `inspect.signature` and `help` its options one by one.
    """

    def decorate(function: F) -> F:
        written = inspect.signature(function)
        own = [p for p in written.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        signature = written.replace(parameters=[*own, *parameters(group)])
        readers = {**POSITIONAL, "model": model}

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            unknown = next((name for name in keywords if name not in signature.parameters), None)
            if unknown is not None:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{unknown}'")
            try:
                bound = signature.bind(*arguments, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            try:
                given = {
                    p.name: bound[p.name] if bound[p.name] is p.default else readers[p.name](p.name, bound[p.name])
                    for p in own
                    if p.name in bound
                }
                options = read(group, bound)
                check_together(group, options, lambda one: one.name)
                with settings(follow_links=options.pop("follow_links", False)):
                    return function(**given, **options)
            except OnnxfuseError as error:
                say_in_python(error, group)
                raise

        call.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature asks for it
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{options_section(group)}"
        return call  # type: ignore[return-value]  # of the same type: the wrapper takes what the signature has

    return decorate


def say_in_python(error: OnnxfuseError, group: type) -> None:
    """Name the options of `group` in an error as keywords, in its hint with values; commands in it keep their flags."""
    known = {flag: one for one in fields(group).values() for flag in one.flags}

    def named(text: str, *, hint: bool = False) -> str:
        commands = [match.span() for match in CALL.finditer(text)]

        def keyword(match: re.Match[str]) -> str:
            one = known.get(match[1])
            if one is None or any(start <= match.start() < end for start, end in commands):
                return match[0]
            value = _value(one.kind, match[1], match[2], hint=hint)
            return f"`{one.name}={value}`" if value else f"`{one.name}`{match[2]}"

        return FLAG.sub(keyword, text)

    error.args = tuple(named(arg) if isinstance(arg, str) else arg for arg in error.args)
    error.hint = named(error.hint, hint=True)


def _value(kind: Kind, flag: str, words: str, *, hint: bool) -> str:
    """Return what a flag and the sizes behind it give, as Python writes it; empty if nothing is given."""
    if kind is kinds.BOOLEAN:
        return str(not flag.startswith("--no-")) if hint else ""
    sizes = ", ".join(f"'{name}': {size}" for name, size in SIZE.findall(words))
    if not sizes:
        return ""
    return f"[{{{sizes}}}]" if kind is kinds.SIZE_SETS else f"{{{sizes}}}"
