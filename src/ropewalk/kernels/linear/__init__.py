"""Causal linear attention with rotation, in two launches."""
