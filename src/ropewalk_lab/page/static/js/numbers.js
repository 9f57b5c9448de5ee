// Numbers as text.

/** A whole number with commas. */
export const whole = (number) => Math.round(number).toLocaleString("en-US");

/** A number with at most `digits` significant digits, as Python's g format writes it. */
export function digits(number, count = 4) {
  if (!Number.isFinite(number)) return number === Infinity ? "∞" : String(number);
  if (number === 0) return "0";
  const exponent = Number(number.toExponential(count - 1).split("e")[1]);
  if (exponent < -4 || exponent >= count) {
    const [mantissa, power] = number.toExponential(count - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    return `${short}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  }
  const text = number.toFixed(count - 1 - exponent);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Tokens in a few characters: 4k, 128k, 1M. */
export function tokens(number) {
  for (const [unit, size] of [["M", 1 << 20], ["k", 1 << 10]]) {
    if (number >= size && Number.isInteger(number / size)) return `${number / size}${unit}`;
  }
  if (number >= 1e6) return `${digits(number / 1e6, 3)} M`;
  return whole(number);
}

export const percent = (share) => `${digits(100 * share, 3)} %`;

/** Bytes in a unit of 1,024. */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit++; }
  return `${digits(number, 3)} ${units[unit]}`;
}
