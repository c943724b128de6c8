"""Where ONNX Runtime's own kernels are faster than those of the templates, asked by rules and passes alike."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline


@dataclass(frozen=True)
class LibraryCosts:
    """Sizes at which the faster implementation changes; the file says of what, and how they were found."""

    product_terms: int
    product_weights: int
    product_least: int
    k_major_rows: int
    computed_columns: int
    computed_terms: int
    joined_filters: int
    joined_places: int
    packed_rows: int
    joined_image: int
    conv_channels: int
    conv_channels_float16: int
    conv_terms: int
    conv_filters: int
    conv_wide: int
    conv_apart_terms: int
    conv_group_channels: int
    conv_group_filters: int
    conv_volume_channels: int
    narrow_channels: int
    narrow_channels_float32: int
    direct_weights: int
    direct_weights_float32: int
    direct_groups: int
    attention_few: int
    attention_block_words: int
    attention_scores: int
    attention_keys: int
    attention_rows: int
    attention_long: int
    attention_head: int
    attention_narrow: int
    pad_copies: int
    image_pad_copies: int


@dataclass(frozen=True)
class LibraryTimes:
    """How fast cuBLAS and cuDNN are, by what they compute and in which arithmetic."""

    kernels: Mapping[str, Roofline]
    """By function and arithmetic, such as `product_tf32`; what was not measured is absent."""

    def of(self, function: str, arithmetic: str) -> Roofline | None:
        """Return the times of a function, such as `product`, in `float16`, `tf32` or `float32`; None if they were not
        measured."""
        return self.kernels.get(f"{function}_{arithmetic}")


def times(arch: str) -> LibraryTimes:
    """Return how fast the libraries are on an architecture."""
    return tables.section(arch, "times.library", LibraryTimes)


def costs(arch: str = tables.REFERENCE) -> LibraryCosts:
    """Return the sizes for an architecture; by default for models that are optimized for any GPU."""
    return tables.section(arch, "library", LibraryCosts)


def measured() -> Mapping[str, int]:
    """Return the sizes by name."""
    return asdict(costs())
