// Where the left factor of a product lies: in images [batch, depth, height, width, channels] over which a window slides,
// of one layer but of volumes (VOLUME). A row is one place of the window, images outermost; its terms are what the window
// sees there, channels innermost.

struct Source {
  Index depth, height, width;         // of an image
  Index channels, pixel;              // of a group, of all of them
  Index inward, down, across;         // places of the window in an image
  Index stride_inward, stride_down, stride_across;
  Index pad_front, pad_above, pad_left;
  Index dilation_inward, dilation_down, dilation_across;
  Index window_height, window_width;
};

template <class T> DEVICE float left_element(const T* a, Index row, Index k, Index, Index group, const Source& s) {
  const Index x = row % s.across, y = row / s.across % s.down, z = row / s.across / s.down % s.inward;
  const Index image = row / s.across / s.down / s.inward;
  const Index channel = group * s.channels + k % s.channels, right = k / s.channels % s.window_width;
  const Index below = k / s.channels / s.window_width % s.window_height;
  const Index behind = k / s.channels / s.window_width / s.window_height;
  const int w = (int)(x * s.stride_across + right * s.dilation_across) - (int)s.pad_left;
  const int h = (int)(y * s.stride_down + below * s.dilation_down) - (int)s.pad_above;
  const int d = (int)(z * s.stride_inward + behind * s.dilation_inward) - (int)s.pad_front;
  if (w < 0 || h < 0 || d < 0 || w >= (int)s.width || h >= (int)s.height || d >= (int)s.depth) return 0.0f;
  const unsigned long long layer = (unsigned long long)image * s.depth + d;
  return load_splat(a + ((layer * s.height + h) * s.width + w) * s.pixel + channel).get(0);
}
