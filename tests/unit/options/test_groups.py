"""Words of options mean what the rest of the package means by them."""

from typing import get_args

from onnxfuse.model.precision_record import TYPES
from onnxfuse.options import groups


def test_words_of_types_are_the_models() -> None:
    """The schema imports nothing of models, whose records know the same types."""
    assert set(get_args(groups.IoPrecision)) == set(TYPES)
    assert [*get_args(groups.ProviderWord)] == [*groups.PROVIDERS]
