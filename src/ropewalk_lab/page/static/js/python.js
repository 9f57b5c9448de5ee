// Two ways to Python: over HTTP if `ropewalk explore` serves the page, otherwise a worker of the
// browser. Both take and give the text of a JSON object.

/** Whether `ropewalk explore` serves the page: it marks the document. */
export const local = document.documentElement.dataset.local !== undefined;
const waiting = new Map();
let worker = null, count = 0, state = "asleep";
let watcher = () => {};

function change(next, why) { state = next; watcher(next, why); }
/** Call a function now and whenever Python starts, is ready or fails, until the next call of `watch`: more would keep views that are gone. */
export function watch(action) { watcher = action; action(state); }
export const condition = () => state;

function start() {
  change("starting");
  try { worker = new Worker(new URL("../python/worker.js", import.meta.url), { type: "module" }); }
  catch (error) { change("failed", String(error)); return; }
  worker.onerror = (event) => { change("failed", event.message ?? ""); for (const [, [, refuse]] of waiting) refuse(new Error("python")); waiting.clear(); };
  worker.onmessage = ({ data }) => {
    if (data.ready) return change("ready");
    if (data.failed && data.id === undefined) return change("failed", data.failed);
    const [keep, refuse] = waiting.get(data.id) ?? [];
    waiting.delete(data.id);
    if (data.failed) refuse?.(new Error(data.failed)); else keep?.(JSON.parse(data.answer));
  };
}

/** Begin to load Python. */
export function wake() { if (!local && worker === null && state === "asleep") start(); else if (local && state === "asleep") change("ready"); }

/** The answer to a request: {ok: ...} or {error: {field, rule, value}}. */
export async function ask(request) {
  wake();
  if (local) {
    const response = await fetch("api/ask", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
    if (!response.ok) throw new Error(`${response.status}`);
    return response.json();
  }
  if (state === "failed") throw new Error("python");
  const id = ++count;
  return new Promise((keep, refuse) => { waiting.set(id, [keep, refuse]); worker.postMessage({ id, request: JSON.stringify(request) }); });
}

const lines = new Map();
/**
 * The answer to a request, or null if a newer one of its kind has replaced it. One request of a
 * kind is on its way at a time; of those that wait, only the newest is sent.
 */
export function newest(kind, request) {
  const line = lines.get(kind) ?? { busy: false, next: null };
  lines.set(kind, line);
  return new Promise((keep, refuse) => {
    line.next?.keep(null);
    line.next = { request, keep, refuse };
    if (!line.busy) send(line);
  });
}

async function send(line) {
  line.busy = true;
  while (line.next) {
    const { request, keep, refuse } = line.next;
    line.next = null;
    try { const answer = await ask(request); keep(line.next ? null : answer); }
    catch (error) { refuse(error); }
  }
  line.busy = false;
}

const loaded = new Map();
/** A data file of the page; it is read once. */
export function data(name) {
  if (!loaded.has(name)) loaded.set(name, fetch(new URL(`../data/${name}.json`, import.meta.url)).then((response) => { if (!response.ok) throw new Error(`${name}.json: ${response.status}`); return response.json(); }));
  return loaded.get(name);
}
