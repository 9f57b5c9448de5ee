// What the pages do beyond their HTML: code is copied, long tables and long entries of the API fold.
// Without JavaScript everything is there, unfolded.
const chinese = location.pathname.includes("/zh/");
const ROWS = 12; // rows of a table that has no filter; a longer one shows the first ROWS - 2 of them
const PARTS = 3, LONG = 4500; // parts of an entry of the API that fold; on a page of more pixels any part does
const ANSWERS = "#faq section section"; // sections that fold below their heading

const made = (name, properties) => Object.assign(document.createElement(name), properties);

// a button that copies the text of a code block
const copies = (block) => {
  const button = made("button", { className: "copy", type: "button", textContent: chinese ? "复制" : "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").innerText);
    button.textContent = chinese ? "已复制" : "Copied";
    setTimeout(() => { button.textContent = chinese ? "复制" : "Copy"; }, 1500);
  });
  block.append(button);
};

// a box that filters the rows of a table by words, and a button that shows all of them
const filters = (table) => {
  const rows = [...table.querySelectorAll("tbody > tr")];
  const listed = ["page", "页面"].includes(table.querySelector("th")?.textContent); // pages are there to be seen
  if (rows.length <= ROWS || listed || table.querySelector("img")) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const hint = chinese ? `筛选 ${rows.length} 行` : `Filter ${rows.length} rows`;
  const box = made("input", { type: "search", className: "filter", placeholder: hint, ariaLabel: hint });
  const more = made("button", { type: "button", className: "more" });
  let all = false;
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row, place) => words.every((word) => texts[place].includes(word)));
    const shown = new Set(all ? found : found.slice(0, ROWS - 2));
    for (const row of rows) row.hidden = !shown.has(row);
    const count = `${shown.size} / ${found.length}`;
    more.hidden = found.length <= ROWS - 2;
    more.textContent = chinese ? (all ? "收起" : `显示全部（${count}）`) : (all ? "Show fewer" : `Show all (${count})`);
  };
  box.addEventListener("input", show);
  more.addEventListener("click", () => { all = !all; show(); });
  table.reveal = () => { all = true; show(); };
  const outer = table.closest(".table-wrapper") || table;
  outer.before(box);
  outer.after(more);
  show();
};

// the first paragraph of an entry of the API stays, the rest folds
const folds = (entry, parts) => {
  const body = [...entry.children].find((child) => child.tagName === "DD");
  const rest = body ? [...body.children].slice(1) : [];
  if (rest.length < parts) return;
  const names = rest.flatMap((part) => [...part.querySelectorAll(":scope > dt .descname")].map((each) => each.textContent));
  const title = names.length ? names.slice(0, 8).join(", ") + (names.length > 8 ? ", …" : "") : "more";
  const details = made("details", {});
  details.append(made("summary", { textContent: title }), ...rest);
  body.append(details);
};

// the heading of a section stays, its text folds
const answers = (section) => {
  const [heading, ...rest] = section.children;
  const details = made("details", {});
  const summary = made("summary", {});
  summary.append(heading);
  details.append(summary, ...rest);
  section.append(details);
};

// what an address names is unfolded
const reveal = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let up = target; up; up = up.parentElement) {
    if (up.tagName === "DETAILS") up.open = true;
    if (up.reveal) up.reveal();
  }
  const own = target.tagName === "DT" ? target.parentElement : target;
  own.querySelector(":scope > details, :scope > dd > details")?.setAttribute("open", "");
  target.scrollIntoView();
};

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("div.highlight").forEach(copies);
  document.querySelectorAll("article table").forEach(filters);
  const parts = document.documentElement.scrollHeight > LONG ? 1 : PARTS;
  document.querySelectorAll("article dl.py").forEach((entry) => folds(entry, parts));
  document.querySelectorAll(ANSWERS).forEach(answers);
  const long = document.documentElement.scrollHeight > LONG && location.pathname.includes("/reference/");
  if (long) document.querySelectorAll("article section > section").forEach(answers);
  reveal();
});
addEventListener("hashchange", reveal);
