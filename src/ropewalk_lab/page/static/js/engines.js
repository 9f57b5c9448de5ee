// Who computes what: the engines that break a config, and the matrix of all runs.
import { h, clear, later } from "./dom.js";
import { language, t } from "./words.js";
import { digits, whole } from "./numbers.js";
import { labelled, select } from "./controls.js";
import { ask, data } from "./python.js";
import { MARKS, engineCards } from "./audit.js";
import { ENGINES, configText, finding, fix, knownModels } from "./doctor.js";

const ORDER = ["refused", "differs", "factor", "unknown", "cannot", "same"];
/** states of a cell that show no difference between an engine and the config */
const QUIET = ["same", "unknown", "cannot"];
/** how many rows are drawn at first */
const PAGE = 60;

const idOf = (row) => [row.name, row.length, row.started].filter((part) => part !== null).join(" · ");
const worstOf = (cell) => cell ? ORDER.find((state) => cell.some(([each]) => each === state)) : "unknown";

/** What one run did, in words. */
function inWords([state, layer, pair, logits, text]) {
  const parts = [t(`state.${state}`)];
  if (pair !== null && pair !== undefined) parts.push(t("engine.first", { pair }));
  if (logits) parts.push(t("effect.logits", { times: digits(logits, 4) }));
  return h("div", {}, layer ? h("span", { class: "mute" }, `${layer}: `) : null, parts.join(t("comma")), text ? h("div", { class: "mute small", lang: language === "en" ? null : "en" }, text) : null);
}

export function engines(app) {
  const mine = h("div"), holder = h("div", {}, h("p", { class: "mute" }, "…")), known = h("div", { class: "row end" });
  const read = () => configText(app.state).then((text) => clear(mine, engineCards(text, app.state.length)));
  const pick = (name) => { app.set({ model: name, config: null }); read(); };
  clear(known, knownModels(app.state, pick), h("a", { class: "button", href: app.address({ view: "doctor" }) }, t("engines.paste")));
  read();
  data("matrix").then((matrix) => clear(holder, table(app, matrix)));
  return h("div", { class: "stack" }, h("div", { class: "head" }, h("h1", {}, t("engines.title")), h("p", {}, t("engines.lead"))),
    h("section", { class: "stack tight" }, h("h2", {}, t("engines.mine")), known, mine),
    h("section", { class: "stack tight" }, h("h2", {}, t("engines.all")), holder));
}

