"""torchtune: `RotaryPositionalEmbeddings`, and `Llama3ScaledRoPE` of Llama 3.1 and later."""

import torch

from stacks.adapters import Apply, Rope, bare, in_layout, only, rows, whole

bare("torchtune", "torchtune.modules", "torchtune.models", "torchtune.models.llama3_1")
from torchtune.models.llama3_1._position_embeddings import Llama3ScaledRoPE  # noqa: E402
from torchtune.modules.position_embeddings import RotaryPositionalEmbeddings  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "llama3")
    whole(rope)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        common = (rope["head_dim"], max(rope["max_length"], rows(positions)), rope["theta"])
        if scaling["type"] == "default":
            module = RotaryPositionalEmbeddings(*common)
        else:
            module = Llama3ScaledRoPE(
                *common,
                scaling["factor"],
                scaling["low_freq_factor"],
                scaling["high_freq_factor"],
                scaling["original_length"],
            )
        return module(x.transpose(1, 2), input_pos=positions).transpose(1, 2)

    return in_layout("interleaved", rope, apply)
