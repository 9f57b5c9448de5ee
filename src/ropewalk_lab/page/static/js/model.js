// Your model: on a local page a model of this machine reads a text, before and after an extension.
import { h, s, clear, colours } from "./dom.js";
import { t } from "./words.js";
import { digits, percent, whole } from "./numbers.js";
import { chart } from "./chart.js";
import { labelled, select, slider } from "./controls.js";

const NUMBERS = { tokens: 256, depth: 25, gap: 16384, factor: 4 };
let about = null, kept = { text: "filler", method: "yarn", typed: "", model: null, ...NUMBERS }, last = null;

export function model(app) {
  const holder = h("div", { class: "columns" }, h("p", { class: "mute" }, "…"));
  const load = about ? Promise.resolve() : fetch("api/about").then((response) => response.json()).then((found) => { about = found; kept.model ??= found.model; });
  load.then(() => draw(holder), () => clear(holder, h("p", {}, t("python.failed"))));
  return h("div", {}, h("div", { class: "head" }, h("h1", {}, t("model.title")), h("p", {}, t("model.lead"))), holder);
}

function draw(holder) {
  const out = h("section", { class: "stack" }), bar = h("i"), progress = h("div", { class: "bar", role: "progressbar", "aria-label": t("model.reading"), "aria-valuemin": 0, "aria-valuemax": 100, hidden: true }, bar);
  const path = h("input", { type: "text", value: kept.model ?? "", maxlength: 4096, spellcheck: "false", oninput: () => { kept.model = path.value.trim(); } });
  const typed = h("textarea", { rows: 5, maxlength: 65536, value: kept.typed, oninput: () => { kept.typed = typed.value; } });
  const own = h("div", { hidden: kept.text !== "own" }, labelled(t("model.typed"), typed));
  const move = (name, low, high, options = {}) => slider({ label: t(`model.${name}`), low, high, value: kept[name], text: whole, oninput: (value) => { kept[name] = value; }, ...options }).element;
  const button = h("button", { type: "button", class: "primary", onclick: () => read() }, t("model.read"));

  async function read(layer = null, head = null) {
    if (!kept.model) return clear(out, message(t("model.name")));
    button.disabled = true;
    progress.hidden = false;
    try {
      const response = await fetch("api/read", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...kept, depth: kept.depth / 100, layer, head }) });
      if (!response.ok) throw new Error(String(response.status));
      await lines(response.body, (line) => {
        if (line.progress !== undefined) { bar.style.width = `${100 * line.progress}%`; progress.setAttribute("aria-valuenow", Math.round(100 * line.progress)); }
        if (line.error) clear(out, message(`${line.error.field}: ${line.error.rule}`));
        if (line.ok) { last = line.ok; show(out, line.ok, read); }
      });
    } catch (error) { clear(out, message(t("model.failed", { why: error.message }))); }
    button.disabled = false;
    progress.hidden = true;
  }

  clear(holder, h("section", { class: "stack tight" },
    labelled(t("model.path"), path), h("p", { class: "small mute" }, t("model.path.help")),
    select(t("story.scaling"), Object.fromEntries(about.methods.filter((name) => name !== "none").map((name) => [name, name])), kept.method, (name) => { kept.method = name; }),
    move("factor", 1, 32, { steps: true }),
    select(t("model.text"), Object.fromEntries(about.texts.map((name) => [name, t(`model.text.${name}`)])), kept.text, (name) => { kept.text = name; own.hidden = name !== "own"; }), own,
    move("tokens", 64, about.max_tokens), move("depth", 0, 100), move("gap", 1, 1048576, { log: true }),
    h("p", { class: "small mute" }, t("model.gap.help")), h("div", { class: "row" }, button, about.report ? h("a", { class: "button", href: "report" }, t("model.report")) : null), progress), out);
  if (last) show(out, last, read);
  else if (kept.model) clear(out, h("p", { class: "mute" }, t("model.ready")));
  else clear(out, h("p", { class: "mute" }, t("model.name")));
}

const message = (text) => h("div", { class: "verdict bad" }, h("span", { class: "sign", "aria-hidden": "true" }, "✕"), h("h2", {}, text));

/** Call a function with each line of JSON of a stream. */
async function lines(stream, each) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) each(JSON.parse(part));
  }
}

/** The attention of one head: keys to the right, queries downwards. */
function heat(map, top, label) {
  const colour = colours(), cells = map.length, size = 300, cell = size / cells, parts = [];
  map.forEach((row, y) => row.forEach((value, x) => { if (value > top * 0.004) parts.push(s("rect", { x: x * cell, y: y * cell, width: cell + 0.3, height: cell + 0.3, fill: colour.good, "fill-opacity": Math.min(Math.sqrt(value / top), 1).toFixed(3) })); }));
  return s("svg", { class: "chart", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label }, s("rect", { width: size, height: size, fill: colour.soft }), parts);
}

function show(out, found, read) {
  const { before, after } = found.readings, names = { before: t("model.before"), after: t("model.after", { method: kept.method }) };
  const top = Math.max(...[before, after].flatMap((each) => each.map.flat()));
  const choose = (name, count, value) => select(t(`model.${name}`), Object.fromEntries(Array.from({ length: count }, (_, i) => [i, String(i)])), String(value), (next) => read(name === "layer" ? Number(next) : found.layer, name === "head" ? Number(next) : found.head));
  const fact = (label, read) => h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "n" }, read(before)), h("td", { class: "n" }, read(after)));
  clear(out,
    h("table", {}, h("thead", {}, h("tr", {}, h("th"), h("th", { class: "n" }, names.before), h("th", { class: "n" }, names.after))), h("tbody", {}, fact(t("model.probability"), (each) => percent(each.probability)), fact(t("model.loss"), (each) => each.loss.toFixed(3)), fact(t("model.last"), (each) => whole(each.last)))),
    h("section", { class: "card" }, h("h2", {}, t("model.written")), h("div", { class: "pairwise" }, Object.entries(found.readings).map(([which, each]) => h("div", {}, h("h3", {}, names[which]), h("p", { class: "prose mono" }, each.written))))),
    h("section", { class: "card stack tight" }, h("h2", {}, t("model.attention")), h("div", { class: "row end" }, choose("layer", found.layers, found.layer), choose("head", found.heads, found.head)), h("div", { class: "pairwise" }, Object.entries(found.readings).map(([which, each]) => h("figure", {}, heat(each.map, top, `${t("model.attention")}: ${names[which]}`), h("figcaption", {}, names[which])))), h("p", { class: "small mute" }, t("model.attention.help"))),
    h("section", { class: "card" }, h("h2", {}, t("model.losses")), chart({ label: t("model.losses"), height: 260, series: Object.entries(found.readings).map(([which, each], index) => ({ name: names[which], thin: true, dash: index, colour: index ? "good" : "bad", points: each.losses.map((loss, i) => [i + 1, loss]) })), x: { label: t("model.token"), text: whole }, y: { label: t("methods.loss"), text: (value) => digits(value, 3) } })),
    h("p", { class: "small mute num" }, t("model.trained", { tokens: whole(found.trained) })));
}
