"""A plain rope in NumPy: it reads the configs of the vectors and shares no code with the package.

`bug` plants one bug that a public project had. Everything else is as the definition has it.
"""

import math

import numpy as np

#: the coefficient of ln(factor) in YaRN's magnitude
MSCALE = 0.1


class Plain:
    """The functions that the runner calls."""

    def __init__(self, bug=None):
        self.bug = bug
        self.cache = {}
        self.table_dtype = np.float64

    # what a config says

    def read(self, config, part=None):
        """Return (head_dim, rotated dims, start, theta, scaling keys, layout)."""
        kind = config["model_type"]
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        theta = config.get("rope_theta", config.get("rotary_emb_base"))
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        start, layout = 0, "half"
        if part in scaling:
            scaling = scaling[part]
        if kind == "gemma4_text" and part == "full_attention":
            head = config["global_head_dim"]
        if kind == "gemma3_text" and part == "sliding_attention":
            theta, scaling = config["rope_local_base_freq"], {}
        if kind == "modernbert":
            theta = config["global_rope_theta" if part == "full_attention" else "local_rope_theta"]
        if theta is None or (self.bug == 2 and "rope_parameters" in config):
            theta = 10000.0 if self.bug == 2 else scaling["rope_theta"]
        fraction = config.get("partial_rotary_factor", config.get("rotary_pct"))
        fraction = fraction or scaling.get("partial_rotary_factor", 1)
        dims = head
        if scaling.get("rope_type") != "proportional":
            dims = int(head * fraction)
        if "qk_rope_head_dim" in config:
            dims, start, layout = (
                config["qk_rope_head_dim"],
                config["qk_nope_head_dim"],
                "interleaved",
            )
            head = dims + start
            if part == "indexer":
                head, start = config["index_head_dim"], 0
                layout = "interleaved" if config.get("indexer_rope_interleave") else "half"
                if self.bug == 6:
                    layout = "half" if layout == "interleaved" else "interleaved"
        if kind in ("cohere", "glm4", "gptj"):
            layout = "interleaved"
        if self.bug == 1 and kind != "phi3":  # phi3's lists of factors would not fit whole heads
            dims, start = head, 0
        if self.bug == 5 and scaling.get("rope_type") == "proportional":
            dims, scaling = int(head * fraction), {}
        if (self.bug == 4 and "yarn" in scaling.values()) or (self.bug == 7 and part == "draft"):
            scaling = {}
        return head, dims, start, theta, scaling, layout

    # frequencies

    def inv_freq(self, config, part=None, length=None):
        _, dims, _, theta, scaling, _ = self.read(config, part)
        key = (config["model_type"], dims, part)
        if self.bug == 20 and key in self.cache:
            return self.cache[key]
        if self.bug == 3:  # the frequencies of the first config are used for later configs too
            key = (config["model_type"], dims, theta)
            if key in self.cache:
                return self.cache[key]
        plain = theta ** (-np.arange(0, dims, 2) / dims)
        made = self.scaled(plain, dims, theta, scaling, config, length, part)
        if self.bug in (3, 20):
            self.cache[key] = made
        return made

    def scaled(self, w, dims, theta, scaling, config, length, part):
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        s = scaling.get("factor")
        trained = scaling.get("original_max_position_embeddings")
        trained = config.get("original_max_position_embeddings", trained)
        if kind == "linear":
            return w / s, 1.0
        if kind == "dynamic":
            most = config["max_position_embeddings"]
            stretch = s * max(length or most, most) / most - (s - 1)
            return (theta * stretch ** (dims / (dims - 2))) ** (-np.arange(0, dims, 2) / dims), 1.0
        if kind == "llama3":
            turns = trained * w / (2 * np.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            smooth = np.clip((turns - low) / (high - low), 0, 1)
            return w / s * (1 - smooth) + w * smooth, 1.0
        if kind == "yarn":
            ends = [
                dims * math.log(trained / (2 * math.pi * beta)) / (2 * math.log(theta))
                for beta in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))
            ]
            if scaling.get("truncate", True):
                ends = [math.floor(ends[0]), math.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], dims - 1)
            keep = 1 - np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
            return w * keep + w / s * (1 - keep), self.yarn_size(scaling, s)
        if kind == "longrope":
            s = config["max_position_embeddings"] / trained
            size = scaling.get("attention_factor") or math.sqrt(1 + math.log(s) / math.log(trained))
            name = "long_factor" if length and length > trained else "short_factor"
            return w / np.array(scaling[name]), size
        if kind == "proportional":
            turning = int(len(w) * scaling["partial_rotary_factor"])
            return np.where(np.arange(len(w)) < turning, w, 0), 1.0
        return w, 1.0

    def yarn_size(self, scaling, s):
        m = lambda weight: MSCALE * weight * math.log(s) + 1
        if scaling.get("attention_factor") is not None:
            return scaling["attention_factor"]
        if scaling.get("mscale"):
            return m(scaling["mscale"]) / m(scaling["mscale_all_dim"])
        return m(1)

    # tables

    def axes(self, config, pairs):
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        sections = scaling.get("mrope_section")
        if sections is None:
            return np.zeros(pairs, int)
        if not scaling.get("mrope_interleaved"):
            return np.repeat([0, 1, 2], sections)
        axis = np.zeros(pairs, int)
        axis[1 : 3 * sections[1] : 3] = 1
        axis[2 : 3 * sections[2] : 3] = 2
        return axis

    def cos_sin(self, config, positions, part=None):
        positions = np.asarray(positions)
        positions = positions if positions.ndim == 3 else positions[None]
        positions = self.seen(positions, config, part)
        length = int(positions.max()) + 1
        if self.bug == 17 and config["model_type"] == "phi3":  # short or long factors by token
            trained = config.get("original_max_position_embeddings", 0)
            parts = [self.inv_freq(config, part, n) for n in (trained, trained + 1)]
            w = np.where((positions[0] < trained)[..., None], parts[0][0], parts[1][0])
            size = parts[0][1]
        else:
            w, size = self.inv_freq(config, part, length)
        axis = self.axes(config, w.shape[-1])
        if len(positions) == 1:
            axis = axis * 0
        angle = np.moveaxis(positions[axis], 0, -1) * w
        return (
            self.rounded(size * np.cos(angle)),
            self.rounded(size * np.sin(angle)),
        )

    def rounded(self, table):
        """Return a table as it is stored; bfloat16 by cutting float32 after rounding."""
        if self.table_dtype == "bfloat16":
            bits = table.astype(np.float32).view(np.uint32)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            return bits.astype(np.uint32).view(np.float32).astype(np.float64)
        return table.astype(self.table_dtype)

    def seen(self, positions, config, part):
        """Return the positions that the rotation uses; some bugs change them."""
        count, batch, tokens = positions.shape
        if self.bug == 8 and part == "draft" and count == 3:
            return np.broadcast_to(positions[:1], positions.shape)
        if self.bug == 19 and part == "draft" and count == 3:
            ids = np.concatenate([positions[:, :, 0].T.ravel(), np.zeros(999, int)])
            at = np.arange(batch * tokens).reshape(batch, tokens)
            return np.stack([ids[at * 3 + axis] for axis in range(3)])
        if self.bug == 13 and tokens == 1:
            return np.broadcast_to(positions[:, :1], positions.shape)
        return positions

    # vectors

    def rotate(self, config, q, k, positions, part=None, q_scale=1.0, k_scale=1.0):
        kind = str(getattr(q, "dtype", ""))
        if self.bug == 12 and "16" in kind:
            self.table_dtype = np.float16 if kind == "float16" else "bfloat16"
        if self.bug == 15:
            q_scale = k_scale = 1.0
        cos, sin = self.cos_sin(config, positions, part)
        q, k = (
            self.turned(config, np.asarray(x, dtype=np.float64) * scale, cos, sin, part)
            for x, scale in ((q, q_scale), (k, k_scale))
        )
        if self.bug == 13.5 and q.shape[2] == 1:
            q[1:] = k[1:] = 0
        return q, k

    def turned(self, config, x, cos, sin, part=None):
        _, dims, start, _, _, layout = self.read(config, part)
        cos, sin = cos[:, None], sin[:, None]
        out, mine = x.copy(), x[..., start : start + dims]
        if layout == "half":
            a, b = mine[..., : dims // 2], mine[..., dims // 2 :]
            made = np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
        else:
            a, b = mine[..., ::2], mine[..., 1::2]
            made = np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(mine.shape)
        out[..., start : start + dims] = made
        return out

    # the rest

    def softmax_scale(self, config):
        head, _, _, _, scaling, _ = self.read(config)
        scale = 1 / math.sqrt(head)
        if "qk_rope_head_dim" in config and self.bug != 14:
            scale *= (MSCALE * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
        return scale

    def attention(self, config, q, k, v, positions, shards=1):
        positions = np.asarray(positions)
        q, k = self.rotate(config, q, k, positions)
        v = np.asarray(v, dtype=np.float64)
        document = np.cumsum(positions == 0, -1)
        if (self.bug == 10 and "rope_scaling" in config) or (self.bug == 11 and shards > 1):
            document = document * 0
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = q @ k.swapaxes(-1, -2) * self.softmax_scale(config)
        allowed = np.tril(document[:, :, None] == document[:, None])
        scores = np.where(allowed[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v

    def move(self, config, k, old, new):
        if self.bug == 18:
            return k
        (w, _), (_, _, _, _, _, _) = self.inv_freq(config), self.read(config)
        angle = (np.asarray(new) - np.asarray(old))[..., None] * w
        return self.turned(config, np.asarray(k, dtype=np.float64), np.cos(angle), np.sin(angle))

    def permute(self, config, weight, heads):
        weight = np.asarray(weight)
        dims = self.read(config)[1]
        times = {16: 0, 16.5: 2}.get(self.bug, 1)
        for _ in range(times):
            each = weight.reshape(heads, -1, weight.shape[-1])
            mine = each[:, :dims]
            mine = np.concatenate([mine[:, ::2], mine[:, 1::2]], 1)
            weight = np.concatenate([mine, each[:, dims:]], 1).reshape(weight.shape)
        return weight

    def mrope_positions(self, config, segments):
        merge, rate = config["spatial_merge_size"], config["tokens_per_second"]
        parts, start = [], 0
        for segment in segments:
            if "text" in segment:
                line = start + np.arange(segment["text"])
                parts.append(np.stack([line] * 3))
                start += segment["text"]
                continue
            t, h, w = segment.get("image") or segment["video"]
            step = segment.get("seconds", 0) * rate
            grid = np.indices((t, h // merge, w // merge)).reshape(3, -1)
            time = np.floor(grid[0] * step).astype(int) + start
            if self.bug == 9 and step:
                time = ((grid[0] + start) * step).astype(int)
            parts.append(np.stack([time, grid[1] + start, grid[2] + start]))
            start += max(h, w) // merge
        return np.concatenate(parts, 1)

    def from_gguf(self, metadata, tensors):
        name = metadata["general.architecture"]
        get = lambda key, default=None: metadata.get(f"{name}.{key}", default)
        dims = get("rope.dimension_count")
        dims = dims or get("embedding_length") // get("attention.head_count")
        scaling = {"rope_type": get("rope.scaling.type", "default")}
        scaling["factor"] = get("rope.scaling.factor")
        scaling["original_max_position_embeddings"] = get("rope.scaling.original_context_length")
        theta = get("rope.freq_base")
        w = theta ** (-np.arange(0, dims, 2) / dims)
        if "rope_freqs.weight" in tensors:
            return w / np.array(tensors["rope_freqs.weight"])
        return self.scaled(w, dims, theta, scaling, {}, None, None)