function table(app, matrix) {
  const { state } = app, body = h("tbody"), count = h("p", { class: "small mute num", "aria-live": "polite" }), more = h("div", { class: "row" });
  const names = (read) => [...new Set(matrix.rows.map(read))].sort();
  const head = h("tr");
  let limit = PAGE;
  const columns = () => matrix.engines.map((engine, index) => [engine, index]).filter(([engine]) => (!state.stack || engine.name === state.stack) && (!state.version || engine.version === state.version));
  const change = (name) => (value) => { app.set({ [name]: value || null }); limit = PAGE; draw(); };

  function draw() {
    const chosen = columns(), wanted = (state.find ?? "").toLowerCase();
    const rows = matrix.rows.filter((row) => (!state.family || row.family === state.family) && (!state.kind || row.scaling === state.kind) && (!wanted || `${row.name} ${row.family}`.toLowerCase().includes(wanted)) && chosen.some(([, index]) => row.cells[index] && (state.all || !QUIET.includes(worstOf(row.cells[index])))));
    const drawn = rows.slice(0, limit), shown = chosen.filter(([, index]) => drawn.some((row) => row.cells[index]));
    clear(head, h("th", { scope: "col" }, t("engines.config")), shown.map(([engine]) => h("th", { scope: "col" }, engine.name, h("small", {}, engine.version), h("small", {}, engine.date))));
    clear(body, drawn.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name, h("small", { class: "num" }, [row.length ? t("engines.tokens", { tokens: whole(row.length) }) : null, row.started ? t("engines.started", { tokens: whole(row.started) }) : null].filter(Boolean).join(t("comma")))), shown.map(([engine, index]) => {
      if (!row.cells[index]) return h("td", { class: "mute" }, "–");
      const worst = worstOf(row.cells[index]), word = t(`state.${worst}`);
      return h("td", {}, h("button", { type: "button", class: worst, "aria-label": `${row.name}, ${engine.name} ${engine.version}: ${word}`, onclick: () => open(row, engine, index) }, h("span", { class: "mark-only", "aria-hidden": "true" }, MARKS[worst]), h("span", { class: "word" }, word)));
    }))));
    count.textContent = t("engines.count", { shown: Math.min(limit, rows.length), rows: rows.length, all: matrix.rows.length });
    clear(more, rows.length > limit ? h("button", { type: "button", onclick: () => { limit = Infinity; draw(); } }, t("engines.more", { n: rows.length })) : null);
  }

  function open(row, engine, index) {
    const dialog = document.getElementById("dialog"), name = Object.keys(ENGINES).find((each) => ENGINES[each] === engine.name);
    const text = row.config, answer = h("div", { class: "stack" });
    const close = h("button", { type: "button", onclick: () => dialog.close() }, t("close"));
    app.set({ cell: `${idOf(row)} · ${engine.name}` });
    clear(dialog, h("div", { class: "stack" },
      h("div", { class: "copy" }, h("h2", {}, `${engine.name} ${engine.version}`), close),
      h("p", { class: "num" }, idOf(row)),
      h("div", {}, (row.cells[index] ?? [["unknown", null, null, null, null]]).map(inWords)),
      h("p", { class: "small mute" }, t("engines.evidence", { date: engine.date, engine: engine.name, version: engine.version })),
      h("details", {}, h("summary", {}, "config.json"), h("pre", { tabindex: "0" }, text)),
      answer,
      h("div", { class: "row" }, h("a", { class: "button", href: app.address({ view: "doctor", config: text, model: null, engine: name ?? null, length: row.length, cell: null }) }, t("story.engines.doctor")))));
    dialog.setAttribute("aria-label", `${engine.name}, ${row.name}`);
    dialog.onclose = () => app.set({ cell: null });
    dialog.showModal();
    if (name === "transformers") return;
    clear(answer, h("p", { class: "mute small" }, t("python.starting")));
    ask({ ask: "doctor", text, engine: name ?? null, length: row.length, language }).then((given) => {
      if (given.error) return clear(answer, h("p", { class: "small" }, `${given.error.field}: ${given.error.rule}`));
      const found = given.ok.diagnosis.findings.filter((each) => each.severity !== "note" || each.id.startsWith("engine"));
      clear(answer, found.map(finding), fix({ ...given.ok.diagnosis, flags: Object.fromEntries(Object.entries(given.ok.diagnosis.flags).filter(([each]) => !name || each === name)) }, given.ok.texts));
    }).catch(() => clear(answer, h("p", {}, t("python.failed"))));
  }

  const versions = () => [...new Set(matrix.engines.filter((engine) => !state.stack || engine.name === state.stack).map((engine) => engine.version))];
  const any = (entries) => Object.fromEntries([["", t("any")], ...entries.map((each) => [each, each])]);
  const search = h("input", { type: "search", value: state.find ?? "", oninput: later(() => change("find")(search.value.replace(/[^\p{L}\p{N} ._,:+()/-]/gu, "").slice(0, 80)), 120) });
  const differing = h("input", { type: "checkbox", id: "differing", checked: !state.all, onchange: () => change("all")(differing.checked ? null : "1") });
  draw();
  if (state.cell) {
    const row = matrix.rows.find((each) => state.cell.startsWith(`${idOf(each)} · `)), index = row ? matrix.engines.findIndex((engine) => state.cell === `${idOf(row)} · ${engine.name}`) : -1;
    if (index >= 0) setTimeout(() => open(row, matrix.engines[index], index), 0);
  }
  return h("div", { class: "stack tight" },
    h("div", { class: "row end" }, select(t("engines.family"), any(names((row) => row.family)), state.family, change("family")), select(t("story.scaling"), any(names((row) => row.scaling)), state.kind, change("kind")), select(t("doctor.engine"), any([...new Set(matrix.engines.map((engine) => engine.name))]), state.stack, change("stack")), select(t("engines.version"), any(versions()), state.version, change("version")), labelled(t("engines.find"), search)),
    h("div", { class: "row" }, h("label", { for: "differing", class: "row" }, differing, t("engines.only")), count),
    h("div", { class: "key" }, ["same", "factor", "differs", "refused", "cannot", "unknown"].map((each) => h("span", {}, h("span", { class: each, "aria-hidden": "true" }, ` ${MARKS[each]} `), " ", t(`state.${each}`)))),
    h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("caption", { class: "visually-hidden" }, t("engines.all")), h("thead", {}, head), body)), more,
    matrix.releases?.length ? h("details", {}, h("summary", {}, t("engines.releases")), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["engine", "version", "compared", "cells", "differ"].map((each) => h("th", {}, t(`releases.${each}`))))), h("tbody", {}, matrix.releases.map((row) => h("tr", {}, h("td", {}, row.engine), h("td", {}, row.version), h("td", {}, row.compared_with), h("td", { class: "n" }, row.cells), h("td", { class: "n" }, row.differ))))))) : null);
}
