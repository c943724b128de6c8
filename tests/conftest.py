"""Settings that all tests share."""

import hypothesis
from hypothesis import Phase

# Derandomized: the same examples on every machine, so that red means the code changed and not the dice.
hypothesis.settings.register_profile(
    "onnxfuse",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
hypothesis.settings.load_profile("onnxfuse")
