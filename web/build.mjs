// Build the page into build/web: static files, Pyodide, the definition and the part of the standard
// library that it needs, both as bytecode. `make web` runs it; nothing here is sent anywhere.
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { fileURLToPath } from "node:url";
import { loadPyodide } from "pyodide";
import { preview } from "./preview.mjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const source = path.join(here, "..", "src");
const page = path.join(source, "ropewalk_lab", "page");
const out = path.resolve(process.argv[2] ?? path.join(here, "..", "build", "web"));
const pyodide = path.join(here, "node_modules", "pyodide");

// ring 1, and the file that answers the page
const RING = "__init__ errors safe_text caches frequencies axes phase spec strategies temperatures config engines gguf analysis diagnosis".split(" ");
const BESIDE = ["ropewalk_lab/__init__.py", "ropewalk_lab/page/__init__.py", "ropewalk_lab/page/answers.py"];
const KINDS = [".py", ".json", ".toml"];

function filesOf(folder) {
  return fs.readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name));
}

function definition() {
  const found = BESIDE.map((name) => path.join(source, name));
  for (const name of RING) {
    const module = path.join(source, "ropewalk", name);
    found.push(...(fs.existsSync(`${module}.py`) ? [`${module}.py`] : filesOf(module)));
  }
  return found.filter((file) => KINDS.includes(path.extname(file)) && !file.includes("__pycache__"));
}

const gzipped = (file) => zlib.gzipSync(fs.readFileSync(file), { level: 9 }).length;

fs.rmSync(out, { recursive: true, force: true });
fs.cpSync(path.join(page, "static"), out, { recursive: true });
const python = path.join(out, "python");
fs.mkdirSync(python, { recursive: true });
fs.copyFileSync(path.join(here, "worker.js"), path.join(python, "worker.js"));
for (const name of ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"]) {
  fs.copyFileSync(path.join(pyodide, name), path.join(python, name));
}

// the list of packages that can be installed, without packages
const lock = JSON.parse(fs.readFileSync(path.join(pyodide, "pyodide-lock.json"), "utf8"));
fs.writeFileSync(path.join(python, "pyodide-lock.json"), JSON.stringify({ info: lock.info, packages: {} }));

// an error of Python is one line; its trace would show the whole of Pyodide
process.on("uncaughtException", (error) => { console.error(`make web: ${String(error.message).trim().split("\n").at(-1)}`); process.exit(1); });
const py = await loadPyodide();
for (const file of definition()) {
  const target = "/pack/" + path.relative(source, file).split(path.sep).join("/");
  py.FS.mkdirTree(path.posix.dirname(target));
  py.FS.writeFile(target, fs.readFileSync(file));
}
py.FS.writeFile("/stdlib.zip", fs.readFileSync(path.join(pyodide, "python_stdlib.zip")));
py.FS.mkdirTree("/built");
py.FS.writeFile("/home/pyodide/pack.py", fs.readFileSync(path.join(here, "pack.py")));
const config = { model_type: "qwen3", head_dim: 128, hidden_size: 4096, num_attention_heads: 32,
  max_position_embeddings: 131072, rope_theta: 1e6, rope_scaling: { type: "yarn", factor: "4" } };
const requests = [
  { ask: "doctor", text: JSON.stringify(config), engine: "vllm", length: 131072 },
  { ask: "audit", text: JSON.stringify({ ...config, rope_scaling: null }) },
  { ask: "rope", scaling: "yarn", factor: 4, original_length: 4096, head_dim: 128, theta: 1e4, trained: 4096, served: 16384 },
  { ask: "doctor", text: JSON.stringify({ gguf: { "general.architecture": "llama", "llama.context_length": 4096 } }) },
  { ask: "doctor", text: "{" },
];
const result = JSON.parse(py.pyimport("pack").run("/pack", "/stdlib.zip", "/built", JSON.stringify(requests)));
for (const [index, given] of result.answers.entries()) {
  const refused = index === requests.length - 1;
  if ((given.error !== undefined) !== refused) throw new Error(`request ${index}: ${JSON.stringify(given)}`);
}
for (const name of ["ropewalk.zip", "stdlib.zip"]) fs.writeFileSync(path.join(python, name), py.FS.readFile(`/built/${name}`));
// the trimmed library gives the same answers
const small = await loadPyodide({ stdLibURL: path.join(python, "stdlib.zip") });
small.FS.writeFile("ropewalk.zip", fs.readFileSync(path.join(python, "ropewalk.zip")));
small.runPython("import sys, zipfile; zipfile.ZipFile('ropewalk.zip').extractall('/ropewalk'); sys.path.insert(0, '/ropewalk')");
const answers = small.pyimport("ropewalk_lab.page.answers");
for (const [index, request] of requests.entries()) {
  if (JSON.stringify(JSON.parse(answers.answer(JSON.stringify(request)))) !== JSON.stringify(result.answers[index])) throw new Error(`request ${index} is answered otherwise`);
}
fs.writeFileSync(path.join(out, "data", "known.json"), JSON.stringify(result.known));
fs.writeFileSync(path.join(out, "preview.png"), preview());
fs.writeFileSync(path.join(out, ".nojekyll"), "");
// other sites show the picture of a link only by its whole address: make web PAGE=https://host/folder/
if (process.env.PAGE) {
  const picture = new URL("preview.png", process.env.PAGE);
  if (!/^https?:$/.test(picture.protocol)) throw new Error(`PAGE: must begin with https:// or http://; got ${process.env.PAGE}`);
  const index = path.join(out, "index.html"), text = fs.readFileSync(index, "utf8");
  const named = encodeURI(decodeURI(picture.href)).replaceAll("&", "&amp;").replaceAll('"', "%22");
  fs.writeFileSync(index, text.replace('content="preview.png"', `content="${named}"`));
}

const sizes = filesOf(out).map((file) => [path.relative(out, file), gzipped(file)]).sort((a, b) => b[1] - a[1]);
const total = sizes.reduce((sum, [, size]) => sum + size, 0);
for (const [name, size] of sizes.slice(0, 6)) console.log(`${(size / 1e6).toFixed(2).padStart(6)} MB  ${name}`);
console.log(`${(total / 1e6).toFixed(2).padStart(6)} MB  gzipped in all, ${sizes.length} files in ${path.relative(process.cwd(), out)}`);
process.exit(0);
