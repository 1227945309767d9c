// The pages of the dashboard. `html` inserts values as text nodes, never as markup.
import { html, render, useState, useEffect, useRef, useMemo, useErrorBoundary } from "./vendor/preact.js";

const API = "api/v1/";
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const number = (value) => Math.round(value || 0).toLocaleString("en-US");
const rate = (value) => (value >= 10 ? number(value) : (value || 0).toFixed(1)) + "/s";
const bytes = (value) => { let n = value || 0, u = 0; while (n >= 1024 && u < 4) { n /= 1024; u += 1; } return (u ? n.toFixed(1) : n) + [" B", " KiB", " MiB", " GiB", " TiB"][u]; };
const age = (s) => s >= 86400 ? `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h` : s >= 3600 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} m` : s >= 60 ? `${Math.floor(s / 60)} m ${Math.floor(s % 60)} s` : `${(s || 0).toFixed(1)} s`;
// Invisible characters, and those that change the writing direction, are shown as codes.
const plain = (value, most = 300, kept = "") => {
  const text = (typeof value === "string" ? value : value == null ? "" : JSON.stringify(value)).replace(INVISIBLE, (c) => (kept.includes(c) ? c : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")));
  return text.length > most ? text.slice(0, most) + "…" : text;
};
const short = (address) => { const end = String(address).split("/").pop(); const [n, node] = end.split("@"); return `${n}@${(node || "").slice(0, 6)}`; };
const own = (of, name) => (Object.hasOwn(of, name) ? of[name] : undefined);  // a name may be "constructor"
const GLYPH = { up: "●", silent: "◌", lost: "✕", draining: "◒", refused: "⊘" };
const State = ({ of }) => html`<span class=${"state " + plain(of, 40)}><span aria-hidden="true">${own(GLYPH, of) || "●"}</span>${plain(of, 40)}</span>`;

// --- routing: #/page?parameters ---
const here = () => { const [path, query] = location.hash.slice(2).split("?"); return { path: path || "overview", query: Object.fromEntries(new URLSearchParams(query || "")) }; };
const link = (path, query = {}) => { const text = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== "" && v != null)).toString(); return `#/${path}${text ? "?" + text : ""}`; };

