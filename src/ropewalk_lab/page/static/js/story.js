// The story: seven steps from one question to the engines.
import { h, s, clear, colours, later } from "./dom.js";
import { rich, t } from "./words.js";
import { bytes, digits, tokens, whole } from "./numbers.js";
import { SCALINGS, float32Error, newAngles, ropeOf, score, turns } from "./rope.js";
import { dials } from "./dials.js";
import { chart, narrow } from "./chart.js";
import { chips, select, slider } from "./controls.js";
import { newest } from "./python.js";
import { engineCards } from "./audit.js";

const TURN = 2 * Math.PI;
const STEPS = ["question", "angles", "pairs", "beyond", "remedies", "cost", "engines"];
const still = matchMedia("(prefers-reduced-motion: reduce)");

const facts = (entries) => h("div", { class: "facts-row" }, entries.map(([name, value]) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name))));
const scalingNames = (names) => Object.fromEntries(names.map((name) => [name, name === "default" ? t("scaling.default") : t(`scaling.${name}`)]));

export function story(app) {
  const { state } = app;
  const body = h("div");
  function go(step, push = true) {
    app.set({ step }, { push });
    draw();
    scrollTo(0, 0);
    body.querySelector("h1")?.focus({ preventScroll: true });
  }
  function draw() {
    const index = app.state.step - 1, name = STEPS[index];
    const { words, picture } = DRAW[name](app, draw);
    clear(body,
      h("ol", { class: "steps", "aria-label": t("story.steps") }, STEPS.map((each, at) => h("li", {}, h("button", { type: "button", class: at < index ? "past" : null, "aria-current": at === index ? "step" : null, "aria-label": `${at + 1}. ${t(`story.${each}`)}`, onclick: () => go(at + 1) }, h("b", {}, at + 1), h("span", {}, t(`story.${each}`)))))),
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, t(`story.${name}.title`))),
      h("div", { class: "story" }, h("div", { class: "words" }, words), h("div", { class: "picture stack" }, picture)),
      h("div", { class: "go" }, h("button", { type: "button", disabled: index === 0, onclick: () => go(index) }, `← ${t("story.back")}`), index < STEPS.length - 1 ? h("button", { type: "button", class: "primary", onclick: () => go(index + 2) }, `${t("story.next")} →`) : h("a", { class: "button", href: app.address({ view: "doctor" }) }, t("story.doctor"))));
  }
  draw();
  return body;
}

const dimOf = (state) => Number(state.dim);
const ropeFor = (state, scaling = state.scaling) => ropeOf({ dim: dimOf(state), theta: state.theta, trained: state.trained, served: Math.max(state.served, 1), scaling });
const pairOf = (state) => Math.min(state.pair, dimOf(state) / 2 - 1);

function lengths(app, changed, which = ["trained", "served"]) {
  return which.map((name) => slider({ label: t(`story.${name}`), low: name === "trained" ? 512 : 1024, high: name === "trained" ? 131072 : 1048576, value: app.state[name], log: true, text: whole, oninput: (value) => { app.set({ [name]: value }); changed(); } }).element);
}

function choose(app, names, changed) {
  const offered = names.includes(app.state.scaling) ? names : [...names, app.state.scaling];
  const holder = h("div");
  const draw = () => clear(holder, chips(t("story.scaling"), scalingNames(offered), app.state.scaling, (scaling) => { app.set({ scaling }); draw(); changed(); }));
  draw();
  return holder;
}

