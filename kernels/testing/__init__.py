"""Inputs, comparison and timing for kernel tests and benchmarks."""