// --- requests to the node ---
const patched = (old, patch) => {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const made = Object.assign(Object.create(null), old && typeof old === "object" && !Array.isArray(old) ? old : null);
  for (const [name, value] of Object.entries(patch)) { if (value === null) delete made[name]; else made[name] = patched(made[name], value); }
  return made;
};
const listed = (rows) => rows && rows.order ? rows.order.map((key) => ({ ...rows.rows[key], _key: key })) : [];
let note = () => {};
const useStream = (view, query = {}, on = true, beats = false) => {
  const [told, setTold] = useState(null);
  const asked = new URLSearchParams({ view, ...query }).toString();
  useEffect(() => {
    if (!on) return undefined;
    let shown = null, source = null, again = 0;
    const open = () => {
      clearTimeout(again);
      source = new EventSource(`${API}stream?${asked}`);
      source.onmessage = (event) => {
        const change = JSON.parse(event.data);
        if (change.whole) shown = change.whole; else if (change.patch) shown = patched(shown, change.patch); else if (!change.messages && !(beats && shown)) { if (shown) summary(shown.summary); return; }
        if (change.messages) setTold((before) => ({ messages: [...change.messages, ...((before && before.messages) || [])].slice(0, 200), left: ((before && before.left) || 0) + change.left_out }));
        else { summary(shown.summary); setTold({ ...shown, _asked: asked }); }
      };
      source.onerror = () => {
        summary({ away: true });
        if (source.readyState !== 2) return;  // the browser reconnects automatically
        fetch(`${API}stream?${asked}`, { signal: AbortSignal.timeout(3000) }).then(async (answer) => { if (!answer.ok) setTold({ error: answer.status === 401 ? "This page needs the link that was printed: it holds the token." : (await answer.json()).error }); }).catch(() => {});
        again = setTimeout(open, 3000);
      };
    };
    const seen = () => { if (document.hidden) { clearTimeout(again); if (source) source.close(); source = null; } else if (!source) open(); };
    document.addEventListener("visibilitychange", seen);
    seen();
    return () => { clearTimeout(again); document.removeEventListener("visibilitychange", seen); if (source) source.close(); };
  }, [asked, on]);
  return told;
};
let summary = () => {};
const act = async (action, body) => {
  try {
    const answer = await fetch(`${API}actions/${action}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const told = await answer.json();
    note(answer.ok ? `${action}: ${plain(told.outcome)}` : `${action} was not done: ${plain(told.error, 600)}`);
    return answer.ok ? told.outcome : null;
  } catch (error) { note(`${action} was not done: ${error.message}`); return null; }
};
const parsed = (text) => { try { return JSON.parse(text); } catch { return text; } };
const save = async (view, query, kind) => {
  const told = await fetch(`${API}${view}?${new URLSearchParams({ ...query, skip: 0, limit: 5000 })}`).then((answer) => answer.json()).catch((error) => ({ error: error.message }));
  if (!told.rows) { note(`nothing was saved: ${plain(told.error)}`); return; }
  const { rows } = told;
  if (told.count > rows.length) note(`saved are the first ${number(rows.length)} of ${number(told.count)} rows; a search makes them fewer`);
  const names = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => { let text = value == null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value); if (/^[=+\-@\t\r]/.test(text) && typeof value === "string") text = "'" + text; return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text; };
  const text = kind === "csv" ? [names.map(cell).join(","), ...rows.map((row) => names.map((name) => cell(row[name])).join(","))].join("\n") : JSON.stringify(rows, null, 1);
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }));
  a.download = `${view.replace("/", "-")}.${kind}`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
};
const loaded = {};
const script = (name) => loaded[name] || (loaded[name] = new Promise((done) => { const tag = document.createElement("script"); tag.src = `static/vendor/${name}`; tag.async = false; tag.onload = done; document.head.append(tag); }));

// --- tables, which request only the visible rows ---
const HEIGHT = 36;
const Detail = ({ row, of, close }) => {
  const box = useRef(null);
  useEffect(() => { const back = document.activeElement; box.current.focus(); const keys = (event) => { if (event.key === "Escape") close(); }; document.addEventListener("keydown", keys); return () => { document.removeEventListener("keydown", keys); if (back && back.isConnected) back.focus(); }; }, [of]);
  return html`<aside class="drawer" role="dialog" aria-label="all of this row" tabindex="-1" ref=${box}><button onClick=${close}>close</button>${row ? html`<dl class="kv">${Object.entries(row).filter(([name]) => name !== "_key").map(([name, value]) => html`<dt>${plain(name, 60)}</dt><dd class="text">${/^basp\S*\/\d+@/.test(value) ? actorLink(value, plain(value)) : name === "trace" && value ? traceLink(value) : plain(value, 20000, "\n\t")}</dd>`)}</dl>` : html`<p class="dim">This row is not among those that are shown; search for it.</p>`}</aside>`;
};
const Table = ({ view, label = view, columns, query = {}, sort: first, rising: firstRising = false, hint, isInner = false }) => {
  const { path, query: there } = here(), at = isInner ? {} : there;
  const [search, setSearch] = useState(at.search || "");
  const [kind, setKind] = useState(at.kind || "");
  const [sort, setSort] = useState(at.sort || first);
  const [rising, setRising] = useState(at.rising ? at.rising === "true" : firstRising);
  const [shown, setShown] = useState(at.row || "");
  const [skip, setSkip] = useState(0);
  const box = useRef(null), wait = useRef(0), last = useRef(0), field = useRef(null), per = useRef(new Map()), home = useRef(location.hash);
  const hasRates = columns.some((c) => c.per);
  const asked = { ...query, search, rising, sort, ...(kind ? { kind } : {}) };
  const told = useStream(view, { ...asked, skip, limit: 90 }, true, hasRates);
  const known = useRef({ count: 0, rows: new Map(), of: "" });
  const of = JSON.stringify(asked);
  // Effects run after rendering; a click in between may have led elsewhere, also on the same page.
  useEffect(() => { if (!isInner && location.hash === home.current) { history.replaceState(null, "", link(path, { ...at, search, kind, row: shown, sort: sort === first ? "" : sort, rising: rising === firstRising ? "" : rising })); home.current = location.hash; } }, [of, shown]);
  if (told && told.rows && told._asked.includes(`skip=${skip}&limit`)) {
    if (known.current.of !== of) known.current = { count: 0, rows: new Map(), of };
    known.current.count = told.count;
    const now = new Map();
    listed(told.rows).forEach((row, index) => now.set(skip + index, row));
    known.current.rows = now;
  }
  if (hasRates) useMemo(() => { const now = performance.now(), next = new Map(); for (const row of known.current.rows.values()) for (const c of columns) if (c.per) { const key = c.per + " " + row._key, last = per.current.get(key), value = Number(row[c.per]) || 0, due = !last || now - last.at > 800; next.set(key, due ? { value, at: now, rate: last ? Math.max(0, (value - last.value) / (now - last.at) * 1000) : 0 } : last); } per.current = next; }, [told]);
  useEffect(() => { const keys = (event) => { if (event.key === "/" && !isInner && !/INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) { event.preventDefault(); field.current.focus(); } }; document.addEventListener("keydown", keys); return () => document.removeEventListener("keydown", keys); }, []);
  // While scrolling, rows are prefetched in the direction of scrolling, at most ten times a second.
  const scrolled = () => { if (wait.current) return; wait.current = setTimeout(() => { wait.current = 0; if (!box.current) return; const top = Math.floor(box.current.scrollTop / HEIGHT), down = top >= last.current; last.current = top; setSkip((before) => (top >= before + (before && !down ? 15 : 0) && top + 45 <= before + 90 ? before : Math.max(0, Math.floor((top - (down ? 10 : 50)) / 10) * 10))); }, 100); };
  const sorted = (name) => { if (name === sort) setRising(!rising); else { setSort(name); setRising(!columns.find((c) => (c.per || c.name) === name).num); } setSkip(0); if (box.current) box.current.scrollTop = 0; };
  const least = columns.reduce((sum, c) => sum + 14 + Number((c.width || (c.num ? "90px" : "110px")).match(/\d+/)[0]), 56);
  const widths = columns.map((c) => c.width || (c.num ? "90px" : "minmax(110px,1fr)")).join(" ") + " 24px";
  const { count, rows } = known.current;
  const silent = told && told.silent ? Object.entries(told.silent) : [];
  const isShort = count < 14, isLoading = !told || (known.current.of !== of && !told.error);
  const one = (c, row) => { const value = row[c.field || c.name]; if (c.per) { const found = per.current.get(c.per + " " + row._key); return found ? rate(found.rate) : "–"; } return c.show ? c.show(value, row) : plain(value); };
  return html`<section aria-label=${label} aria-busy=${isLoading}>
    <div class="tools">
      <input type="search" ref=${field} placeholder="search  /" aria-label="search" value=${search} onInput=${(e) => { setSearch(e.target.value); setSkip(0); }} />
      ${told && told.kinds ? html`<select aria-label="kind" value=${kind} onChange=${(e) => { setKind(e.target.value); setSkip(0); }}><option value="">all kinds</option>${told.kinds.map((name) => html`<option value=${name}>${plain(name, 60)}</option>`)}</select>` : null}
      <button aria-label="save as CSV" onClick=${() => save(view, asked, "csv")}>CSV</button><button aria-label="save as JSON" onClick=${() => save(view, asked, "json")}>JSON</button>
      <span class="count" role="status">${told && told.error ? "" : isLoading ? "asking …" : `${number(count)} rows`}</span>
    </div>
    ${told && told.error ? html`<p class="state lost">✕ ${plain(told.error, 600)}</p>` : null}
    ${silent.map(([name, why]) => html`<p class="state silent">◌ ${plain(name)} did not answer: ${plain(why, 600)}</p>`)}
    ${told && told.error && !count ? null : !isLoading && !count ? html`<div class="card dim">${search || kind ? "nothing matches" : hint || "nothing here"}</div>` : html`
    <div class=${"scroll" + (isShort ? " short" : "")} ref=${box} onScroll=${scrolled} tabindex="0" role="table" aria-label=${label} aria-rowcount=${count + 1}>
      <div class="tr head" role="row" style=${{ gridTemplateColumns: widths, minWidth: `${least}px` }}>${columns.map((c) => { const by = c.per || c.name; return html`<div class=${"td" + (c.num ? " num" : "")} role="columnheader" aria-sort=${by === sort ? (rising ? "ascending" : "descending") : "none"}><button onClick=${() => sorted(by)}>${c.label}${by === sort && !c.per ? (rising ? " ↑" : " ↓") : ""}</button></div>`; })}<div class="td" role="columnheader" aria-label="all of it"></div></div>
      <div class="body" role="rowgroup" style=${{ height: `${count * HEIGHT}px` }}>
        ${[...rows].map(([index, row]) => html`<div class="tr" role="row" aria-rowindex=${index + 2} key=${row._key} style=${{ top: `${index * HEIGHT}px`, gridTemplateColumns: widths, minWidth: `${least}px` }}>${columns.map((c) => { const told = one(c, row), value = row[c.field || c.name]; return html`<div class=${"td" + (c.num ? " num" : "")} role="cell" title=${typeof value === "string" ? plain(value, 1000) : typeof told === "string" ? told : undefined}>${told}</div>`; })}<div class="td" role="cell"><a class="more" aria-label="all of this row" href=${link(path, { ...at, row: row._key })} onClick=${(e) => { e.preventDefault(); setShown(row._key); }}>›</a></div></div>`)}
      </div>
    </div>`}
    ${shown && !isLoading ? html`<${Detail} of=${shown} row=${[...rows.values()].find((row) => row._key === shown)} close=${() => setShown("")} />` : null}
  </section>`;
};
const col = (name, label, more = {}) => ({ name, label, ...more });
const num = (name, label, show = number, more = {}) => ({ name, label, num: true, show, ...more });
const traceLink = (trace) => html`<a href=${link("events", { search: trace })} title="all events of this trace">${plain(trace, 40)}</a>`;
const Sure = ({ label, run }) => {
  const [isAsked, setAsked] = useState(false);
  useEffect(() => { if (!isAsked) return undefined; const over = setTimeout(() => setAsked(false), 5000); return () => clearTimeout(over); }, [isAsked]);
  return html`<button class="danger" onClick=${() => { if (isAsked) run(); setAsked(!isAsked); }}>${isAsked ? `really ${label}?` : label}</button>`;
};
const actorLink = (address, text) => html`<a href=${link("actor", { address })}>${text || short(address)}</a>`;

// --- overview ---
const Graph = ({ nodes, links, levers }) => {
  const places = useRef(new Map()), simulation = useRef(null), [, drawn] = useState(0);
  const shape = nodes.map((n) => n.node_id).join() + "|" + links.map((l) => l.a + l.b).join();
  useEffect(() => {
    let isOver = false;
    script("d3-force.js").then(() => {
      if (isOver) return;
      const d3 = window.d3;
      const kept = places.current, made = new Map();
      nodes.forEach((n, i) => { const angle = (2 * Math.PI * i) / nodes.length; made.set(n.node_id, kept.get(n.node_id) || { id: n.node_id, x: 320 + 190 * Math.cos(angle + 0.4), y: 165 + 110 * Math.sin(angle + 0.4) }); });
      places.current = made;
      const ends = links.filter((l) => made.has(l.a) && made.has(l.b)).map((l) => ({ source: l.a, target: l.b }));
      if (simulation.current) simulation.current.stop();
      simulation.current = d3.forceSimulation([...made.values()]).force("link", d3.forceLink(ends).id((n) => n.id).distance(150)).force("charge", d3.forceManyBody().strength(-1500)).force("x", d3.forceX(320).strength(0.04)).force("y", d3.forceY(165).strength(0.12)).force("apart", d3.forceCollide(62)).on("tick", () => drawn((n) => n + 1));
      if (!kept.size) simulation.current.tick(200).alpha(0.1);
      if (kept.size) simulation.current.alpha(0.4);
    });
    return () => { isOver = true; if (simulation.current) simulation.current.stop(); };
  }, [shape]);
  const W = NARROW.matches ? 380 : 640, all = [...places.current.values()], span = (axis) => [Math.min(...all.map((p) => p[axis])), Math.max(...all.map((p) => p[axis]))];
  const [left, right] = span("x"), [top, bottom] = span("y");
  const fit = all.length > 1 ? Math.min(1.6, (W - 140) / Math.max(1, right - left), 225 / Math.max(1, bottom - top)) : 1;
  const at = (id) => { const p = places.current.get(id); return p ? { x: W / 2 + (p.x - (left + right) / 2) * fit, y: 155 + (p.y - (top + bottom) / 2) * fit } : { x: W / 2, y: 155 }; };
  const taken = nodes.flatMap((n) => { const p = at(n.node_id); return [p, { x: p.x, y: p.y + 44 }]; });
  const labels = links.map((l) => {  // place each label as far as possible from the others
    const a = at(l.a), b = at(l.b), spots = [0.5, 0.4, 0.6, 0.32, 0.68].map((t) => ({ x: a.x + (b.x - a.x) * t, y: a.y + (b.y - a.y) * t }));
    const room = (spot) => Math.min(40, ...taken.map((p) => Math.hypot((p.x - spot.x) / 1.6, p.y - spot.y)));
    const best = spots.reduce((one, other) => (room(other) > room(one) + 4 ? other : one));
    taken.push(best);
    return { l, a, b, ...best, text: l.state === "up" ? rate(l.rate || 0) : `${own(GLYPH, l.state) || ""} ${plain(l.state, 20)}` };
  });
  return html`<svg class="graph" viewBox=${`0 0 ${W} 350`} role="img" aria-label=${`${nodes.length} nodes: ${nodes.map((n) => `${plain(n.node, 40)} is ${n.state}`).slice(0, 50).join(", ")}; ${links.length} links`}>
    ${labels.map(({ l, a, b }) => html`<line key=${l.a + l.b} class=${l.state} x1=${a.x} y1=${a.y} x2=${b.x} y2=${b.y} stroke-width=${1.5 + Math.min(5, Math.log10(1 + (l.rate || 0)) * 1.5)} />`)}
    ${labels.map(({ l, x, y, text }) => html`<g key=${l.a + l.b}><rect class="plate" x=${x - 27} y=${y - 9} width="54" height="18" rx="5" /><text class="rate" x=${x} y=${y + 4}>${text}</text></g>`)}
    ${nodes.map((n) => { const p = at(n.node_id); return html`<g key=${n.node_id} class=${n.state}><title>${plain(n.node)}: ${n.state}</title><circle cx=${p.x} cy=${p.y} r="21" /><text class="glyph" x=${p.x} y=${p.y + 5}>${n.state === "up" ? number(n.actor_count) : own(GLYPH, n.state)}</text><text class="name" x=${p.x} y=${p.y + 39}>${plain(n.node, 18)}</text><text class="rate" x=${p.x} y=${p.y + 53}>${n.state === "up" ? rate(n.handled_rate) : n.state}</text></g>`; })}
  </svg>`;
};
const NARROW = matchMedia("(max-width: 640px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
// Charts over time: `series` are [label, color, dash], `data` are times and the values of each series.
const Plot = ({ series, data, show, about }) => {
  const [isDark, setDark] = useState(DARK.matches), box = useRef(null), chart = useRef(null), latest = useRef(data);
  latest.current = data;
  useEffect(() => { const turned = () => setDark(DARK.matches); DARK.addEventListener("change", turned); return () => DARK.removeEventListener("change", turned); }, []);
  useEffect(() => {
    let isOver = false;
    if (!document.getElementById("plots")) { const css = document.createElement("link"); css.id = "plots"; css.rel = "stylesheet"; css.href = "static/vendor/uPlot.css"; document.head.append(css); }
    script("uPlot.js").then(() => {
      if (isOver || !box.current) return;
      const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
      const one = ([label, name, dash]) => ({ label, stroke: color(name), width: 2, dash, points: { show: dash === null }, paths: dash === null ? () => null : undefined, value: (_, v) => (v == null ? "" : show(v)) });
      chart.current = new window.uPlot({ width: box.current.clientWidth, height: 190, cursor: { y: false }, axes: [axis, { ...axis, size: 62, values: (_, all) => all.map(show) }], scales: { y: { range: (_, least, most) => [Math.min(0, least || 0), Math.max(least < 1 && most <= 1 ? 0.01 : 1, most * 1.15)] } }, series: [{}, ...series.map(one)] }, latest.current, box.current);
    });
    const sized = () => { if (chart.current) chart.current.setSize({ width: box.current.clientWidth, height: 190 }); };
    window.addEventListener("resize", sized);
    return () => { isOver = true; window.removeEventListener("resize", sized); if (chart.current) chart.current.destroy(); chart.current = null; };
  }, [isDark, JSON.stringify(series)]);
  useEffect(() => { if (chart.current) chart.current.setData(data); }, [data]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${about}></div>`;
};
const RATES = [["handled", "--good"], ["sent to other nodes", "--flow", [6, 4]], ["lost", "--bad", [2, 3]]];
const Curve = ({ totals }) => {
  const [data, setData] = useState(null);
  useEffect(() => { fetch(`${API}history`).then((a) => a.json()).then((told) => setData([told.times, told.handled, told.sent, told.lost])).catch(() => {}); }, []);
  useEffect(() => {
    const at = Math.round(Date.now() / 1000);
    setData((all) => (!all || all[0].at(-1) >= at ? all : [at, totals.handled_rate, totals.sent_rate, totals.lost_rate].map((value, i) => [...all[i].slice(-599), value])));
  }, [totals]);
  return data && html`<${Plot} series=${RATES} data=${data} show=${rate} about=${`at this moment ${rate(totals.handled_rate)} handled, ${rate(totals.sent_rate)} sent, ${rate(totals.lost_rate)} lost`} />`;
};
const Figure = ({ label, value, kind }) => html`<div class=${"fig " + (kind || "")}><b>${number(value)}</b><span>${label}</span></div>`;
const Bar = ({ of }) => { const part = (n) => ({ flexGrow: of.sent ? n / of.sent : 0, minWidth: n ? "3px" : 0 }); return html`<div class="bar" role="img" aria-label=${`${number(of.confirmed)} confirmed, ${number(of.in_flight)} in flight, ${number(of.lost)} lost`}><i class="b-ok" style=${part(of.confirmed)}></i><i class="b-flow" style=${part(of.in_flight)}></i><i class="b-lost" style=${part(of.lost)}></i></div>`; };
const Overview = ({ session }) => {
  const told = useStream("overview"), before = useRef(new Map());
  const nodes = listed(told && told.nodes), pairs = listed(told && told.pairs), alarms = listed(told && told.alarms);
  const links = useMemo(() => listed(told && told.links).map((l) => { const now = performance.now(), last = before.current.get(l._key); let perSecond = last ? last.rate : 0; if (!last || last.frames !== l.frames || now - last.at > 1500) { if (last && now > last.at) perSecond = Math.max(0, (l.frames - last.frames) / ((now - last.at) / 1000)); before.current.set(l._key, { frames: l.frames, at: now, rate: perSecond }); } return { ...l, rate: perSecond }; }), [told]);
  const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] || 0), 0);
  const totals = useMemo(() => Object.fromEntries([...["sent", "confirmed", "lost", "in_flight", "waiting"].map((n) => [n, sum(pairs, n)]), ...["handled_rate", "sent_rate", "lost_rate", "actor_count"].map((n) => [n, sum(nodes.filter((x) => x.state !== "lost"), n)])]), [told]);
  if (told && told.error) return html`<p class="state lost">✕ ${plain(told.error, 600)}</p>`;
  const isExact = totals.sent === totals.confirmed + totals.lost + totals.in_flight;
  const lever = (name, target, label = name) => session && session.levers.includes(name) ? html`<button class=${name === "kill" ? "danger" : ""} onClick=${() => act(`lever/${name}`, { target })}>${label}</button>` : null;
  const name = (id) => { const found = nodes.find((n) => n.node_id === id); return found ? found.node : id.slice(0, 6); };
  return html`<div class="grid">
    <section class="card" aria-label="balance"><h2>Balance of all messages between nodes</h2>
      <div class="hero"><${Figure} label="sent" value=${totals.sent} /><span class="op">=</span><${Figure} label="confirmed" value=${totals.confirmed} kind="ok" /><span class="op">+</span><${Figure} label="lost" value=${totals.lost} kind=${totals.lost ? "lost" : "zero"} /><span class="op">+</span><${Figure} label="in flight" value=${totals.in_flight} kind=${totals.in_flight ? "flow" : "zero"} /></div>
      <${Bar} of=${totals} /><span class="exact dim">${told ? (isExact ? html`<span class="state up">✓ exact</span> — every message is accounted for, ${rate(totals.sent_rate)} at this moment` : "✕ the sums differ") : "asking …"}</span>
    </section>
    <section class="card c7"><h2>Nodes and links</h2><${Graph} nodes=${nodes} links=${links} /></section>
    <section class="card c5"><h2>Alarms of the last minute</h2>${alarms.length ? html`<ul class="plain">${alarms.map((a) => html`<li key=${a._key}><span class=${"state " + (["lost", "exhausted"].includes(a.kind) ? "lost" : "silent")}>${a.kind === "lost" ? "✕" : "▲"} ${plain(a.node)}</span><span>${plain(a.text)}</span><a class="small" href=${link("events", { search: a.node })}>events</a></li>`)}</ul>` : told ? html`<p class="state up">✓ nothing is wrong</p>` : html`<p class="dim">asking …</p>`}</section>
    <section class="card"><h2>Messages a second, ten minutes</h2><div class="plots"><${Curve} totals=${totals} /></div></section>
    <section class="card c6"><h2>Nodes</h2><ul class="plain">${nodes.map((n) => html`<li key=${n._key}><b class="td">${plain(n.node, 40)}</b><${State} of=${n.state} /><span class="dim small">${n.state === "refused" ? plain(n.error, 400) : n.state === "lost" ? `for ${age(n.for)}` : html`<a href=${link("actors", { node: n.node_id })}>${number(n.actor_count)} actors</a> · ${rate(n.handled_rate)} handled · ${number(n.waiting)} waiting · up ${age(n.uptime)} · ${plain(n.release, 40)}${n.build ? ` (${plain(n.build, 40)})` : ""}`}</span>${n.state !== "lost" || session && session.levers.length ? html`<span>${n.state === "lost" ? null : lever("kill", n.node)} ${n.state === "lost" && nodes.some((other) => other.node === n.node && other.state !== "lost") ? null : lever("freeze", n.node, n.state === "up" ? "freeze" : "go on")}</span>` : null}</li>`)}</ul>
      ${session && session.levers.includes("cut") ? html`<h2>Links</h2><ul class="plain">${links.map((l) => ({ ...l, ends: [name(l.a), name(l.b)].sort() })).sort((l, r) => (l.ends < r.ends ? -1 : 1)).map((l) => html`<li key=${l._key}><b>${plain(l.ends[0])} ─ ${plain(l.ends[1])}</b><${State} of=${l.state} />${lever("cut", l.ends.join("-"))}</li>`)}</ul>` : null}</section>
    <section class="card c6"><h2>Balance of each pair</h2><ul class="plain">${pairs.sort((a, b) => b.sent - a.sent).slice(0, 40).map((p) => html`<li key=${p._key}><b class="td">${plain(p.from, 24)} → ${plain(p.to, 24)}</b><span class="small dim">${number(p.sent)} = ${number(p.confirmed)} + ${p.lost ? html`<span class="state lost">${number(p.lost)} lost</span>` : "0"} + ${number(p.in_flight)}</span></li>`)}</ul>${pairs.length > 40 ? html`<p class="dim small">and ${number(pairs.length - 40)} more pairs</p>` : null}</section>
  </div>`;
};

