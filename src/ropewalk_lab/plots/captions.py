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
        "How many tokens each pair takes for a turn. Pairs above the dashed line complete no turn "
        "in training."
    ),
    "angles": (
        "The angle of every pair at positions 0, 1, 4 and 8: fast pairs move, slow pairs hardly do."
    ),
    "beyond": (
        "The cosine of four slow pairs. Beyond the shaded trained length they take values that "
        "training never showed."
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
    "base_bound": (
        "The sum of cosines for several bases. A larger base stays positive for longer, without a "
        "clear threshold."
    ),
    "precision": (
        "The error of cos and sin against position, by method; above the dashed line it exceeds "
        "rounding to bfloat16."
    ),
}
