// Where the left factor of a product lies: in images [batch, height, width, channels] over which a window slides. A row
// is one place of the window, images outermost; its terms are what the window sees there, channels innermost.

struct Source {
  Index height, width;                // of an image
  Index channels, pixel;              // of a group, of all of them
  Index down, across;                 // places of the window in an image
  Index stride_down, stride_across;
  Index pad_above, pad_left;
  Index dilation_down, dilation_across;
  Index window_width;
};

template <class T> DEVICE float left_element(const T* a, Index row, Index k, Index, Index group, const Source& s) {
  const Index x = row % s.across, y = row / s.across % s.down, image = row / s.across / s.down;
  const Index channel = group * s.channels + k % s.channels, right = k / s.channels % s.window_width;
  const Index below = k / s.channels / s.window_width;
  const int w = (int)(x * s.stride_across + right * s.dilation_across) - (int)s.pad_left;
  const int h = (int)(y * s.stride_down + below * s.dilation_down) - (int)s.pad_above;
  if (w < 0 || h < 0 || w >= (int)s.width || h >= (int)s.height) return 0.0f;
  return load_splat(a + (((unsigned long long)image * s.height + h) * s.width + w) * s.pixel + channel).get(0);
}
