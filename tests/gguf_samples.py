"""Writes small GGUF files for tests; written from the format's description, it shares no code with
the reader. `log_probabilities` runs llama.cpp on a file.
"""

import struct
from pathlib import Path

import numpy as np

#: GGUF's numbers for the types of values and tensors
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
F32 = 0
#: number of ordinary tokens in the tokenizer of `with_tokenizer`: 256 bytes and 3 merges
VOCAB = 259
MERGES = ["t h", "th e", "Ġ the"]


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(content) -> bytes:
    """Return the bytes of a value with its type in front: bool, int (uint32), float (float32), str,
    or a list (ints as int32).
    """
    if isinstance(content, bool):
        return struct.pack("<I?", BOOL, content)
    if isinstance(content, int):
        return struct.pack("<II", UINT32, content)
    if isinstance(content, float):
        return struct.pack("<If", FLOAT32, content)
    if isinstance(content, str):
        return struct.pack("<I", STRING) + string(content)
    kind, code = {str: (STRING, ""), float: (FLOAT32, "f"), int: (INT32, "i"), bool: (BOOL, "?")}[
        type(content[0])
    ]
    entries = b"".join(
        string(each) if kind == STRING else struct.pack("<" + code, each) for each in content
    )
    return struct.pack("<IIQ", ARRAY, kind, len(content)) + entries


def header(
    pairs: list[bytes],
    tensors: list[bytes],
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """Return the bytes before the data; `counts` may be wrong numbers of tensors and pairs."""
    numbers = (len(tensors), len(pairs)) if counts is None else counts
    return b"GGUF" + struct.pack("<IQQ", version, *numbers) + b"".join(pairs) + b"".join(tensors)


def pair(key: str, content) -> bytes:
    return string(key) + value(content)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """Return the bytes of a tensor's entry; GGUF has the fastest dimension first."""
    return (
        string(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        + struct.pack("<IQ", kind, offset)
    )


def write(path: Path, metadata: dict, tensors: dict | None = None) -> Path:
    """Write a file; a tensor is a float array, or (GGUF's type number, shape, bytes) if it is
    quantised.
    """
    entries, data = [], b""
    for name, content in (tensors or {}).items():
        if not isinstance(content, tuple):
            array = np.ascontiguousarray(content, dtype="<f4")
            content = F32, array.shape, array.tobytes()
        entries.append(tensor(name, content[1], content[0], len(data)))
        data += content[2] + b"\0" * (-len(content[2]) % 32)
    start = header([pair(key, content) for key, content in metadata.items()], entries)
    path.write_bytes(start + b"\0" * (-len(start) % 32) + data)
    return path


def sizes(architecture: str = "llama", **more) -> dict:
    """Return the metadata of a model with 2 heads of 16 dimensions, without its rope; `more` are
    further keys.
    """
    keys = {
        "context_length": 512,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 48,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **more,
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": content for key, content in keys.items()},
    }


def interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Return the rows of q or k in the order of a Llama file: dimension i of the first half, then i
    of the second half.
    """
    order = [
        head + half + i
        for head in range(0, len(weight), head_dim)
        for i in range(head_dim // 2)
        for half in (0, head_dim // 2)
    ]
    return weight[order]


def byte_tokens() -> list[str]:
    """Return the 256 letters by which byte-level BPE writes bytes; a printable byte is written as
    itself.
    """
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    letters = {byte: chr(byte) for byte in kept} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }
    return [letters[byte] for byte in range(256)]


def llama_weights(
    seed: int = 0,
    *,
    vocab: int,
    hidden: int = 32,
    inner: int = 48,
    heads: int = 2,
    kv_heads: int = 1,
    dim: int = 16,
):
    """Return random weights of a Llama with two layers, by their names in a GGUF file; q and k are
    in the file's order.
    """
    draw = np.random.default_rng(seed)
    normal = lambda *shape: (draw.standard_normal(shape) * 0.3).astype(np.float32)
    weights = {"token_embd.weight": normal(vocab, hidden), "output_norm.weight": 1 + normal(hidden)}
    for layer in range(2):
        shapes = {
            "attn_norm": (hidden,),
            "attn_q": (heads * dim, hidden),
            "attn_k": (kv_heads * dim, hidden),
            "attn_v": (kv_heads * dim, hidden),
            "attn_output": (hidden, heads * dim),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        weights |= {
            f"blk.{layer}.{name}.weight": normal(*shape) + (len(shape) == 1)
            for name, shape in shapes.items()
        }
    return weights


def with_tokenizer(**changes) -> dict:
    """Return the metadata of a model with a byte-level BPE tokenizer; each of three tokens ends
    generation.
    """
    tokens = [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]
    special = ["<s>", "<end of text>", "<|im_end|>", "<end of message>", "<pad>"]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens + special,
        "token_type": [1] * len(tokens) + [3] * len(special),
        "merges": MERGES,
        "bos_token_id": len(tokens),
        "eos_token_id": len(tokens) + 1,
        "eom_token_id": len(tokens) + 3,
        "padding_token_id": len(tokens) + 4,
        "add_bos_token": True,
        **changes,
    }
    template = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}<|im_end|>"}
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    return sizes() | named | template


def log_probabilities(llama_cpp, path, tokens, vocab=VOCAB) -> np.ndarray:
    """Return the log-probabilities that llama.cpp gives all tokens of the vocabulary after `tokens`."""
    params = llama_cpp.CommonParams()
    params.model.path, params.n_ctx, params.n_batch, params.n_ubatch = str(path), 512, 64, 64
    params.cpuparams.n_threads = 1
    # llama.cpp's default, float16 keys and values, would add an error of 4e-3
    params.cache_type_k = params.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    asked = {"prompt": tokens, "max_tokens": 1, "logprobs": vocab, "temperature": 1.0}
    server = llama_cpp.Server(params)
    # if an end token is drawn, the answer is empty and has no probabilities: draw again
    answers = (server.handle_completions({**asked, "seed": seed}) for seed in range(50))
    drawn = next(each for each in answers if each["choices"][0]["logprobs"] is not None)
    tokens = drawn["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found = {each["id"]: each["logprob"] for each in tokens}
    return np.array([found[i] for i in range(vocab)])
