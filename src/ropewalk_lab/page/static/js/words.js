// The words of the page, from words/en.json and words/zh.json.

export const LANGUAGES = { en: "English", zh: "中文" };
let words = {}, english = {};
export let language = "en";

const read = new Map();
/** Begin to read the words of a language. */
export function load(name) {
  if (!read.has(name)) read.set(name, fetch(new URL(`../words/${name}.json`, import.meta.url)).then((response) => { if (!response.ok) throw new Error(`words/${name}.json: ${response.status}`); return response.json(); }));
  return read.get(name);
}

/** Read the words of a language. */
export async function speak(name) {
  language = Object.hasOwn(LANGUAGES, name) ? name : "en";
  words = await load(language);
  english = language === "en" ? words : {};
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

/** The text of a key, with {names} replaced. */
export function t(key, values) {
  const text = words[key] ?? english[key] ?? key;
  return values ? text.replace(/\{(\w+)\}/g, (whole, name) => Object.hasOwn(values, name) ? String(values[name]) : whole) : text;
}

export const has = (key) => Object.hasOwn(words, key);

/** A text with `code` in it, as nodes. */
export function rich(key, values) {
  return t(key, values).split(/(`[^`]*`)/).filter(Boolean).map((part) => {
    if (!part.startsWith("`")) return document.createTextNode(part);
    const code = document.createElement("code");
    code.textContent = part.slice(1, -1);
    return code;
  });
}
