// The picture for link previews: 8 x 4 dials of a rope with 32 pairs, as PNG.
import zlib from "node:zlib";

const WIDTH = 1200, HEIGHT = 630, ACROSS = 8, DOWN = 4, CELL = 132;
const PAPER = [251, 250, 246], LINE = [214, 209, 196], INK = [22, 34, 46], SEEN = [29, 122, 122], NEW = [201, 79, 46];
const TRAINED = 4096, SERVED = 16384, THETA = 1e4, PAIRS = ACROSS * DOWN;

function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind), data]);
  const out = Buffer.alloc(body.length + 8);
  out.writeUInt32BE(data.length, 0);
  body.copy(out, 4);
  out.writeUInt32BE(zlib.crc32 ? zlib.crc32(body) : crc(body), body.length + 4);
  return out;
}

function crc(data) {
  let value = ~0;
  for (const byte of data) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  }
  return ~value >>> 0;
}

/** The colour of a point: the dial it is in, the angles that training showed, and those it did not. */
function colour(x, y) {
  const left = (WIDTH - ACROSS * CELL) / 2, top = (HEIGHT - DOWN * CELL) / 2;
  const column = Math.floor((x - left) / CELL), row = Math.floor((y - top) / CELL);
  if (column < 0 || column >= ACROSS || row < 0 || row >= DOWN) return PAPER;
  const dx = x - left - (column + 0.5) * CELL, dy = top + (row + 0.5) * CELL - y;
  const radius = Math.hypot(dx, dy), pair = row * ACROSS + column;
  const speed = THETA ** (-pair / PAIRS), turn = 2 * Math.PI;
  const seen = Math.min(speed * TRAINED, turn), reached = Math.min(speed * SERVED, turn);
  const angle = (Math.atan2(dy, dx) + turn) % turn;
  const hand = (speed * SERVED) % turn;
  const along = dx * Math.cos(hand) + dy * Math.sin(hand), across = Math.abs(dy * Math.cos(hand) - dx * Math.sin(hand));
  if (along > 0 && along < 40 && across < 2.4) return INK;
  if (radius < 4.5) return INK;
  if (radius > 43 && radius < 51) return angle <= seen ? SEEN : angle <= reached ? NEW : LINE;
  return PAPER;
}

export function preview() {
  const rows = Buffer.alloc(HEIGHT * (WIDTH * 3 + 1));
  const around = [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]];
  for (let y = 0, at = 0; y < HEIGHT; y++) {
    at++; // each row begins with its filter, 0
    for (let x = 0; x < WIDTH; x++) {
      const points = around.map(([a, b]) => colour(x + a, y + b));
      for (let channel = 0; channel < 3; channel++) rows[at++] = Math.round(points.reduce((sum, point) => sum + point[channel], 0) / 4);
    }
  }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(WIDTH, 0);
  header.writeUInt32BE(HEIGHT, 4);
  header.set([8, 2, 0, 0, 0], 8);
  return Buffer.concat([Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]), chunk("IHDR", header), chunk("IDAT", zlib.deflateSync(rows, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}
