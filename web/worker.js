// Python in the browser: starts in this worker, so that the page never waits. A request is the text
// of a JSON object, and so is its answer.
import { loadPyodide } from "./pyodide.mjs";

const here = new URL("./", import.meta.url).href;

async function bytes(name) {
  const response = await fetch(here + name);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function start() {
  const [python, modules] = await Promise.all([
    loadPyodide({ indexURL: here, stdLibURL: here + "stdlib.zip" }),
    bytes("ropewalk.zip"),
  ]);
  python.FS.writeFile("ropewalk.zip", modules);
  python.runPython("import sys, zipfile; zipfile.ZipFile('ropewalk.zip').extractall('/ropewalk'); sys.path.insert(0, '/ropewalk')");
  return python.pyimport("ropewalk_lab.page.answers");
}

const ready = start();
ready.then(() => postMessage({ ready: true }), (error) => postMessage({ failed: String(error) }));

addEventListener("message", async ({ data }) => {
  try {
    postMessage({ id: data.id, answer: (await ready).answer(data.request) });
  } catch (error) {
    postMessage({ id: data.id, failed: String(error) });
  }
});
