// Doctor: what is wrong with a config, what it does, and the fix.
import { h, clear, later, tell } from "./dom.js";
import { language, rich, t } from "./words.js";
import { digits, whole } from "./numbers.js";
import { dials } from "./dials.js";
import { fromConfig } from "./rope.js";
import { copyButton, labelled, select, tabs } from "./controls.js";
import { condition, data, newest, watch } from "./python.js";
import { readGguf } from "./gguf.js";

const LARGEST = 100_000;
export const ENGINES = { transformers: "transformers", vllm: "vLLM", sglang: "SGLang", "mlx-lm": "mlx-lm", "llama.cpp": "llama.cpp" };
/** what a new page shows: YaRN as many write it */
export const SAMPLE = `{
  "model_type": "qwen3",
  "hidden_size": 4096,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "num_hidden_layers": 36,
  "vocab_size": 151936,
  "head_dim": 128,
  "max_position_embeddings": 131072,
  "rope_theta": 1000000.0,
  "rope_scaling": {
    "type": "yarn",
    "factor": "4.0"
  }
}`;
const SIGNS = { error: ["bad", "✕"], warning: ["warn", "!"], note: ["good", "✓"], none: ["good", "✓"] };

/** The text of the config that the state names. */
export async function configText(state) {
  if (state.config !== null) return state.config;
  if (state.model !== null) {
    const known = await data("known");
    if (Object.hasOwn(known, state.model)) return known[state.model];
  }
  return SAMPLE;
}

/** The choice of a known model; `chosen(name, text)`. */
export function knownModels(state, chosen) {
  const holder = h("div", { class: "grow" });
  data("known").then((known) => {
    const names = Object.fromEntries([["", t("doctor.own")], ...Object.keys(known).map((name) => [name, name])]);
    clear(holder, select(t("doctor.known"), names, state.model ?? "", (name) => name && chosen(name, known[name])));
  });
  return holder;
}

export function doctor(app) {
  const { state } = app;
  const picture = dials();
  const area = h("textarea", { rows: matchMedia("(max-width: 820px)").matches ? 7 : 17, spellcheck: "false", autocomplete: "off", autocapitalize: "off", maxlength: LARGEST, "aria-describedby": "config-help" });
  const verdict = h("section", { class: "verdict", "aria-live": "polite" }), result = h("div", { class: "stack" });
  const which = h("div", { class: "row" });
  const file = h("input", { type: "file", class: "visually-hidden", tabindex: "-1", "aria-label": t("doctor.file"), accept: ".json,.gguf,application/json", onchange: () => file.files[0] && take(file.files[0]) });
  const length = h("input", { type: "number", min: 1, max: 2 ** 40, inputmode: "numeric", placeholder: t("doctor.length.any"), value: state.length ?? "" });

  async function take(chosen) {
    try {
      const start = new TextDecoder().decode(await chosen.slice(0, 4).arrayBuffer());
      let text;
      if (start === "GGUF") text = await readGguf(chosen);
      else if (chosen.size > LARGEST) throw new Error("large");
      else text = await chosen.text();
      area.value = text;
      own(text);
    } catch (error) { complain(t(error.message === "large" ? "doctor.large" : error.message === "gguf" ? "doctor.gguf" : "doctor.unread")); }
  }
  function own(text) { app.set({ config: text.slice(0, LARGEST), model: null }); clear(models, knownModels(app.state, pick)); ask(); }
  function pick(name, text) { area.value = text; app.set({ model: name, config: null }); ask(); }

  function complain(text) { verdict.className = "verdict bad"; clear(verdict, h("span", { class: "sign", "aria-hidden": "true" }, "✕"), h("h2", {}, text)); clear(result); }
  function wait() {
    if (condition() === "ready") return;
    verdict.className = "verdict";
    clear(verdict, h("span", { class: "sign", "aria-hidden": "true" }, "…"), h("div", {}, h("h2", {}, t("doctor.reading")), h("p", { class: "mute" }, t("python.starting"))));
  }

  async function ask() {
    const text = area.value;
    const quick = fromConfig(text, app.state.length);
    if (quick) picture.set(quick, quick.served);
    wait();
    try {
      const answer = await newest("doctor", { ask: "doctor", text, engine: app.state.engine, length: app.state.length, language });
      if (answer === null || !area.isConnected) return;
      if (answer.error) return complain(`${answer.error.field}: ${answer.error.rule}`);
      draw(answer.ok);
    } catch { complain(t("python.failed")); }
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
  }

  function draw({ diagnosis, texts, before, after }) {
    const severity = diagnosis.severity ?? "none", [kind, sign] = SIGNS[severity];
    const counts = ["error", "warning", "note"].map((each) => [each, diagnosis.findings.filter((finding) => finding.severity === each).length]).filter(([, number]) => number);
    const heavy = diagnosis.findings.filter((finding) => finding.severity !== "note"), repaired = heavy.filter((finding) => finding.repaired).length;
    const told = counts.map(([each, number]) => t(`count.${each}${number === 1 ? ".one" : ""}`, { n: number })).join(t("comma"));
    const end = !heavy.length ? "" : repaired === heavy.length ? t("verdict.all") : repaired ? t("verdict.some", { n: repaired }) : t("verdict.decide");
    verdict.className = `verdict ${kind}`;
    clear(verdict, h("span", { class: "sign", "aria-hidden": "true" }, sign), h("div", {}, h("h2", {}, t(`verdict.${severity}`)), h("p", { class: "mute" }, [diagnosis.model_type ?? t("verdict.no_type"), told, end].filter(Boolean).join(" · "))));
    ropes(before, after);
    clear(result,
      diagnosis.findings.length ? h("section", { class: "card" }, h("h2", { class: "visually-hidden" }, t("doctor.findings")), diagnosis.findings.map(finding)) : null,
      fix(diagnosis, texts));
    tell(t(`verdict.${severity}`));
  }

  function ropes(before, after) {
    const forms = Object.fromEntries([["before", before], ["after", after]].filter(([, each]) => each?.length));
    const names = Object.keys(forms);
    clear(which);
    if (!names.length) return;
    let form = names.at(-1), layer = 0;
    const show = () => {
      const rope = forms[form][Math.min(layer, forms[form].length - 1)];
      picture.set(rope, rope.served);
      clear(which,
        names.length > 1 ? h("div", { class: "chips", role: "group", "aria-label": t("dials.which") }, names.map((name) => h("button", { type: "button", "aria-pressed": String(name === form), onclick: () => { form = name; show(); } }, t(`dials.${name}`)))) : null,
        forms[form].length > 1 ? h("div", { class: "chips", role: "group", "aria-label": t("dials.layers") }, forms[form].map((each, index) => h("button", { type: "button", "aria-pressed": String(index === layer), onclick: () => { layer = index; show(); } }, each.layer_type))) : null,
        h("p", { class: "small mute num" }, t(rope.new_angles ? "dials.beyond" : "dials.within", { new: rope.new_angles, pairs: rope.pairs, trained: whole(rope.trained), served: whole(rope.served), scaling: rope.scaling, magnitude: digits(rope.magnitude, 5) })));
    };
    show();
  }

  area.addEventListener("input", later(() => own(area.value), 40));
  length.addEventListener("input", later(() => { const value = Number(length.value); app.set({ length: Number.isSafeInteger(value) && value >= 1 && value <= 2 ** 40 ? value : null }); ask(); }, 40));
  for (const kind of ["dragover", "dragleave", "drop"]) area.addEventListener(kind, (event) => {
    if (kind !== "dragleave" && !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    area.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  const models = h("div", { class: "grow" }, knownModels(state, pick));
  watch((next) => { if (next === "failed" && area.isConnected) complain(t("python.failed")); });

  const input = h("section", { class: "stack tight" },
    models,
    labelled(t("doctor.config"), area),
    h("p", { class: "small mute", id: "config-help" }, rich("doctor.help")),
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => file.click() }, t("doctor.file")), file, copyButton(() => app.link(), t("doctor.link"))),
    h("div", { class: "row end" }, select(t("doctor.engine"), { "": t("doctor.engine.any"), ...ENGINES }, state.engine ?? "", (name) => { app.set({ engine: name || null }); ask(); }), labelled(t("doctor.length"), length)));
  const output = h("section", { class: "stack" }, verdict, h("section", { class: "card stack tight" }, h("h2", {}, t("dials.title")), picture.element, which), result);
  configText(state).then((text) => { area.value = text; ask(); });
  return h("div", {}, h("div", { class: "head" }, h("h1", {}, t("doctor.title")), h("p", {}, t("doctor.lead"))), h("div", { class: "columns" }, input, output));
}

