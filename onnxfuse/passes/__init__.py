"""The optimization pipeline and the passes in it that need no rule."""
