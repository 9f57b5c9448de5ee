"""The tests that are run on the mutants of each module; first those that find most mutants."""

from __future__ import annotations


def _each(folder: str, names: str, tests: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return {module: tests} with the same tests for several modules of a folder; `names` are
    separated by spaces.
    """
    return {f"{folder}/{name}": tests for name in names.split()}


def _in(folder: str, names: str) -> tuple[str, ...]:
    """Return the paths of test files in a folder of tests/, without "test_" in their `names`."""
    return tuple(f"{folder}/test_{name}" for name in names.split())


def _interpreted(names: str) -> tuple[str, ...]:
    """Return the paths of the files with laws of Triton kernels."""
    return tuple(f"kernels/interpreted_{name}" for name in names.split())


_FREQUENCIES = (
    "test_frequencies",
    "test_refusals",
    "test_frequencies_hf",
    "test_spec",
    "test_table",
    "test_bounds",
)
_NAMED = ("interop/test_hf_export", "interop/test_hf_refusals", "interop/test_hf_rope_types")
_POSITIONS = ("test_positions", "test_vision_positions", "test_positions_hf", "test_bounds")
_CALLS = ("test_reliability", "test_reliability_calls")
_ATTENTION = _in("attention", "whole_sequence attention_backends cache softmax linear")
_REMAP = (*_in("attention", "remap"), "models/test_defaults")
_RECENT = (*_in("attention", "token_driven"), "encodings/test_recent", "models/test_defaults")
_CONFIG = _in("interop", "config_rules hf hf_refusals hf_strict hf_export hf_rope_types hf_fuzz")
_EXTEND = _in("interop", "extend_rules extend extend_effect extend_undo extend_patched")
_PATCH = _in("interop", "patch_rules patch_rotations patch_parts patch rotary_contract")
_CONVERT = _in("interop", "convert_completeness checkpoint_files convert convert_families")
_AUDIT = _in("interop", "audit audit_rules audit_readers audit_command engine_runs")
_FIT = _in("interop", "fit_steps fit_open_model fit_samples fit fit_unrotated")
_GGUF = (
    *_in("interop", "gguf_keys gguf_file gguf_rope gguf_layers gguf_tokenizer gguf_tensors"),
    "models/test_gguf_models",
)
_RUNS = _in("interop", "engine_runs engine_records engine_runners")
_ENCODINGS = (*_in("encodings", "encodings rotary_encodings recent"), "models/test_defaults")
_NORM_ROTATION = _in("kernels", "norm_rotation norm_rotation_latent") + _interpreted(
    "norm_rotation"
)
_DECODE = _in("kernels", "decode_kernels") + _interpreted("decode")
_DECODER = _in("models", "defaults decoder decoder_kernels decoder_hf generation decoder_training")
_ROFORMER = _in("models", "defaults roformer roformer_options roformer_training checkpoints")
_SAVED = _in("models", "presets checkpoints checkpoints_hostile saved_models")
_TRAINING = _in("lab", "training_parts trainer batches evaluation schedule settings")
_STUDIES = _in(
    "lab",
    "study_tables study_jobs study_presets study_parts study_protocols study_findings "
    "progress_lines report",
)
_REAL = _in("lab", "real_tables study_jobs study_presets real_studies study_findings")
#: the tests that start no processes come first
_RING = _in(
    "distributed",
    "one_process ring::test_shards_are_a_partition "
    "ring::test_head_tail_shards_see_as_many_keys_on_every_rank "
    "ring::test_bad_arguments_of_ring_attention_are_refused "
    "ring::test_a_length_that_does_not_divide_is_refused_with_the_fix "
    "ring::test_one_rank_is_plain_attention "
    "ring::test_tiles_hold_every_visible_pair_once_and_none_is_empty "
    "ring::test_torch_why_not_names_what_the_engine_of_torch_cannot_run "
    "ring::test_parts_merge_to_the_softmax_of_the_whole_whatever_their_size ring",
)

TESTS: dict[str, tuple[str, ...]] = {
    # the two inner rings of the package (docs/design.md)
    "errors": ("test_errors", "test_refusals"),
    "caches": ("test_caches", "test_bounds"),
    "../ropewalk_lab/machine": ("test_machine",),
    "config/examples": ("commands/test_examples",),
    **_each("frequencies", "formulas basic", _FREQUENCIES),
    **_each("frequencies", "scaling banded per_pair", _FREQUENCIES + _NAMED),
    "frequencies/decimals": (
        "test_decimals",
        "test_exactness",
        "test_frequencies",
        "test_wrapping",
    ),
    "frequencies/wrapping": ("test_wrapping", "test_frequencies", "test_bounds"),
    "axes": (
        "test_axes",
        "test_spec",
        "test_refusals",
        "test_head_axes",
        "test_scaled_axes",
        "test_bounds",
    ),
    **_each(
        "positions",
        "text grids multimodal",
        ("test_positions", "test_vision_positions", "test_positions_hf", "test_bounds"),
    ),
    "positions/diffusion": (
        "interop/test_diffusion_configs",
        "test_positions",
        "test_vision_positions",
    ),
    "spec": (
        "test_spec",
        "test_refusals",
        "test_table",
        "test_axes",
        "test_bounds",
        "test_head_axes",
    ),
    "phase": ("test_table", "test_exactness", "test_table_cache"),
    "table": (
        *(
            "test_table",
            "test_table_hf",
            "test_table_cache",
            "test_table_strategies",
            "test_exactness",
            "test_checks",
        ),
        *("test_bounds", "test_head_axes"),
    ),
    "levels": ("test_levels", "test_table"),
    "layout": ("test_layout",),
    "tracing": ("test_rope", "test_ops", "test_fast_path", "test_bounds"),
    "checks": (
        "test_checks",
        "test_bounds",
        "test_rotation",
        "test_laws",
        "test_rerotate",
        *_CALLS,
    ),
    "rotation": (
        *(
            "test_rotation",
            "test_rerotate",
            "test_laws",
            "test_ops",
            "test_exactness",
            *_CALLS,
            "test_bounds",
            "test_head_axes",
        ),
    ),
    "rope": (
        "test_rope",
        "test_bounds",
        "test_fast_path",
        "test_rotation",
        "test_laws",
        "test_rerotate",
        *_CALLS,
        "compiled",
    ),
    "ops": ("test_ops", "test_bounds", "test_rotation", "test_laws", "test_reliability_calls"),
    "fast_path": (
        "test_fast_path",
        "test_rope",
        "test_checks",
        "kernels/test_cpu",
        "test_reliability_calls",
    ),
    "kernels/rotation/definition": ("kernels/test_reference", "test_rotation", "test_laws"),
    "kernels/rotation/eager": ("test_rotation", "kernels/test_reference", "test_laws"),
    "kernels/request": ("test_rotation", "test_checks", "test_laws", "test_rerotate"),
    "kernels/launch_plan": ("kernels/test_launch_plan", "kernels/test_cpu"),
    "kernels/support": _in("kernels", "triton norm_rotation") + _interpreted("norm_rotation"),
    **_each(
        "kernels/cpu",
        "backend call library",
        ("kernels/test_cpu", "test_fast_path", "test_rotation"),
    ),
    **_each(
        "kernels/rotation/triton",
        "angle_source angles backend config kernel launch pairs plan",
        _in("kernels", "triton"),
    ),
    **_each("kernels/norm_rotation", "api config definition kernel launch tiles", _NORM_ROTATION),
    **_each("kernels/decode_step", "attend config definition launch product workspace", _DECODE),
    **_each(
        "kernels/qkv",
        "api definition kernel launch",
        _in("kernels", "decode_kernels") + _interpreted("qkv decode"),
    ),
    **_each(
        "kernels/linear_attention",
        "api definition kernel",
        _in("kernels", "linear_kernels") + _interpreted("linear"),
    ),
    **_each(
        "kernels/banded_attention",
        "api definition kernel",
        _in("kernels", "banded_kernel") + _interpreted("banded"),
    ),
    # attention
    **_each("attention", "masks backends", (*_ATTENTION, *_REMAP)),
    "attention/softmax": (*_ATTENTION, *_REMAP, *_in("attention", "latent")),
    "attention/cache": _in("attention", "cache softmax cache_random"),
    "attention/linear": _in("attention", "whole_sequence linear") + _interpreted("linear"),
    "attention/linear_sums": _in("attention", "whole_sequence linear"),
    "attention/documents": _in("attention", "whole_sequence softmax linear"),
    "attention/latent": _in("attention", "latent"),
    **_each("attention", "lse remap remapped", _REMAP),
    **_each("attention", "path row_order selective short_conv token_driven", _RECENT),
    "attention/temperature": (
        *_in("attention", "temperature"),
        "interop/test_config_temperatures",
        "models/test_defaults",
    ),
    # encodings
    **_each("encodings", "absolute base bias fourier plus polar rotary", _ENCODINGS),
    "encodings/vjepa2": ("encodings/test_vjepa2",),
    # interop
    **_each("config", "checks families hf keys layers normal read values write", _CONFIG),
    "config/families": (*_CONFIG, *_in("interop", "hf_class_defaults hf_families")),
    "config/values": (*_CONFIG, *_in("interop", "config_file")),
    "config/hf": (*_CONFIG, *_in("interop", "config_temperatures unrotated")),
    "config/file": _in("interop", "config_file config_rules hf"),
    "config/diffusion": _in("interop", "diffusion_configs"),
    "config/temperatures": _in("interop", "config_temperatures"),
    **_each(
        "interop/checkpoint",
        "shards safetensors_file",
        _in("interop", "checkpoint_files shards convert"),
    ),
    "interop/checkpoint/atomic_folder": _in("interop", "checkpoint_files convert shards"),
    "interop/checkpoint/which_layout": _in(
        "interop", "which_layout convert_completeness convert_commands"
    ),
    "interop/checkpoint/layout_record": _in("interop", "which_layout convert_completeness convert"),
    **_each("interop/checkpoint", "attention_names convert tensor_rules", _CONVERT),
    **_each("interop/extend", "angles extension swap", _EXTEND),
    **_each("interop/extend", "keys model", (*_EXTEND, *_in("interop", "extend_remap longrope2"))),
    "interop/extend/search": _in("interop", "longrope_search"),
    "interop/extend/longrope2": _in("interop", "longrope2"),
    **_each("interop/extend", "remap remapped_model", _in("interop", "extend_remap")),
    **_each("interop/patch", "angles conventions functions methods model rotary trials", _PATCH),
    "interop/patch/length_hook": _in(
        "interop", "extend_rules extend_effect extend_patched patch_parts"
    ),
    **_each("engines", "audit case conditions difference operations reading rules unread", _AUDIT),
    "engines/recorded": _RUNS,
    **_each("../ropewalk_lab/engines_run", "installed measured", _RUNS),
    **_each("../ropewalk_lab/fit", "decide ledger summary", _in("interop", "fit_choice fit")),
    **_each("../ropewalk_lab/fit", "measure methods open_model session", _FIT),
    **_each(
        "../ropewalk_lab/fit", "passkeys reader text", _in("interop", "fit_samples fit_steps fit")
    ),
    **_each("gguf", "architectures factors file read tensor_types write", _GGUF),
    **_each("interop/gguf", "tensors tokenizer tokenizer_files weights", _GGUF),
    "interop/gguf/extend": _in("interop", "gguf_extend"),
    "interop/onnx": _in("interop", "onnx_operators onnx"),
    # analysis and models
    "analysis/advice": _in("analysis", "advice"),
    "analysis/checkpoint": _in("analysis", "checkpoint_facts"),
    "../ropewalk_lab/comparison": _in("analysis", "comparison"),
    "../ropewalk_lab/analysis/distance": _in("analysis", "distance"),
    "analysis/exactness": _in("analysis", "exactness_curves"),
    "analysis/facts": _in("analysis", "advice ladder checkpoint_facts"),
    "analysis/ladder": _in("analysis", "ladder"),
    "../ropewalk_lab/analysis/order": _in("analysis", "order"),
    "../ropewalk_lab/scores": (*_in("lab", "statistics"), "analysis/test_comparison"),
    **_each(
        "models",
        "decoder decoder_attention decoder_config decoder_loss experts layer_caches",
        _DECODER,
    ),
    "models/generation": _in("models", "defaults generation decoder"),
    "models/decode_step": _in("models", "decoder_kernels generation decoder")
    + _interpreted("decode_step"),
    "models/decoder_checkpoint": _in("models", "decoder_hf saved_models checkpoints"),
    **_each("models", "checkpoints checkpoint_formats presets", _SAVED),
    **_each(
        "models",
        "activations roformer roformer_checkpoint roformer_config roformer_heads",
        _ROFORMER,
    ),
    "models/migrate": _in("models", "defaults migrate"),
    # lab
    **_each(
        "../ropewalk_lab",
        "batches checkpoint evaluation gradients loader precision schedule settings trainer",
        _TRAINING,
    ),
    **_each(
        "../ropewalk_lab",
        "corpus sources stateless_random",
        _in("lab", "corpus batches stateless_random labelled"),
    ),
    **_each(
        "../ropewalk_lab",
        "data finetuning held_out model_folders runs",
        _in("lab", "held_out finetuning settings"),
    ),
    **_each(
        "../ropewalk_lab",
        "guide recommendations report report_html published",
        _in("lab", "guide published report"),
    ),
    **_each(
        "../ropewalk_lab",
        "labelled objectives samples",
        _in("lab", "labelled samples tasks finetune_page settings"),
    ),
    **_each(
        "../ropewalk_lab", "json_lines log progress", _in("lab", "progress_lines report trainer")
    ),
    "../ropewalk_lab/long_ce": _in("lab", "real_studies"),
    "../ropewalk_lab/matching": _in("lab", "matching study_parts"),
    "../ropewalk_lab/recalibration": _in("lab", "recalibration"),
    **_each(
        "../ropewalk_lab",
        "subwords text_rows tokenizer",
        _in("lab", "tokenizer text_rows labelled"),
    ),
    **_each("../ropewalk_lab", "tasks text_tasks", _in("lab", "tasks")),
    **_each(
        "../ropewalk_lab/studies",
        "decay encodings extend extension_methods findings jobs linear matching migrate",
        _STUDIES,
    ),
    **_each(
        "../ropewalk_lab/studies",
        "mlm_lengths multimodal passkey precision relative rows study training",
        _STUDIES,
    ),
    "../ropewalk_lab/studies/norms": (*_in("lab", "norms_study"), *_STUDIES),
    **_each(
        "../ropewalk_lab/studies",
        "real real_extend real_kv real_passkey real_precision real_tune",
        _REAL,
    ),
    # distributed
    **_each("distributed", "context_parallel placements ring ring_linear sharding tiles", _RING),
}
