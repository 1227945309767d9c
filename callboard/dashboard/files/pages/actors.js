// All actors, as a table or as a supervision tree.
import { html } from "../vendor/preact.js";
import { age, number, plainText, rate, shortAddress } from "../core/format.js";
import { toRows, useStream } from "../core/requests.js";
import { actorLink, currentRoute, link } from "../core/routing.js";
import { Table, col, num } from "../core/table.js";

const ACTORS = [
  col("name", "name", {
    width: "minmax(150px,1.6fr)",
    show: (v, r) => actorLink(r.address, v ? plainText(v) : shortAddress(r.address)),
  }),
  col("class", "class", { field: "actor_class", width: "minmax(100px,1fr)" }),
  { ...col("node", "node"), show: plainText, width: "minmax(70px,.6fr)" },
  col("state", "state", { width: "70px" }),
  num("depth", "mailbox", number, { width: "76px" }),
  num("waited", "oldest", (v, r) => (r.depth ? age(v) : "–"), { width: "74px" }),
  num("rate", "rate", rate, { width: "76px" }),
  num("busy", "in handler", (v) => (v ? age(v) : "–"), { width: "84px" }),
  num("handled", "handled", number, { width: "92px" }),
  num("restarts", "restarts", number, { width: "70px" }),
  num("age", "age", age, { width: "82px" }),
];
export const Actors = () => {
  const { query } = currentRoute();
  return html`<h1>Actors${query.node ? html` <a class="pill" href=${link("actors")}>all nodes</a>` : null}</h1>
    <div class="tabs">
    <a href=${link("actors", { node: query.node })} aria-current=${query.tree ? undefined : "page"}>table</a>
    <a href=${link("actors", { node: query.node, tree: 1 })} aria-current=${query.tree ? "page" : undefined}>supervision tree</a>
    </div>${
      query.tree
        ? html`<${Tree} node=${query.node} />`
        : html`<${Table} view="actors" columns=${ACTORS} sort="depth" query=${query.node ? { node: query.node } : {}} hint="no actor lives currentRoute yet" />`
    }`;
};
const Tree = ({ node }) => {
  const answer = useStream("actors", { limit: 1000, sort: "age", ...(node ? { node } : {}) });
  const actors = toRows(answer && answer.rows),
    below = new Map(),
    known = new Set(actors.map((a) => a.address));
  actors.forEach((a) => {
    const of = known.has(a.parent) ? a.parent : "node " + a.node;
    if (!below.has(of)) below.set(of, []);
    below.get(of).push(a);
  });
  const leaf = (a) =>
    html`${actorLink(a.address, plainText(a.name || shortAddress(a.address), 60))} <span class="dim small">
      ${plainText(a.actor_class, 60)} · ${plainText(a.state, 20)}${a.depth ? ` · ${number(a.depth)} waiting` : ""}${a.restarts ? ` · ${number(a.restarts)} restarts` : ""}</span>`;
  const branch = (of, depth) => {
    const all = below.get(of) || [],
      kinds = new Map();
    all
      .filter((a) => !below.has(a.address) && !a.name)
      .forEach((a) => kinds.set(a.actor_class, [...(kinds.get(a.actor_class) || []), a]));
    const isMany = (a) => !a.name && !below.has(a.address) && kinds.get(a.actor_class).length > 5;
    return depth > 30
      ? null
      : html`<ul class="tree">${all
          .filter((a) => !isMany(a))
          .map(
            (a) => html`<li key=${a.address}>
        ${leaf(a)}${below.has(a.address) ? branch(a.address, depth + 1) : null}</li>`,
          )}${[...kinds]
          .filter(([, same]) => same.length > 5)
          .map(
            ([kind, same]) => html`<li key=${kind}>
        <details><summary>${number(same.length)} × ${plainText(kind, 60)}</summary><ul class="tree">
        ${same.slice(0, 200).map((a) => html`<li key=${a.address}>${leaf(a)}</li>`)}${
          same.length > 200
            ? html`<li><a href=${link("actors", { search: kind })}>all ${number(same.length)}</a></li>`
            : null
        }</ul>
        </details></li>`,
          )}</ul>`;
  };
  const roots = [...new Set(actors.map((a) => a.node))].sort();
  return html`<div class="card">${
    answer && answer.error
      ? html`<p class="state lost">✕ ${plainText(answer.error, 600)}</p>`
      : !answer
        ? "asking …"
        : !actors.length
          ? html`<span class="dim">no actor lives currentRoute yet</span>`
          : roots.map(
              (name) => html`<h2>
    ${plainText(name)}</h2>${branch("node " + name, 0)}`,
            )
  }${
    answer && answer.count > actors.length
      ? html`<p class="dim small">the oldest ${number(actors.length)} of ${number(answer.count)} actors; the table has all</p>`
      : null
  }</div>`;
};
