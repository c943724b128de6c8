"""Kinds of options: which values each takes, what it makes of them, and what it says of any other."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from onnxfuse.cli.base.parameters import _word
from onnxfuse.options import kinds
from onnxfuse.options.kinds import Kind, extents, integer, integers, number, one_of, unexpected
from onnxfuse.options.schema import Field, Option
from onnxfuse.support.errors import UsageError

CPU = "CPUExecutionProvider"
WORDS = one_of(Literal["float16", "bfloat16"], {"fp16": "float16", "fp32": "float32"})


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (kinds.STRING, "a", "a"),
        (kinds.STRINGS, ["a", "b"], ("a", "b")),
        (kinds.PATHS, ["a", Path("b")], (Path("a"), Path("b"))),
        (integer(1, 3), np.int64(3), 3),
        (number(above=0, below=1), 0.5, 0.5),
        (number(least=0), 0, 0.0),
        (integers(2), [2, 5], (2, 5)),
        (WORDS, "bfloat16", "bfloat16"),
        (WORDS, "fp16", "float16"),
        (kinds.EXTENTS, 3, (3,)),
        (kinds.EXTENTS, [3, 0], (3, 0)),
        (kinds.SHAPES, {"n": 8, "x": (1, 3)}, {"n": (8,), "x": (1, 3)}),
        (kinds.SIZES, {"n": 8}, {"n": 8}),
        (kinds.SIZE_SETS, [{"n": 8}, {"n": 9}], ({"n": 8}, {"n": 9})),
        (kinds.RANGES, {"n": 8, "m": (1, 32)}, {"n": (8, 8), "m": (1, 32)}),
        (kinds.TOLERANCES, 1, 1.0),
        (kinds.TOLERANCES, {"y": 0.5}, {"y": 0.5}),
        (kinds.INPUTS, ["a.npz", {"x": 1}], (Path("a.npz"), {"x": 1})),
        (kinds.ONE_OR_MORE_INPUTS, "a.npz", (Path("a.npz"),)),
        (kinds.ONE_OR_MORE_INPUTS, {"x": 1}, ({"x": 1},)),
        (kinds.ONE_OR_MORE_INPUTS, ["a", "b"], (Path("a"), Path("b"))),
        (kinds.PROGRESS, print, print),
        (kinds.PACK_FILE, False, False),
        (kinds.OPTION_DICTS, ({},), [{}]),
        (kinds.PROVIDER_NAMES, (CPU,), [CPU]),
        (kinds.PROVIDERS, [(CPU, {"a": 1})], [(CPU, {"a": 1})]),
    ],
)  # fmt: skip
def test_a_value_is_read(kind: Kind, value: Any, read: Any) -> None:
    """One value where several may stand is several of one."""
    found = kind.read("option", value)
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (kinds.STRING, 3, "option is 3 (int); expected a string"),
        (kinds.STRINGS, "a", "option is 'a' (str); expected a list of strings"),
        (integer(1), 0, "option is 0 (int); expected an integer of at least 1"),
        (integer(1, 3), 4, "option is 4 (int); expected an integer from 1 to 3"),
        (number(above=0, below=1), 1.0, "option is 1.0 (float); expected a number above 0 and below 1"),
        (number(above=0), 0, "option is 0 (int); expected a number above 0"),
        (number(least=0), -0.5, "option is -0.5 (float); expected a number of at least 0"),
        (number(), float("nan"), "option is nan (float); expected a number"),
        (integers(1), [], "option is [] (list); expected a list of integers of at least 1"),
        (WORDS, "float32", "option is 'float32', expected one of float16, bfloat16"),
        (WORDS, "fp32", "option is 'fp32', expected one of float16, bfloat16"),
        (WORDS, 16, "option is 16 (int); expected one of float16, bfloat16"),
        (kinds.BOOLEAN, 1, "option is 1 (int); expected True or False"),
        (kinds.SHAPES, {"n": -1}, "option: n is -1 (int); expected an integer of at least 0, or an input's shape"),
        (kinds.SHAPES, 8, "option is 8 (int); expected a dict of sizes by name, such as {'batch': 8}"),
        (kinds.RANGES, {"n": (1, 2, 3)},
         "option: n is (1, 2, 3) (tuple); expected an integer of at least 0, or (least, greatest)"),
        (kinds.TOLERANCES, True, "option is True (bool); expected a number, or a dict of numbers by output or element"),
        (kinds.TOLERANCES, {"y": "a"}, "option: y is 'a' (str); expected a number"),
        (kinds.INPUTS, "a.npz", "option is 'a.npz' (str); expected a list of paths, or of dicts of arrays by input"),
        (kinds.ONE_OR_MORE_INPUTS, [3], "option is [3] (list); expected a list of paths"),
        (kinds.PROGRESS, "yes", "option is 'yes' (str); expected True, False, or a function"),
        (kinds.PACK_FILE, True, "option is True (bool); expected the path of a kernel pack, or False"),
        (kinds.OPTION_DICTS, [3], "option is [3] (list); expected a list of dicts of options"),
        (kinds.PROVIDERS, [], "option is [] (list); expected a list of ONNX Runtime's providers"),
        (kinds.PROVIDERS, CPU, f"option is '{CPU}' (str); expected a list of ONNX Runtime's providers"),
        (kinds.PROVIDER_NAMES, [(CPU, {})], "expected a list of ONNX Runtime's providers"),
    ],
)  # fmt: skip
def test_any_other_value_is_refused(kind: Kind, value: Any, told: str) -> None:
    """With the option, of a mapping also the key, the value and what was expected."""
    with pytest.raises(UsageError) as caught:
        kind.read("option", value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda", "'cuda' is not a provider of ONNX Runtime. Did you mean CUDAExecutionProvider?"),
        ("CPUExecutionProvide", f"'CPUExecutionProvide' is not a provider of ONNX Runtime. Did you mean {CPU}?"),
    ],
)
def test_a_provider_that_onnx_runtime_does_not_have(name: str, told: str) -> None:
    """Its short name is taken for what it means, but only in the message."""
    with pytest.raises(UsageError) as caught:
        kinds.PROVIDERS.read("providers", [name])
    assert told in str(caught.value)
    assert CPU in str(caught.value.hint)


def test_who_reads_may_word_the_error() -> None:
    """Of a mapping's values, too."""

    def wrong(name: str, value: Any, kind: Kind) -> UsageError:
        return UsageError(f"{name}!{value}!{kind.expected}")

    with pytest.raises(UsageError, match=r"^sizes: n!x!an integer of at least 0$"):
        kinds.SIZES.read("sizes", {"n": "x"}, wrong)


def test_the_words_of_a_choice() -> None:
    assert WORDS.words == ("float16", "bfloat16")
    assert kinds.STRING.words == ()
    assert "expected a string" in str(unexpected("name", 3, kinds.STRING))


def test_the_limits_of_a_flag_are_those_of_the_value() -> None:
    """Open where the limit itself is refused."""
    kinds_of_flags = (number(above=0, below=1), number(least=2), integer(1, 3), integers(4))
    ranges = [_word(Field("x", k.type, k, Option(None, ""))) for k in kinds_of_flags]
    assert [(r.min, r.min_open, r.max, r.max_open) for r in ranges] == [
        (0, True, 1, True), (2, False, None, False), (1, False, 3, False), (4, False, None, False),
    ]  # fmt: skip


def test_sizes_by_name_are_sequences() -> None:
    assert extents({"n": 3, "x": [1, 2]}) == {"n": (3,), "x": [1, 2]}
    assert extents(None) == {}
