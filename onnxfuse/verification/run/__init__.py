"""Sessions and values of the compared models."""
