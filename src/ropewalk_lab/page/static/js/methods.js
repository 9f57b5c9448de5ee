import { h } from "./dom.js"; export const methods = () => h("p", {}, "…");
