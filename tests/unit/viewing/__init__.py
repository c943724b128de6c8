"""The page that is served."""