function question(app) {
  const picture = dials({ most: 32 }), verdict = h("p", { class: "num", "aria-live": "polite" }), at = h("output", { class: "small mute num" });
  const button = h("button", { type: "button", onclick: () => play() });
  let playing = false;
  function play() {
    playing = !playing;
    button.textContent = t(playing ? "story.stop" : "story.play");
    if (!playing) return picture.stop();
    picture.play(10, (position, done) => { at.textContent = t("story.read", { tokens: whole(position) }); if (done) { playing = false; button.textContent = t("story.play"); } });
  }
  function draw() {
    const rope = ropeFor(app.state), count = newAngles(rope).filter(Boolean).length;
    picture.set(rope, rope.served);
    at.textContent = t("story.read", { tokens: whole(rope.served) });
    verdict.textContent = t(count ? "story.question.new" : "story.question.none", { new: count, pairs: rope.radians.length });
    verdict.className = `verdict num ${count ? "bad" : "good"}`;
  }
  draw();
  button.textContent = t("story.play");
  if (!still.matches) requestAnimationFrame(() => button.isConnected && play());
  return {
    words: [h("p", {}, t("story.question.1")), h("p", {}, t("story.question.2")), choose(app, ["default", "yarn"], draw), verdict, ...lengths(app, draw)],
    picture: [h("div", { class: "card stack tight" }, h("div", { class: "row" }, button, at), picture.element)],
  };
}

