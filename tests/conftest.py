"""Settings that all tests share."""

import signal

import hypothesis
from hypothesis import Phase

# A shell without job control lets what runs behind it ignore ^C, and so would every command that the tests stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
