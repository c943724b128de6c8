"""Small Paddle models, of the layers that Paddle's own zoos have: gated mobile blocks, text recognizers, taggers."""

# mypy: disallow-untyped-calls=False, disallow-subclassing-any=False
# (Paddle says nothing of its types)

from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional

WORDS, TOKENS = 99, 16

Parts = tuple[Any, list[int], str]
"""A layer, and the shape without the batch and the type of its input."""


class Block(nn.Layer):
    """A transformer's block, before whose halves the norms stand."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        """Return what follows of the tokens' vectors."""
        width = x.shape[-1]
        qkv = self.qkv(self.first(x)).reshape([0, x.shape[1], 3, self.heads, width // self.heads])
        q, k, v = qkv.transpose([2, 0, 3, 1, 4]).unbind(0)
        scores = paddle.matmul(q, k, transpose_y=True) * (width // self.heads) ** -0.5
        y = paddle.matmul(functional.softmax(scores), v).transpose([0, 2, 1, 3]).reshape([0, x.shape[1], width])
        x = x + self.out(y)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Squeezed(nn.Layer):
    """A block of a mobile net: expanded, depthwise, its channels gated, and the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 2 * width
        self.parts = nn.Sequential(
            nn.Conv2D(width, inner, 1, bias_attr=False), nn.BatchNorm2D(inner), nn.Hardswish(),
            nn.Conv2D(inner, inner, 3, padding=1, groups=inner, bias_attr=False), nn.BatchNorm2D(inner), nn.Hardswish(),
        )  # fmt: skip
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2D(1), nn.Conv2D(inner, width // 2, 1), nn.ReLU(), nn.Conv2D(width // 2, inner, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.last = nn.Sequential(nn.Conv2D(inner, width, 1, bias_attr=False), nn.BatchNorm2D(width))

    def forward(self, x: Any) -> Any:
        """Return the images as large as they were."""
        y = self.parts(x)
        return x + self.last(y * self.gate(y))


class Tagger(nn.Layer):
    """Two bidirectional LSTM layers, and a linear one for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, 32), nn.Linear(32, 7)
        self.lstm = nn.LSTM(32, 16, num_layers=2, direction="bidirect")

    def forward(self, ids: Any) -> Any:
        """Return the scores of each token's tags."""
        return self.last(self.lstm(self.words(ids))[0])


def cnn() -> Parts:
    """Return a mobile net of one block."""
    head = [nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(16, 10), nn.Softmax()]
    return nn.Sequential(nn.Conv2D(3, 16, 3, stride=2, padding=1), Squeezed(16), *head), [3, 32, 32], "float32"


def recognizer() -> Parts:
    """Return a text recognizer's shape: images to a sequence of tokens, as OCR models have it."""
    turn = nn.Sequential(nn.Conv2D(3, 64, (8, 4), stride=(8, 4)), nn.GELU(), nn.Flatten(2))
    return nn.Sequential(turn, _Tokens(), Block(64, 4), nn.Linear(64, WORDS)), [3, 8, 64], "float32"


class _Tokens(nn.Layer):
    def forward(self, x: Any) -> Any:
        return x.transpose([0, 2, 1])


def transformer() -> Parts:
    """Return two blocks on token ids."""
    blocks = [Block(64, 4) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 8)), [TOKENS], "int64"


def upsampling() -> Parts:
    """Return a transposed convolution and an image made larger."""
    parts = [nn.Conv2DTranspose(8, 16, 4, stride=2, padding=1), nn.BatchNorm2D(16), nn.LeakyReLU(0.1)]
    up = nn.Upsample(size=[48, 48], mode="nearest")
    return nn.Sequential(*parts, up, nn.Conv2D(16, 3, 3, padding=1), nn.Sigmoid()), [8, 12, 12], "float32"


def tagger() -> Parts:
    """Return a recurrent tagger of tokens."""
    return Tagger(), [TOKENS], "int64"
