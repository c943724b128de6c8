// What the kernels of the templates depthwise and direct are told, and where an output lies.

struct Parameters {
  Index images;
  Index height, width;              // of x
  Index rows, columns;              // of y
  Index top, left;                  // padding
  Index x_image, x_channel, x_row;  // steps of x, in elements; from column to column it is a constant
  Index y_image, y_channel, y_row;
  Divisor<Index> across, around, down;  // tiles of a block: of channels, of columns, of rows
  Index stride[STRIDED_SLOTS][4];       // of operands smaller than y: per image, channel, row, column; 0 = broadcast
};

struct Place {
  Index image, channel, row, column;
  DEVICE Index offset(const Index* stride) const {
    return image * stride[0] + channel * stride[1] + row * stride[2] + column * stride[3];
  }
};
