"""Kernel packs, exported libraries, the Triton configuration, and the environment check."""
