"""fairseq2: `RotaryEncoder` with Llama's frequencies, and `YaRNRotaryEncoder` of OLMo."""

from types import SimpleNamespace

import torch

from stacks.adapters import (
    Apply,
    Rope,
    absent,
    bare,
    empty,
    halves_only,
    in_layout,
    only,
    rows,
    unused,
    whole,
)

bare("fairseq2", "fairseq2.nn", "fairseq2.models", "fairseq2.models.llama", "fairseq2.models.olmo")
import fairseq2.nn  # noqa: E402

folder = fairseq2.nn.__path__
empty("fairseq2.nn", "fairseq2.models.transformer", "fairseq2.models.transformer_lm")
empty("fairseq2.models.llama.config", "fairseq2.device")
absent("fairseq2n")
fairseq2.nn.__path__ = folder
from fairseq2.nn.position_encoder import PositionEncoder, RotaryEncoder  # noqa: E402

fairseq2.nn.PositionEncoder = PositionEncoder
from fairseq2.models.llama.factory import init_llama_rope_freqs  # noqa: E402
from fairseq2.models.olmo.yarn_rope import YaRNRotaryEncoder  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "llama3", "yarn")
    whole(rope)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        common = (rope["head_dim"], max(rope["max_length"], rows(positions)))
        if scaling["type"] == "yarn":
            halves_only(rope)
            unused(scaling, attention_factor=None)
            module = YaRNRotaryEncoder(
                *common,
                theta=rope["theta"],
                scale_factor=scaling["factor"],
                original_max_seq_len=scaling["original_length"],
                beta_fast=scaling["beta_fast"],
                beta_slow=scaling["beta_slow"],
                mscale=1.0 if scaling["mscale"] is None else scaling["mscale"],
                mscale_all_dim=scaling["mscale_all_dim"] or 0.0,
                truncate=scaling["truncate"],
            )
        else:
            initial = None
            if scaling["type"] == "llama3":
                scale = SimpleNamespace(
                    factor=scaling["factor"],
                    frequency_factors=(scaling["low_freq_factor"], scaling["high_freq_factor"]),
                    original_context_length=scaling["original_length"],
                )

                def initial(encoder: RotaryEncoder) -> torch.Tensor:
                    return init_llama_rope_freqs(encoder, scale)

            module = RotaryEncoder(*common, theta=rope["theta"], freqs_init_fn=initial)
        layout = SimpleNamespace(
            packed=True, padded=False, position_indices=positions, max_seq_len=x.shape[2]
        )
        return module(x.transpose(1, 2), layout).transpose(1, 2)

    return apply if scaling["type"] == "yarn" else in_layout("interleaved", rope, apply)
