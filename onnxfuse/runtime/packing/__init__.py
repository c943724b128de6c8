"""Building of kernel packs."""
