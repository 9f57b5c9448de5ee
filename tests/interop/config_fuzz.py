"""Random configs, valid and with one wrong field; run by test_hf_fuzz.py in an interpreter of its
own, without a type checker.

The type checker would refuse a wrong type before the package does, and takes ten times as long as
the calls that it checks.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import warnings
from typing import Any

import numpy as np
from config_spoil import spoil

from ropewalk import RopeError
from ropewalk.config.hf import from_hf
from ropewalk.tensor_frequencies import ladder

#: what the code of a family does, written down from its modeling file: layout, layout of the
#: result, default theta, and whether an unscaled rope reads the fraction of the head that rotates
FAMILIES: dict[Any, tuple[str, str, float, bool]] = {
    None: ("half", "half", 1e4, True),
    "tomorrow": ("half", "half", 1e4, True),
    "llama": ("half", "half", 1e4, False),
    "qwen2": ("half", "half", 1e4, False),
    "cohere": ("interleaved", "interleaved", 5e5, False),
    "gpt_neox": ("half", "half", 1e4, True),
    "glm4": ("interleaved", "interleaved", 1e4, True),
    "phi3": ("half", "half", 1e4, True),
    "deepseek_v3": ("interleaved", "half", 1e4, False),
    "hunyuan_v1_dense": ("half", "half", 1e4, False),
    "qwen2_vl": ("half", "half", 1e6, False),
    "qwen3_vl_text": ("half", "half", 5e5, False),
    "gemma3_text": ("half", "half", 1e6, False),
}
#: families whose config must give the fraction: without it, their code rotates a part of the head
PARTIAL = ("gpt_neox", "glm4")
#: families whose code has a head_dim of its own
OWN_HEAD = ("glm4", "qwen3_vl_text")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)
Meant = dict[str, Any]


def draw_rope(draw: random.Random, rope_type: str, pairs: int) -> dict:
    """Return the keys of a scaling with random values; optional keys are given, null or absent."""
    rope: dict = {}
    if rope_type in ("linear", "dynamic", "yarn", "llama3"):
        rope["factor"] = draw.choice([1, 2, 1.5, draw.uniform(1, 64)])
    if rope_type in ("yarn", "longrope", "llama3"):
        rope["original_max_position_embeddings"] = draw.choice([16, 128, 2048, 8192])
    if rope_type == "yarn":
        optional = {
            "beta_fast": draw.uniform(8, 64),
            "beta_slow": draw.uniform(0.5, 8),
            "truncate": draw.random() < 0.5,
            "attention_factor": draw.uniform(0.5, 2),
            "mscale": draw.choice([0, 1.0]),
            "mscale_all_dim": draw.choice([0, 0.7]),
        }
        rope |= {
            key: draw.choice([value, value, value, None])
            for key, value in optional.items()
            if draw.random() < 0.5
        }
    if rope_type == "longrope":
        rope |= {
            key: [draw.uniform(0.5, 40) for _ in range(pairs)]
            for key in ("short_factor", "long_factor")
        }
        rope |= {"factor": draw.choice([None, draw.uniform(1, 32)])} if draw.random() < 0.5 else {}
        rope |= (
            {"attention_factor": draw.choice([None, draw.uniform(0.5, 2)])}
            if draw.random() < 0.3
            else {}
        )
    if rope_type == "llama3":
        low = draw.uniform(0.5, 4)
        rope |= {
            "low_freq_factor": low,
            "high_freq_factor": low + draw.choice([0, 3, draw.uniform(0, 8)]),
        }
    if rope_type == "proportional" and draw.random() < 0.5:
        rope["factor"] = draw.choice([None, draw.uniform(1, 8)])
    return rope


def draw_config(draw: random.Random) -> tuple[dict, dict[str, Meant]]:
    """Return a valid config in a random spelling, and the plain values that each layer type means."""
    family = draw.choice([*FAMILIES, None, "tomorrow", "llama"])
    if family == "gemma3_text" or (family in (None, "llama") and draw.random() < 0.2):
        config, meant = draw_layers(draw, family)
    else:
        config, one = draw_flat(draw, family)
        names = draw.choice([["full_attention"], ["full_attention", "sliding_attention"]])
        config |= (
            {}
            if names == ["full_attention"] and draw.random() < 0.7
            else {"layer_types": 2 * names}
        )
        meant = dict.fromkeys(names, one)
    config |= (
        {"model_type": family} if family is not None else draw.choice([{}, {"model_type": None}])
    )
    config |= {key: 4 for key in ("num_hidden_layers", "n_layers") if draw.random() < 0.2}
    config |= {
        key: None
        for key in ("sliding_window", "rotary_dim", "head_dim")
        if key not in config and draw.random() < 0.2
    }
    if draw.random() < 0.15 and family is not None:
        part = draw.choice(["text_config", "llm_config", "language_config"])
        return {part: config, "vision_config": {"hidden_size": -1, "rope_theta": "none"}}, meant
    return config, meant


def draw_flat(draw: random.Random, family: str | None) -> tuple[dict, Meant]:
    """Return a config with one rope for all layers, and the values that it means."""
    layout, layout_out, own_theta, reads_partial = FAMILIES[family]
    rope_type = "longrope" if family == "phi3" and draw.random() < 0.8 else draw.choice(ROPE_TYPES)
    rope_type = "default" if family == "phi3" and rope_type != "longrope" else rope_type
    pairs, head_dim, fraction = draw.choice([3, 5, 8, 32]), 0, 1.0
    head_dim = 2 * pairs
    latent = family == "deepseek_v3"
    partial_allowed = (reads_partial or rope_type != "default") and not latent
    if partial_allowed and (family in PARTIAL or draw.random() < 0.3):
        head_dim, fraction = 4 * pairs, 0.5
    rotated = head_dim if rope_type == "proportional" else int(head_dim * fraction)
    rope = draw_rope(draw, rope_type, rotated // 2)
    served = draw.choice([1024, 4096, 131072])
    config: dict = {
        "max_position_embeddings"
        if rope_type in ("dynamic", "longrope")
        else draw.choice(LENGTHS): served
    }
    config |= (
        {"qk_rope_head_dim": head_dim}
        if latent
        else {"head_dim": head_dim}
        if family in OWN_HEAD
        else draw_head(draw, head_dim)
    )
    left_out = draw.random() < 0.15 and family not in (None, "tomorrow")
    given_theta = None if left_out else draw.choice([1e4, 1e6, 500_000, draw.uniform(2, 1e7)])
    # transformers takes a null `truncate` for false
    given = {
        key: value or False for key, value in rope.items() if value is not None or key == "truncate"
    }
    meant = {
        **given,
        "rope_type": rope_type,
        "theta": given_theta or own_theta,
        "head_dim": head_dim,
        "dim": rotated,
        "fraction": fraction,
        "served": served,
        "layout": layout,
        "layout_out": layout_out,
        "axes": None,
        "softmax": softmax_factor(rope) if latent else 1.0,
    }
    if latent and draw.random() < 0.5:
        config["rope_interleave"] = interleave = draw.random() < 0.5
        meant |= {} if interleave else {"layout": "half"}
    spelled = rope_type
    if family == "phi3" and rope_type == "longrope":
        spelled = draw.choice(["su", "yarn", "longrope"])
        if draw.random() < 0.5:  # Phi-3's class reads this key only beside the rope
            config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
        else:
            del rope["original_max_position_embeddings"]
            meant["original_max_position_embeddings"] = 4096
    if family == "hunyuan_v1_dense" and rope_type == "dynamic":
        rope["alpha"] = draw.uniform(1, 1000)
        meant |= {"rope_type": "ntk", "factor": rope["alpha"]}
    if family in ("qwen2_vl", "qwen3_vl_text") or (family is None and draw.random() < 0.2):
        sections, interleaved, meant["axes"] = draw_sections(draw, family, rotated // 2)
        rope["mrope_section"] = sections
        rope |= (
            {"mrope_interleaved": interleaved}
            if family is None and (interleaved or draw.random() < 0.5)
            else {}
        )
        spelled = draw.choice(["mrope", "default"]) if rope_type == "default" else spelled
    needed = family in PARTIAL or fraction != 1.0
    partial = (
        {"partial_rotary_factor": fraction}
        if partial_allowed and (needed or draw.random() < 0.3)
        else {}
    )
    # no known family of these reads rotary_dim
    width = int(head_dim * fraction) if family in (None, "tomorrow") else None
    return spell(
        draw, config, rope, spelled, given_theta, partial, width, family == "gpt_neox"
    ), meant


def draw_layers(draw: random.Random, family: str | None) -> tuple[dict, dict[str, Meant]]:
    """Return a config with one rope for each layer type, nested or in the old keys of Gemma 3, and
    what it means.
    """
    config, one = draw_flat(draw, "llama")
    rope = config.pop("rope_parameters", None) or config.pop("rope_scaling", None) or {}
    config.pop("rope_scaling", None)
    for key in (
        "rope_theta",
        "rotary_emb_base",
        "partial_rotary_factor",
        "rotary_pct",
        "rotary_emb_fraction",
        "rotary_dim",
    ):
        config.pop(key, None)
    if "head_dim" not in config:  # Gemma 3 has one in its code
        config["head_dim"] = one["head_dim"]
    local = {**one, "rope_type": "default", "theta": 5e3, "dim": one["head_dim"], "fraction": 1.0}
    name = rope.get("rope_type", rope.get("type", "default"))
    inside = {
        key: value for key, value in rope.items() if key not in ("rope_type", "type", "rope_theta")
    }
    if one["fraction"] != 1.0:
        inside["partial_rotary_factor"] = one["fraction"]
    if family == "gemma3_text" and draw.random() < 0.5 and one["fraction"] == 1.0:
        config |= {"rope_theta": one["theta"], "rope_local_base_freq": 5e3}
        config |= {"rope_scaling": {"rope_type": name, **inside}} if name != "default" else {}
        return config, {"full_attention": one, "sliding_attention": local}
    ropes = {"full_attention": {"rope_type": name, **inside, "rope_theta": one["theta"]}}
    ropes["sliding_attention"] = draw.choice(
        [{"rope_theta": 5e3}, {"rope_theta": 5e3, "rope_type": "default"}]
    )
    meant: dict[str, Any] = {"full_attention": one, "sliding_attention": local}
    if family != "gemma3_text" and draw.random() < 0.2:
        ropes["chunked_attention"] = meant["chunked_attention"] = None
    config |= {"rope_parameters": ropes, "layer_types": [*ropes]}
    return config, meant


def draw_head(draw: random.Random, head_dim: int) -> dict:
    """Return config keys from which the head has `head_dim` dimensions; beside the key head_dim the
    other sizes are free.
    """
    if draw.random() < 0.4:
        return {draw.choice(["head_dim", "attention_head_dim", "kv_channels"]): head_dim}
    size, heads = draw.choice(
        [("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "n_heads")]
    )
    config = {size: 4 * head_dim, heads: 4}
    return (
        config if draw.random() < 0.6 else {**config, size: 7 * head_dim + 1, "head_dim": head_dim}
    )


def draw_sections(
    draw: random.Random, family: str | None, pairs: int
) -> tuple[list, bool, tuple[int, ...]]:
    """Return random sections of the axes, whether they are interleaved, and the axis of each pair."""
    interleaved = family == "qwen3_vl_text" or (family is None and draw.random() < 0.5)
    third = pairs // 3
    sections = [pairs - 2 * third, third, third] if interleaved else [1, pairs - 2, 1]
    if interleaved:
        axes = [(i % 3) if i // 3 < third and i % 3 else 0 for i in range(pairs)]
    else:
        axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    return draw.choice([sections, [float(count) for count in sections]]), interleaved, tuple(axes)


def spell(
    draw,
    config: dict,
    rope: dict,
    name: str,
    theta: Any,
    partial: dict,
    width: int | None,
    own: bool,
) -> dict:
    """Return the config with theta, the rope and the fraction in one of their spellings; `own`: in
    those of GPT-NeoX alone.
    """
    names = draw.choice([{"rope_type": name}, {"type": name}, {"type": name, "rope_type": name}])
    rope = {**names, **rope}
    if draw.random() < 0.5:
        inside = {} if theta is None else {"rope_theta": theta}
        return {
            **config,
            "rope_parameters": {**rope, **inside, **partial},
            **draw.choice([{}, {"rope_scaling": None}]),
        }
    # a known family reads theta only under its own name; `width` is for families that are not known
    names_of_theta = ["rotary_emb_base"] if own else ["rope_theta"]
    names_of_theta += ["rotary_emb_base"] if width is not None else []
    beside = {} if theta is None else {draw.choice(names_of_theta): theta}
    if partial and (own or draw.random() < 0.5):
        fraction = partial["partial_rotary_factor"]
        # a known family reads the fraction only under its own name
        slices = [{"rotary_pct" if own else "partial_rotary_factor": fraction}]
        if not own and name != "proportional" and width is not None:
            slices.append({"rotary_dim": width})
        partial = draw.choice(slices)
    whole = {**config, **beside, "rope_scaling": rope, **partial}
    if names == {"rope_type": "default"} and rope == names:
        whole["rope_scaling"] = draw.choice([None, {}, rope])
    if draw.random() < 0.1 and whole["rope_scaling"]:
        whole["rope_parameters"] = copy.deepcopy(whole["rope_scaling"])
    return whole


def softmax_factor(rope: dict) -> float:
    """Return DeepSeek's own factor on the softmax scale."""
    weight = rope.get("mscale_all_dim")
    return (
        (1 + 0.1 * weight * math.log(rope["factor"])) ** 2
        if weight and rope.get("factor", 1) > 1
        else 1.0
    )


