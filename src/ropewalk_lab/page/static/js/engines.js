import { h } from "./dom.js"; export const engines = () => h("p", {}, "…");
