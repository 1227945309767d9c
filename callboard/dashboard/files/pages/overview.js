// The overview: the balance of messages, nodes and links, alarms.
import { html, useState, useEffect, useRef, useMemo } from "../vendor/preact.js";
import { GLYPH, StateLabel, age, bytes, number, ownValue, plainText, rate } from "../core/format.js";
import { Plot } from "../core/plot.js";
import { API, loadScript, runAction, toRows, useStream } from "../core/requests.js";
import { link } from "../core/routing.js";

const Graph = ({ nodes, links }) => {
  const places = useRef(new Map()),
    simulation = useRef(null),
    [, redraw] = useState(0);
  const shape = nodes.map((n) => n.node_id).join() + "|" + links.map((l) => l.a + l.b).join();
  useEffect(() => {
    let isOver = false;
    loadScript("d3-force.js").then(() => {
      if (isOver) return;
      const d3 = window.d3;
      const oldPlaces = places.current,
        newPlaces = new Map();
      nodes.forEach((n, i) => {
        const angle = (2 * Math.PI * i) / nodes.length;
        newPlaces.set(
          n.node_id,
          oldPlaces.get(n.node_id) || {
            id: n.node_id,
            x: 320 + 190 * Math.cos(angle + 0.4),
            y: 165 + 110 * Math.sin(angle + 0.4),
          },
        );
      });
      places.current = newPlaces;
      const ends = links
        .filter((l) => newPlaces.has(l.a) && newPlaces.has(l.b))
        .map((l) => ({ source: l.a, target: l.b }));
      if (simulation.current) simulation.current.stop();
      simulation.current = d3
        .forceSimulation([...newPlaces.values()])
        .force(
          "link",
          d3
            .forceLink(ends)
            .id((n) => n.id)
            .distance(150),
        )
        .force("charge", d3.forceManyBody().strength(-1500))
        .force("x", d3.forceX(320).strength(0.04))
        .force("y", d3.forceY(165).strength(0.12))
        .force("apart", d3.forceCollide(62))
        .on("tick", () => redraw((n) => n + 1));
      if (!oldPlaces.size) simulation.current.tick(200).alpha(0.1);
      if (oldPlaces.size) simulation.current.alpha(0.4);
    });
    return () => {
      isOver = true;
      if (simulation.current) simulation.current.stop();
    };
  }, [shape]);
  const W = NARROW.matches ? 380 : 640,
    all = [...places.current.values()],
    span = (axis) => [Math.min(...all.map((p) => p[axis])), Math.max(...all.map((p) => p[axis]))];
  const [left, right] = span("x"),
    [top, bottom] = span("y");
  const fit =
    all.length > 1
      ? Math.min(1.6, (W - 140) / Math.max(1, right - left), 225 / Math.max(1, bottom - top))
      : 1;
  const at = (id) => {
    const p = places.current.get(id);
    return p
      ? { x: W / 2 + (p.x - (left + right) / 2) * fit, y: 155 + (p.y - (top + bottom) / 2) * fit }
      : { x: W / 2, y: 155 };
  };
  const taken = nodes.flatMap((n) => {
    const p = at(n.node_id);
    return [p, { x: p.x, y: p.y + 44 }];
  });
  const labels = links.map((l) => {
    // place each label as far as possible from the others
    const a = at(l.a),
      b = at(l.b),
      spots = [0.5, 0.4, 0.6, 0.32, 0.68].map((t) => ({
        x: a.x + (b.x - a.x) * t,
        y: a.y + (b.y - a.y) * t,
      }));
    const room = (spot) =>
      Math.min(40, ...taken.map((p) => Math.hypot((p.x - spot.x) / 1.6, p.y - spot.y)));
    const best = spots.reduce((one, other) => (room(other) > room(one) + 4 ? other : one));
    taken.push(best);
    return {
      l,
      a,
      b,
      ...best,
      text:
        l.state === "up"
          ? rate(l.rate || 0)
          : `${ownValue(GLYPH, l.state) || ""} ${plainText(l.state, 20)}`,
    };
  });
  return html`<svg class="graph" viewBox=${`0 0 ${W} 350`} role="img" aria-label=${`${nodes.length} nodes: ${nodes
    .map((n) => `${plainText(n.node, 40)} is ${n.state}`)
    .slice(0, 50)
    .join(", ")}; ${links.length} links`}>
    ${labels.map(({ l, a, b }) => html`<line key=${l.a + l.b} class=${l.state} x1=${a.x} y1=${a.y} x2=${b.x} y2=${b.y} stroke-width=${1.5 + Math.min(5, Math.log10(1 + (l.rate || 0)) * 1.5)} />`)}
    ${labels.map(
      ({ l, x, y, text }) => html`<g key=${l.a + l.b}>
      <rect class="plate" x=${x - 27} y=${y - 9} width="54" height="18" rx="5" />
      <text class="rate" x=${x} y=${y + 4}>${text}</text></g>`,
    )}
    ${nodes.map((n) => {
      const p = at(n.node_id);
      return html`<g key=${n.node_id} class=${n.state}><title>${plainText(n.node)}: ${n.state}</title>
        <circle cx=${p.x} cy=${p.y} r="21" /><text class="glyph" x=${p.x} y=${p.y + 5}>
        ${n.state === "up" ? number(n.actor_count) : ownValue(GLYPH, n.state)}</text>
        <text class="name" x=${p.x} y=${p.y + 39}>${plainText(n.node, 18)}</text>
        <text class="rate" x=${p.x} y=${p.y + 53}>${n.state === "up" ? rate(n.handled_rate) : n.state}</text>
        </g>`;
    })}
  </svg>`;
};
const GONE = ["lost", "closed"];
// The figures of a node's process; a node of an older release has none.
const usage = (process) =>
  process && process.resident_bytes
    ? ` · ${bytes(process.resident_bytes)} · ${number(process.threads)} threads · ${number(process.descriptors)} descriptors · ${number(process.gc_collections)} collections`
    : "";
