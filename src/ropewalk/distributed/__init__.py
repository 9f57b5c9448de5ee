"""Attention over sequences that are split across processes.

`ring` and `ring_linear` pass keys and values from rank to rank, `sharding` splits and gathers, `tiles` computes one block,
`context_parallel` uses torch's own ring, `placements` teaches DTensor the rotation.
"""
