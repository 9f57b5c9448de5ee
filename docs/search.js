// Ranks what Sphinx's search finds: pages by the weights of `page_words.js`, in the language of the query first;
// then entries of the API.
const OTHER_LANGUAGE = 0.3, PAGE_TITLE = 6, SECTION = 4, PART_OF_WORD = 0.4, AFTER_PAGES = 1000;

// [page, weight] of every page that is about a word, or about one that begins with it
const pagesOf = (word) => {
  const pairs = (values, times) => values.flatMap((value, place) =>
    place % 2 ? [] : [[pageWords.pages[value], times * values[place + 1]]]);
  if (Object.hasOwn(pageWords.words, word)) return pairs(pageWords.words[word], 1);
  const longer = word.length > 2 ? Object.keys(pageWords.words).filter((other) => other.startsWith(word)) : [];
  return longer.flatMap((other) => pairs(pageWords.words[other], PART_OF_WORD));
};

// {page: weight} of the words of a query; a page that has only some of them counts less
const weigh = (words) => {
  const found = new Map();
  for (const word of words) {
    const best = new Map();
    for (const [page, weight] of pagesOf(word)) best.set(page, Math.max(weight, best.get(page) || 0));
    for (const [page, weight] of best) {
      const [sum, count] = found.get(page) || [0, 0];
      found.set(page, [sum + weight, count + 1]);
    }
  }
  return new Map([...found].map(([page, [sum, count]]) => [page, sum * count / words.size]));
};

const ranked = (search) => (query, words, ...others) => {
  const weights = weigh(words), { docnames, titles, filenames } = Search._index;
  const results = search(query, words, ...others);
  const there = new Set(results.map(([page]) => page));
  for (const page of weights.keys()) {
    const place = docnames.indexOf(page);
    if (place >= 0 && !there.has(page)) results.push([page, titles[place], "", null, 0, filenames[place], "text"]);
  }
  const asked = query.toLowerCase().trim(), chinese = /[\u4e00-\u9fff]/.test(query);
  const score = ([page, title, anchor, , own, , kind]) => {
    if (["object", "index"].includes(kind) || page.startsWith("reference/")) return own - AFTER_PAGES;
    let weight = weights.get(page) || 0;
    const named = pageWords.menu[pageWords.pages.indexOf(page)] || title;
    const share = (name) => (name.toLowerCase().includes(asked) ? asked.length / name.length : 0);
    if (kind === "title" && anchor) weight += SECTION * share(title.split(" > ").at(-1));
    else weight += PAGE_TITLE * Math.max(share(title), share(named));
    return chinese === page.startsWith("zh/") ? weight : weight * OTHER_LANGUAGE;
  };
  for (const result of results) result[4] = score(result);
  return results.sort((one, other) => one[4] - other[4]); // the last is shown first
};

const install = () => { Search._performSearch = ranked(Search._performSearch); };
if (typeof Search === "undefined") document.addEventListener("DOMContentLoaded", install, { capture: true });
else install();
