// What a cell makes of the products of its gates: `x` those of the layer's input, `r` those of what the cells gave at the
// position before, each with its bias. In float32; h and c are what the cell gives and what it keeps.

// 1 - 2 / (1 + e^2x), and where that would lose its digits the series of tanh: relative error below 2^-18.
DEVICE float tanh_fast(float x) {
  const float square = x * x;
  const float series = x * (1.0f - square * (0.333333333f - 0.133333333f * square));
  const float far = 1.0f - 2.0f * reciprocal_fast(1.0f + math16::exp(2.0f * x));
  return square < 0.00390625f ? series : far;
}

struct Lstm {
  static DEVICE void step(const float (&x)[4], const float (&r)[4], float& h, float& c) {
    const float input = math16::sigmoid(x[0] + r[0]), output = math16::sigmoid(x[1] + r[1]);
    const float forget = math16::sigmoid(x[2] + r[2]), candidate = tanh_fast(x[3] + r[3]);
    c = forget * c + input * candidate;
    h = output * tanh_fast(c);
  }
};

struct Gru {
  static DEVICE void step(const float (&x)[3], const float (&r)[4], float& h, float&) {
    const float update = math16::sigmoid(x[0] + r[0]), reset = math16::sigmoid(x[1] + r[1]);
    const float candidate = tanh_fast(x[2] + reset * r[2]);
    h = candidate + update * (h - candidate);
  }
};

struct Rnn {
  static DEVICE void step(const float (&x)[1], const float (&r)[4], float& h, float&) { h = tanh_fast(x[0] + r[0]); }
};
