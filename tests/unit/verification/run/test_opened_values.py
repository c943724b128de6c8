"""What cannot be given to a model is named."""

from onnxfuse.verification.run.opened_values import feed_of


def test_what_cannot_be_given_is_told() -> None:
    """No operator makes a map of tensors."""
    assert feed_of({"m": {"a": 1.0}}, {"m": "map(string,tensor(float))"}).why_not == (
        "'m' is of type map(string,tensor(float)), of which no operator makes one"
    )
