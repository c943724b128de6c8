"""Optimize a model: rules, precision, tuning."""