const NARROW = matchMedia("(max-width: 640px)");
const RATES = [
  ["handled", "--good"],
  ["sent to other nodes", "--flow", [6, 4]],
  ["lost", "--bad", [2, 3]],
];
const Curve = ({ totals }) => {
  const [data, setData] = useState(null);
  useEffect(() => {
    fetch(`${API}history`)
      .then((a) => a.json())
      .then((answer) => setData([answer.times, answer.handled, answer.sent, answer.lost]))
      .catch(() => {});
  }, []);
  useEffect(() => {
    const at = Math.round(Date.now() / 1000);
    setData((all) =>
      !all || all[0].at(-1) >= at
        ? all
        : [at, totals.handled_rate, totals.sent_rate, totals.lost_rate].map((value, i) => [
            ...all[i].slice(-599),
            value,
          ]),
    );
  }, [totals]);
  return (
    data &&
    html`<${Plot} series=${RATES} data=${data} show=${rate} about=${`at this moment ${rate(totals.handled_rate)} handled, ${rate(totals.sent_rate)} sent, ${rate(totals.lost_rate)} lost`} />`
  );
};
const OLDEST = [["oldest message in a mailbox", "--flow"]];
const MEMORY_COLORS = ["--good", "--flow", "--bad", "--warn", "--dim", "--ink"];
const MEMORY_DASHES = [undefined, [6, 4], [2, 3], [10, 3], [4, 2], [1, 3]];
// The curves of the last hour, which the nodes themselves have kept.
const Hour = () => {
  const [hour, setHour] = useState(null);
  useEffect(() => {
    let isOver = false;
    const read = () =>
      fetch(`${API}hour`)
        .then((a) => a.json())
        .then((answer) => isOver || setHour(answer))
        .catch(() => {});
    read();
    const timer = setInterval(read, 10000);
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, []);
  const curves = useMemo(() => {
    if (!hour || !hour.times || !hour.times.length) return null;
    const memory = Object.entries(hour.memory);
    return {
      rates: [hour.times, hour.handled, hour.sent, hour.lost],
      oldest: [hour.times, hour.waited],
      memory: [hour.times, ...memory.map(([, values]) => values)],
      nodes: memory.map(([name], i) => [plainText(name, 24), MEMORY_COLORS[i], MEMORY_DASHES[i]]),
    };
  }, [hour]);
  if (!curves)
    return html`<p class="dim">The first curve appears when the nodes have run for 20 s.</p>`;
  const last = (values) => (values.length ? values.at(-1) : 0);
  return html`<div class="hours">
    <div><h3>Messages a second</h3><${Plot} series=${RATES} data=${curves.rates} show=${rate} about=${`in the last hour, at last ${rate(last(hour.handled))} handled`} /></div>
    <div><h3>Age of the oldest message</h3><${Plot} series=${OLDEST} data=${curves.oldest} show=${age} about=${`in the last hour, at last ${age(last(hour.waited))}`} /></div>
    <div><h3>Memory of each node's process</h3><${Plot} series=${curves.nodes} data=${curves.memory} show=${bytes} about=${`of ${curves.nodes.length} nodes in the last hour`} /></div>
  </div>`;
};
const Figure = ({ label, value, kind }) =>
  html`<div class=${"fig " + (kind || "")}><b>${number(value)}</b><span>${label}</span></div>`;
const Bar = ({ of }) => {
  const part = (n) => ({ flexGrow: of.sent ? n / of.sent : 0, minWidth: n ? "3px" : 0 });
  return html`<div class="bar" role="img" aria-label=${`${number(of.confirmed)} confirmed, ${number(of.in_flight)} in flight, ${number(of.lost)} lost`}>
    <i class="b-ok" style=${part(of.confirmed)}></i><i class="b-flow" style=${part(of.in_flight)}></i>
    <i class="b-lost" style=${part(of.lost)}></i></div>`;
};
export const Overview = ({ session }) => {
  const answer = useStream("overview"),
    before = useRef(new Map());
  const nodes = toRows(answer && answer.nodes),
    pairs = toRows(answer && answer.pairs),
    alarms = toRows(answer && answer.alarms);
  const links = useMemo(
    () =>
      toRows(answer && answer.links).map((l) => {
        const now = performance.now(),
          last = before.current.get(l._key);
        let perSecond = last ? last.rate : 0;
        if (!last || last.frames !== l.frames || now - last.at > 1500) {
          if (last && now > last.at)
            perSecond = Math.max(0, (l.frames - last.frames) / ((now - last.at) / 1000));
          before.current.set(l._key, { frames: l.frames, at: now, rate: perSecond });
        }
        return { ...l, rate: perSecond };
      }),
    [answer],
  );
  const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] || 0), 0);
  const totals = useMemo(
    () =>
      Object.fromEntries([
        ...["sent", "confirmed", "lost", "in_flight", "waiting"].map((n) => [n, sum(pairs, n)]),
        ...["handled_rate", "sent_rate", "lost_rate", "actor_count"].map((n) => [
          n,
          sum(
            nodes.filter((x) => !GONE.includes(x.state)),
            n,
          ),
        ]),
      ]),
    [answer],
  );
  if (answer && answer.error)
    return html`<p class="state lost">✕ ${plainText(answer.error, 600)}</p>`;
  const isExact = totals.sent === totals.confirmed + totals.lost + totals.in_flight;
  const lever = (name, target, label = name) =>
    session && session.levers.includes(name)
      ? html`<button class=${name === "kill" ? "danger" : ""} onClick=${() => runAction(`lever/${name}`, { target })}>
        ${label}</button>`
      : null;
  const name = (id) => {
    const node = nodes.find((n) => n.node_id === id);
    return node ? node.node : id.slice(0, 6);
  };
  return html`<div class="grid">
    <section class="card" aria-label="balance"><h2>Balance of all messages between nodes</h2>
      <div class="hero"><${Figure} label="sent" value=${totals.sent} /><span class="op">=</span>
        <${Figure} label="confirmed" value=${totals.confirmed} kind="ok" /><span class="op">+</span>
        <${Figure} label="lost" value=${totals.lost} kind=${totals.lost ? "lost" : "zero"} />
        <span class="op">+</span>
        <${Figure} label="in flight" value=${totals.in_flight} kind=${totals.in_flight ? "flow" : "zero"} />
        </div>
      <${Bar} of=${totals} /><span class="exact dim">${
        answer
          ? isExact
            ? html`<span class="state up">✓ exact</span> — every message is accounted for, ${rate(totals.sent_rate)} at this moment`
            : "✕ the sums differ"
          : "asking …"
      }</span>
    </section>
    <section class="card c7"><h2>Nodes and links</h2><${Graph} nodes=${nodes} links=${links} /></section>
    <section class="card c5"><h2>Alarms of the last minute</h2>${
      alarms.length
        ? html`<ul class="plain">
      ${alarms.map(
        (a) => html`<li key=${a._key}>
      <span class=${"state " + (["lost", "exhausted"].includes(a.kind) ? "lost" : "silent")}>
      ${a.kind === "lost" ? "✕" : "▲"} ${plainText(a.node)}</span><span>${plainText(a.text)}</span>
      <a class="small" href=${link("events", { search: a.node })}>events</a></li>`,
      )}</ul>`
        : answer
          ? html`<p class="state up">✓ nothing is wrong</p>`
          : html`<p class="dim">asking …</p>`
    }</section>
    <section class="card"><h2>Messages a second, ten minutes</h2><div class="plots">
      <${Curve} totals=${totals} /></div></section>
    <section class="card" aria-label="last hour"><h2>The last hour</h2><${Hour} /></section>
    <section class="card c6"><h2>Nodes</h2><ul class="plain">${nodes.map(
      (n) => html`<li key=${n._key}>
      <b class="td">${plainText(n.node, 40)}</b><${StateLabel} of=${n.state} /><span class="dim small">
      ${
        n.state === "refused"
          ? plainText(n.error, 400)
          : GONE.includes(n.state)
            ? `for ${age(n.for)}`
            : html`<a href=${link("actors", { node: n.node_id })}>
      ${number(n.actor_count)} actors</a> · ${rate(n.handled_rate)} handled · ${number(n.waiting)} waiting${usage(n.process)} · up ${age(n.uptime)} · ${plainText(n.release, 40)}${n.build ? ` (${plainText(n.build, 40)})` : ""}`
      }</span>
      ${
        !GONE.includes(n.state) || (session && session.levers.length)
          ? html`<span>
      ${GONE.includes(n.state) ? null : lever("kill", n.node)} ${GONE.includes(n.state) && nodes.some((other) => other.node === n.node && !GONE.includes(other.state)) ? null : lever("freeze", n.node, n.state === "up" ? "freeze" : "go on")}</span>`
          : null
      }</li>`,
    )}</ul>
      ${
        session && session.levers.includes("cut")
          ? html`<h2>Links</h2><ul class="plain">${links
              .map((l) => ({ ...l, ends: [name(l.a), name(l.b)].sort() }))
              .sort((l, r) => (l.ends < r.ends ? -1 : 1))
              .map(
                (l) =>
                  html`<li key=${l._key}><b>${plainText(l.ends[0])} ─ ${plainText(l.ends[1])}</b>
                    <${StateLabel} of=${l.state} />${lever("cut", l.ends.join("-"))}</li>`,
              )}</ul>`
          : null
      }</section>
    <section class="card c6"><h2>Balance of each pair</h2><ul class="plain">${pairs
      .sort((a, b) => b.sent - a.sent)
      .slice(0, 40)
      .map(
        (p) =>
          html`<li key=${p._key}><b class="td">${plainText(p.from, 24)} → ${plainText(p.to, 24)}</b>
            <span class="small dim">${number(p.sent)} = ${number(p.confirmed)} + ${
              p.lost ? html`<span class="state lost">${number(p.lost)} lost</span>` : "0"
            } + ${number(p.in_flight)}</span>
            </li>`,
      )}</ul>${
      pairs.length > 40
        ? html`<p class="dim small">and ${number(pairs.length - 40)} more pairs</p>`
        : null
    }</section>
  </div>`;
};
