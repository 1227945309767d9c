// Text of numbers, durations and names. `html` inserts values as text nodes, never as markup.
import { html } from "../vendor/preact.js";

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
export const number = (value) => Math.round(value || 0).toLocaleString("en-US");
export const rate = (value) => (value >= 10 ? number(value) : (value || 0).toFixed(1)) + "/s";
export const bytes = (value) => {
  let n = value || 0,
    u = 0;
  while (n >= 1024 && u < 4) {
    n /= 1024;
    u += 1;
  }
  return (u ? n.toFixed(1) : n) + [" B", " KiB", " MiB", " GiB", " TiB"][u];
};
export const age = (s) =>
  s >= 86400
    ? `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
    : s >= 3600
      ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`
      : s >= 60
        ? `${Math.floor(s / 60)} m ${Math.floor(s % 60)} s`
        : `${(s || 0).toFixed(1)} s`;
// Invisible characters, and those that change the writing direction, are shown as codes.
export const plainText = (value, most = 300, kept = "") => {
  const text = (
    typeof value === "string" ? value : value == null ? "" : JSON.stringify(value)
  ).replace(INVISIBLE, (c) =>
    kept.includes(c) ? c : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
  );
  return text.length > most ? text.slice(0, most) + "…" : text;
};
export const shortAddress = (address) => {
  const end = String(address).split("/").pop();
  const [n, node] = end.split("@");
  return `${n}@${(node || "").slice(0, 6)}`;
};
export const ownValue = (of, name) => (Object.hasOwn(of, name) ? of[name] : undefined); // a name may be "constructor"
export const GLYPH = { up: "●", silent: "◌", lost: "✕", draining: "◒", closed: "○", refused: "⊘" };
export const StateLabel = ({ of }) =>
  html`<span class=${"state " + plainText(of, 40)}><span aria-hidden="true">${ownValue(GLYPH, of) || "●"}</span>
    ${plainText(of, 40)}</span>`;
