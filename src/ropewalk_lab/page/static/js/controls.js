// Controls that more than one view has.
import { h } from "./dom.js";
import { t } from "./words.js";

let count = 0;
const id = () => `c${++count}`;

/** A label above a control. */
export function labelled(text, control) {
  control.id ||= id();
  return h("div", { class: "grow" }, h("label", { for: control.id }, text), control);
}

/** A choice of one of {value: text}. */
export function select(text, options, value, onchange) {
  const list = h("select", { onchange: () => onchange(list.value) }, Object.entries(options).map(([key, label]) => h("option", { value: key }, label)));
  list.value = value ?? "";
  return labelled(text, list);
}

/** Buttons of which one is pressed. */
export function chips(label, options, value, onchange) {
  return h("div", { class: "chips", role: "group", "aria-label": label }, Object.entries(options).map(([key, text]) => h("button", { type: "button", "aria-pressed": String(key === value), onclick: () => onchange(key) }, text)));
}

/** A slider with buttons for single steps. low ... high, or powers of 2 if `log`. `oninput(value)` is called while it moves. */
export function slider({ label, low, high, value, log = false, scale = 2, steps = false, text = String, oninput }) {
  const name = id(), grain = 1000;
  const toSlider = (number) => log ? grain * Math.log2(Math.max(number, low) / low) / Math.log2(high / low) : number;
  const toValue = (at) => log ? snap(low * (high / low) ** (at / grain), low, high, scale) : Number(at);
  const out = h("output", { for: name });
  const range = h("input", { type: "range", id: name, min: log ? 0 : low, max: log ? grain : high, step: 1 });
  let now = value;
  const set = (next, tell = true) => {
    now = Math.min(Math.max(Math.round(next), low), high);
    range.value = toSlider(now);
    range.setAttribute("aria-valuetext", text(now));
    out.textContent = text(now);
    if (tell) oninput(now);
  };
  range.addEventListener("input", () => {
    now = toValue(range.value);
    range.setAttribute("aria-valuetext", text(now));
    out.textContent = text(now);
    oninput(now);
  });
  const one = (by, sign, key) => h("button", { type: "button", "aria-label": t(key, { name: label }), onclick: () => set(now + by) }, sign);
  set(value, false);
  const element = h("div", { class: "slide" }, h("label", { for: name }, label), out, h("div", { class: "pull" }, steps ? one(-1, "−", "slider.less") : null, range, steps ? one(1, "+", "slider.more") : null));
  return { element, set };
}

/** The nearest round number: 1, 1.25, 1.5, 1.75 times a power of 2, or 1, 2, 5 times a power of 10. */
function snap(value, low, high, scale) {
  const power = scale ** Math.floor(Math.log(value) / Math.log(scale) + 1e-9);
  const candidates = (scale === 2 ? [1, 1.25, 1.5, 1.75, 2] : [1, 2, 5, 10]).map((each) => each * power);
  const near = candidates.reduce((best, each) => Math.abs(each - value) < Math.abs(best - value) ? each : best);
  return Math.min(Math.max(Math.round(near), low), high);
}

/** A button that copies a text. */
export function copyButton(text, label = t("copy")) {
  const button = h("button", { type: "button", onclick: async () => {
    await copied(typeof text === "function" ? text() : text);
    button.textContent = t("copied");
    setTimeout(() => { button.textContent = label; }, 1600);
  } }, label);
  return button;
}

async function copied(text) {
  try { await navigator.clipboard.writeText(text); }
  catch { // without permission, or on plain http
    const field = h("textarea", { class: "visually-hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

/** Tabs: {name: [label, () => element]}. */
export function tabs(label, pages, first) {
  const body = h("div", { role: "tabpanel" }), names = Object.keys(pages);
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": label });
  const buttons = names.map((name) => h("button", { type: "button", role: "tab", onclick: () => open(name), onkeydown: (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) { const next = names[(names.indexOf(name) + move + names.length) % names.length]; open(next); buttons[names.indexOf(next)].focus(); }
  } }, pages[name][0]));
  function open(name) {
    buttons.forEach((button, index) => { const on = names[index] === name; button.setAttribute("aria-selected", String(on)); button.tabIndex = on ? 0 : -1; });
    body.replaceChildren(pages[name][1]());
  }
  list.append(...buttons);
  open(names.includes(first) ? first : names[0]);
  return h("div", {}, list, body);
}
