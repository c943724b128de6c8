"""Normal forms of quantized models."""
