"""The tests that are run on the mutants of each module, those that find most of them first."""

from __future__ import annotations

_FREQUENCIES = ("test_frequencies", "test_refusals", "test_frequencies_hf", "test_spec", "test_table")
_CALLS = ("test_reliability", "test_reliability_calls")
_ATTENTION = tuple(f"attention/test_{name}" for name in ("whole_sequence", "attention_backends", "cache", "softmax", "linear"))
_CONFIG = (
    "interop/test_hf",
    "interop/test_hf_refusals",
    "interop/test_hf_strict",
    "interop/test_hf_export",
    "interop/test_hf_fuzz",
)
_EXTEND = ("interop/test_extend", "interop/test_extend_effect", "interop/test_extend_undo", "interop/test_extend_patched")
_PATCH = ("interop/test_patch_rotations", "interop/test_patch_parts", "interop/test_patch", "interop/test_rotary_contract")

TESTS: dict[str, tuple[str, ...]] = {
    # floors 0 to 2
    "errors": ("test_errors", "test_refusals"),
    "caches": ("test_caches",),
    "machine": ("test_machine",),
    **{f"frequencies/{name}": _FREQUENCIES for name in ("scaling", "formulas", "basic", "banded", "per_pair")},
    "frequencies/double_double": ("test_double_double", "test_exactness", "test_frequencies"),
    "axes": ("test_axes", "test_spec", "test_refusals"),
    "positions": ("test_positions", "test_positions_hf"),
    "spec": ("test_spec", "test_refusals", "test_table", "test_axes"),
    "phase": ("test_table", "test_exactness", "test_table_cache"),
    "table": ("test_table", "test_table_hf", "test_table_cache", "test_exactness", "test_checks"),
    "layout": ("test_layout",),
    "checks": ("test_checks", "test_rotation", "test_laws", "test_rerotate", *_CALLS),
    "rotation": ("test_rotation", "test_rerotate", "test_laws", "test_ops", "test_exactness", *_CALLS),
    "rope": ("test_rope", "test_fast_path", "test_rotation", "test_laws", "test_rerotate", *_CALLS, "compiled"),
    "ops": ("test_ops", "test_rotation", "test_laws", "test_reliability_calls"),
    "fast_path": ("test_fast_path", "test_rope", "test_checks", "kernels/test_cpu", "test_reliability_calls"),
    "kernels/reference": ("kernels/test_reference", "test_rotation", "test_laws"),
    "kernels/eager": ("test_rotation", "kernels/test_reference", "test_laws"),
    "kernels/request": ("test_rotation", "test_checks", "test_laws", "test_rerotate"),
    "kernels/launch": ("kernels/test_launch_plan", "kernels/test_cpu"),
    **{f"kernels/cpu/{name}": ("kernels/test_cpu", "test_fast_path", "test_rotation") for name in ("backend", "call")},
    # attention
    "attention/masks": _ATTENTION,
    "attention/backends": _ATTENTION,
    "attention/softmax": _ATTENTION,
    "attention/cache": ("attention/test_cache", "attention/test_softmax", "attention/test_cache_random"),
    **{
        f"attention/{name}": ("attention/test_whole_sequence", "attention/test_linear", "kernels/test_linear_kernels")
        for name in ("linear", "linear_sums")
    },
    "attention/documents": ("attention/test_whole_sequence", "attention/test_softmax", "attention/test_linear"),
    # interop
    **{f"interop/config/{name}": _CONFIG for name in ("checks", "hf", "layers", "read", "scalings", "values", "write")},
    "interop/config/file": ("interop/test_config_file", "interop/test_hf"),
    "interop/checkpoint/shards": ("interop/test_shards", "interop/test_convert"),
    "interop/checkpoint/safetensors_file": ("interop/test_shards", "interop/test_convert"),
    "interop/checkpoint/atomic_folder": ("interop/test_convert", "interop/test_shards"),
    "interop/checkpoint/which_layout": ("interop/test_which_layout", "interop/test_convert_commands"),
    "interop/checkpoint/layout_record": ("interop/test_which_layout", "interop/test_convert"),
    **{
        f"interop/checkpoint/{name}": (
            "interop/test_convert_completeness",
            "interop/test_convert",
            "interop/test_convert_families",
        )
        for name in ("attention_names", "convert", "tensor_rules")
    },
    **{f"interop/extend/{name}": _EXTEND for name in ("angles", "extension", "keys", "model", "swap")},
    "interop/extend/search": ("interop/test_longrope_search",),
    **{
        f"interop/patch/{name}": _PATCH
        for name in ("angles", "conventions", "functions", "length_hook", "methods", "model", "rotary", "trials")
    },
    "interop/engines/audit": ("interop/test_audit", "interop/test_audit_command"),
    "interop/engines/readers": ("interop/test_audit", "interop/test_audit_command"),
}
