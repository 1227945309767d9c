// Work queues, and the dead jobs of one queue.
import { html } from "../vendor/preact.js";
import { ConfirmButton } from "../core/confirm.js";
import { plainText } from "../core/format.js";
import { runAction } from "../core/requests.js";
import { currentRoute, link } from "../core/routing.js";
import { Table, col, num } from "../core/table.js";

export const Queues = ({ session }) => {
  const { query } = currentRoute(),
    queue = query.which;
  if (!queue)
    return html`<h1>Queues</h1>
      <${Table} view="queues" sort="queue" rising=${true} hint="no node owns a work queue" columns=${[
        col("queue", "queue", {
          show: (v) => html`<a href=${link("queues", { which: v })}>${plainText(v)}</a>`,
        }),
        col("node", "node"),
        num("ready", "ready"),
        num("delayed", "delayed"),
        num("taken", "taken"),
        num("dead", "dead"),
        num("waiting", "takers waiting", undefined, { width: "130px" }),
        num("attempts", "attempts"),
        num("limit", "limit", undefined, { width: "110px" }),
      ]} />`;
  const change = (action, job) => runAction(action, { queue, jobs: [job] });
  const actions = col("job", "", {
    width: "210px",
    show: (job) => html`<button onClick=${() => change("requeue", job)}>requeue</button>
      <${ConfirmButton} label="discard" run=${() => change("discard", job)} />`,
  });
  return html`<h1>${plainText(queue)} <a class="pill" href=${link("queues")}>all queues</a></h1>
    <h2>Dead jobs</h2>
    <${Table} view="queues/dead" query=${{ which: queue }} sort="job" rising=${true} hint="no dead jobs" columns=${[
      col("job", "job", { width: "minmax(140px,.6fr)" }),
      num("attempts", "attempts"),
      col("reason", "reason", { width: "minmax(160px,2fr)" }),
      col("value", "value", { width: "minmax(160px,2fr)" }),
      ...(session && session.actions ? [actions] : []),
    ]} />`;
};
