"""Windows that slide over images: convolutions, poolings, resizings on plain cores."""
