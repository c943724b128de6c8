// The formula of direct.cu, the obvious way: one thread computes one output. For windows that do not fit the shared memory.
// Accuracy: products and sums in float, of integers in int32, r by r, s by s, channel by channel.

DEVICE Sum sum_at(const X* x, const Weight* w, const Place& at, const Parameters& p) {
  const int group = at.channel / FILTERS, top = (int)at.row * STRIDE_H - (int)p.top;
  const int left = (int)at.column * STRIDE_W - (int)p.left;
  const X* image = x + (at.image * p.x_image + group * GROUP_CHANNELS * p.x_channel);
  Sum sum = 0.0f;
  for (int r = 0; r < KERNEL_H; ++r)
    for (int s = 0; s < KERNEL_W; ++s) {
      const int row = top + r * DILATION_H, column = left + s * DILATION_W;
      if ((unsigned)row >= (unsigned)p.height || (unsigned)column >= (unsigned)p.width) continue;
      for (int c = 0; c < GROUP_CHANNELS; ++c) {
        const Index weight = PACKED ? ((at.channel * KERNEL_H + r) * KERNEL_W + s) * GROUP_CHANNELS + c
                                    : ((at.channel * GROUP_CHANNELS + c) * KERNEL_H + r) * KERNEL_W + s;
        const Index there = row * p.x_row + column * (PLANES ? 1 : X_CHANNELS) + c * p.x_channel;
        sum += load_splat(image + there).get(0) * load_splat(w + weight).get(0);
      }
    }
  return sum;
}

DEVICE void direct(const Pointers& pointers, const Parameters& p) {
  const Index number = block_index() * THREADS + thread_index(), pixel = number / Y_CHANNELS;
  const Index line = pixel / p.columns, image = line / p.rows;
  if (image >= p.images) return;
  const Place at = {image, number - pixel * Y_CHANNELS, line - image * p.rows, pixel - line * p.columns};
  const Sum sum[1] = {sum_at(pointers.x, pointers.w, at, p)};
  store_all(pointers, sum, load_once(pointers, at, p), load_each<1>(pointers, at, number, 0, p), number, 0);
}
