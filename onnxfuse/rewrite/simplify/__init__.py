"""Rewrites that need no kernel: rules' own, constants of shapes, masks."""
