// a button that copies the text of a code block
addEventListener("DOMContentLoaded", () => {
  const chinese = location.pathname.includes("/zh/");
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = chinese ? "复制" : "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").innerText);
      button.textContent = chinese ? "已复制" : "Copied";
      setTimeout(() => { button.textContent = chinese ? "复制" : "Copy"; }, 1500);
    });
    block.append(button);
  }
});
