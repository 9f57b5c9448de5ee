// Prints the first pages that the built site's own search finds: node site_search.js SITE < queries.json
const fs = require("fs");
const vm = require("vm");

const [, , site] = process.argv;
const page = { console, localStorage: { setItem() {} }, SPHINX_HIGHLIGHT_ENABLED: false };
page.window = page;
page.document = { addEventListener() {}, getElementById: () => null };
page._ready = () => {}; // in a browser it starts the search for the query of the address
page._ = (text) => text; // translates
vm.createContext(page);
const scripts = ["_static/searchtools.js", "_static/language_data.js", "_static/page_words.js", "_static/search.js", "searchindex.js"];
for (const name of scripts) vm.runInContext(fs.readFileSync(`${site}/${name}`, "utf8"), page, { filename: name });
page.queries = JSON.parse(fs.readFileSync(0, "utf8"));
const first = "(query) => Search._performSearch(...Search._parseQuery(query)).slice(-4).reverse().map(([page, title, , , score]) => [page, score, title])";
console.log(JSON.stringify(vm.runInContext(`queries.map(${first})`, page)));
