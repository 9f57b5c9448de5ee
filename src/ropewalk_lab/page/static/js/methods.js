// Methods: loss and keys by length, as they were measured.
import { h, clear } from "./dom.js";
import { t, has } from "./words.js";
import { digits, percent, tokens, whole } from "./numbers.js";
import { chart, numbersOf } from "./chart.js";
import { chips, select } from "./controls.js";
import { data } from "./python.js";

/** series that are drawn at first, if a study has them */
const FIRST = ["none", "yarn", "linear", "self_extend", "rope", "alibi", "rope, sliding window"];
const MOST = 6;

const titleOf = (name) => { const [folder, factor] = name.split(" x"); return t(`study.${folder}`) + (factor ? ` · ${t("methods.factor", { factor })}` : ""); };
const nameOf = (series, unscaled) => series === "none" ? t(unscaled) : series;

export function methods(app) {
  const holder = h("div", { class: "stack" });
  data("methods").then((studies) => draw(app, studies, holder));
  return h("div", {}, h("div", { class: "head" }, h("h1", {}, t("methods.title")), h("p", {}, t("methods.lead"))), holder);
}

function draw(app, studies, holder) {
  const { state } = app, names = Object.keys(studies);
  const again = (values) => { app.set(values); draw(app, studies, holder); };
  const name = names.includes(state.study) ? state.study : names.find((each) => each === "h200_fit") ?? names[0];
  const study = studies[name], metrics = Object.keys(study.curves), metric = metrics.includes(state.metric) ? state.metric : metrics[0];
  const curves = study.curves[metric], all = Object.keys(curves);
  const given = (state.methods ?? []).filter((each) => all.includes(each));
  const chosen = given.length ? given : [...FIRST.filter((each) => all.includes(each)), ...all].filter((each, index, list) => list.indexOf(each) === index).slice(0, 4);
  const unscaled = name.includes("encodings") || name === "h200_methods" ? "methods.none" : "scaling.default";
  const toggle = (series) => again({ methods: chosen.includes(series) ? (chosen.length > 1 ? chosen.filter((each) => each !== series) : chosen) : [...chosen, series].slice(-MOST), study: name, metric });
  const drawn = {
    series: chosen.map((series, index) => ({ name: nameOf(series, unscaled), points: curves[series], dots: true, dash: index })),
    x: { label: t("methods.length"), log: 2, text: tokens, ticks: [...new Set(Object.values(curves).flatMap((points) => points.map(([at]) => at)))].sort((a, b) => a - b).filter((at, index, list) => !index || at / list[index - 1] > 1.5) },
    y: metric === "found" ? { label: t("methods.found"), low: 0, high: 1, text: percent, digits: percent } : { label: t("methods.loss"), text: (value) => digits(value, 3), digits: (value) => value.toFixed(3) },
  };
  const lowest = Math.min(...drawn.series.flatMap((each) => each.points.map(([at]) => at)));
  clear(holder,
    h("div", { class: "row end" }, select(t("methods.study"), Object.fromEntries(names.map((each) => [each, titleOf(each)])), name, (each) => again({ study: each, methods: null, metric: null })), metrics.length > 1 ? chips(t("methods.metric"), Object.fromEntries(metrics.map((each) => [each, t(`methods.${each}`)])), metric, (each) => again({ metric: each, study: name })) : null),
    h("div", { class: "story" },
      h("div", { class: "words" }, has(`study.${name.split(" x")[0]}.about`) ? h("p", {}, t(`study.${name.split(" x")[0]}.about`)) : null, h("span", { class: "label" }, t("methods.pick")), h("div", { class: "chips" }, all.map((series) => h("button", { type: "button", "aria-pressed": String(chosen.includes(series)), onclick: () => toggle(series) }, nameOf(series, unscaled)))), chosen.map((series) => has(`about.${series}`) && unscaled === "scaling.default" ? h("p", { class: "small mute" }, h("b", {}, nameOf(series, unscaled)), " ", t(`about.${series}`)) : null)),
      h("div", { class: "picture stack" }, h("div", { class: "card" }, chart({ ...drawn, label: `${titleOf(name)}: ${t(`methods.${metric}`)}`, height: 360, shade: study.trained ? [lowest, study.trained] : null }), study.trained ? h("p", { class: "small mute num" }, t("methods.trained", { tokens: whole(study.trained), date: study.date ?? "" })) : null), numbersOf(drawn))));
}