// --- actors ---
const ACTORS = [
  col("name", "name", { width: "minmax(150px,1.6fr)", show: (v, r) => actorLink(r.address, v ? plain(v) : short(r.address)) }), col("class", "class", { field: "actor_class", width: "minmax(100px,1fr)" }), { ...col("node", "node"), show: plain, width: "minmax(70px,.6fr)" }, col("state", "state", { width: "70px" }),
  num("depth", "mailbox", number, { width: "76px" }), num("waited", "oldest", (v, r) => (r.depth ? age(v) : "–"), { width: "74px" }), num("rate", "rate", rate, { width: "76px" }), num("busy", "in handler", (v) => (v ? age(v) : "–"), { width: "84px" }), num("handled", "handled", number, { width: "92px" }), num("restarts", "restarts", number, { width: "70px" }), num("age", "age", age, { width: "82px" }),
];
const Actors = () => {
  const { query } = here();
  return html`<h1>Actors${query.node ? html` <a class="pill" href=${link("actors")}>all nodes</a>` : null}</h1><div class="tabs"><a href=${link("actors", { node: query.node })} aria-current=${query.tree ? undefined : "page"}>table</a><a href=${link("actors", { node: query.node, tree: 1 })} aria-current=${query.tree ? "page" : undefined}>supervision tree</a></div>${query.tree ? html`<${Tree} node=${query.node} />` : html`<${Table} view="actors" columns=${ACTORS} sort="depth" query=${query.node ? { node: query.node } : {}} hint="no actor lives here yet" />`}`;
};
const Tree = ({ node }) => {
  const told = useStream("actors", { limit: 1000, sort: "age", ...(node ? { node } : {}) });
  const actors = listed(told && told.rows), below = new Map(), known = new Set(actors.map((a) => a.address));
  actors.forEach((a) => { const of = known.has(a.parent) ? a.parent : "node " + a.node; if (!below.has(of)) below.set(of, []); below.get(of).push(a); });
  const leaf = (a) => html`${actorLink(a.address, plain(a.name || short(a.address), 60))} <span class="dim small">${plain(a.actor_class, 60)} · ${plain(a.state, 20)}${a.depth ? ` · ${number(a.depth)} waiting` : ""}${a.restarts ? ` · ${number(a.restarts)} restarts` : ""}</span>`;
  const branch = (of, depth) => {
    const all = below.get(of) || [], kinds = new Map();
    all.filter((a) => !below.has(a.address) && !a.name).forEach((a) => kinds.set(a.actor_class, [...(kinds.get(a.actor_class) || []), a]));
    const isMany = (a) => !a.name && !below.has(a.address) && kinds.get(a.actor_class).length > 5;
    return depth > 30 ? null : html`<ul class="tree">${all.filter((a) => !isMany(a)).map((a) => html`<li key=${a.address}>${leaf(a)}${below.has(a.address) ? branch(a.address, depth + 1) : null}</li>`)}${[...kinds].filter(([, same]) => same.length > 5).map(([kind, same]) => html`<li key=${kind}><details><summary>${number(same.length)} × ${plain(kind, 60)}</summary><ul class="tree">${same.slice(0, 200).map((a) => html`<li key=${a.address}>${leaf(a)}</li>`)}${same.length > 200 ? html`<li><a href=${link("actors", { search: kind })}>all ${number(same.length)}</a></li>` : null}</ul></details></li>`)}</ul>`;
  };
  const roots = [...new Set(actors.map((a) => a.node))].sort();
  return html`<div class="card">${told && told.error ? html`<p class="state lost">✕ ${plain(told.error, 600)}</p>` : !told ? "asking …" : !actors.length ? html`<span class="dim">no actor lives here yet</span>` : roots.map((name) => html`<h2>${plain(name)}</h2>${branch("node " + name, 0)}`)}${told && told.count > actors.length ? html`<p class="dim small">the oldest ${number(actors.length)} of ${number(told.count)} actors; the table has all</p>` : null}</div>`;
};
const Actor = ({ session }) => {
  const { query } = here(), address = query.address || "";
  const [tracing, setTracing] = useState(false);
  const told = useStream("actor", { address }), trace = useStream("trace", { address, seconds: 60 }, tracing);
  const [text, setText] = useState(""), [type, setType] = useState("");
  useEffect(() => { if (!tracing) return undefined; const over = setTimeout(() => setTracing(false), 60000); return () => clearTimeout(over); }, [tracing]);
  const page = listed(told && told.rows)[0];
  if (told && !page) return html`<h1>${plain(short(address))}</h1><p class="state lost">✕ ${plain(told.error) || "this actor has ended, or never was"}</p>`;
  if (!page) return html`<p class="dim">asking …</p>`;
  const a = page.actor, may = session && session.actions;
  const refs = (list) => (list || []).map((one) => html`${actorLink(one)} `);
  const row = (label, value) => (value || value === 0 ? html`<dt>${label}</dt><dd>${value}</dd>` : null);
  return html`<h1>${plain(a.name || a.actor_class)} <span class="dim small">${plain(a.actor_class)} on ${plain(page.node)}</span></h1><div class="grid">
    <section class="card c6"><dl class="kv">${row("address", html`<span class="mono">${plain(a.address)}</span>`)}${row("state", a.state)}${row("mailbox", `${number(a.depth)} waiting${a.waited ? `, the oldest for ${age(a.waited)}` : ""}${page.mailbox ? `; ${page.mailbox}` : ""}`)}${row("handler", a.busy ? `${plain(a.handler)} ${plain(a.place)} for ${age(a.busy)}` : "")}${row("waits for", plain(a.awaits))}${row("handled", `${number(a.handled)} in ${age(a.age)}`)}${row("restarts", number(a.restarts))}${row("supervised by", a.parent ? actorLink(a.parent) : "")}${row("watched by", number(page.watchers))}${row("monitors", page.monitors.length ? refs(page.monitors) : "")}${row("linked with", page.links.length ? refs(page.links) : "")}${row("children", page.children.length ? refs(page.children) : "")}</dl>
      <div class="tools" style=${{ marginTop: "14px" }}><button onClick=${() => setTracing(!tracing)}>${tracing ? "end the trace" : "trace for a minute"}</button>${may ? html`<${Sure} label="stop" run=${() => act("stop", { address })} /><${Sure} label="kill" run=${() => act("kill", { address })} />` : html`<span class="dim small">only looks: --allow-actions lets it do something</span>`}</div></section>
    <section class="card c6"><h2>Messages${tracing ? html` <span class="pill warn">traced</span>` : ""}</h2>${tracing ? html`<ul class="plain">${listed(trace && trace.rows).reverse().slice(0, 60).map((m) => html`<li key=${m._key}><b class="td">${plain(m.message, 80)}</b><span class="dim small">${plain(m.sender)} · ${age(m.age)} ago</span></li>`)}</ul>` : html`<p class="dim">A trace shows each message that it takes, by type, with its sender.</p>`}
      ${may ? html`<h2>Send</h2><form onSubmit=${(e) => { e.preventDefault(); act("send", { address, type, message: parsed(text), ask: true }); }}><select aria-label="type" value=${type} onChange=${(e) => setType(e.target.value)}><option value="">plain JSON</option>${session.types.map((t) => html`<option value=${t.type}>${plain(t.type, 60)} (${t.fields.join(", ")})</option>`)}</select><p><textarea aria-label="message" placeholder='{"by": 5}' value=${text} onInput=${(e) => setText(e.target.value)}></textarea></p><button class="first">ask</button> <button type="button" onClick=${() => act("send", { address, type, message: parsed(text) })}>tell</button></form>` : null}</section>
    <section class="card"><h2>Errors of its class or name</h2>${page.failures.length ? page.failures.map((f) => html`<p class="dim small">${age(f.age)} ago</p><pre>${plain(f.text, 4000, "\n\t")}</pre>`) : html`<p class="dim">none</p>`}${page.losses.length ? html`<h2>Lost</h2><ul class="plain">${page.losses.map((l) => html`<li>${number(l.count)} ${plain(l.message)} <span class="dim">${plain(l.kind)}, from ${plain(l.sender)}, ${age(l.age)} ago</span></li>`)}</ul>` : null}</section>
  </div>`;
};

