"""Run released stacks (other libraries with RoPE) with the conformance vectors, and record what
their forward computes.

`stacks.toml` has one row for each stack, `adapters/` one module for each: `rope(rope, config)`
returns a function that rotates x at positions with what the stack's forward calls. `harness` runs
one stack in its own process, `__main__` installs, runs and records all of them.
"""