/** One finding: cause, effect in words and numbers, how it is known, and the fix. */
export function finding(found) {
  const known = [t(`known.${found.evidence.known}`), [found.evidence.engine, found.evidence.version].filter(Boolean).join(" ")].filter(Boolean).join(t("comma"));
  const numbers = found.effects.map((effect) => {
    const parts = [];
    if (effect.pairs) parts.push(t("effect.pairs", { pairs: effect.pairs, of: effect.of, first: effect.first_pair, from: whole(effect.from_token) }));
    if (Math.abs(effect.logits - 1) > 1e-6) parts.push(t("effect.logits", { times: digits(effect.logits, 4) }));
    return h("div", { class: "num" }, (found.effects.length > 1 ? `${effect.layer_type}: ` : "") + parts.join(t("comma")));
  });
  return h("article", { class: `finding ${found.severity}` },
    h("span", { class: "tag" }, t(`severity.${found.severity}`)),
    h("h3", {}, found.cause),
    h("dl", {},
      h("dt", {}, t("finding.effect")), h("dd", {}, found.effect, numbers),
      h("dt", {}, t("finding.fix")), h("dd", {}, found.fix),
      h("dt", {}, t("finding.known")), h("dd", {}, known, " ", h("code", { class: "mute" }, found.id))));
}

/** The corrected config, its patch, and what to paste for each engine. */
export function fix(diagnosis, texts) {
  const pages = {};
  const page = (name, label, text, lines) => { pages[name] = [label, () => h("div", {}, h("div", { class: "copy" }, h("span", { class: "small mute" }, t(`fix.about.${Object.hasOwn(ENGINES, name) ? "flags" : name}`)), copyButton(text)), h("pre", { tabindex: "0" }, lines ?? text))]; };
  if (diagnosis.corrected) page("config", "config.json", texts.corrected);
  if (diagnosis.patch) page("patch", t("fix.patch"), diagnosis.patch, diagnosis.patch.split("\n").map((line) => h("span", { class: /^\+(?!\+\+)/.test(line) ? "add" : /^-(?!--)/.test(line) ? "del" : null }, line + "\n")));
  for (const [name, text] of Object.entries(diagnosis.flags)) page(name, ENGINES[name] ?? name, text);
  if (diagnosis.draft) page("draft", t("fix.draft"), texts.draft);
  if (!Object.keys(pages).length) return null;
  return h("section", { class: "card" }, h("h2", {}, t(diagnosis.corrected ? "fix.title" : "fix.flags")), h("div", {}, tabs(t("fix.title"), pages, diagnosis.engine && diagnosis.flags[diagnosis.engine] ? diagnosis.engine : "patch")));
}
