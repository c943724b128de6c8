"""Sessions run the variants that their model carries, where those were measured on this very machine."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import runtime
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Book, Machine, MeasuredVariants, Timed
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.runtime.kernels import variants as runtime_tuned
from onnxfuse.support.errors import ModelError
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
HERE, THERE = Machine("Stand-in", "1.0", "1.31.1"), Machine("Another", "1.0", "1.31.1")
WIDE = PointwiseVariant(pointwise_threads=512)


def carrying(machine: Machine, rows: int, variant: Variant | None = WIDE) -> onnx.ModelProto:
    """The chain, whose first op was fastest in another variant at so many rows."""
    model = models.chain()
    shapes = ((rows, 8), (8,))
    times = (Timed("fused", None, 2.0), Timed("fused", variant, 1.0))
    book: Book = {machine: {("BiasRelu_1", shapes): MeasuredVariants("BiasRelu_1", "by_hand", (), (), shapes, times)}}
    measurements.attach(model, book)
    return model


def planned(machine: Machine, variant: Variant | None = WIDE) -> Any:
    runtime_tuned.machine_of = lambda device: HERE
    stand_in = stand_in_kernels.install()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session = runtime.session(carrying(machine, 3, variant), CUDA)
        for rows in (3, 5):
            session.run(None, {"x": np.zeros((rows, 8), np.float32), "b": np.zeros(8, np.float32)})
    tunings = [
        [name, shapes[0][0], {} if t is None else t.changed]
        for (name, shapes, _), t in zip(stand_in.planned, stand_in.tunings, strict=True)
    ]
    return {"planned": tunings, "told": [str(w.message) for w in told]}


def on_the_same_machine() -> Any:
    return planned(HERE)


def of_no_kernel_of_ours() -> Any:
    return planned(HERE, PointwiseVariant(min_blocks=7))


def on_another_machine() -> Any:
    return planned(THERE)


def test_the_variant_is_taken_for_its_op_and_shapes_alone(on_fake_cuda: FakeCuda) -> None:
    """Other ops, and other shapes of the same op, run as the plan chooses."""
    facts = on_fake_cuda(on_the_same_machine)
    assert facts["told"] == []
    assert facts["planned"] == [
        ["BiasRelu_1", 3, {"pointwise_threads": 512}],
        ["TwiceTanh_2", 3, {}],
        ["Negate_3", 3, {}],
        ["BiasRelu_1", 5, {}],
        ["TwiceTanh_2", 5, {}],
        ["Negate_3", 5, {}],
    ]


def test_a_variant_of_no_kernel_of_ours_is_not_used_and_told(on_fake_cuda: FakeCuda) -> None:
    """A file chooses among the variants that are measured; it makes no kernel of its own."""
    facts = on_fake_cuda(of_no_kernel_of_ours)
    assert all(tuning == {} for _, _, tuning in facts["planned"])
    (told,) = facts["told"]
    assert told == (
        "tuning not used: min_blocks 7 is not a variant of BiasRelu_1 for 3x8, 8; tune again: optimize --tune"
    )


def test_what_was_measured_elsewhere_is_not_used_and_told_once(on_fake_cuda: FakeCuda) -> None:
    """One line for the session, not one per op."""
    facts = on_fake_cuda(on_another_machine)
    assert all(tuning == {} for _, _, tuning in facts["planned"])
    (told,) = facts["told"]
    assert told == f"tuning not used: measured on {THERE}; here is {HERE}"


def test_a_damaged_tuning_in_a_model_is_told_where_it_is_opened(on_fake_cuda: FakeCuda) -> None:
    assert "the model's metadata onnxfuse.tuning: is not a tuning file" in on_fake_cuda(damaged)


def damaged() -> Any:
    stand_in_kernels.install()
    model = models.chain()
    model.metadata_props.add(key=measurements.METADATA, value="{}")
    with pytest.raises(ModelError) as raised:
        runtime.session(model, CUDA)
    return str(raised.value)
