// Pipeline queries, which publish their status and results as messages.
import { html, useState, useRef, useMemo } from "../vendor/preact.js";
import { age, number, ownValue, plainText, rate } from "../core/format.js";
import { Plot } from "../core/plot.js";
import { useStream } from "../core/requests.js";

const FIELDS = [
    ["value", "expected", "level", "min", "p50", "mean", "p90", "p99", "max"],
    ["rate", "late", "worst", "apart"],
    ["records"],
  ],
  COLORS = ["--flow", "--good", "--warn", "--bad", "--dim", "--ink"];
const Results = ({ query }) => {
  const answer = useStream("listen", { topic: `/${query}` }),
    latest = useRef(new Map()),
    [topic, setTopic] = useState("");
  const data = useMemo(() => {
    for (const m of [...((answer && answer.messages) || [])].reverse()) {
      if (m._at || !m.value || typeof m.value !== "object") continue;
      m._at = Date.now() / 1000;
      if (!latest.current.has(m.topic)) {
        if (latest.current.size >= 200) continue;
        latest.current.set(m.topic, []);
      }
      const all = latest.current.get(m.topic);
      all.push([Math.max(m._at, all.length ? all.at(-1)[0] + 0.001 : 0), m.value]);
      if (all.length > 600) all.shift();
    }
    const all = latest.current.get(topic || [...latest.current.keys()].sort()[0]) || [],
      names = (
        FIELDS.map((names) =>
          names.filter((name) => all.some(([, v]) => typeof ownValue(v, name) === "number")),
        ).find((found) => found.length) || []
      ).slice(0, COLORS.length);
    return {
      names,
      rows: [
        all.map(([at]) => at),
        ...names.map((name) =>
          all.map(([, v]) => (typeof ownValue(v, name) === "number" ? ownValue(v, name) : null)),
        ),
      ],
      latest: all.length ? all.at(-1)[1] : null,
    };
  }, [answer, topic]);
  const topics = [...latest.current.keys()].sort(),
    isOdd = /anomal/.test(query),
    short = (v) => (Math.abs(v) >= 1000 ? number(v) : String(Number(v.toPrecision(4))));
  if (!topics.length)
    return html`<p class="dim">no result yet on ${plainText("/" + query, 80)}</p>`;
  return html`<select aria-label="topic of results" value=${topic} onChange=${(e) => setTopic(e.target.value)}>
    ${topics.map((name, i) => html`<option value=${i ? name : ""}>${plainText(name, 100)}</option>`)}</select>
    ${
      data.names.length
        ? html`<${Plot} series=${data.names.map((name, i) => [name, COLORS[i], isOdd ? null : [[], [6, 4], [2, 3]][i % 3]])} data=${data.rows} show=${short} about=${`results on ${plainText(topic || topics[0], 100)}: ${data.names.map((name) => `${name} ${plainText(data.latest[name], 40)}`).join(", ")}`} />`
        : html`<p class="dim">its results are no numbers</p>`
    }
    <p class="small dim mono">${plainText(data.latest, 500)}</p>`;
};
export const Queries = () => {
  const answer = useStream("listen", { topic: "$spark/" }),
    latest = useRef(new Map());
  for (const m of (answer && answer.messages) || []) {
    const [, name] = /^\$spark\/(.+)\/status$/s.exec(m.topic) || [];
    if (!name || m._read || !m.value || typeof m.value !== "object") continue;
    m._read = true;
    if (
      !latest.current.has(name) ||
      String(latest.current.get(name).updated || "") <= String(m.value.updated || "")
    )
      latest.current.set(name, m.value);
  }
  const all = [...latest.current].sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, 50),
    row = (label, value) => html`<dt>${label}</dt><dd>${value}</dd>`,
    seconds = (v) => (v == null ? "–" : age(v));
  if (answer && answer.error)
    return html`<h1>Queries</h1><p class="state lost">✕ ${plainText(answer.error, 600)}</p>`;
  return html`<h1>Queries</h1>${
    all.length
      ? null
      : html`<div class="card dim">No query tells how far it is. Those that run with --peer or --listen publish it each second: <code>callboard pipeline run quantiles FOLDER --to RESULTS --peer ADDRESS</code>
    </div>`
  }
  <div class="grid">${all.map(([name, q]) => {
    const last = q.last || {},
      handed = q.handed || {},
      end = Math.max((q.delay || {}).end || 0, last.end || 0),
      state =
        q.ended || (Date.now() - new Date(q.updated || q.started) > 60000 ? "silent" : "runs");
    return html`<section class="card c6" key=${name} aria-label=${plainText(name, 100)}><h2><b>
      ${plainText(name, 100)}</b> <span class=${"state " + (state === "runs" ? "up" : state === "failed" || state === "died" ? "lost" : "silent")}>
      ${state === "runs" ? "●" : state === "failed" ? "✕" : "◌"} ${plainText(state, 20)}</span></h2>
    <progress max=${end || 1} value=${last.offset || 0} aria-label=${`${number(last.offset)} of ${number(end)} records`}>
      </progress>
    <dl class="kv">
      ${row("read", `${number(last.offset)} of ${number(end)}, ${number(Math.max(0, end - (last.offset || 0)))} wait`)}
      ${row("rate", `${rate(last.rate)} in batch ${number(last.batch)}, ${age(last.seconds)} long`)}
      ${row("behind", `${seconds((q.delay || {}).seconds)}, in event time ${seconds((q.delay || {}).event_seconds)}`)}
      ${row("late", number(q.dropped))}
      ${row("dead letters", q.undecodable == null ? "not counted" : number(q.undecodable))}${q.handed ? row("results", `${number(handed.handed)} handed, ${number(handed.unheard)} unheard, ${number(handed.lost)} lost, ${number(handed.waiting)} waiting`) : null}
      ${row("log", plainText(q.log))}
      ${row("runs on", `${plainText(q.host, 100)}, process ${plainText(q.pid)}`)}</dl><div class="plots">
      <${Results} query=${name} /></div></section>`;
  })}</div>`;
};
