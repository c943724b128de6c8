"""Declarations of the window templates: depthwise on CUDA cores, and direct (few channels) on tensor cores."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.conv import direct, stencil
from onnxfuse.cuda.templates.conv.variant import DepthwiseVariant, DirectVariant

TEMPLATES = (
    Template(
        "depthwise", 10, "depthwise convolutions, and poolings of channels-last images",
        Planner(stencil.parse_op, stencil.output_shapes, stencil.plan, variants=(DepthwiseVariant,)),
        growth=frozenset({Growth.EPILOGUE, Growth.EXTRA_OUTPUTS}), writes_slots=True,
    ),
    Template(
        "direct", 50, "other convolutions of few channels or filters, on the tensor cores",
        Planner(
            direct.parse_op, direct.output_shapes, direct.plan, direct.refuses, candidates=direct.candidates,
            estimates=direct.estimates, variants=(DirectVariant,),
        ),
        growth=frozenset({Growth.EPILOGUE, Growth.JOINED_INPUT}), writes_slots=True, rounds_to_tf32=True,
    ),
)  # fmt: skip
