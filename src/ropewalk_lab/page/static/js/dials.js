// Dials: one for each pair of dimensions. The ring shows the angles of training and those beyond,
// the hand the angle at a position.
import { h, colours } from "./dom.js";
import { t } from "./words.js";
import { digits, tokens, whole } from "./numbers.js";
import { newAngles } from "./rope.js";

const TURN = 2 * Math.PI;
/** radians: a hand that moves farther than this between two pictures is drawn as a disc */
const BLURRED = 0.7;

/** A figure of dials; `set(rope, position)` draws, `play()` lets the position run to the served length. */
export function dials({ most = 64, caption = true } = {}) {
  const canvas = h("canvas", { tabindex: "0", role: "img" });
  const about = h("output", { class: "small num" });
  const legend = h("div", { class: "key" }, h("span", {}, h("i", { class: "seen" }), t("dials.seen")), h("span", {}, h("i", { class: "new" }), t("dials.new")), h("span", {}, h("i", { class: "still" }), t("dials.none")));
  const element = h("figure", { class: "dials" }, canvas, legend, caption ? h("figcaption", {}, about) : null);
  let rope = null, position = 0, step = 0, chosen = -1, shown = [], frame = 0, grid = null;

  function pairs() {
    // at most `most` dials: the same number of pairs is left out between any two
    const count = rope.radians.length, every = Math.ceil(count / most);
    return Array.from({ length: Math.ceil(count / every) }, (_, i) => i * every);
  }

  function draw() {
    if (!rope || !canvas.clientWidth) return;
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1, colour = colours();
    shown = pairs();
    const across = width < 480 ? 8 : shown.length > 32 ? 16 : Math.min(8, shown.length);
    const cell = Math.min(width / across, 84), down = Math.ceil(shown.length / across), height = Math.round(cell * down);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const left = (width - across * cell) / 2, radius = cell * 0.37, fresh = newAngles(rope);
    grid = { across, cell, left };
    shown.forEach((pair, index) => {
      const x = left + (index % across + 0.5) * cell, y = (Math.floor(index / across) + 0.5) * cell;
      const seen = Math.min(rope.plain[pair] * rope.trained, TURN), reached = Math.min(rope.radians[pair] * rope.served, TURN);
      const arc = (from, to, style, thick) => { pen.beginPath(); pen.arc(x, y, radius, -from, -to, true); pen.strokeStyle = style; pen.lineWidth = thick; pen.stroke(); };
      const thick = Math.max(2.5, cell * 0.06);
      if (pair === chosen) { pen.beginPath(); pen.arc(x, y, cell * 0.48, 0, TURN); pen.fillStyle = colour.soft; pen.fill(); }
      arc(0, TURN, colour.line, thick);
      arc(0, seen, colour.good, thick);
      if (fresh[pair]) arc(seen, reached, colour.bad, thick + 1);
      const angle = rope.radians[pair] * position % TURN;
      if (rope.radians[pair] * step > BLURRED) {
        pen.beginPath(); pen.arc(x, y, radius * 0.72, 0, TURN); pen.fillStyle = colour.soft; pen.fill();
      } else {
        pen.beginPath(); pen.moveTo(x, y); pen.lineTo(x + radius * 0.78 * Math.cos(angle), y - radius * 0.78 * Math.sin(angle));
        pen.strokeStyle = fresh[pair] && rope.radians[pair] * position > seen ? colour.bad : colour.ink; pen.lineWidth = Math.max(1.6, cell * 0.03); pen.lineCap = "round"; pen.stroke();
      }
    });
    const count = fresh.filter(Boolean).length;
    canvas.setAttribute("aria-label", t("dials.label", { pairs: rope.radians.length, new: count, trained: whole(rope.trained), served: whole(rope.served) }));
    about.textContent = chosen < 0 ? t("dials.hint") : t("dials.pair", { pair: chosen, radians: digits(rope.radians[chosen], 4), wave: rope.radians[chosen] ? tokens(TURN / rope.radians[chosen]) : "∞", times: rope.radians[chosen] ? digits(rope.plain[chosen] / rope.radians[chosen], 4) : "∞" });
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - grid.left) / grid.cell), row = Math.floor((event.clientY - box.top) / grid.cell);
    const index = row * grid.across + column;
    return column < 0 || column >= grid.across ? -1 : shown[index] ?? -1;
  }
  const choose = (pair) => { if (pair !== chosen) { chosen = pair; draw(); } };
  canvas.addEventListener("pointermove", (event) => grid && choose(at(event)));
  canvas.addEventListener("pointerdown", (event) => grid && choose(at(event)));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid?.across, ArrowUp: -grid?.across }[event.key];
    if (move === undefined || !shown.length) return;
    event.preventDefault();
    const index = Math.min(Math.max(shown.indexOf(chosen) + move, 0), shown.length - 1);
    choose(shown[index]);
  });
  const resized = new ResizeObserver(draw);
  resized.observe(canvas);

  return {
    element,
    set(next, where = position) { rope = next; position = where; step = 0; draw(); },
    redraw: draw,
    /** Let the position run from 0 to the served length in `seconds`; `each(position, whether it is the last)` is called for every picture. */
    play(seconds = 9, each = () => {}) {
      cancelAnimationFrame(frame);
      const begin = performance.now();
      let last = 0;
      const tick = (now) => {
        if (!canvas.isConnected) return;
        const share = Math.min((now - begin) / 1000 / seconds, 1);
        position = Math.round(rope.served * share);
        step = position - last;
        last = position;
        if (share === 1) step = 0;
        draw();
        each(position, share === 1);
        if (share < 1) frame = requestAnimationFrame(tick);
      };
      frame = requestAnimationFrame(tick);
    },
    stop() { cancelAnimationFrame(frame); step = 0; draw(); },
  };
}
