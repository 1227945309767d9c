// The route of a page, `#/page?parameters`, and links to pages.
import { html } from "../vendor/preact.js";
import { plainText, shortAddress } from "./format.js";

export const currentRoute = () => {
  const [path, query] = location.hash.slice(2).split("?");
  return { path: path || "overview", query: Object.fromEntries(new URLSearchParams(query || "")) };
};
export const link = (path, query = {}) => {
  const text = new URLSearchParams(
    Object.entries(query).filter(([, v]) => v !== "" && v != null),
  ).toString();
  return `#/${path}${text ? "?" + text : ""}`;
};

export const traceLink = (trace) =>
  html`<a href=${link("events", { search: trace })} title="all events of this trace">${plainText(trace, 40)}</a>`;
export const actorLink = (address, text) =>
  html`<a href=${link("actor", { address })}>${text || shortAddress(address)}</a>`;
