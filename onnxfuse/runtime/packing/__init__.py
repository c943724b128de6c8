"""Make kernel packs."""
