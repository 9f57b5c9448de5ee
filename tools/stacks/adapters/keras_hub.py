"""keras-hub: `RotaryEmbedding`, and `LlamaRotaryEmbedding`, which its Llama layers call."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import torch

from stacks.adapters import Apply, Rope, absent, halves_only, one_by_one, only, unused, whole

absent("tensorflow_text", "kagglesdk", "kagglehub", "tensorflow", "optree", "h5py", "namex")
import keras  # noqa: E402
from keras_hub.src.layers.modeling.rotary_embedding import RotaryEmbedding  # noqa: E402
from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "linear", "llama3", "yarn")
    whole(rope)
    halves_only(rope)
    if scaling["type"] == "yarn":
        unused(scaling, attention_factor=None, mscale=None)
        module = RotaryEmbedding(
            max_wavelength=rope["theta"],
            scaling_factor=scaling["factor"],
            rope_type="yarn",
            beta_fast=scaling["beta_fast"],
            beta_slow=scaling["beta_slow"],
            original_max_position_embeddings=scaling["original_length"],
            truncate=scaling["truncate"],
        )
    elif scaling["type"] == "llama3":
        module = LlamaRotaryEmbedding(
            max_wavelength=rope["theta"],
            frequency_adjustment_factor=scaling["factor"],
            low_freq_factor=scaling["low_freq_factor"],
            high_freq_factor=scaling["high_freq_factor"],
            pretraining_sequence_length=scaling["original_length"],
        )
    else:
        module = LlamaRotaryEmbedding(
            max_wavelength=rope["theta"], position_scaling_factor=scaling.get("factor", 1.0)
        )

    def rotate(heads: torch.Tensor, position: int) -> torch.Tensor:
        out = module(heads[None, None], start_index=position)
        return torch.as_tensor(keras.ops.convert_to_numpy(out))[0, 0]

    return one_by_one(rotate, torch.stack)
