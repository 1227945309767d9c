/* A button at each block of code that copies its text, without the prompts and output of a shell. */
"use strict";

const copiedText = (block) => {
  const text = block.querySelector("pre").textContent.trimEnd();
  const lines = text.split("\n");
  if (!lines.some((line) => line.startsWith("$ "))) return text;
  return lines
    .filter((line) => line.startsWith("$ "))
    .map((line) => line.slice(2))
    .join("\n");
};

document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return; // it needs https, or a page of this machine
  document.querySelectorAll("div.highlight").forEach((block) => {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copiedText(block));
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 2000);
    });
    block.append(button);
  });
});
