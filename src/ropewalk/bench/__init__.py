"""Benchmarks: agree with the definition first, then time, beside the copy ceiling of the same run."""
