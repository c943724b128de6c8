"""Every argument of every public function: typed, named, and told with what was expected where it is something else."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import onnxfuse
from onnxfuse.files import io

FUNCTIONS = [f for name in onnxfuse.__all__ if inspect.isfunction(f := getattr(onnxfuse, name))]
ARGUMENTS = [(f, p) for f in FUNCTIONS for p in inspect.signature(f).parameters.values()]
WRONG: tuple[Any, ...] = (object(), 1 + 2j, [object()], {3: object()})
"""Nothing of it is right anywhere."""

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { a = Exp (x)  y = Neg (a) }'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that is right."""
    file = tmp_path_factory.mktemp("arguments") / "m.onnx"
    io.save(onnx.parser.parse_model(TEXT), file)
    return file


def test_all_public_functions_are_here() -> None:
    """The errors and `Options` are the rest."""
    assert len(FUNCTIONS) == 17
    assert all(inspect.isclass(getattr(onnxfuse, n)) for n in {*onnxfuse.__all__} - {f.__name__ for f in FUNCTIONS})


@pytest.mark.parametrize(("function", "parameter"), ARGUMENTS, ids=lambda v: getattr(v, "__name__", None) or v.name)
def test_each_argument_is_typed_and_of_a_known_kind(
    function: Callable[..., Any], parameter: inspect.Parameter, model: Path
) -> None:
    """No `**options`; what is no such thing is an OnnxfuseError that names the argument, before anything is done."""
    assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    assert parameter.annotation not in (parameter.empty, "Any")
    needed = {p.name: model for f, p in ARGUMENTS if f is function and p.default is p.empty}
    if "session_options" in needed:
        import onnxruntime

        needed["session_options"] = onnxruntime.SessionOptions()
    for value in WRONG:
        with pytest.raises(onnxfuse.UsageError) as told:
            function(**{**needed, parameter.name: value})
        assert parameter.name.removesuffix("s") in f"{told.value}"
        assert "expected" in f"{told.value}"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_name_that_there_is_not_is_pythons_own_error(function: Callable[..., Any], model: Path) -> None:
    """As of any function; and what is told of an argument in the documentation is all there is."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'sahpes'"):
        function(sahpes={"N": 3})
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) too many positional arguments"):
        function(*[model] * 9)
    assert function.__doc__
    named = {p.name for f, p in ARGUMENTS if f is function}
    obvious = {"model", "original", "fused", "session_options", "folder", "file", "config"}
    assert not [n for n in named - obvious if f"`{n}" not in function.__doc__], function.__name__


@pytest.mark.parametrize(
    ("function", "given", "told"),
    [
        ("verify", {"truth": "float8"}, "truth is 'float8', expected one of auto, float64, float32"),
        ("verify", {"seeds": 3}, "seeds is 3 (int); expected a list of integers of at least 0"),
        ("verify", {"providers": "CPUExecutionProvider"}, "expected a list of ONNX Runtime's providers"),
        ("verify", {"rtol": {"y": "low"}}, "rtol: y is 'low' (str); expected a number"),
        ("verify", {"seconds": 0}, "seconds is 0 (int); expected a number above 0"),
        ("verify", {"isolate": "no"}, "isolate is 'no' (str); expected True or False"),
        ("verify", {"progress": "yes"}, "progress is 'yes' (str); expected True, False, or a function"),
        ("bench", {"runs": 0}, "runs is 0 (int); expected an integer of at least 1"),
        ("bench", {"rules": "mine"}, "rules is 'mine' (str); expected a list of paths"),
        ("profile", {"shapes": {"N": 2.5}}, "shapes: N is 2.5 (float); expected an integer of at least 0"),
        (
            "compile",
            {"shapes": {"N": (1, 2, 3)}},
            "shapes: N is (1, 2, 3) (tuple); expected an integer of at least 0, or (least, greatest)",
        ),
        ("session", {"kernels": True}, "kernels is True (bool); expected the path of a kernel pack, or False"),
        ("session", {"providers": [("CPUExecutionProvider",)]}, "expected a list of ONNX Runtime's providers"),
    ],
)
def test_what_is_expected_is_told(function: str, given: dict[str, Any], told: str, model: Path) -> None:
    """In the words of a caller."""
    models = [model] * (2 if function == "verify" else 1)
    with pytest.raises(onnxfuse.UsageError) as error:
        getattr(onnxfuse, function)(*models, **given)
    assert told in f"{error.value}"
