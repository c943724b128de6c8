"""Measurements of models: profiles, benchmarks against ONNX Runtime at its best, and tuning, all by one stopwatch."""
