// What each engine computes from one config, as cards.
import { h, clear } from "./dom.js";
import { language, t } from "./words.js";
import { digits, whole } from "./numbers.js";
import { newest } from "./python.js";

/** The state of a finding: same, factor, differs, refused or unknown. */
export function stateOf(found) {
  if (found.problem) return found.problem.startsWith("refused") ? "refused" : "unknown";
  if (!found.difference) return "same";
  return found.difference.first_pair === null ? "factor" : "differs";
}

const ORDER = ["refused", "differs", "factor", "unknown", "same"];
export const MARKS = { same: "✓", factor: "×", differs: "≠", refused: "!", unknown: "?", cannot: "–" };

function card(name, rows) {
  const states = rows.map(stateOf), worst = ORDER.find((each) => states.includes(each)), several = new Set(rows.map((row) => `${row.layer_type} ${row.length}`)).size > 1;
  const foreign = language === "en" ? {} : { lang: "en" };
  return h("article", { class: "engine" }, h("h3", {}, name), h("span", { class: `state ${worst}` }, `${MARKS[worst]} ${t(`state.${worst}`)}`),
    rows.filter((row, index) => worst === "same" ? index === 0 : states[index] !== "same").map((row) => h("div", { class: "small num" },
      several ? h("div", { class: "mute" }, `${row.layer_type}, ${whole(row.length)}`) : null,
      row.reference && !row.difference && !row.problem ? h("div", {}, t("engine.reference")) : null,
      row.problem ? h("div", foreign, row.problem) : null,
      row.difference ? h("div", {}, [row.difference.temperature !== 1 ? t("effect.logits", { times: digits(row.difference.temperature, 4) }) : null, row.difference.first_pair !== null ? t("engine.pairs", { pairs: row.difference.pairs, first: row.difference.first_pair }) : null, row.difference.until_tenth !== null ? t("engine.tenth", { tokens: whole(row.difference.until_tenth) }) : null, row.difference.tokens === "image" ? t("engine.image") : null].filter(Boolean).join(t("comma"))) : null,
      row.rules.map((rule) => h("div", { class: "mute", ...foreign }, `${rule.about}: ${rule.does}`)))),
    h("p", { class: "small mute" }, `${t(`known.${rows[0].known}`)}, ${rows[0].version} · ${rows[0].date}`));
}

/** Cards of all engines for the text of a config; they are drawn when Python has answered. */
export function engineCards(text, length, then = () => {}) {
  const holder = h("div", { "aria-live": "polite" }, h("p", { class: "mute" }, t("python.starting")));
  newest("audit", { ask: "audit", text, length }).then((answer) => {
    if (answer === null) return;
    if (answer.error) { clear(holder, h("div", { class: "verdict bad" }, h("span", { class: "sign" }, "✕"), h("h2", {}, `${answer.error.field}: ${answer.error.rule}`))); return; }
    const rows = Map.groupBy ? Map.groupBy(answer.ok.findings, (row) => row.title) : answer.ok.findings.reduce((map, row) => map.set(row.title, [...(map.get(row.title) ?? []), row]), new Map());
    const worst = (entries) => Math.min(...entries.map((row) => ORDER.indexOf(stateOf(row))));
    const ordered = [...rows].sort((a, b) => worst(a[1]) - worst(b[1]));
    const broken = ordered.filter(([, entries]) => ["refused", "differs", "factor"].includes(ORDER[worst(entries)])).map(([name]) => name);
    clear(holder, h("div", { class: `verdict ${broken.length ? "bad" : "good"}` }, h("span", { class: "sign", "aria-hidden": "true" }, broken.length ? "≠" : "✓"), h("h2", {}, broken.length ? t("engines.broken", { names: broken.join(t("comma")) }) : t("engines.agree"))), answer.ok.corrected ? h("p", { class: "small mute" }, t("engines.corrected")) : null, h("div", { class: "engines" }, ordered.map(([name, entries]) => card(name, entries))));
    holder.className = "stack";
    then(answer.ok);
  }).catch(() => clear(holder, h("p", {}, t("python.failed"))));
  return holder;
}
