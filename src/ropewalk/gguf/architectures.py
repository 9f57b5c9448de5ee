"""Facts that only llama.cpp's code contains, by general.architecture: pair layout, which rope keys
are read, and what layers with a sliding window do. The rows are in architectures.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from ropewalk.errors import RopeError


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """How llama.cpp rotates one architecture.

    Sliding layers are those with a sliding window, full layers the others.

    layout               the pair layout in which q and k are stored in the file
    model_type           the Hugging Face `model_type` of the same model; None if there is not
                         exactly one
    sliding_model_type   the `model_type` for a file with sliding layers, if it is another one
    axis_order           the order of the axes of rope.dimension_sections along the pairs; None: the
                         key is not read
    has_freqs            whether the tensor rope_freqs is read
    has_long_factors     whether the tensors rope_factors_long and rope_factors_short are read
    has_betas            whether YaRN's beta_fast and beta_slow are read
    has_yarn_factors     whether YaRN's extrapolation and attention factors are read
    beta_fast            YaRN's beta_fast if the file has none
    log_multiplier       yarn_log_multiplier times this is mscale_all_dim; 0: the key is not read
    has_alpha            whether rope.scaling.alpha is read
    latent               whether the part of the head that latent attention splits off rotates; it
                         has rope.dimension_count dimensions
    full_rotary_share    the share of rope.dimension_count that full layers rotate
    sliding_theta        theta of sliding layers: "full": that of full layers; "key":
                         rope.freq_base_swa, else that of full layers; "own": rope.freq_base_swa,
                         else 10,000; None: the architecture has no sliding layers
    sliding_scaling      scaling of sliding layers; "full": that of full layers; "magnitude": none,
                         but rope.scaling.attn_factor; "none": none, and no magnitude
    sliding_block_count  a file has sliding layers if it has this many layers in all; 0: if its
                         attention.sliding_window is not 0
    full_unrotated       full layers do not rotate if there are sliding ones
    unrotated_every      n: every n-th layer does not rotate, unless full_unrotated applies or
                         attention.sliding_window is 0; 0: there is no such rule
    has_pattern          whether attention.rope_pattern is read, which says for each layer whether
                         it rotates
    has_switch           whether no layer rotates if rope.scaling.finetuned is false
    """

    layout: str
    model_type: str | None = None
    sliding_model_type: str | None = None
    axis_order: str | None = None
    has_freqs: bool = False
    has_long_factors: bool = False
    has_betas: bool = False
    has_yarn_factors: bool = False
    beta_fast: float = 32.0
    log_multiplier: float = 0.0
    has_alpha: bool = False
    latent: bool = False
    full_rotary_share: float = 1.0
    sliding_theta: str | None = None
    sliding_scaling: str = "full"
    sliding_block_count: int = 0
    full_unrotated: bool = False
    unrotated_every: int = 0
    has_pattern: bool = False
    has_switch: bool = False


def _read_rows() -> dict[str, GgufArchitecture]:
    """Return the rows of architectures.toml by name; the file holds one table of rows for each
    layout.
    """
    text = files("ropewalk.gguf").joinpath("architectures.toml").read_text(encoding="utf-8")
    return {
        name: GgufArchitecture(layout=layout, **row)
        for layout, rows in tomllib.loads(text).items()
        for name, row in rows.items()
    }


ARCHITECTURES: dict[str, GgufArchitecture] = _read_rows()


def architecture_of(name: str) -> GgufArchitecture:
    """Return what llama.cpp's code does for the general.architecture `name`; refuse one that has no
    row, because it does not rotate or is not known.
    """
    if name not in ARCHITECTURES:
        rule = (
            "must be an architecture that rotates and whose pair layout is known: "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
        raise RopeError("general.architecture", rule, name)
    return ARCHITECTURES[name]