// --- topics, stores, MQTT, logs, events ---
const Topics = ({ session }) => {
  const [topic, setTopic] = useState(""), [value, setValue] = useState(""), [heard, setHeard] = useState("");
  const told = useStream("listen", { topic: heard }, Boolean(heard));
  return html`<h1>Topics</h1><${Table} view="topics" sort="topic" rising=${true} hint="nobody subscribes or publishes" columns=${[col("topic", "topic", { show: (v) => html`<a href="#/topics" onClick=${(e) => { e.preventDefault(); setTopic(v); setHeard(v); }}>${plain(v)}</a>` }), col("node", "node"), num("subscribers", "subscribers"), num("elsewhere", "other nodes"), num("published", "published"), num("rate", "rate", rate, { per: "published" })]} />
  <div class="grid" style=${{ marginTop: "18px" }}><section class="card c5"><h2>A client</h2><form class="row" onSubmit=${(e) => { e.preventDefault(); setHeard(topic); }}><input aria-label="topic" required placeholder="/cpu" value=${topic} onInput=${(e) => setTopic(e.target.value)} /><button>listen</button>${heard ? html`<button type="button" onClick=${() => setHeard("")}>stop</button>` : null}</form>
    ${session && session.actions ? html`<form class="row" style=${{ marginTop: "10px" }} onSubmit=${(e) => { e.preventDefault(); act("publish", { topic, value: parsed(value) }); }}><input aria-label="value" placeholder="0.5 or text" value=${value} onInput=${(e) => setValue(e.target.value)} /><button class="first">publish</button></form>` : null}
    ${heard ? html`<ul class="plain">${((told && told.messages) || []).slice(0, 50).map((m) => html`<li><b class="td">${plain(m.topic, 60)}</b><span class="mono td">${plain(m.value)}</span></li>`)}</ul><p class="dim small">listening to ${plain(heard)}${told && told.left ? `; ${number(told.left)} more came than a page can show` : ""}</p>` : null}</section>
    <section class="card c7"><h2>Peers</h2><${Table} view="peers" label="peers" isInner=${true} sort="address" columns=${[col("node", "node"), col("address", "peer", { width: "minmax(130px,2fr)" }), col("wire", "wire", { width: "80px" }), col("status", "status", { width: "70px" }), num("buffered", "buffered", number, { width: "70px" }), num("waiting_bytes", "in link", bytes, { width: "62px" })]} hint="no other endpoints" /></section></div>`;
};
const Stores = ({ session }) => {
  const { query } = here(), [key, setKey] = useState(""), [value, setValue] = useState("");
  if (!query.which) return html`<h1>Stores</h1><${Table} view="stores" sort="store" rising=${true} hint="no store is here" columns=${[col("store", "store", { show: (v) => html`<a href=${link("stores", { which: v })}>${plain(v)}</a>` }), col("node", "node"), col("role", "role"), num("keys", "keys"), num("processed", "writes"), num("writes", "writes/s", rate, { per: "processed" }), num("clones", "clones"), num("lag", "lag"), num("out_of_order", "out of order"), col("error", "error")]} />`;
  return html`<h1>${plain(query.which)} <a class="pill" href=${link("stores")}>all stores</a></h1>${session && session.actions ? html`<form class="row tools" onSubmit=${(e) => { e.preventDefault(); act("put", { store: query.which, key: parsed(key), value: parsed(value) }); }}><input aria-label="key" required placeholder="key" value=${key} onInput=${(e) => setKey(e.target.value)} /><input aria-label="value" placeholder="value" value=${value} onInput=${(e) => setValue(e.target.value)} /><button class="first">put</button></form>` : null}<${Table} view="stores/keys" query=${{ which: query.which }} sort="key" rising=${true} hint="no keys" columns=${[col("key", "key"), col("node", "node", { width: "minmax(80px,.6fr)" }), col("value", "value", { width: "minmax(160px,3fr)" }), num("expires", "expires in", (v) => (v == null ? "–" : age(v)), { width: "110px" })]} />`;
};
const MQTT = {
  clients: [col("client_id", "client", { show: (v) => html`<a href=${link("mqtt", { tab: "trace", which: v })}>${plain(v)}</a>` }), col("node", "node"), col("address", "address"), col("status", "status"), num("subscriptions", "filters"), num("inflight", "in flight"), num("behind", "behind"), num("packets_in", "packets"), num("rate", "rate", rate, { per: "packets_in" })],
  subscriptions: [col("filter", "filter"), col("node", "node"), num("readers", "readers"), num("waiters", "have read all"), num("start", "from"), num("end", "to"), num("bytes", "bytes", bytes)],
  retained: [col("topic", "topic"), col("node", "node"), col("text", "payload", { width: "minmax(160px,2fr)" }), num("qos", "QoS"), num("bytes", "bytes", bytes)],
  slow: [col("client_id", "client"), col("node", "node"), col("status", "status"), num("behind", "behind"), num("dropped", "dropped"), num("unsent_bytes", "unsent", bytes)],
  bans: [col("ban", "ban"), col("node", "node")],
  trace: [num("number", "number"), col("direction", "direction"), num("bytes", "bytes", bytes), col("packet", "packet"), col("fields", "fields", { width: "minmax(200px,4fr)" })],
};
const Mqtt = () => {
  const { query } = here(), tab = own(MQTT, query.tab) ? query.tab : "clients", which = query.which || "";
  const told = useStream("mqtt"), routers = listed(told && told.rows);
  return html`<h1>MQTT</h1><div class="grid">${routers.map((r) => html`<section class="card c4" key=${r._key}><h2>${plain(r.router || r.node)} · ${plain(r.listeners)}</h2><dl class="kv"><dt>clients</dt><dd>${number(r.connections)}, ${number(r.sessions_away)} away</dd><dt>published</dt><dd>${number(r.published)}</dd><dt>delivered</dt><dd>${number(r.delivered)}</dd><dt>lost</dt><dd>${number(r.lost)}</dd><dt>retained</dt><dd>${number(r.retained)}</dd></dl></section>`)}</div><div class="tabs" style=${{ marginTop: "16px" }}>${Object.keys(MQTT).filter((t) => t !== "trace" || which).map((t) => html`<a href=${link("mqtt", { tab: t, which: t === "trace" ? which : "" })} aria-current=${t === tab ? "page" : undefined}>${t}${t === "trace" ? " of " + plain(which, 30) : ""}</a>`)}</div><${Table} key=${tab + which} view=${"mqtt/" + tab} query=${tab === "trace" ? { which } : {}} sort=${MQTT[tab][0].name} rising=${tab !== "trace"} columns=${MQTT[tab]} label=${tab} hint=${routers.length ? (tab === "trace" ? "no packets yet; they are shown as they come" : "none") : "no router runs on these nodes"} />`;
};
const SlotMap = ({ type }) => {
  const told = useStream("entities/slots", { which: type, sort: "slot", rising: true, limit: 256 }), slots = listed(told && told.rows), by = new Map(slots.map((s) => [s.slot, s])), nodes = [...new Set(slots.map((s) => s.node))].sort();
  const count = (n) => slots.filter((s) => s.node === n).length;
  return html`<section class="card"><h2>256 slots, by the node that owns each</h2><div class="slots" role="img" aria-label=${nodes.map((n) => `${plain(n, 60)} owns ${count(n)} slots`).join(", ")}>${Array.from({ length: 256 }, (_, i) => { const s = by.get(i), n = s ? nodes.indexOf(s.node) : -1; return html`<i class=${s ? "s" + n % 6 : ""} title=${s ? `slot ${i}: ${plain(s.node, 60)}, epoch ${s.epoch}, ${s.active} live` : `slot ${i}: nobody in reach`}>${s ? String.fromCharCode(65 + n % 26) : "·"}</i>`; })}</div><p>${nodes.map((n, i) => html`<span class=${"slots s" + i % 6}>${String.fromCharCode(65 + i % 26)}</span> ${plain(n, 60)} ${count(n)}  `)}</p></section>`;
};
const Entities = () => {
  const { query } = here(), type = query.type, key = query.key;
  if (type && key) return html`<h1>${plain(type)}/${plain(key)} <a class="pill" href=${link("entities", { type })}>all of ${plain(type, 60)}</a></h1><${Table} view="entities/events" query=${{ which: `${type}/${key}` }} sort="number" hint="no events, or its node does not show them" columns=${[num("number", "number"), col("time", "time"), col("kind", "kind"), col("fields", "fields", { width: "minmax(200px,4fr)" }), num("position", "position"), num("epoch", "epoch"), col("node", "node")]} />`;
  if (type) return html`<h1>${plain(type)} <a class="pill" href=${link("entities")}>all types</a></h1><${SlotMap} type=${type} /><h2 style=${{ marginTop: "16px" }}>Entities that live</h2><${Table} view="entities/keys" query=${{ which: type }} sort="key" rising=${true} hint="none lives just now" columns=${[col("key", "key", { show: (v) => html`<a href=${link("entities", { type, key: v })}>${plain(v)}</a>` }), col("node", "node"), num("slot", "slot"), num("number", "events"), num("depth", "depth"), num("idle", "idle", age)]} />`;
  return html`<h1>Entities</h1><${Table} view="entities" sort="type" rising=${true} hint="no node hosts entities" columns=${[col("type", "type", { show: (v) => html`<a href=${link("entities", { type: v })}>${plain(v)}</a>` }), col("node", "node"), col("state", "state"), num("slots", "slots"), num("active", "live"), num("activated", "made"), num("rate", "events/s", rate, { per: "events" }), num("waiting", "waiting"), num("gained", "gained"), num("moves", "moved"), num("fenced", "fenced"), num("failures", "failures")]} />`;
};
const Logs = () => html`<h1>Logs</h1><${Table} view="logs" sort="log" rising=${true} hint="no node writes a log" columns=${[col("log", "log"), col("node", "node"), col("folder", "folder", { width: "minmax(160px,2fr)" }), col("furthest", "furthest behind"), num("start", "first"), num("end", "end"), num("durable", "durable"), num("growth", "growth", rate, { per: "end" }), num("bytes", "size", bytes), num("readers", "readers"), num("behind", "behind")]} />`;
const BAD = /Failed|Lost|Exhausted|Refused|NodeDown|Down$/, ODD = /DeadLetter|Overflow|Expired|Unexpected|Slow|Restarted|Moved|Gap/;
const what = (row) => Object.entries(row).filter(([n, v]) => !["id", "at", "time", "kind", "trace", "_key"].includes(n) && v !== "").map(([n, v]) => html`<span class="dim">${plain(n, 60)}</span> ${/^basp\S*\/\d+@/.test(v) ? actorLink(v) : plain(v)}  `);
const Events = () => html`<h1>Events</h1><${Table} view="events" sort="" hint="nothing has happened yet" columns=${[col("time", "time", { width: "84px", show: (v) => new Date(v).toLocaleTimeString("en-GB") }), col("at", "node", { width: "minmax(80px,.5fr)" }), col("kind", "kind", { width: "minmax(130px,.8fr)", show: (v) => html`<span class=${"state " + (BAD.test(v) ? "lost" : ODD.test(v) ? "silent" : "")}><span aria-hidden="true">${BAD.test(v) ? "✕" : ODD.test(v) ? "▲" : "·"}</span>${plain(v, 60)}</span>` }), col("id", "what", { width: "minmax(240px,4fr)", show: (_, row) => what(row) }), col("trace", "trace", { width: "120px", show: (v) => (v ? traceLink(v) : "") })]} />`;

