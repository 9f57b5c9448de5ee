"""The part of llama.cpp's C interface that the runner needs, as declared in the llama.h and ggml.h
of xllamacpp 2026.10.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
from ctypes import (
    c_bool,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path


class Tensor(ctypes.Structure):
    """The C struct ggml_tensor, a node of the graph."""


Tensor._fields_ = [
    ("type", c_int),
    ("buffer", c_void_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", ctypes.POINTER(Tensor) * 10),
    ("view_src", c_void_p),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]
EvalCallback = ctypes.CFUNCTYPE(c_bool, ctypes.POINTER(Tensor), c_bool, c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class ModelParams(ctypes.Structure):
    """The C struct llama_model_params: how a model is loaded."""

    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class ContextParams(ctypes.Structure):
    """The C struct llama_context_params: how a loaded model is run."""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", EvalCallback),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class LlamaBatch(ctypes.Structure):
    """The C struct llama_batch: the tokens of one call of llama_decode."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", ctypes.POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", ctypes.POINTER(c_int32)),
        ("n_seq_id", ctypes.POINTER(c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(c_int32))),
        ("logits", ctypes.POINTER(c_int8)),
    ]


def load() -> ctypes.CDLL:
    """Return the C library inside the installed xllamacpp, with the types of the functions that the
    runner calls.
    """
    import xllamacpp

    library = ctypes.CDLL(str(next(Path(str(xllamacpp.__file__)).parent.glob("*.so"))))
    # the name of a function, the type of its result, the types of its arguments
    for name, result, *arguments in (
        ("llama_model_default_params", ModelParams),
        ("llama_context_default_params", ContextParams),
        ("llama_model_load_from_file", c_void_p, c_char_p, ModelParams),
        ("llama_init_from_model", c_void_p, c_void_p, ContextParams),
        ("llama_batch_init", LlamaBatch, c_int32, c_int32, c_int32),
        ("llama_decode", c_int32, c_void_p, LlamaBatch),
        ("llama_get_memory", c_void_p, c_void_p),
        ("llama_memory_clear", None, c_void_p, c_bool),
        ("llama_n_ctx", c_uint32, c_void_p),
        ("llama_free", None, c_void_p),
        ("llama_model_free", None, c_void_p),
        ("llama_backend_init", None),
        ("ggml_op_desc", c_char_p, ctypes.POINTER(Tensor)),
        ("llama_log_set", None, LogCallback, c_void_p),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library