def oracle(meant: Meant, length: int) -> tuple[np.ndarray, float]:
    """Return radians per step and magnitude in float64, straight from the published formulas."""
    d, theta, s = meant["dim"], meant["theta"], meant.get("factor", 1.0)
    i = np.arange(d // 2)
    plain = theta ** (-2.0 * i / d)
    match meant["rope_type"]:
        case "linear":
            return plain / s, 1.0
        case "ntk":
            return (theta * s ** (d / (d - 2))) ** (-2.0 * i / d), 1.0
        case "dynamic":
            reached = max(length, meant["served"])
            return (theta * (s * reached / meant["served"] - (s - 1)) ** (d / (d - 2))) ** (
                -2.0 * i / d
            ), 1.0
        case "llama3":
            start, low, high = (
                meant[key]
                for key in (
                    "original_max_position_embeddings",
                    "low_freq_factor",
                    "high_freq_factor",
                )
            )
            turns = start * plain / (2 * math.pi)
            blend = (
                np.where(turns > high, 1.0, 0.0)
                if low == high
                else np.clip((turns - low) / (high - low), 0, 1)
            )
            return (1 - blend) * plain / s + blend * plain, 1.0
        case "yarn":
            start = meant["original_max_position_embeddings"]
            low, high = (
                d * math.log(start / (2 * math.pi * beta)) / (2 * math.log(theta))
                for beta in (meant.get("beta_fast", 32), meant.get("beta_slow", 1))
            )
            if meant.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, d - 1)
            blend = np.clip((i - low) / (high - low if high != low else 0.001), 0, 1)
            return plain * (1 - blend) + plain / s * blend, yarn_magnitude(meant, s)
        case "longrope":
            start = meant["original_max_position_embeddings"]
            stretch = meant.get("factor", meant["served"] / start)
            given = meant.get(
                "attention_factor",
                math.sqrt(1 + math.log(stretch) / math.log(start)) if stretch > 1 else 1.0,
            )
            return plain / np.array(
                meant["long_factor" if length > start else "short_factor"]
            ), given
        case "proportional":
            return np.where(i < int(meant["fraction"] * d // 2), plain, 0.0) / s, 1.0
    return plain, 1.0


def yarn_magnitude(meant: Meant, s: float) -> float:
    weighted = [
        1 + 0.1 * weight * math.log(s)
        for weight in (meant.get("mscale", 0), meant.get("mscale_all_dim", 0))
        if weight
    ]
    return meant.get(
        "attention_factor",
        weighted[0] / weighted[1] if len(weighted) == 2 else 1 + 0.1 * math.log(s),
    )


def read_valid(draw: random.Random) -> None:
    """Check one valid config: from_hf reads it, and its frequencies are right to the last digits of
    float64.
    """
    config, meant = draw_config(draw)
    before, length = repr(config), draw.choice([1, 16, 17, 2048, 200_000])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*'tomorrow' is not known", UserWarning)
        specs = from_hf(config, per_layer=True, precision="exact")
    if specs.keys() != meant.keys():
        raise AssertionError(f"other layer types: {config} -> {specs}")
    for name, expected in meant.items():
        spec = specs[name]
        if spec is None or expected is None:
            if spec is not expected:
                raise AssertionError(f"{name} rotates or not: {config}")
            continue
        found, (radians, magnitude) = ladder(spec, length), oracle(expected, length)
        shape = (
            spec.head_dim,
            spec.rotated_dims,
            spec.layout,
            spec.output_layout,
            spec.axes and spec.axis_of_pair,
        )
        if shape != tuple(
            expected[key] for key in ("head_dim", "dim", "layout", "layout_out", "axes")
        ):
            raise AssertionError(f"wrong slice, layout or axes: {config} -> {spec}")
        near = math.isclose(found.magnitude, magnitude, rel_tol=1e-12) and np.allclose(
            found.radians, radians, rtol=1e-9, atol=0
        )
        if not near or not math.isclose(spec.softmax_factor, expected["softmax"], rel_tol=1e-12):
            raise AssertionError(f"wrong frequencies at {length}: {config} -> {spec}")
    if repr(config) != before:
        raise AssertionError(f"written to: {config}")


def refuse_spoiled(draw: random.Random) -> None:
    """Check one config with one field spoiled: from_hf refuses it by that field's name, and does not
    change the dict.
    """
    config = copy.deepcopy(draw_config(draw)[0])
    names = spoil(draw, config)
    before = repr(config)
    try:
        specs = from_hf(config, per_layer=True)
    except RopeError as error:
        if error.field.split("[")[0] not in names:
            raise AssertionError(
                f"{names} spoiled, {error.field} named ({error}): {config}"
            ) from error
    except Exception as error:
        raise AssertionError(f"{names} spoiled, {type(error).__name__}: {config}") from error
    else:
        raise AssertionError(f"{names} accepted: {config} -> {specs}")
    if repr(config) != before:
        raise AssertionError(f"written to: {config}")


if __name__ == "__main__":
    count, seed = map(int, sys.argv[1:])
    source = random.Random(seed)
    for kind in (read_valid, refuse_spoiled):
        # a spoiled config may also have keys that its rope does not read, about which from_hf warns
        warnings.simplefilter("error" if kind is read_valid else "ignore")
        for _ in range(count):
            kind(source)
    print(f"{count} valid and {count} spoiled configs")
