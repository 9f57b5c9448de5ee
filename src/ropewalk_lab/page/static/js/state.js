// The state of the page is in the hash of its address: #view?name=value&... Every value is checked
// here against its kind and its limits; what does not fit is dropped.

export const LONGEST = 200_000;
export const VIEWS = ["doctor", "story", "engines", "methods", "model"];

const integer = (low, high) => ({ read: (text) => /^\d{1,13}$/.test(text) && Number(text) >= low && Number(text) <= high ? Number(text) : undefined, write: String });
const oneOf = (...names) => ({ read: (text) => names.includes(text) ? text : undefined, write: String });
const word = { read: (text) => text.length <= 120 && /^[\p{L}\p{N} ._,:+()/-]*$/u.test(text) ? text : undefined, write: String };
const list = { read: (text) => text.length <= 2000 ? text.split("~").slice(0, 40).filter((each) => word.read(each)) : undefined, write: (names) => names.join("~") };
const text = { read: decode, write: encode };

const LENGTH = integer(1, 2 ** 40);
/** name: its kind, and its value in a new page */
export const FIELDS = {
  lang: [oneOf("en", "zh"), null],
  // the doctor
  model: [word, null], config: [text, null], engine: [oneOf("transformers", "vllm", "sglang", "mlx-lm", "llama.cpp"), null], length: [LENGTH, null],
  // the story
  step: [integer(1, 7), 1], trained: [integer(16, 2 ** 24), 4096], served: [integer(16, 2 ** 24), 16384], scaling: [oneOf("default", "linear", "ntk", "dynamic", "yarn", "llama3"), "default"],
  theta: [integer(2, 2 ** 40), 10000], dim: [oneOf("32", "64", "96", "128", "256"), "64"], pair: [integer(0, 127), 8], distance: [integer(0, 2 ** 24), 12], shift: [integer(0, 2 ** 24), 0], case: [word, null],
  // the engines
  family: [word, null], kind: [word, null], stack: [word, null], version: [word, null], find: [word, null], all: [oneOf("1"), null], cell: [word, null],
  // the methods
  study: [word, null], metric: [word, null], methods: [list, null],
};

function encode(value) {
  const data = new TextEncoder().encode(value);
  let binary = "";
  for (const byte of data) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function decode(value) {
  if (value.length > LONGEST || !/^[\w-]*$/.test(value)) return undefined;
  try {
    const binary = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(binary, (character) => character.charCodeAt(0)));
  } catch { return undefined; }
}

/** The state that a hash describes. */
export function parse(hash) {
  const state = { view: "doctor", ...Object.fromEntries(Object.entries(FIELDS).map(([name, [, first]]) => [name, first])) };
  if (hash.length > LONGEST) return state;
  const [view, rest = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  if (VIEWS.includes(view)) state.view = view;
  for (const part of rest.split("&").slice(0, 60)) {
    const at = part.indexOf("=");
    const name = part.slice(0, at);
    if (at < 1 || !Object.hasOwn(FIELDS, name)) continue;
    try {
      const value = FIELDS[name][0].read(decodeURIComponent(part.slice(at + 1)));
      if (value !== undefined) state[name] = value;
    } catch { /* a broken escape */ }
  }
  return state;
}

/** The hash of a state; values that a new page has are left out. */
export function format(state) {
  const parts = [];
  for (const [name, [kind, first]] of Object.entries(FIELDS)) {
    const value = state[name];
    if (value === null || value === undefined || value === first || (name === "lang")) continue;
    parts.push(`${name}=${encodeURIComponent(kind.write(value)).replaceAll("%20", "+").replaceAll("+", "%20")}`);
  }
  if (state.lang) parts.push(`lang=${state.lang}`);
  return `#${state.view}${parts.length ? "?" + parts.join("&") : ""}`;
}
