"""Facts about model families that their code fixes and no config contains: one entry per
`model_type`.

Read from the families' own modeling files; tests/interop compares every entry with that code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LayerTheta:
    """The theta of one layer type and its config key before v5, in a family whose layer types have
    different thetas.
    """

    layer_type: str
    #: None: no key is read, and theta is always the default
    theta_key: str | None
    theta: float
    #: whether `rope_scaling` applies to this layer type
    scaled: bool


@dataclass(frozen=True)
class Family:
    """Pair layout, defaults and special rules of one family; the defaults here are those of most
    families.
    """

    layout: str = "half"
    layout_out: str | None = None
    #: the config's `rope_interleave` chooses the layout: true for interleaved with `half` output,
    #: false for half
    has_interleave_flag: bool = False
    theta: float = 10_000.0
    #: theta if the config has no rope object, where it differs
    theta_without_rope: float | None = None
    #: the config keys of theta and of the fraction outside a rope object, where the config class
    #: reads no other names
    theta_key: str | None = None
    fraction_key: str | None = None
    #: latent attention: the rotated part of a head has a width of its own, `qk_rope_head_dim`
    latent: bool = False
    #: None: hidden_size // num_attention_heads
    head_dim: int | None = None
    #: head_dim of the full-attention layers if it differs
    global_head_dim: int | None = None
    partial: float = 1.0
    #: the fraction of a scaled rope that gives none, where it is another
    scaled_partial: float | None = None
    #: whether the unscaled rope reads `partial_rotary_factor`; the scaled types always do
    reads_partial: bool = False
    #: whether the code reads `rotary_dim`, and how many dimensions rotate if the config has none
    reads_rotary_dim: bool = False
    rotary_dim: int | None = None
    #: the rotated slice is at the end of the head
    at_end: bool = False
    #: order of `mrope_section` along the pairs, and its default
    axis_order: str | None = None
    sections: tuple[int, ...] | None = None
    #: the sections give the two members of a pair different axes, which is no rotation
    splits_pairs: bool = False
    layer_thetas: tuple[LayerTheta, ...] = ()
    #: layer types that are not rotated if the model has a sliding window
    unrotated: tuple[str, ...] = ()
    #: some layers are not rotated, by `no_rope_layers`; an empty list is an absent one in some
    #: families
    skips_layers: bool = False
    empty_is_absent: bool = False
    #: `layer_rope_theta` holds a theta for each layer, 0 for layers that are not rotated: "each" if
    #: layers rotate by it, "flag" if only 0 is told from others; without it, "flag" leaves every
    #: fourth layer, counted from the last, unrotated
    layer_theta: str | None = None
    #: no layer is rotated if the theta of the rope is null
    rope_is_optional: bool = False
    #: the attention factor of yarn if the config has none; None: as transformers computes it
    yarn_attention_factor: float | None = None
    #: the trained length of the config class, if it has one: a key inside the rope does not replace
    #: it
    trained_length: int | None = None
    #: in old configs "yarn" means longrope
    yarn_is_longrope: bool = False
    #: "dynamic" with `alpha` is NTK with a fixed factor
    reads_alpha: bool = False
    #: `short_mscale` and `long_mscale` are the magnitude
    reads_mscales: bool = False
    #: without a rope in the config, the model's code falls back to a scaled one, so the config must
    #: have it
    must_be_given: bool = False
    #: a config key, and its values with which the model rotates; None stands for an absent or null
    #: key
    rotates_if: tuple[str, tuple[object, ...]] | None = None
    #: the model's code raises an error for any other rope_type than default
    only_default: bool = False
    #: why no spec can describe this family
    refused: str | None = None

    def default_fraction(self, rope_type: str) -> float:
        """Return the fraction of the head that rotates if the config gives none."""
        return (
            self.partial
            if rope_type == "default" or self.scaled_partial is None
            else self.scaled_partial
        )


def _like(family: Family, names: str, **facts) -> dict[str, Family]:
    """Return {name: `family` with these facts changed} for each of the names, which are separated
    by spaces.
    """
    return dict.fromkeys(names.split(), replace(family, **facts))


def _two_thetas(
    full: tuple[str, float], sliding: tuple[str | None, float], sliding_scaled: bool = False
) -> tuple[LayerTheta, ...]:
    """Return the thetas of full and sliding attention, each given as (config key, default)."""
    return LayerTheta("full_attention", *full, scaled=True), LayerTheta(
        "sliding_attention", *sliding, sliding_scaled
    )


_PLAIN = Family()
_PARTIAL = Family(reads_partial=True)
_NEOX = Family(reads_partial=True, theta_key="rotary_emb_base", fraction_key="rotary_pct")
_INTERLEAVED = Family(layout="interleaved")
_MLA = Family(layout="interleaved", layout_out="half", latent=True)
_GEMMA3 = Family(
    head_dim=256, layer_thetas=_two_thetas(("rope_theta", 1e6), ("rope_local_base_freq", 1e4))
)
_MODERNBERT = Family(
    layer_thetas=_two_thetas(
        ("global_rope_theta", 1.6e5), ("local_rope_theta", 1e4), sliding_scaled=True
    )
)
_QWEN_VL = Family(theta=1e6, axis_order="chunked", sections=(16, 24, 24))
_QWEN3_VL = Family(theta=5e5, axis_order="interleaved", sections=(24, 20, 20))
_GLM_V = Family(reads_partial=True, axis_order="chunked", sections=(8, 12, 12))

FAMILIES: dict[str, Family] = {
    # pairs (i, i + d/2); the unscaled rope rotates the whole head and ignores partial_rotary_factor
    **_like(
        _PLAIN,
        "llama arcee aria_text chameleon dbrx diffllama doge dots1 eurobert falcon falcon_h1 granite granite4_vision_text "  # noqa: E501
        "granitemoe granitemoeshared hyperclovax idefics jais2 mistral ministral "
        "olmo olmo2 olmoe qwen2 qwen2_moe qwen3_moe starcoder2",
    ),
    **_like(_PLAIN, "esm", rotates_if=("position_embedding_type", ("rotary",))),
    **_like(_PLAIN, "granitemoehybrid", rotates_if=("position_embedding_type", ("rope",))),
    **_like(_PLAIN, "zamba2", rotates_if=("use_mem_rope", (True,))),
    **_like(_PLAIN, "minicpm3 hy_v4", latent=True),
    **_like(_PLAIN, "gemma gemma2 vaultgemma t5gemma", head_dim=256),
    **_like(_PLAIN, "molmo2_text qwen3 seed_oss", head_dim=128),
    **_like(_PLAIN, "ministral3", head_dim=128, must_be_given=True),
    **_like(_PLAIN, "apertus", theta=1.2e7, must_be_given=True),
    **_like(_PLAIN, "bitnet csm flex_olmo mllama_text_model", theta=5e5),
    **_like(_PLAIN, "emu3_text_model lfm2 lfm2_moe minimax mixtral", theta=1e6),
    **_like(_PLAIN, "cwm", theta=1e6, head_dim=128, must_be_given=True),
    **_like(_PLAIN, "gpt_oss", theta=1.5e5, head_dim=64, must_be_given=True),
    **_like(_PLAIN, "gte", theta=1.6e5, rotates_if=("position_embedding_type", (None, "rope"))),
    **_like(_PLAIN, "hy_v3", theta=11_158_840.0, head_dim=128),
    **_like(_PLAIN, "jetmoe", head_dim=128),
    **_like(_PLAIN, "nomic_bert", theta=1e3),
    **_like(_PLAIN, "phimoe", theta=1e6, reads_mscales=True),
    **_like(_PLAIN, "hunyuan_v1_dense hunyuan_v1_moe", reads_alpha=True),
    **_like(_PLAIN, "hunyuan_vl_text", reads_alpha=True, splits_pairs=True),
    **_like(_PLAIN, "minimind", theta=1e6, yarn_attention_factor=1.0),
    # some layers are not rotated
    **_like(_PLAIN, "afmoe", head_dim=128, unrotated=("full_attention",)),
    **_like(_PLAIN, "exaone4 exaone_moe", unrotated=("full_attention",)),
    **_like(_PLAIN, "smollm3", theta=2e6, skips_layers=True),
    **_like(_PLAIN, "beam", head_dim=128, unrotated=("full_attention",)),
    **_like(_PLAIN, "granite_swa", layer_theta="each"),
    **_like(_PLAIN, "muse_spark_text", theta_without_rope=5e5, head_dim=64, layer_theta="flag"),
    **_like(_PLAIN, "muse_glimmer_text", head_dim=128, layer_theta="flag"),
    **_like(_PLAIN, "olmo_hybrid", rope_is_optional=True),
    # the same pairs, and partial_rotary_factor is read
    **_like(_PARTIAL, "bamba glm4_moe glmasr nemotron persimmon phi recurrent_gemma", partial=0.5),
    **_like(_PARTIAL, "stablelm", partial=0.25),
    **_like(_PARTIAL, "qwen3_next", partial=0.25, head_dim=256),
    **_like(_NEOX, "gpt_neox", partial=0.25),
    **_like(_NEOX, "gpt_neox_japanese"),
    **_like(_PARTIAL, "minimax_m2", theta=5e6, head_dim=128, reads_rotary_dim=True),
    **_like(_PARTIAL, "minimax_m3_vl_text", theta=5e6, head_dim=128),
    **_like(_PARTIAL, "minimax_m1 minimax_text_01", theta=1e7, reads_rotary_dim=True),
    **_like(_PARTIAL, "solar_open", theta=1e6, head_dim=128),
    **_like(_PARTIAL, "phi3 phi4_multimodal", yarn_is_longrope=True, trained_length=4096),
    # pairs (2i, 2i + 1)
    **_like(
        _INTERLEAVED,
        "blt blt_global_transformer blt_local_decoder blt_local_encoder cohere",
        theta=5e5,
    ),
    **_like(_INTERLEAVED, "blt_patcher"),
    **_like(_INTERLEAVED, "cohere2", unrotated=("full_attention",)),
    **_like(_INTERLEAVED, "cohere2_moe", head_dim=128, unrotated=("full_attention",)),
    **_like(_INTERLEAVED, "ernie4_5", theta=5e5, head_dim=128),
    **_like(_INTERLEAVED, "ernie4_5_moe", theta=5e5),
    **_like(_INTERLEAVED, "helium", theta=1e5, head_dim=128),
    **_like(
        _INTERLEAVED,
        "llama4_text",
        theta=5e5,
        head_dim=128,
        skips_layers=True,
        empty_is_absent=True,
    ),
    **_like(_INTERLEAVED, "openai_privacy_filter", theta=1.5e5, head_dim=64, must_be_given=True),
    **_like(_INTERLEAVED, "roformer"),
    **_like(_INTERLEAVED, "deepseek_v2", latent=True),
    **_like(_INTERLEAVED, "gptj codegen", reads_partial=True, reads_rotary_dim=True, rotary_dim=64),
    **_like(_INTERLEAVED, "glm glm4", reads_partial=True, partial=0.5, head_dim=128),
    # pairs (2i, 2i + 1) in, halves out
    **_like(_MLA, "deepseek_v32 glm_moe_dsa axk2"),
    **_like(_MLA, "bailing_hybrid", theta=6e6),
    **_like(_MLA, "longcat_flash", theta=1e7),
    **_like(_MLA, "mistral_large4_text", skips_layers=True, must_be_given=True),
    **_like(_MLA, "deepseek_v3 kimi_k2 youtu axk1", has_interleave_flag=True),
    **_like(_MLA, "glm4_moe_lite", has_interleave_flag=True, reads_partial=True),
    **_like(_MLA, "mistral4", has_interleave_flag=True, must_be_given=True),
    # one theta per layer type
    **_like(_GEMMA3, "gemma3_text gemma3n_text"),
    **_like(_MODERNBERT, "modernbert modernbert-decoder"),
    **_like(_PLAIN, "olmo3", layer_thetas=_two_thetas(("rope_theta", 5e5), (None, 5e5))),
    **_like(
        _PLAIN,
        "gemma4_text gemma4_unified_text",
        head_dim=256,
        global_head_dim=512,
        must_be_given=True,
    ),
    **_like(_PARTIAL, "laguna mellum", head_dim=128, must_be_given=True),
    **_like(
        _PARTIAL,
        "mimo_v2_flash",
        partial=0.334,
        scaled_partial=1.0,
        head_dim=192,
        must_be_given=True,
    ),
    **_like(
        Family(
            layout="interleaved",
            reads_partial=True,
            at_end=True,
            head_dim=512,
            yarn_attention_factor=1.0,
        ),
        "deepseek_v4",
        layer_thetas=(
            LayerTheta("main", "rope_theta", 1e4, scaled=False),
            LayerTheta("compress", "compress_rope_theta", 1.6e5, scaled=True),
        ),
    ),
    # text, image and video on three axes
    **_like(_QWEN_VL, "qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text"),
    **_like(_QWEN_VL, "paddleocr_vl_text", theta=5e5, head_dim=128),
    **_like(_QWEN3_VL, "qwen3_vl_text", head_dim=128),
    **_like(_QWEN3_VL, "qwen3_vl_moe_text"),
    **_like(_QWEN3_VL, "cohere_compass_text", theta=1e4),
    **_like(_QWEN3_VL, "qwen3_omni_moe_text", theta=1e6),
    **_like(
        Family(
            axis_order="interleaved",
            sections=(11, 11, 10),
            partial=0.25,
            reads_partial=True,
            head_dim=256,
        ),
        "qwen3_5_text qwen3_5_moe_text",
    ),
    **_like(_GLM_V, "glm4v_text glm_ocr_text", layout="interleaved"),
    **_like(_GLM_V, "glm_image_text"),
    **_like(_GLM_V, "glm4v_moe_text", partial=0.5),
    **_like(
        _INTERLEAVED,
        "ernie4_5_vl_moe_text",
        theta=5e5,
        axis_order="ernie",
        sections=(22, 22, 20),
        only_default=True,
    ),
    # rotations that no spec describes
    "nanochat": Family(
        refused=(
            "rotates by the opposite angle; swap the halves of q and k before and after a plain "
            "spec"
        )
    ),
    **_like(
        Family(
            refused=(
                "rotates image patches by real coordinates, not tokens by a position; describe it with "
                "axes.normalised"
            )
        ),
        "dinov3_vit eomt_dinov3 sapiens2",
    ),
}

#: a model_type that is not in FAMILIES
UNKNOWN = Family(
    reads_partial=True,
    reads_rotary_dim=True,
    rotates_if=("position_embedding_type", (None, "rotary", "rope")),
)


def family_of(model_type: object) -> Family:
    """Return the family of a `model_type`; UNKNOWN, with the standard config keys and defaults, if
    it is not listed.
    """
    return FAMILIES.get(str(model_type), UNKNOWN)
