// The page: its state, its header, and the view that is open.
import { h, clear, tell } from "./dom.js";
import { LANGUAGES, language, speak, t } from "./words.js";
import { VIEWS, format, parse } from "./state.js";
import { local, wake } from "./python.js";
import { doctor } from "./doctor.js";
import { story } from "./story.js";
import { engines } from "./engines.js";
import { methods } from "./methods.js";
import { model } from "./model.js";

const DRAW = { doctor, story, engines, methods, model };
const theme = {
  stored() { try { return localStorage.getItem("theme"); } catch { return null; } },
  now() { return this.stored() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"); },
  apply() { document.documentElement.dataset.theme = this.now(); },
  change() { const next = this.now() === "dark" ? "light" : "dark"; try { localStorage.setItem("theme", next); } catch { /* private window */ } this.apply(); },
};

const app = {
  state: parse(location.hash),
  /** Change values. The address follows; the view is drawn anew only if `draw`. */
  set(values, { draw = false, push = false } = {}) {
    Object.assign(this.state, values);
    const hash = format(this.state);
    if (hash !== location.hash) history[push ? "pushState" : "replaceState"](null, "", hash);
    if (draw) show();
  },
  /** A link to what is shown, or to the doctor in place of the view "model"; on a local page it leads to the static page if its address is known. */
  link() { return (document.documentElement.dataset.local || location.href.split("#")[0]) + format({ ...this.state, view: this.state.view === "model" ? "doctor" : this.state.view, lang: language }); },
  /** The address of a view with some values, from the present state. */
  address(values) { return format({ ...this.state, ...values }); },
};

function header() {
  const names = VIEWS.filter((name) => name !== "model" || local);
  const nav = document.getElementById("views");
  nav.setAttribute("aria-label", t("nav"));
  clear(nav, names.map((name) => h("a", { href: app.address({ view: name, cell: null }), "aria-current": name === app.state.view ? "page" : null }, t(`view.${name}`))));
  const other = language === "en" ? "zh" : "en";
  clear(document.getElementById("choices"),
    h("button", { class: "quiet", type: "button", lang: other === "zh" ? "zh-Hans" : "en", onclick: async () => { await speak(other); try { localStorage.setItem("lang", other); } catch { /* private window */ } app.set({ lang: null }); show(); } }, LANGUAGES[other]),
    h("button", { class: "quiet", type: "button", "aria-label": t("theme"), onclick: () => { theme.change(); show(); } }, theme.now() === "dark" ? "☀" : "☾"));
  const skip = document.getElementById("skip");
  skip.textContent = t("skip");
  skip.onclick = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
  clear(document.getElementById("foot"), h("span", {}, t(local ? "foot.local" : "foot.static")), h("span", {}, t("foot.exact")));
}

function show({ top = false } = {}) {
  header();
  document.title = `${t(`view.${app.state.view}`)} · ropewalk`;
  const view = app.state.view === "model" && !local ? "doctor" : app.state.view;
  clear(document.getElementById("main"), DRAW[view](app));
  if (top) scrollTo(0, 0);
}

/** Follow an address that was typed, pasted or clicked. */
function follow() {
  const before = app.state;
  app.state = parse(location.hash);
  const open = document.getElementById("dialog");
  if (open.open) open.close();
  const moved = before.view !== app.state.view;
  show({ top: moved });
  if (moved) tell(t(`view.${app.state.view}`));
}

async function begin() {
  theme.apply();
  let stored = null;
  try { stored = localStorage.getItem("lang"); } catch { /* private window */ }
  await speak(app.state.lang ?? stored ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"));
  show();
  addEventListener("hashchange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme.apply(); show(); });
  // after the first picture
  requestAnimationFrame(() => setTimeout(wake, 0));
}

begin();
