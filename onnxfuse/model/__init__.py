"""Load, save and normalize models; the only place that changes protobuf messages wholesale."""
