// Charts as SVG: lines over a linear or logarithmic axis, with a marker and a table for readers.
import { h, s, colours } from "./dom.js";
import { t } from "./words.js";

const HEIGHT = 300, LEFT = 54, RIGHT = 14, TOP = 26, BOTTOM = 40;
const DASHES = ["", "7 4", "2 4", "9 3 2 3", "4 3", "12 4"];

/** Whether the page is as narrow as a phone: charts have fewer pixels then, and letters of the same size. */
export const narrow = () => matchMedia("(max-width: 560px)").matches;

const scale = (low, high, from, to, log) => {
  const read = log ? Math.log : Number;
  const [a, b] = [read(low), read(high)];
  return (value) => from + (to - from) * (b === a ? 0.5 : (read(value) - a) / (b - a));
};

function linearTicks(low, high, count = 5) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return ticks;
}

function logTicks(low, high, base) {
  const ticks = [];
  for (let power = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** power <= high * (1 + 1e-9); power++) ticks.push(base ** power);
  const every = Math.ceil(ticks.length / (narrow() ? 5 : 7));
  return ticks.filter((_, index) => index % every === 0);
}

/**
 * series: [{name, points: [[x, y]], colour, dots}]; x, y: {label, log: base or 0, low, high, text};
 * shade: [from, to] of x; marker: {x, text}; onpick(x) is called while the pointer is dragged.
 */
export function chart({ series, x, y, shade, marker, label, onpick, height = HEIGHT, width = narrow() ? 380 : 640, names = true }) {
  const colour = colours(), all = series.flatMap((each) => each.points).filter(([, value]) => Number.isFinite(value));
  const ends = (axis, index) => {
    const values = all.map((point) => point[index]);
    return [axis.low ?? Math.min(...values), axis.high ?? Math.max(...values)];
  };
  const [xLow, xHigh] = ends(x, 0), [yLow, yHigh] = ends(y, 1);
  const toX = scale(xLow, xHigh, LEFT, width - RIGHT, x.log), toY = scale(yLow, yHigh, height - BOTTOM, TOP, y.log);
  const inY = (value) => toY(Math.min(Math.max(value, Math.min(yLow, yHigh)), Math.max(yLow, yHigh)));
  const parts = [];
  if (shade) parts.push(s("rect", { x: toX(Math.max(shade[0], xLow)), y: TOP, width: Math.max(toX(Math.min(shade[1], xHigh)) - toX(Math.max(shade[0], xLow)), 0), height: height - TOP - BOTTOM, fill: colour["good-soft"] }));
  for (const tick of y.ticks ?? (y.log ? logTicks(yLow, yHigh, y.log) : linearTicks(yLow, yHigh))) {
    parts.push(s("line", { x1: LEFT, x2: width - RIGHT, y1: toY(tick), y2: toY(tick), stroke: colour.line }), s("text", { x: LEFT - 8, y: toY(tick) + 4, "text-anchor": "end" }, (y.text ?? String)(tick)));
  }
  for (const tick of x.ticks ?? (x.log ? logTicks(xLow, xHigh, x.log) : linearTicks(xLow, xHigh, narrow() ? 3 : 6))) {
    parts.push(s("line", { x1: toX(tick), x2: toX(tick), y1: height - BOTTOM, y2: height - BOTTOM + 5, stroke: colour.mute }), s("text", { x: toX(tick), y: height - BOTTOM + 18, "text-anchor": "middle" }, (x.text ?? String)(tick)));
  }
  parts.push(s("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, x.label), s("text", { x: 2, y: 11 }, y.label));
  const tones = [colour.good, colour.bad, colour.other, colour.warn, colour.ink, colour.mute];
  series.forEach((each, index) => {
    const tone = each.colour ? colour[each.colour] : tones[index % tones.length];
    const points = each.points.filter(([, value]) => Number.isFinite(value));
    if (each.bars) {
      const wide = Math.max((width - LEFT - RIGHT) / points.length - 1.5, 1);
      for (const [at, value, own] of points) parts.push(s("rect", { x: toX(at) - wide / 2, y: inY(value), width: wide, height: Math.max(toY(yLow) - inY(value), 0.5), fill: own ? colour[own] : tone }));
    } else {
      parts.push(s("polyline", { points: points.map(([a, b]) => `${toX(a).toFixed(1)},${inY(b).toFixed(1)}`).join(" "), fill: "none", stroke: tone, "stroke-width": each.thin ? 1.4 : 2.4, "stroke-dasharray": each.dash === undefined ? "" : DASHES[each.dash % DASHES.length], "stroke-linejoin": "round" }));
      if (each.dots) for (const [a, b] of points) parts.push(s("circle", { cx: toX(a), cy: inY(b), r: 3.4, fill: tone }));
    }
  });
  if (marker) {
    const at = toX(Math.min(Math.max(marker.x, xLow), xHigh));
    parts.push(s("line", { x1: at, x2: at, y1: TOP, y2: height - BOTTOM, stroke: colour.ink, "stroke-width": 1.4 }));
    if (marker.y !== undefined) parts.push(s("circle", { cx: at, cy: inY(marker.y), r: 5.5, fill: colour.card, stroke: colour.ink, "stroke-width": 2 }));
  }
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
  if (onpick) {
    const pick = (event) => {
      const box = svg.getBoundingClientRect(), share = ((event.clientX - box.left) / box.width * width - LEFT) / (width - LEFT - RIGHT);
      const clipped = Math.min(Math.max(share, 0), 1);
      onpick(x.log ? xLow * (xHigh / xLow) ** clipped : xLow + (xHigh - xLow) * clipped);
    };
    svg.style.cursor = "ew-resize";
    svg.style.touchAction = "pan-y";
    svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture?.(event.pointerId); pick(event); });
    svg.addEventListener("pointermove", (event) => event.buttons && pick(event));
  }
  const key = names && series.length > 1 ? h("div", { class: "key" }, series.filter((each) => each.name).map((each, index) => {
    const line = s("svg", { width: 26, height: 8, "aria-hidden": "true" }, s("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: each.colour ? colour[each.colour] : tones[index % tones.length], "stroke-width": 2.6, "stroke-dasharray": each.dash === undefined ? "" : DASHES[each.dash % DASHES.length] }));
    return h("span", {}, line, " ", each.name);
  })) : null;
  return h("figure", {}, svg, key);
}

/** The numbers of a chart as a table that opens. */
export function numbersOf({ series, x, y }) {
  const columns = [...new Set(series.flatMap((each) => each.points.map(([at]) => at)))].sort((a, b) => a - b);
  const table = h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, x.label), columns.map((at) => h("th", { class: "n" }, (x.text ?? String)(at))))), h("tbody", {}, series.map((each) => {
    const values = new Map(each.points);
    return h("tr", {}, h("th", { scope: "row" }, each.name), columns.map((at) => h("td", { class: "n" }, values.has(at) ? (y.digits ?? y.text ?? String)(values.get(at)) : "–")));
  })));
  return h("details", {}, h("summary", {}, t("chart.numbers")), h("div", { class: "scroll" }, table));
}
