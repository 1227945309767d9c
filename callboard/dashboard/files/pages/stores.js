// Stores, and the keys of one store.
import { html, useState } from "../vendor/preact.js";
import { age, plainText, rate } from "../core/format.js";
import { parseValue, runAction } from "../core/requests.js";
import { currentRoute, link } from "../core/routing.js";
import { Table, col, num } from "../core/table.js";

export const Stores = ({ session }) => {
  const { query } = currentRoute(),
    [key, setKey] = useState(""),
    [value, setValue] = useState("");
  if (!query.which)
    return html`<h1>Stores</h1>
      <${Table} view="stores" sort="store" rising=${true} hint="no store is here" columns=${[
        col("store", "store", {
          show: (v) => html`<a href=${link("stores", { which: v })}>
      ${plainText(v)}</a>`,
        }),
        col("node", "node"),
        col("role", "role"),
        num("keys", "keys"),
        num("processed", "writes"),
        num("writes", "writes/s", rate, { per: "processed" }),
        num("clones", "clones"),
        num("lag", "lag"),
        num("out_of_order", "out of order"),
        col("error", "error"),
      ]} />`;
  return html`<h1>${plainText(query.which)} <a class="pill" href=${link("stores")}>all stores</a></h1>${
    session && session.actions
      ? html`<form class="row tools" onSubmit=${(e) => {
          e.preventDefault();
          runAction("put", { store: query.which, key: parseValue(key), value: parseValue(value) });
        }}>
          <input aria-label="key" required placeholder="key" value=${key} onInput=${(e) => setKey(e.target.value)} />
          <input aria-label="value" placeholder="value" value=${value} onInput=${(e) => setValue(e.target.value)} />
          <button class="first">put</button></form>`
      : null
  }<${Table} view="stores/keys" query=${{ which: query.which }} sort="key" rising=${true} hint="no keys" columns=${[
    col("key", "key"),
    col("node", "node", { width: "minmax(80px,.6fr)" }),
    col("value", "value", { width: "minmax(160px,3fr)" }),
    num("expires", "expires in", (v) => (v == null ? "–" : age(v)), { width: "110px" }),
  ]} />`;
};
