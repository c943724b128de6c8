"""Growth steps: how a region absorbs adjacent nodes."""
