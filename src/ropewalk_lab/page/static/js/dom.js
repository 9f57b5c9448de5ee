// Elements. Text is always a text node: nothing that comes from a file or a link is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "textContent" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map((child) => child instanceof Node ? child : String(child)));
  return element;
}

/** An HTML element: h("p", {class: "mute"}, "text", other). */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const clear = (element, ...children) => { element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)); return element; };

/** Say something to a screen reader. */
export function tell(text) { document.getElementById("told").textContent = text; }

/** A function that runs once, `wait` ms after its last call. */
export function later(action, wait) {
  let timer = 0;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => action(...given), wait); };
}

/** The colours of the page, for drawings. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "mute", "line", "soft", "good", "good-soft", "bad", "bad-soft", "warn", "other", "card", "paper"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