// --- pipeline queries, which publish their status and results as messages ---
const SHOWN = [["value", "expected", "level", "min", "p50", "mean", "p90", "p99", "max"], ["rate", "late", "worst", "apart"], ["records"]], COLORS = ["--flow", "--good", "--warn", "--bad", "--dim", "--ink"];
const Results = ({ query }) => {
  const told = useStream("listen", { topic: `/${query}` }), kept = useRef(new Map()), [topic, setTopic] = useState("");
  const data = useMemo(() => {
    for (const m of [...((told && told.messages) || [])].reverse()) {
      if (m._at || !m.value || typeof m.value !== "object") continue;
      m._at = Date.now() / 1000;
      if (!kept.current.has(m.topic)) { if (kept.current.size >= 200) continue; kept.current.set(m.topic, []); }
      const all = kept.current.get(m.topic);
      all.push([Math.max(m._at, all.length ? all.at(-1)[0] + 0.001 : 0), m.value]);
      if (all.length > 600) all.shift();
    }
    const all = kept.current.get(topic || [...kept.current.keys()].sort()[0]) || [], names = (SHOWN.map((names) => names.filter((name) => all.some(([, v]) => typeof own(v, name) === "number"))).find((found) => found.length) || []).slice(0, COLORS.length);
    return { names, rows: [all.map(([at]) => at), ...names.map((name) => all.map(([, v]) => (typeof own(v, name) === "number" ? own(v, name) : null)))], latest: all.length ? all.at(-1)[1] : null };
  }, [told, topic]);
  const topics = [...kept.current.keys()].sort(), isOdd = /anomal/.test(query), short = (v) => (Math.abs(v) >= 1000 ? number(v) : String(Number(v.toPrecision(4))));
  if (!topics.length) return html`<p class="dim">no result yet on ${plain("/" + query, 80)}</p>`;
  return html`<select aria-label="topic of results" value=${topic} onChange=${(e) => setTopic(e.target.value)}>${topics.map((name, i) => html`<option value=${i ? name : ""}>${plain(name, 100)}</option>`)}</select>
    ${data.names.length ? html`<${Plot} series=${data.names.map((name, i) => [name, COLORS[i], isOdd ? null : [[], [6, 4], [2, 3]][i % 3]])} data=${data.rows} show=${short} about=${`results on ${plain(topic || topics[0], 100)}: ${data.names.map((name) => `${name} ${plain(data.latest[name], 40)}`).join(", ")}`} />` : html`<p class="dim">its results are no numbers</p>`}
    <p class="small dim mono">${plain(data.latest, 500)}</p>`;
};
const Queries = () => {
  const told = useStream("listen", { topic: "$spark/" }), kept = useRef(new Map());
  for (const m of (told && told.messages) || []) {
    const [, name] = /^\$spark\/(.+)\/status$/s.exec(m.topic) || [];
    if (!name || m._read || !m.value || typeof m.value !== "object") continue;
    m._read = true;
    if (!kept.current.has(name) || String(kept.current.get(name).updated || "") <= String(m.value.updated || "")) kept.current.set(name, m.value);
  }
  const all = [...kept.current].sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, 50), row = (label, value) => html`<dt>${label}</dt><dd>${value}</dd>`, seconds = (v) => (v == null ? "–" : age(v));
  if (told && told.error) return html`<h1>Queries</h1><p class="state lost">✕ ${plain(told.error, 600)}</p>`;
  return html`<h1>Queries</h1>${all.length ? null : html`<div class="card dim">No query tells how far it is. Those that run with --peer or --listen publish it each second: <code>callboard pipeline run quantiles FOLDER --to RESULTS --peer ADDRESS</code></div>`}
  <div class="grid">${all.map(([name, q]) => { const last = q.last || {}, handed = q.handed || {}, end = Math.max((q.delay || {}).end || 0, last.end || 0), state = q.ended || (Date.now() - new Date(q.updated || q.started) > 60000 ? "silent" : "runs"); return html`<section class="card c6" key=${name} aria-label=${plain(name, 100)}><h2><b>${plain(name, 100)}</b> <span class=${"state " + (state === "runs" ? "up" : state === "failed" || state === "died" ? "lost" : "silent")}>${state === "runs" ? "●" : state === "failed" ? "✕" : "◌"} ${plain(state, 20)}</span></h2>
    <progress max=${end || 1} value=${last.offset || 0} aria-label=${`${number(last.offset)} of ${number(end)} records`}></progress>
    <dl class="kv">${row("read", `${number(last.offset)} of ${number(end)}, ${number(Math.max(0, end - (last.offset || 0)))} wait`)}${row("rate", `${rate(last.rate)} in batch ${number(last.batch)}, ${age(last.seconds)} long`)}${row("behind", `${seconds((q.delay || {}).seconds)}, in event time ${seconds((q.delay || {}).event_seconds)}`)}${row("late", number(q.dropped))}${row("dead letters", q.undecodable == null ? "not counted" : number(q.undecodable))}${q.handed ? row("results", `${number(handed.handed)} handed, ${number(handed.unheard)} unheard, ${number(handed.lost)} lost, ${number(handed.waiting)} waiting`) : null}${row("log", plain(q.log))}${row("runs on", `${plain(q.host, 100)}, process ${plain(q.pid)}`)}</dl><div class="plots"><${Results} query=${name} /></div></section>`; })}</div>`;
};

