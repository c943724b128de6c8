"""Small Keras models, of the layers that Keras users have: channels last, attention by Einsum, recurrences."""

# mypy: disallow-untyped-calls=False
# (Keras says nothing of its types)

from typing import Any

import keras

WORDS, TOKENS = 99, 16


def cnn() -> Any:
    """Return convolutions, a depthwise one among them, with batch norms."""
    layers = keras.layers
    image = layers.Input((32, 32, 3), name="image")
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False)(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.Conv2D(16, 1)(y)
    y = layers.Add()([y, layers.MaxPooling2D()(x)])
    return keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(y)))


def transformer() -> Any:
    """Return two blocks of Keras's own attention on token ids."""
    layers = keras.layers
    ids = layers.Input((TOKENS,), dtype="int32", name="ids")
    x = layers.Embedding(WORDS, 64)(ids)
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.MultiHeadAttention(4, 16)(y, y)
        y = layers.Dense(128)(layers.LayerNormalization(epsilon=1e-6)(x))
        y = keras.ops.gelu(y, approximate=True)  # tf2onnx 1.17 writes the exact one with Erfc, which ONNX has not
        x = x + layers.Dense(64)(y)
    return keras.Model(ids, layers.Dense(WORDS)(layers.LayerNormalization()(x)))


def lstm() -> Any:
    """Return a bidirectional LSTM and a GRU on a series."""
    layers = keras.layers
    series = layers.Input((20, 6), name="series")
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(series)
    return keras.Model(series, layers.Dense(3)(layers.GRU(16)(x)))


def mobilenet_v2() -> Any:
    """Return the smallest MobileNetV2."""
    return keras.applications.MobileNetV2(input_shape=(96, 96, 3), alpha=0.35, weights=None, classes=10)


def upsampling() -> Any:
    """Return transposed convolutions and images made larger."""
    layers = keras.layers
    image = layers.Input((16, 16, 8), name="image")
    x = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="elu")(image)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, layers.UpSampling2D(4)(image)])
    return keras.Model(image, layers.Conv2D(3, 3, padding="same", activation="tanh")(layers.LeakyReLU()(x)))


def tabular() -> Any:
    """Return dense layers on a row of numbers."""
    layers = keras.layers
    numbers = layers.Input((13,), name="numbers")
    x = numbers
    for width in (64, 32):
        x = layers.Dropout(0.1)(layers.BatchNormalization()(layers.Dense(width, activation="swish")(x)))
    return keras.Model(numbers, layers.Dense(1, activation="sigmoid")(x))
