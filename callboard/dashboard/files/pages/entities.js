// Entity types, their slots and keys, and the events of one entity.
import { html } from "../vendor/preact.js";
import { age, plainText, rate } from "../core/format.js";
import { toRows, useStream } from "../core/requests.js";
import { currentRoute, link } from "../core/routing.js";
import { Table, col, num } from "../core/table.js";

const SlotMap = ({ type }) => {
  const answer = useStream("entities/slots", {
      which: type,
      sort: "slot",
      rising: true,
      limit: 256,
    }),
    slots = toRows(answer && answer.rows),
    by = new Map(slots.map((s) => [s.slot, s])),
    nodes = [...new Set(slots.map((s) => s.node))].sort();
  const count = (n) => slots.filter((s) => s.node === n).length;
  return html`<section class="card"><h2>256 slots, by the node that owns each</h2>
    <div class="slots" role="img" aria-label=${nodes.map((n) => `${plainText(n, 60)} owns ${count(n)} slots`).join(", ")}>
    ${Array.from({ length: 256 }, (_, i) => {
      const s = by.get(i),
        n = s ? nodes.indexOf(s.node) : -1;
      return html`<i class=${s ? "s" + (n % 6) : ""} title=${s ? `slot ${i}: ${plainText(s.node, 60)}, epoch ${s.epoch}, ${s.active} live` : `slot ${i}: nobody in reach`}>
        ${s ? String.fromCharCode(65 + (n % 26)) : "·"}</i>`;
    })}</div><p>${nodes.map(
      (n, i) => html`<span class=${"slots s" + (i % 6)}>
    ${String.fromCharCode(65 + (i % 26))}</span> ${plainText(n, 60)} ${count(n)}  `,
    )}</p></section>`;
};
export const Entities = () => {
  const { query } = currentRoute(),
    type = query.type,
    key = query.key;
  if (type && key)
    return html`<h1>
      ${plainText(type)}/${plainText(key)} <a class="pill" href=${link("entities", { type })}>all of ${plainText(type, 60)}</a>
      </h1>
      <${Table} view="entities/events" query=${{ which: `${type}/${key}` }} sort="number" hint="no events, or its node does not show them" columns=${[
        num("number", "number"),
        col("time", "time"),
        col("kind", "kind"),
        col("fields", "fields", { width: "minmax(200px,4fr)" }),
        num("position", "position"),
        num("epoch", "epoch"),
        col("node", "node"),
      ]} />`;
  if (type)
    return html`<h1>${plainText(type)} <a class="pill" href=${link("entities")}>all types</a></h1>
      <${SlotMap} type=${type} /><h2 style=${{ marginTop: "16px" }}>Entities that live</h2>
      <${Table} view="entities/keys" query=${{ which: type }} sort="key" rising=${true} hint="none lives just now" columns=${[
        col("key", "key", {
          show: (v) => html`<a href=${link("entities", { type, key: v })}>
      ${plainText(v)}</a>`,
        }),
        col("node", "node"),
        num("slot", "slot"),
        num("number", "events"),
        num("depth", "depth"),
        num("idle", "idle", age),
      ]} />`;
  return html`<h1>Entities</h1>
    <${Table} view="entities" sort="type" rising=${true} hint="no node hosts entities" columns=${[
      col("type", "type", {
        show: (v) => html`<a href=${link("entities", { type: v })}>${plainText(v)}</a>`,
      }),
      col("node", "node"),
      col("state", "state"),
      num("slots", "slots"),
      num("active", "live"),
      num("activated", "made"),
      num("rate", "events/s", rate, { per: "events" }),
      num("waiting", "waiting"),
      num("gained", "gained"),
      num("moves", "moved"),
      num("fenced", "fenced"),
      num("failures", "failures"),
    ]} />`;
};
