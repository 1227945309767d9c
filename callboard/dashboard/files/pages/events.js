// Events of the nodes.
import { html } from "../vendor/preact.js";
import { plainText } from "../core/format.js";
import { actorLink, traceLink } from "../core/routing.js";
import { Table, col } from "../core/table.js";

const BAD = /Failed|Lost|Exhausted|Refused|NodeDown|Down$/,
  ODD = /DeadLetter|Overflow|Expired|Unexpected|Slow|Restarted|Moved|Gap/;
const describe = (row) =>
  Object.entries(row)
    .filter(([n, v]) => !["id", "at", "time", "kind", "trace", "_key"].includes(n) && v !== "")
    .map(
      ([n, v]) =>
        html`<span class="dim">${plainText(n, 60)}</span> ${/^basp\S*\/\d+@/.test(v) ? actorLink(v) : plainText(v)}  `,
    );
export const Events = () =>
  html`<h1>Events</h1><${Table} view="events" sort="" hint="nothing has happened yet" columns=${[
    col("time", "time", { width: "84px", show: (v) => new Date(v).toLocaleTimeString("en-GB") }),
    col("at", "node", { width: "minmax(80px,.5fr)" }),
    col("kind", "kind", {
      width: "minmax(130px,.8fr)",
      show: (
        v,
      ) => html`<span class=${"state " + (BAD.test(v) ? "lost" : ODD.test(v) ? "silent" : "")}>
    <span aria-hidden="true">${BAD.test(v) ? "✕" : ODD.test(v) ? "▲" : "·"}</span>
    ${plainText(v, 60)}</span>`,
    }),
    col("id", "what", { width: "minmax(240px,4fr)", show: (_, row) => describe(row) }),
    col("trace", "trace", { width: "120px", show: (v) => (v ? traceLink(v) : "") }),
  ]} />`;