/** Two arrows on a circle: q and k of one pair. */
function plane(q, k, names) {
  const colour = colours(), R = 118, size = 300, mid = size / 2;
  const arrow = (angle, tone, name, dash) => {
    const x = mid + R * Math.cos(angle), y = mid - R * Math.sin(angle);
    return [s("line", { x1: mid, y1: mid, x2: x, y2: y, stroke: tone, "stroke-width": 3.4, "stroke-linecap": "round", "stroke-dasharray": dash }), s("circle", { cx: x, cy: y, r: 6, fill: tone }), s("text", { x: mid + (R + 20) * Math.cos(angle), y: mid - (R + 20) * Math.sin(angle) + 5, "text-anchor": "middle", style: null, fill: tone, "font-weight": 700, "font-size": 16 }, name)];
  };
  const between = ((q - k) % TURN + TURN) % TURN, large = between > Math.PI ? 1 : 0, r = 44;
  const path = `M ${mid + r * Math.cos(k)} ${mid - r * Math.sin(k)} A ${r} ${r} 0 ${large} 0 ${mid + r * Math.cos(q)} ${mid - r * Math.sin(q)}`;
  return s("svg", { class: "chart", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": names },
    s("circle", { cx: mid, cy: mid, r: R, fill: "none", stroke: colour.line, "stroke-width": 2 }),
    s("path", { d: path, fill: "none", stroke: colour.mute, "stroke-width": 2, "stroke-dasharray": "3 3" }),
    arrow(k, colour.other, "k", "8 5"), arrow(q, colour.good, "q"));
}

function angles(app) {
  const drawn = h("div"), curve = h("div"), numbers = h("div", { "aria-live": "polite" });
  const { state } = app, top = Math.max(256, state.distance);
  const distance = slider({ label: t("story.distance"), low: 0, high: top, value: state.distance, steps: true, text: whole, oninput: (value) => { app.set({ distance: value }); draw(); } });
  const shift = slider({ label: t("story.shift"), low: 0, high: Math.max(512, state.shift), value: state.shift, steps: true, text: whole, oninput: (value) => { app.set({ shift: value }); draw(); } });
  const pair = slider({ label: t("story.pair"), low: 0, high: dimOf(state) / 2 - 1, value: pairOf(state), steps: true, text: String, oninput: (value) => { app.set({ pair: value }); draw(); } });
  function draw() {
    const rope = ropeFor(app.state), index = pairOf(app.state), speed = rope.radians[index], gap = app.state.distance;
    const k = speed * app.state.shift, q = speed * (app.state.shift + gap);
    const own = Math.cos(speed * gap), head = score(rope.radians, gap);
    clear(drawn, plane(q, k, t("story.plane", { q: whole(app.state.shift + gap), k: whole(app.state.shift), score: digits(own, 3) })));
    clear(numbers, facts([[t("story.score.pair", { pair: index }), own.toFixed(3)], [t("story.score.head"), head.toFixed(3)], [t("story.angle"), `${digits(speed * gap % TURN, 3)}`], [t("story.wave"), tokens(TURN / speed)]]));
    const points = (read) => Array.from({ length: 257 }, (_, i) => { const at = top * i / 256; return [at, read(at)]; });
    clear(curve, chart({ label: t("story.angles.chart"), height: 230, series: [{ name: t("story.score.pair", { pair: index }), points: points((at) => Math.cos(speed * at)), colour: "good" }, { name: t("story.score.head"), points: points((at) => score(rope.radians, at)), colour: "other", dash: 1 }], x: { label: t("story.distance"), text: whole }, y: { label: t("story.score"), low: -1, high: 1, ticks: [-1, 0, 1] }, marker: { x: gap, y: own }, onpick: (at) => distance.set(at) }));
  }
  draw();
  return {
    words: [h("p", {}, t("story.angles.1")), h("p", {}, t("story.angles.2")), shift.element, pair.element],
    picture: [h("div", { class: "card beside" }, drawn, h("div", { class: "stack" }, distance.element, numbers)), h("div", { class: "card" }, curve, h("p", { class: "small mute" }, t("story.angles.drag")))],
  };
}

/** A head of eight numbers in both layouts: the same pairs in other places. */
function layouts(position, theta) {
  const colour = colours(), tones = [colour.good, colour.bad, colour.other, colour.warn];
  const values = [0, 1, 2, 3].map((pair) => { const angle = position * theta ** (-2 * pair / 8); return [Math.cos(angle), Math.sin(angle)]; });
  const rows = { interleaved: [0, 1, 2, 3].flatMap((pair) => [[pair, 0], [pair, 1]]), half: [...[0, 1, 2, 3].map((pair) => [pair, 0]), ...[0, 1, 2, 3].map((pair) => [pair, 1])] };
  const small = narrow(), width = small ? 380 : 640, wide = small ? 42 : 62, gap = small ? 5 : 10, left = (width - 8 * wide - 7 * gap) / 2;
  const x = (index) => left + index * (wide + gap);
  const box = (row, y) => rows[row].map(([pair, part], index) => [
    s("rect", { x: x(index), y, width: wide, height: 44, rx: 9, fill: "none", stroke: tones[pair], "stroke-width": 2.4, "stroke-dasharray": part ? "5 3" : null }),
    s("text", { x: x(index) + wide / 2, y: y + 27, "text-anchor": "middle", "font-size": small ? 12 : 14 }, values[pair][part].toFixed(3))]);
  const links = rows.interleaved.map(([pair, part], index) => {
    const other = rows.half.findIndex(([a, b]) => a === pair && b === part);
    return s("path", { d: `M ${x(index) + wide / 2} 68 C ${x(index) + wide / 2} 98, ${x(other) + wide / 2} 92, ${x(other) + wide / 2} 122`, fill: "none", stroke: tones[pair], "stroke-opacity": 0.55, "stroke-width": 1.6 });
  });
  return s("svg", { class: "chart", viewBox: `0 0 ${width} 190`, role: "img", "aria-label": t("story.layouts.label") }, s("text", { x: left, y: 14 }, t("layout.interleaved")), box("interleaved", 22), links, box("half", 124), s("text", { x: left, y: 186 }, t("layout.half")));
}

/** q · k of a small head, q at a position and k at 0, computed in each layout: [interleaved, half]. */
export function scoresOfLayouts(position, theta) {
  const q = [0.9, -0.4, 0.3, 0.8, -0.6, 0.5, 0.2, 0.7], k = [0.5, 0.6, -0.7, 0.4, 0.3, 0.8, -0.2, 0.9];
  const places = { interleaved: (pair) => [2 * pair, 2 * pair + 1], half: (pair) => [pair, pair + 4] };
  return Object.values(places).map((place) => {
    // the weights of q and k are stored in the order of the layout
    const ordered = (x) => { const out = Array(8); for (let pair = 0; pair < 4; pair++) place(pair).forEach((at, part) => { out[at] = x[2 * pair + part]; }); return out; };
    const [left, right] = [ordered(q), ordered(k)];
    let sum = 0;
    for (let pair = 0; pair < 4; pair++) {
      const [a, b] = place(pair), angle = position * theta ** (-2 * pair / 8), cos = Math.cos(angle), sin = Math.sin(angle);
      sum += (left[a] * cos - left[b] * sin) * right[a] + (left[a] * sin + left[b] * cos) * right[b];
    }
    return sum;
  });
}

function pairs(app) {
  const picture = dials({ most: 32 }), ladder = h("div"), same = h("div"), equal = h("span"), words = h("p", { class: "num" });
  const position = slider({ label: t("story.position"), low: 0, high: Math.max(4096, app.state.distance), value: app.state.distance, steps: true, text: whole, oninput: (value) => { app.set({ distance: value }); draw(); } });
  function draw() {
    const rope = ropeFor(app.state, "default");
    picture.set({ ...rope, served: rope.trained }, app.state.distance);
    words.textContent = t("story.pairs.1", { fast: tokens(TURN / rope.radians[0]), slow: tokens(TURN / rope.radians.at(-1)) });
    clear(ladder, chart({ label: t("story.pairs.chart"), height: 250, series: [{ points: rope.radians.map((speed, i) => [i, TURN / speed]), dots: rope.radians.length <= 32 }], x: { label: t("story.pair") }, y: { label: t("story.wave"), log: 10, text: tokens }, marker: { x: pairOf(app.state), y: TURN / rope.radians[pairOf(app.state)] } }));
    clear(same, layouts(app.state.distance, app.state.theta));
    const [first, second] = scoresOfLayouts(app.state.distance, app.state.theta);
    equal.textContent = t("story.layouts.score", { first: first.toFixed(6), second: second.toFixed(6) });
  }
  const theta = slider({ label: "theta", low: 100, high: 10_000_000, value: app.state.theta, text: whole, scale: 10, log: true, oninput: (value) => { app.set({ theta: value }); draw(); } });
  const width = h("div");
  const widths = () => clear(width, h("span", { class: "label" }, t("story.dim")), chips(t("story.dim"), Object.fromEntries(["32", "64", "128", "256"].map((each) => [each, each])), app.state.dim, (dim) => { app.set({ dim }); widths(); draw(); }));
  widths();
  draw();
  return {
    words: [words, h("p", {}, t("story.pairs.2")), position.element, theta.element, width, h("h2", {}, t("story.layouts.title")), h("p", {}, t("story.layouts.1"))],
    picture: [h("div", { class: "card" }, picture.element), h("div", { class: "card" }, ladder), h("div", { class: "card" }, same, h("p", { class: "small mute num" }, equal))],
  };
}

function beyond(app) {
  const waves = h("div"), reach = h("div"), words = h("p", { class: "num" });
  function draw() {
    const rope = ropeFor(app.state, "default"), slow = rope.plain.map((speed, i) => [speed, i]).filter(([speed]) => turns(speed, rope.trained) < 1).map(([, i]) => i);
    words.textContent = t("story.beyond.1", { slow: slow.length, pairs: rope.plain.length, trained: whole(rope.trained) });
    const end = Math.max(rope.served, rope.trained), shown = slow.length ? [...new Set([slow[0], slow[Math.floor(slow.length / 2)], slow.at(-1)])] : [rope.plain.length - 1];
    clear(waves, chart({ label: t("story.beyond.waves"), height: 240, series: shown.map((pair, i) => ({ name: t("story.pair.n", { pair }), dash: i, points: Array.from({ length: 200 }, (_, at) => [end * at / 199, Math.cos(rope.plain[pair] * end * at / 199)]) })), x: { label: t("story.position"), text: tokens }, y: { label: "cos", low: -1, high: 1, ticks: [-1, 0, 1] }, shade: [0, rope.trained] }));
    clear(reach, chart({ label: t("story.beyond.turns"), height: 240, series: [{ name: t("story.turns.trained", { tokens: tokens(rope.trained) }), points: rope.plain.map((speed, i) => [i, turns(speed, rope.trained)]), colour: "good" }, { name: t("story.turns.served", { tokens: tokens(rope.served) }), points: rope.plain.map((speed, i) => [i, turns(speed, rope.served)]), colour: "bad", dash: 1 }, { points: [[0, 1], [rope.plain.length - 1, 1]], colour: "mute", thin: true, dash: 2 }], x: { label: t("story.pair") }, y: { label: t("story.turns"), log: 10, text: (value) => value >= 1000 ? whole(value) : digits(value, 3) } }));
  }
  draw();
  return { words: [words, h("p", {}, t("story.beyond.2")), ...lengths(app, draw)], picture: [h("div", { class: "card" }, waves, h("p", { class: "small mute" }, t("story.beyond.shade"))), h("div", { class: "card" }, reach)] };
}

const REMEDIES = ["default", "linear", "ntk", "dynamic", "yarn", "llama3"];

function remedies(app) {
  if (app.state.scaling === "default") app.set({ scaling: "yarn" });
  const picture = dials({ most: 32, caption: false }), lines = h("div"), numbers = h("div", { "aria-live": "polite" }), about = h("p");
  function draw() {
    const rope = ropeFor(app.state), ratio = rope.radians.map((speed, i) => rope.plain[i] / speed), factor = Math.max(app.state.served / app.state.trained, 1);
    picture.set(rope, rope.served);
    about.textContent = t(`about.${app.state.scaling}`);
    clear(numbers, facts([[t("story.new"), `${newAngles(rope).filter(Boolean).length} / ${rope.radians.length}`], [t("story.fastest"), `× ${digits(ratio[0], 4)}`], [t("story.slowest"), `× ${digits(ratio.at(-1), 4)}`], [t("story.magnitude"), digits(rope.magnitude, 5)]]));
    const order = [...REMEDIES.filter((name) => name !== app.state.scaling), app.state.scaling];
    clear(lines, chart({ label: t("story.remedies.chart"), height: 260, names: false, series: order.map((name) => { const other = ropeFor(app.state, name); return { name, thin: name !== app.state.scaling, colour: name === app.state.scaling ? "good" : "mute", dash: name === app.state.scaling ? 0 : 2, points: other.radians.map((speed, i) => [i, other.plain[i] / speed]) }; }), x: { label: t("story.pair") }, y: { label: t("story.slowed"), low: 1, high: Math.max(factor * 1.05, 1.1), text: (value) => `× ${digits(value, 3)}` } }));
  }
  draw();
  return {
    words: [h("p", {}, t("story.remedies.1")), choose(app, REMEDIES, draw), about, numbers, ...lengths(app, draw, ["served"])],
    picture: [h("div", { class: "card" }, lines, h("p", { class: "small mute" }, t("story.remedies.lines"))), h("div", { class: "card" }, picture.element)],
  };
}

const asPython = (state) => ({ scaling: state.scaling, factor: Math.max(state.served / state.trained, 1), original_length: state.trained, head_dim: dimOf(state), theta: state.theta, trained: state.trained, served: state.served });

function cost(app) {
  const errors = h("div"), kept = h("div", { "aria-live": "polite" });
  let exact = null;
  function draw() {
    const rope = ropeFor(app.state), places = Array.from({ length: 37 }, (_, i) => Math.round(2 ** (6 + i / 2)));
    const lines = [{ name: t("story.cost.float32"), colour: "bad", points: places.map((at) => [at, Math.max(float32Error(rope.radians, at), 1e-9)]) }];
    const full = 8 * rope.radians.length * app.state.served;
    const sizes = [[t("story.cost.full"), bytes(full)]];
    if (exact) {
      lines.push({ name: t("story.cost.bfloat16"), colour: "warn", dash: 1, points: exact.positions.map((at, i) => [at, Math.max(exact.errors["bfloat16 positions"][i], 1e-9)]) });
      lines.push({ name: t("story.cost.exact"), colour: "good", dash: 2, points: exact.positions.map((at, i) => [at, Math.max(exact.errors.exact[i], 1e-9)]) });
      sizes.push([t("story.cost.levels"), bytes(exact.memory["two-level"] ?? 0)], [t("story.cost.none"), bytes(exact.memory.none)]);
    }
    clear(errors, chart({ label: t("story.cost.chart"), height: 290, series: lines, x: { label: t("story.position"), log: 2, text: tokens }, y: { label: t("story.error"), log: 10, low: 1e-9, high: 2, text: (value) => digits(value, 1) }, marker: { x: app.state.served } }));
    clear(kept, facts(sizes));
  }
  const ask = later(async () => { const answer = await newest("cost", { ask: "cost", ...asPython(app.state) }).catch(() => null); if (answer?.ok) { exact = answer.ok; draw(); } }, 120);
  draw();
  ask();
  return {
    words: [h("p", {}, t("story.cost.1")), kept, ...lengths(app, () => { exact = null; draw(); ask(); }, ["served"]), h("p", {}, t("story.cost.2"), " ", h("a", { href: app.address({ view: "methods" }) }, t("view.methods")))],
    picture: [h("div", { class: "card" }, errors)],
  };
}

/** A config as the text that Python writes: with 4.0 where JavaScript would write 4. */
const asText = (config) => JSON.stringify(config, null, 2).replace(/"(factor|rope_theta|attention_factor)": (\d+)(?=[,\n])/g, '"$1": $2.0');

/** Configs with the lengths and the theta of the story; engines compute other ropes from some of them. */
function cases(state) {
  const base = { model_type: "llama", hidden_size: 4096, num_attention_heads: 32, max_position_embeddings: state.served, rope_theta: state.theta };
  const yarn = { rope_type: "yarn", factor: Math.max(state.served / state.trained, 1), original_max_position_embeddings: state.trained };
  return {
    attention_factor: { ...base, rope_scaling: { ...yarn, attention_factor: 1.0 } },
    truncate: { ...base, rope_scaling: { ...yarn, truncate: false } },
    dynamic: { ...base, max_position_embeddings: state.trained, rope_scaling: { rope_type: "dynamic", factor: yarn.factor } },
    partial: { ...base, partial_rotary_factor: 0.5 },
    new_keys: { model_type: "llama", hidden_size: 4096, num_attention_heads: 32, max_position_embeddings: state.served, rope_parameters: { rope_theta: state.theta, ...yarn } },
    yarn: { ...base, rope_scaling: yarn },
    linear: { ...base, rope_scaling: { rope_type: "linear", factor: yarn.factor } },
    default: base,
  };
}

function enginesStep(app) {
  const all = cases(app.state), first = Object.hasOwn(all, app.state.case ?? "") ? app.state.case : "attention_factor";
  const cards = h("div"), code = h("pre", { tabindex: "0" }), link = h("a", { class: "button" }, t("story.engines.doctor"));
  function draw(name) {
    const text = asText(all[name]);
    code.textContent = text;
    link.href = app.address({ view: "doctor", config: text, model: null });
    clear(cards, engineCards(text, null));
  }
  draw(first);
  return {
    words: [h("p", {}, t("story.engines.1")), h("p", { class: "small mute" }, rich("story.engines.2")), link],
    picture: [select(t("story.engines.case"), Object.fromEntries(Object.keys(all).map((name) => [name, t(`case.${name}`)])), first, (name) => { app.set({ case: name }); draw(name); }), cards, code],
  };
}

const DRAW = { question, angles, pairs, beyond, remedies, cost, engines: enginesStep };
export const scalings = Object.keys(SCALINGS);
