// The metadata of a GGUF file, read from its first bytes: key and value pairs, and the small tensors
// that a rope depends on. Long arrays, such as a tokenizer's, are skipped.

const LARGEST_HEAD = 256 << 20, LARGEST_ARRAY = 1024, LARGEST_TENSOR = 4096;
const SIZES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
const READ = ["getUint8", "getInt8", "getUint16", "getInt16", "getUint32", "getInt32", "getFloat32", null, null, null, "getBigUint64", "getBigInt64", "getFloat64"];
const STRING = 8, ARRAY = 9, BOOL = 7;
const ROPE_TENSORS = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

class Short extends Error {}

class Reader {
  constructor(buffer) { this.view = new DataView(buffer); this.at = 0; }
  take(count) { const at = this.at; this.at += count; if (count < 0 || this.at > this.view.byteLength) throw new Short(); return at; }
  number(type) {
    if (type === BOOL) return this.view.getUint8(this.take(1)) !== 0;
    const value = this.view[READ[type]](this.take(SIZES[type]), true);
    return typeof value === "bigint" ? Number(value) : value;
  }
  count() { const value = this.number(10); if (!Number.isSafeInteger(value)) throw new Error("gguf"); return value; }
  text() { const length = this.count(), at = this.take(length); return length > 65536 ? "" : new TextDecoder().decode(new Uint8Array(this.view.buffer, at, length)); }
  value(type) {
    if (type === STRING) return this.text();
    if (type !== ARRAY) { if (!SIZES[type]) throw new Error("gguf"); return this.number(type); }
    const inner = this.number(4), length = this.count();
    if (inner === STRING) { for (let i = 0; i < length; i++) this.take(this.count()); return undefined; }
    if (!SIZES[inner]) throw new Error("gguf");
    if (length > LARGEST_ARRAY) { this.take(length * SIZES[inner]); return undefined; }
    return Array.from({ length }, () => this.number(inner));
  }
}

function head(buffer) {
  const reader = new Reader(buffer), metadata = {}, tensors = {};
  if (new TextDecoder().decode(new Uint8Array(buffer, reader.take(4), 4)) !== "GGUF") throw new Error("gguf");
  const version = reader.number(4);
  if (version !== 2 && version !== 3) throw new Error("gguf");
  const tensorCount = reader.count(), pairCount = reader.count();
  for (let i = 0; i < pairCount; i++) {
    const key = reader.text(), value = reader.value(reader.number(4));
    if (value !== undefined && !key.startsWith("tokenizer.") && (key.startsWith("general.a") || !key.startsWith("general."))) metadata[key] = value;
  }
  for (let i = 0; i < tensorCount; i++) {
    const name = reader.text(), sizes = Array.from({ length: reader.number(4) }, () => reader.count());
    const type = reader.number(4), offset = reader.count();
    if (ROPE_TENSORS.includes(name) && type === 0 && sizes.length === 1 && sizes[0] <= LARGEST_TENSOR) tensors[name] = { offset, length: sizes[0] };
  }
  const alignment = metadata["general.alignment"] ?? 32;
  return { metadata, tensors, start: Math.ceil(reader.at / alignment) * alignment };
}

/** The metadata of a file as the text of a JSON object that Python reads; throws Error("gguf") if it cannot be read as GGUF. */
export async function readGguf(file) {
  let found = null;
  for (let size = 1 << 20; found === null; size *= 4) {
    try { found = head(await file.slice(0, size).arrayBuffer()); }
    catch (error) { if (!(error instanceof Short) || size >= file.size || size >= LARGEST_HEAD) throw new Error("gguf"); }
  }
  const tensors = {};
  for (const [name, { offset, length }] of Object.entries(found.tensors)) {
    const begin = found.start + offset, view = new DataView(await file.slice(begin, begin + 4 * length).arrayBuffer());
    tensors[name] = Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }
  return JSON.stringify({ gguf: found.metadata, ...(Object.keys(tensors).length ? { tensors } : {}) }, null, 2);
}