const PAGES = { overview: ["Overview", Overview], actors: ["Actors", Actors], topics: ["Topics", Topics], stores: ["Stores", Stores], mqtt: ["MQTT", Mqtt], entities: ["Entities", Entities], logs: ["Logs", Logs], queries: ["Queries", Queries], events: ["Events", Events], actor: [null, Actor] };
const Shown = ({ page: Page, session }) => {
  const [error, again] = useErrorBoundary((failed) => console.warn(failed));  // an error of one page does not affect the others
  return error ? html`<h1>This page could not be shown</h1><p class="state lost">✕ ${plain(error.message)}</p><p><button onClick=${again}>try again</button></p>` : html`<${Page} session=${session} />`;
};
const App = () => {
  const [at, setAt] = useState({ ...here(), turn: 0 }), [session, setSession] = useState(null), [head, setHead] = useState(null), [said, setSaid] = useState(""), main = useRef(null), nav = useRef(null);
  summary = setHead;
  note = (text) => { setSaid(text); clearTimeout(note.timer); note.timer = setTimeout(() => setSaid(""), 8000); };
  useEffect(() => { const moved = () => setAt((before) => ({ ...here(), turn: before.turn + 1 })); window.addEventListener("hashchange", moved); fetch(`${API}session`).then((a) => (a.ok ? a.json() : null)).then(setSession).catch(() => {}); return () => window.removeEventListener("hashchange", moved); }, []);
  const [title, Page] = own(PAGES, at.path) || PAGES.overview, current = at.path === "actor" ? "actors" : own(PAGES, at.path) ? at.path : "overview";
  useEffect(() => {
    document.title = `${title || "Actor"} · callboard`;
    const here = nav.current.querySelector("[aria-current]");
    if (here) nav.current.scrollLeft = here.offsetLeft - nav.current.offsetLeft - 20;
    if (at.turn) { main.current.focus({ preventScroll: true }); window.scrollTo(0, 0); }  // like a newly loaded page
  }, [at]);
  const pill = !head ? null : head.away ? ["bad", "✕ no answer, trying again"] : head.bad ? ["bad", `✕ ${head.bad} of ${head.nodes} nodes`] : head.alarms ? ["warn", `▲ ${head.alarms} alarms`] : ["", `● ${head.nodes} nodes`];
  return html`<header class="top"><b class="brand"><a href="#/">callboard</a></b><nav ref=${nav} aria-label="pages">${Object.entries(PAGES).filter(([, [name]]) => name).map(([path, [name]]) => html`<a href=${link(path)} aria-current=${current === path ? "page" : undefined}>${name}</a>`)}</nav>${pill ? html`<a href="#/" class=${"pill " + pill[0]} role="status">${pill[1]}</a>` : null}</header><main key=${at.turn} ref=${main} tabindex="-1"><${Shown} page=${Page} session=${session} /></main>${said ? html`<div class="toast" role="alert">${said}</div>` : null}`;
};
render(html`<${App} />`, document.getElementById("app"));
