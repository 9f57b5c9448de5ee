// The rope in doubles, for what moves. Python's definition has 40 digits; tests compare the two to
// the last digit that the page shows.

const TAU = 2 * Math.PI;

/** theta^(-2i/d): radians per token of each pair. */
export const plain = (dim, theta) => Array.from({ length: dim / 2 }, (_, i) => theta ** (-2 * i / dim));

const ntkTheta = (theta, factor, dim) => dim === 2 ? theta : theta * factor ** (dim / (dim - 2));

/** The pair, possibly a fraction, that completes `turns` turns within `length` tokens. */
const pairOf = (turns, dim, theta, length) => dim * Math.log(length / (turns * TAU)) / (2 * Math.log(theta));

function yarn({ dim, theta, factor, original, fast = 32, slow = 1, truncate = true }) {
  let low = pairOf(fast, dim, theta, original), high = pairOf(slow, dim, theta, original);
  if (truncate) { low = Math.floor(low); high = Math.ceil(high); }
  low = Math.max(low, 0);
  high = Math.min(high, dim - 1);
  if (low === high) high += 0.001;
  return plain(dim, theta).map((speed, i) => {
    const slowed = Math.min(Math.max((i - low) / (high - low), 0), 1);
    return speed / factor * slowed + speed * (1 - slowed);
  });
}

function llama3({ dim, theta, factor, original, low = 1, high = 4 }) {
  return plain(dim, theta).map((speed) => {
    const wave = TAU / speed;
    if (wave > original / low) return speed / factor;
    if (wave < original / high) return speed;
    const share = (original / wave - low) / (high - low || 1);
    return (1 - share) * speed / factor + share * speed;
  });
}

const mscale = (factor) => factor <= 1 ? 1 : 0.1 * Math.log(factor) + 1;

/** Each scaling: functions from a rope's settings to its frequencies and to its magnitude. */
export const SCALINGS = {
  default: { radians: ({ dim, theta }) => plain(dim, theta), magnitude: () => 1 },
  linear: { radians: ({ dim, theta, factor }) => plain(dim, theta).map((speed) => speed / factor), magnitude: () => 1 },
  ntk: { radians: ({ dim, theta, factor }) => plain(dim, ntkTheta(theta, factor, dim)), magnitude: () => 1 },
  dynamic: {
    radians: ({ dim, theta, factor, original, served }) => plain(dim, ntkTheta(theta, factor * Math.max(served, original) / original - (factor - 1), dim)),
    magnitude: () => 1,
  },
  yarn: { radians: yarn, magnitude: ({ factor }) => mscale(factor) },
  llama3: { radians: llama3, magnitude: () => 1 },
};

/** The rope of the story: its frequencies without and with the scaling, and what they reach. */
export function ropeOf({ dim, theta, trained, served, scaling }) {
  const given = { dim, theta, served, original: trained, factor: Math.max(served / trained, 1) };
  return { radians: SCALINGS[scaling].radians(given), plain: plain(dim, theta), magnitude: SCALINGS[scaling].magnitude(given), trained, served };
}

export const turns = (radians, length) => radians * length / TAU;

/** For each pair, whether it reaches angles that did not occur in training: it completed less than a turn there, and turns further now. */
export const newAngles = (rope) => rope.radians.map((speed, i) => {
  const seen = turns(rope.plain[i], rope.trained);
  return seen < 1 && turns(speed, rope.served) > seen * (1 + 1e-9);
});

/** The score of q and k at a distance if both are the same unit vector in every pair: the mean over pairs of cos(frequency * distance). */
export const score = (radians, distance) => radians.reduce((sum, speed) => sum + Math.cos(speed * distance), 0) / radians.length;

/** The largest error of cos and sin at a position if frequency, position and their product are rounded to float32. */
export function float32Error(radians, position) {
  let worst = 0;
  for (const speed of radians) {
    const exact = speed * position, rounded = Math.fround(Math.fround(speed) * Math.fround(position));
    worst = Math.max(worst, Math.abs(Math.cos(exact) - Math.cos(rounded)), Math.abs(Math.sin(exact) - Math.sin(rounded)));
  }
  return worst;
}

/** The rope of a config.json if this file can read its keys; null: Python has to read it. */
export function fromConfig(text, length) {
  let config;
  try { config = JSON.parse(text); } catch { return null; }
  if (typeof config !== "object" || config === null) return null;
  for (const part of ["text_config", "llm_config"]) if (typeof config[part] === "object" && config[part] !== null) config = config[part];
  const rope = config.rope_parameters ?? config.rope_scaling ?? {};
  if (typeof rope !== "object") return null;
  const number = (...values) => values.find((value) => typeof value === "number" && value > 0 && Number.isFinite(value));
  const head = number(config.qk_rope_head_dim, config.head_dim, config.hidden_size / config.num_attention_heads);
  const dim = 2 * Math.floor((head ?? 0) * (number(config.partial_rotary_factor, rope.partial_rotary_factor, config.rotary_pct) ?? 1) / 2);
  const theta = number(rope.rope_theta, config.rope_theta, config.rotary_emb_base) ?? 1e4;
  const name = rope.rope_type ?? rope.type ?? "default";
  if (!(dim >= 2 && dim <= 1024) || theta <= 1 || !Object.hasOwn(SCALINGS, name)) return null;
  const longest = number(config.max_position_embeddings) ?? 4096, factor = number(rope.factor) ?? 1;
  const trained = number(config.original_max_position_embeddings, rope.original_max_position_embeddings) ?? longest;
  const served = length ?? Math.max(longest, name === "default" ? 0 : Math.floor(trained * factor));
  const given = { dim, theta, factor, original: trained, served, low: number(rope.low_freq_factor), high: number(rope.high_freq_factor), fast: number(rope.beta_fast), slow: number(rope.beta_slow), truncate: rope.truncate };
  return { radians: SCALINGS[name].radians(given), plain: plain(dim, theta), magnitude: SCALINGS[name].magnitude(given), trained, served, scaling: name, theta };
}
