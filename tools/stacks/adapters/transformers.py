"""transformers: the rotary module and the rotating function of the family's modeling file."""

import importlib
import inspect
from typing import Any

import torch
import transformers

from stacks.adapters import Apply, NotExpressible, Rope

AXES = True
#: model type: folder of its modeling file, where they differ
FOLDERS = {
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "qwen3_vl_text": "qwen3_vl",
    "qwen3_5_text": "qwen3_5",
}
#: the config class that reads these keys, where it is not the family's own
TEXT_CONFIGS = {"qwen2_vl": "qwen2_vl_text"}
#: names of rotating functions, the first one present counts
INTERLEAVED = ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb")
PLAIN = ("apply_multimodal_rotary_pos_emb", "apply_rotary_pos_emb")


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    kind = config["model_type"]
    if part == "indexer":
        raise NotExpressible("the indexer's rotation is no function of its own")
    if part == "draft":
        raise NotExpressible("no draft layers")
    keys = {name: value for name, value in config.items() if name != "model_type"}
    made = transformers.AutoConfig.for_model(TEXT_CONFIGS.get(kind, kind), **keys)
    folder = FOLDERS.get(kind, kind)
    family = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    names = [n for n in dir(family) if n.endswith("RotaryEmbedding") and "Vision" not in n]
    rotary = getattr(family, names[0])(config=made)
    typed = "layer_type" in inspect.signature(rotary.forward).parameters
    wanted = INTERLEAVED if rope["layout"] == "interleaved" else PLAIN
    rotate = getattr(family, next(name for name in wanted if hasattr(family, name)))
    sections = {}
    if "mrope_section" in inspect.signature(rotate).parameters:
        sections = {"mrope_section": rope["axes"]["sections"]}

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = rotary(x, positions, layer_type=part) if typed else rotary(x, positions)
        start, stop = rope["rotary_start"], rope["rotary_start"] + cos.shape[-1]
        out = _rotated(rotate, x[..., start:stop], cos, sin, sections)
        return torch.cat((x[..., :start], out, x[..., stop:]), -1)

    return apply


def _rotated(rotate: Any, x: torch.Tensor, cos: Any, sin: Any, sections: dict) -> torch.Tensor:
    """Call a family's function, which takes q and k or one of them."""
    if "k" in inspect.signature(rotate).parameters:
        return rotate(x, x, cos, sin, **sections)[0]
    return rotate(x, cos, sin, unsqueeze_dim=1)
