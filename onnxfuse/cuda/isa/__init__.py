"""Instruction sets of GPUs, and the types of the factors that their tensor cores multiply."""
