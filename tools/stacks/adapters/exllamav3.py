"""exllamav3: `RoPE`, which reads the settings of a config; its CUDA kernel takes `inv_freq` and
`attn_factor`, which are applied here by the torch functions beside it, in float32.
"""

import torch

from stacks.adapters import Apply, NotExpressible, Rope, as_config, at_start, bare, empty

bare("exllamav3", "exllamav3.util")
empty("exllamav3.ext")
from exllamav3.util import rope as source  # noqa: E402
from exllamav3.util.rope import RoPE, RopeSettings, RopeStyle  # noqa: E402

ROTATE = {
    RopeStyle.NEOX: source._apply_rope_embed_q_neox,
    RopeStyle.GPTJ: source._apply_rope_embed_q_gptj,
}
AXES = True
#: the stack's model types whose layers have two ropes
LAYER_TYPES = ("gemma3_text", "gemma4_text")


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    at_start(rope)
    if part is not None and config["model_type"] not in LAYER_TYPES:
        raise NotExpressible("no such model")
    scaling = rope["scaling"]
    if scaling["type"] == "proportional":
        fraction = scaling["fraction"]
    else:
        fraction = rope["rotary_dim"] / rope["head_dim"]
    style = RopeStyle.NEOX if rope["layout"] == "half" else RopeStyle.GPTJ
    given = None if scaling["type"] == "default" else as_config(scaling)
    if rope["axes"]:
        in_turn = rope["axes"]["order"] == "interleaved"
        more = {"mrope_section": rope["axes"]["sections"], "mrope_interleaved": in_turn}
        given = as_config(scaling) | more
    made = RoPE(
        "cpu",
        RopeSettings(
            head_dim=rope["head_dim"],
            rope_theta=rope["theta"],
            rope_scaling=given,
            partial_rotary_factor=fraction,
            max_position_embeddings=rope["max_length"],
            rope_style=style,
        ),
    )
    width = 2 * made.inv_freq.numel()

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if rope["axes"]:
            tables = [_multimodal(made, positions[:, row]) for row in range(len(x))]
        else:
            tables = [made.compute_sincos(at) for at in positions]
        sin, cos = (torch.stack(each) for each in zip(*tables, strict=True))
        turned = ROTATE[style](x[..., :width].transpose(1, 2), sin, cos).transpose(1, 2)
        return torch.cat((turned, x[..., width:]), -1)

    return apply


def _multimodal(made: RoPE, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sin and cos of the angles that `made` computes for positions [3, tokens]."""

    def fill(place: torch.Tensor, *_: object) -> int:
        place.copy_(positions)  # the compiled function fills them from the images' grids
        return 0

    source.ext.gen_mrope_pos_ids = fill
    tokens = positions.shape[1]
    angles = made.get_mrope_freqs(torch.zeros(1, tokens), [], tokens)[0][0]
    return angles.sin().repeat(1, 2) * made.attn_factor, angles.cos().repeat(
        1, 2
    ) * made.attn_factor
