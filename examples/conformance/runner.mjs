// Tests the rope of rope.mjs with the vectors: node runner.mjs [folder of the vectors]
// Exit status 0: every number is as near as its group allows.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { cosSin, frequencies, magnitude, rotate } from "./rope.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2] ?? join(here, "..", "..", "conformance");
const read = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`), "utf8"));

let checked = 0;
const wrong = [];

function check(where, found, expected, allowed) {
  checked += 1;
  if (!(Math.abs(found - expected) <= allowed)) wrong.push(`${where}: ${found}, expected ${expected}`);
}

function checkCase(name, test, tolerance) {
  const { rope } = test;
  const axes = Array.isArray(test.positions[0][0]) ? test.positions : [test.positions];
  const length = 1 + Math.max(...axes.flat(2));
  const size = magnitude(rope);
  const radians = frequencies(rope, length);
  radians.forEach((w, i) =>
    check(`${name}, pair ${i}`, w, test.inv_freq.float[i], tolerance.relative * test.inv_freq.float[i]));
  check(`${name}, magnitude`, size, test.attention_factor.float, tolerance.relative);
  test.cos.forEach((row, b) => row.forEach((expected, s) => {
    const position = axes.map((axis) => axis[b][s]);
    const [cos, sin] = cosSin(rope, position, length);
    const angles = radians.map((w, i) => Math.abs(w * position[test.axis_of_pair?.[i] ?? 0]));
    const allowed = angles.map((angle) => size * (tolerance.absolute + tolerance.per_radian * angle));
    expected.forEach((value, i) => {
      check(`${name}, cos of pair ${i} at ${position}`, cos[i], value, allowed[i]);
      check(`${name}, sin of pair ${i} at ${position}`, sin[i], test.sin[b][s][i], allowed[i]);
    });
    for (const x of ["q", "k"]) {
      const scale = test.rotation[`${x}_scale`] ?? 1;
      test.rotation[x][b].forEach((head, h) => {
        const turned = rotate(rope, head[s].map((value) => value * scale), cos, sin);
        turned.forEach((value, i) =>
          check(`${name}, ${x} at ${position}, dimension ${i}`, value,
            test.rotation[`${x}_expected`][b][h][s][i], 2 * Math.max(...allowed)));
      });
    }
  }));
}

const index = read("index");
let cases = 0;
for (const group of index.groups.map(read)) {
  if (!group.functions.includes("rotate")) continue;
  for (const test of group.cases) {
    checkCase(`${group.group}/${test.id}`, test, group.tolerance);
    cases += 1;
  }
}
wrong.slice(0, 20).forEach((line) => console.log(line));
console.log(`vectors ${index.version} of ${index.date}: ${cases} cases, ${checked} numbers, ${wrong.length} wrong`);
process.exit(wrong.length || !checked ? 1 : 0);
