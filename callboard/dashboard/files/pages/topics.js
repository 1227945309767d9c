// Topics, the values published to one of them, and peers.
import { html, useState } from "../vendor/preact.js";
import { bytes, number, plainText, rate } from "../core/format.js";
import { parseValue, runAction, useStream } from "../core/requests.js";
import { Table, col, num } from "../core/table.js";

export const Topics = ({ session }) => {
  const [topic, setTopic] = useState(""),
    [value, setValue] = useState(""),
    [heard, setHeard] = useState("");
  const answer = useStream("listen", { topic: heard }, Boolean(heard));
  return html`<h1>Topics</h1>
    <${Table} view="topics" sort="topic" rising=${true} hint="nobody subscribes or publishes" columns=${[
      col("topic", "topic", {
        show: (v) =>
          html`<a href="#/topics" onClick=${(e) => {
            e.preventDefault();
            setTopic(v);
            setHeard(v);
          }}>${plainText(v)}</a>`,
      }),
      col("node", "node"),
      num("subscribers", "subscribers"),
      num("elsewhere", "other nodes"),
      num("published", "published"),
      num("rate", "rate", rate, { per: "published" }),
    ]} />
  <div class="grid" style=${{ marginTop: "18px" }}><section class="card c5"><h2>A client</h2>
    <form class="row" onSubmit=${(e) => {
      e.preventDefault();
      setHeard(topic);
    }}>
    <input aria-label="topic" required placeholder="/cpu" value=${topic} onInput=${(e) => setTopic(e.target.value)} />
    <button>listen</button>${
      heard ? html`<button type="button" onClick=${() => setHeard("")}>stop</button>` : null
    }</form>
    ${
      session && session.actions
        ? html`<form class="row" style=${{ marginTop: "10px" }} onSubmit=${(e) => {
            e.preventDefault();
            runAction("publish", { topic, value: parseValue(value) });
          }}>
            <input aria-label="value" placeholder="0.5 or text" value=${value} onInput=${(e) => setValue(e.target.value)} />
            <button class="first">publish</button></form>`
        : null
    }
    ${
      heard
        ? html`<ul class="plain">${((answer && answer.messages) || []).slice(0, 50).map(
            (m) => html`<li>
      <b class="td">${plainText(m.topic, 60)}</b><span class="mono td">${plainText(m.value)}</span></li>`,
          )}</ul>
      <p class="dim small">listening to ${plainText(heard)}${answer && answer.left ? `; ${number(answer.left)} more came than a page can show` : ""}</p>`
        : null
    }</section>
    <section class="card c7"><h2>Peers</h2>
      <${Table} view="peers" label="peers" isInner=${true} sort="address" columns=${[
        col("node", "node"),
        col("address", "peer", { width: "minmax(130px,2fr)" }),
        col("wire", "wire", { width: "80px" }),
        col("status", "status", { width: "70px" }),
        num("buffered", "buffered", number, { width: "70px" }),
        num("waiting_bytes", "in link", bytes, { width: "62px" }),
      ]} hint="no other endpoints" /></section></div>`;
};
