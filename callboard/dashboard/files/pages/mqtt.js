// MQTT routers, their clients, and packet traces.
import { html } from "../vendor/preact.js";
import { bytes, number, ownValue, plainText, rate } from "../core/format.js";
import { toRows, useStream } from "../core/requests.js";
import { currentRoute, link } from "../core/routing.js";
import { Table, col, num } from "../core/table.js";

const MQTT = {
  clients: [
    col("client_id", "client", {
      show: (v) => html`<a href=${link("mqtt", { tab: "trace", which: v })}>${plainText(v)}</a>`,
    }),
    col("node", "node"),
    col("address", "address"),
    col("status", "status"),
    num("subscriptions", "filters"),
    num("inflight", "in flight"),
    num("behind", "behind"),
    num("packets_in", "packets"),
    num("rate", "rate", rate, { per: "packets_in" }),
  ],
  subscriptions: [
    col("filter", "filter"),
    col("node", "node"),
    num("readers", "readers"),
    num("waiters", "have read all"),
    num("start", "from"),
    num("end", "to"),
    num("bytes", "bytes", bytes),
  ],
  retained: [
    col("topic", "topic"),
    col("node", "node"),
    col("text", "payload", { width: "minmax(160px,2fr)" }),
    num("qos", "QoS"),
    num("bytes", "bytes", bytes),
  ],
  slow: [
    col("client_id", "client"),
    col("node", "node"),
    col("status", "status"),
    num("behind", "behind"),
    num("dropped", "dropped"),
    num("unsent_bytes", "unsent", bytes),
  ],
  bridges: [
    col("client_id", "bridge"),
    col("node", "node"),
    col("address", "address"),
    col("connected", "connected"),
    num("waiting", "waiting"),
    num("sent", "sent"),
    num("received", "received"),
    num("dropped", "dropped"),
    num("refused", "refused"),
    num("lost", "lost"),
  ],
  bans: [col("ban", "ban"), col("node", "node")],
  trace: [
    num("number", "number"),
    col("direction", "direction"),
    num("bytes", "bytes", bytes),
    col("packet", "packet"),
    col("fields", "fields", { width: "minmax(200px,4fr)" }),
  ],
};
export const Mqtt = () => {
  const { query } = currentRoute(),
    tab = ownValue(MQTT, query.tab) ? query.tab : "clients",
    which = query.which || "";
  const answer = useStream("mqtt"),
    routers = toRows(answer && answer.rows);
  return html`<h1>MQTT</h1><div class="grid">${routers.map(
    (r) => html`<section class="card c4" key=${r._key}>
    <h2>${plainText(r.router || r.node)} · ${plainText(r.listeners)}</h2><dl class="kv"><dt>clients</dt><dd>
    ${number(r.connections)}, ${number(r.sessions_away)} away</dd><dt>published</dt><dd>
    ${number(r.published)}</dd><dt>delivered</dt><dd>${number(r.delivered)}</dd><dt>lost</dt><dd>
    ${number(r.lost)}</dd><dt>retained</dt><dd>${number(r.retained)}</dd></dl></section>`,
  )}</div>
    <div class="tabs" style=${{ marginTop: "16px" }}>${Object.keys(MQTT)
      .filter((t) => t !== "trace" || which)
      .map(
        (t) =>
          html`<a href=${link("mqtt", { tab: t, which: t === "trace" ? which : "" })} aria-current=${t === tab ? "page" : undefined}>
          ${t}${t === "trace" ? " of " + plainText(which, 30) : ""}</a>`,
      )}</div>
      <${Table} key=${tab + which} view=${"mqtt/" + tab} query=${tab === "trace" ? { which } : {}} sort=${MQTT[tab][0].name} rising=${tab !== "trace"} columns=${MQTT[tab]} label=${tab} hint=${routers.length ? (tab === "trace" ? "no packets yet; they are shown as they come" : "none") : "no router runs on these nodes"} />`;
};
