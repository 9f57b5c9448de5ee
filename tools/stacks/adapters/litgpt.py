"""litgpt: the tables of `GPT`, selected and applied as its forward does."""

import torch

from stacks.adapters import Apply, NotExpressible, Rope, absent, at_start, bare, only, unused

absent("lightning", "lightning_utilities", "torchmetrics", "jsonargparse")
bare("litgpt")
from litgpt.config import Config  # noqa: E402
from litgpt.model import (  # noqa: E402
    GPT,
    apply_rope,
    apply_rope_interleave,
    batched_index_select,
)

#: the names of a scaling's fields in `rope_adjustments`
NAMES = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_length": "original_max_seq_len",
    },
    "yarn": {
        "factor": "factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "original_length": "original_max_seq_len",
        "truncate": "truncate",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
    },
}


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    scaling = only(rope, "default", "linear", "llama3", "yarn")
    at_start(rope)
    unused(scaling, attention_factor=None)
    names = NAMES.get(scaling["type"], {})
    given = {new: scaling[old] for old, new in names.items() if scaling[old] is not None}
    more = {}
    if part is not None:
        if config["model_type"] != "gemma3_text":
            raise NotExpressible("no such model")
        # one model has both ropes, the second is the local one
        more = {
            "rope_base": int(config["rope_theta"]),
            "rope_local_base_freq": config["rope_local_base_freq"],
            "rope_indices": [0, 1],
        }
        given = {"factor": config["rope_scaling"]["factor"]}
    made = Config(
        **{
            "name": "x",
            "n_layer": 2 if more else 0,
            "n_head": 1,
            "n_embd": 8,
            "head_size": rope["head_dim"],
            "vocab_size": 8,
            "padded_vocab_size": 8,
            "block_size": rope["max_length"],
            "rotary_percentage": rope["rotary_dim"] / rope["head_dim"],
            "rope_base": int(rope["theta"]),
            "rope_adjustments": given or None,
            **more,
        }
    )
    model = GPT(made)
    rotate = apply_rope_interleave if rope["layout"] == "interleaved" else apply_rope
    width = made.rope_n_elem

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        tables = [batched_index_select(each, 0, positions) for each in (model.cos, model.sin)]
        if more:
            tables = [each[..., int(part == "sliding_attention")] for each in tables]
        return torch.cat((rotate(x[..., :width], *tables), x[..., width:]), -1)

    return apply
