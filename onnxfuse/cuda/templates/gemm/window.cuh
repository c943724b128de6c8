// Where the left factor of a product lies: in images [batch, depth, height, width, channels] over which a window slides,
// of one layer but of volumes (VOLUME). A row is one place of the window, images outermost; its terms are what the window
// sees there, channels innermost.

struct Source {
  Index depth, height, width;  // of an image
  Index channels, pixel;       // of a group, of all of them
  Index inward, down, across;  // places of the window in an image
  Index stride_inward, stride_down, stride_across;
  Index pad_front, pad_above, pad_left;
  Index dilation_inward, dilation_down, dilation_across;
  Index window_height, window_width;
};
