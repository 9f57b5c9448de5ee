import { h } from "./dom.js"; export const model = () => h("p", {}, "…");
