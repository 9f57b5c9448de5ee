// A small rope: what a config means is in the `rope` of each case.

export function frequencies(rope, length) {
  const d = rope.rotary_dim, s = rope.scaling, ladder = (base) =>
    Array.from({ length: d / 2 }, (_, i) => base ** (-2 * i / d));
  const plain = ladder(rope.theta);
  switch (s.type) {
    case "linear":
      return plain.map((w) => w / s.factor);
    case "dynamic": {
      const reached = Math.max(length, s.original_length);
      const stretch = (s.factor * reached) / s.original_length - (s.factor - 1);
      return ladder(rope.theta * stretch ** (d / (d - 2)));
    }
    case "llama3":
      return plain.map((w) => {
        const turns = (s.original_length * w) / (2 * Math.PI);
        const t = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        const keep = Math.min(Math.max(t, 0), 1);
        return keep * w + ((1 - keep) * w) / s.factor;
      });
    case "yarn": {
      const pairWith = (turns) =>
        (d * Math.log(s.original_length / (2 * Math.PI * turns))) / (2 * Math.log(rope.theta));
      let low = pairWith(s.beta_fast), high = pairWith(s.beta_slow);
      if (s.truncate) [low, high] = [Math.floor(low), Math.ceil(high)];
      [low, high] = [Math.max(low, 0), Math.min(high, d - 1)];
      if (low === high) high += 0.001;
      return plain.map((w, i) => {
        const divided = Math.min(Math.max((i - low) / (high - low), 0), 1);
        return w * (1 - divided) + (w / s.factor) * divided;
      });
    }
    case "longrope": {
      const factors = length > s.original_length ? s.long_factor : s.short_factor;
      return plain.map((w, i) => w / factors[i]);
    }
    case "proportional":
      return plain.map((w, i) => (i < Math.floor((s.fraction * d) / 2) ? w / s.factor : 0));
    default:
      return plain;
  }
}

export function magnitude(rope) {
  const s = rope.scaling;
  if (s.type !== "yarn" && s.type !== "longrope") return 1;
  if (s.attention_factor !== null) return s.attention_factor;
  if (s.type === "longrope") {
    return s.factor <= 1 ? 1 : Math.sqrt(1 + Math.log(s.factor) / Math.log(s.original_length));
  }
  const m = (weight) => (s.factor <= 1 ? 1 : 0.1 * weight * Math.log(s.factor) + 1);
  return s.mscale && s.mscale_all_dim ? m(s.mscale) / m(s.mscale_all_dim) : m(1);
}

function axisOfPair(rope) {
  const axis = new Array(rope.rotary_dim / 2).fill(0);
  if (rope.axes === null) return axis;
  const { order, sections } = rope.axes;
  if (order === "chunked") return sections.flatMap((size, a) => new Array(size).fill(a));
  for (const a of [1, 2]) for (let i = a; i < 3 * sections[a]; i += 3) axis[i] = a;
  return axis;
}

// position: one coordinate for each axis
export function cosSin(rope, position, length) {
  const axis = axisOfPair(rope), size = magnitude(rope);
  const angles = frequencies(rope, length).map((w, i) => w * position[axis[i]]);
  return [angles.map((a) => size * Math.cos(a)), angles.map((a) => size * Math.sin(a))];
}

export function rotate(rope, x, cos, sin) {
  const out = x.slice(), pairs = rope.rotary_dim / 2, start = rope.rotary_start;
  for (let i = 0; i < pairs; i++) {
    const a = start + (rope.layout === "half" ? i : 2 * i);
    const b = rope.layout === "half" ? a + pairs : a + 1;
    out[a] = cos[i] * x[a] - sin[i] * x[b];
    out[b] = sin[i] * x[a] + cos[i] * x[b];
  }
  return out;
}
