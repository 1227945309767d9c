// One actor.
import { html, useState, useEffect } from "../vendor/preact.js";
import { ConfirmButton } from "../core/confirm.js";
import { age, number, plainText, shortAddress } from "../core/format.js";
import { parseValue, runAction, toRows, useStream } from "../core/requests.js";
import { actorLink, currentRoute } from "../core/routing.js";

export const Actor = ({ session }) => {
  const { query } = currentRoute(),
    address = query.address || "";
  const [tracing, setTracing] = useState(false);
  const answer = useStream("actor", { address }),
    trace = useStream("trace", { address, seconds: 60 }, tracing);
  const [text, setText] = useState(""),
    [type, setType] = useState("");
  useEffect(() => {
    if (!tracing) return undefined;
    const over = setTimeout(() => setTracing(false), 60000);
    return () => clearTimeout(over);
  }, [tracing]);
  const page = toRows(answer && answer.rows)[0];
  if (answer && !page)
    return html`<h1>${plainText(shortAddress(address))}</h1>
      <p class="state lost">✕ ${plainText(answer.error) || "this actor has ended, or never was"}</p>`;
  if (!page) return html`<p class="dim">asking …</p>`;
  const a = page.actor,
    may = session && session.actions;
  const refs = (list) => (list || []).map((one) => html`${actorLink(one)} `);
  const row = (label, value) =>
    value || value === 0 ? html`<dt>${label}</dt><dd>${value}</dd>` : null;
  return html`<h1>${plainText(a.name || a.actor_class)} <span class="dim small">
    ${plainText(a.actor_class)} on ${plainText(page.node)}</span></h1><div class="grid">
    <section class="card c6"><dl class="kv">${row(
      "address",
      html`<span class="mono">
      ${plainText(a.address)}</span>`,
    )}${row("state", a.state)}
      ${row("mailbox", `${number(a.depth)} waiting${a.waited ? `, the oldest for ${age(a.waited)}` : ""}${page.mailbox ? `; ${page.mailbox}` : ""}`)}
      ${row("handler", a.busy ? `${plainText(a.handler)} ${plainText(a.place)} for ${age(a.busy)}` : "")}
      ${row("waits for", plainText(a.awaits))}${row("handled", `${number(a.handled)} in ${age(a.age)}`)}
      ${row("restarts", number(a.restarts))}${row("supervised by", a.parent ? actorLink(a.parent) : "")}
      ${row("watched by", number(page.watchers))}
      ${row("monitors", page.monitors.length ? refs(page.monitors) : "")}
      ${row("linked with", page.links.length ? refs(page.links) : "")}
      ${row("children", page.children.length ? refs(page.children) : "")}</dl>
      <div class="tools" style=${{ marginTop: "14px" }}><button onClick=${() => setTracing(!tracing)}>
        ${tracing ? "end the trace" : "trace for a minute"}</button>${
          may
            ? html`<${ConfirmButton} label="stop" run=${() => runAction("stop", { address })} />
        <${ConfirmButton} label="kill" run=${() => runAction("kill", { address })} />`
            : html`<span class="dim small">only looks: --allow-actions lets it do something</span>`
        }</div></section>
    <section class="card c6"><h2>Messages${tracing ? html` <span class="pill warn">traced</span>` : ""}</h2>${
      tracing
        ? html`<ul class="plain">${toRows(trace && trace.rows)
            .reverse()
            .slice(0, 60)
            .map(
              (m) =>
                html`<li key=${m._key}><b class="td">${plainText(m.message, 80)}</b><span class="dim small">
                  ${plainText(m.sender)} · ${age(m.age)} ago</span></li>`,
            )}</ul>`
        : html`<p class="dim">A trace shows each message that it takes, by type, with its sender.</p>`
    }
      ${
        may
          ? html`<h2>Send</h2><form onSubmit=${(e) => {
              e.preventDefault();
              runAction("send", { address, type, message: parseValue(text), ask: true });
            }}><select aria-label="type" value=${type} onChange=${(e) => setType(e.target.value)}>
              <option value="">plainText JSON</option>${session.types.map(
                (t) => html`<option value=${t.type}>
              ${plainText(t.type, 60)} (${t.fields.join(", ")})</option>`,
              )}</select><p>
              <textarea aria-label="message" placeholder='{"by": 5}' value=${text} onInput=${(e) => setText(e.target.value)}>
              </textarea></p>
              <button class="first">ask</button> <button type="button" onClick=${() => runAction("send", { address, type, message: parseValue(text) })}>tell</button>
              </form>`
          : null
      }</section>
    <section class="card"><h2>Errors of its class or name</h2>
      ${
        page.failures.length
          ? page.failures.map(
              (f) => html`<p class="dim small">${age(f.age)} ago</p><pre>
      ${plainText(f.text, 4000, "\n\t")}</pre>`,
            )
          : html`<p class="dim">none</p>`
      }${
        page.losses.length
          ? html`<h2>Lost</h2><ul class="plain">${page.losses.map(
              (l) => html`<li>
      ${number(l.count)} ${plainText(l.message)} <span class="dim">
      ${plainText(l.kind)}, from ${plainText(l.sender)}, ${age(l.age)} ago</span>
      </li>`,
            )}</ul>`
          : null
      }</section>
  </div>`;
};
