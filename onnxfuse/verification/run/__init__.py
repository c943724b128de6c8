"""Sessions and values of the models that are compared."""
