"""What each figure shows, in one or two sentences."""

from __future__ import annotations

#: name of a figure -> its caption; docs/gallery.md has the same texts, as a test checks
CAPTIONS: dict[str, str] = {
    "rotation": (
        "The position rotates a vector: here the fastest pair at positions 0 to 5. Its length "
        "stays the same."
    ),
    "clocks": (
        "Six pairs as clock hands at four positions. Fast pairs distinguish neighbours, slow pairs "
        "near from far."
    ),
    "spectrum": (
        "The frequency of each pair, and its tokens per turn. Pairs above the dashed line "
        "complete no turn in training."
    ),
    "angles": (
        "The angle of every pair at positions 0, 1, 4 and 8, in turns and, for the first 32, in "
        "radians: fast pairs move."
    ),
    "periodicity": (
        "The cosine of the first three pairs, with a dot after every turn: each pair repeats "
        "after its own wavelength."
    ),
    "beyond": (
        "Beyond the shaded trained length slow pairs take values that training never showed; "
        "dimensions 0 and 1 repeat theirs."
    ),
    "coverage": (
        "Turns of each pair at the trained length, at the served length, and at the served length "
        "after scaling."
    ),
    "scalings": (
        "Which pairs each scaling slows, and how far: 1 is unchanged, 0.25 is four times slower."
    ),
    "decay": (
        "Left: RoFormer's decay curve. Right: the scores of one random q and k; their bound holds "
        "but is loose."
    ),
    "similarity": (
        "The similarity of two position encodings against their distance: it falls, and then "
        "fluctuates."
    ),
    "similarity_map": (
        "The similarity of every two positions. Diagonals have one colour: only the distance "
        "counts."
    ),
    "inner_products": (
        "The score of one q and one k rotated to every two positions; each diagonal is constant."
    ),
    "tsne": (
        "The encodings of the first 128 positions on a plane, by t-SNE. Neighbours stay "
        "neighbours, so they form a curve."
    ),
    "base_bound": (
        "The sum of cosines for several bases. A larger base stays positive for longer, without a "
        "clear threshold."
    ),
    "variants": (
        "A rotation keeps the norm. YaRN scales it once, xPos lets it decay, an added encoding "
        "changes it at every position."
    ),
    "precision": (
        "The error of cos and sin against position, by method; above the dashed line it exceeds "
        "rounding to bfloat16."
    ),
}
