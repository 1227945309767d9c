// Tables, which request only the visible rows.
import { html, useState, useEffect, useRef, useMemo } from "../vendor/preact.js";
import { number, plainText, rate } from "./format.js";
import { saveRows, toRows, useStream } from "./requests.js";
import { actorLink, currentRoute, link, traceLink } from "./routing.js";

const HEIGHT = 36;
const Detail = ({ row, of, close }) => {
  const box = useRef(null);
  useEffect(() => {
    const back = document.activeElement;
    box.current.focus();
    const keys = (event) => {
      if (event.key === "Escape") close();
    };
    document.addEventListener("keydown", keys);
    return () => {
      document.removeEventListener("keydown", keys);
      if (back && back.isConnected) back.focus();
    };
  }, [of]);
  return html`<aside class="drawer" role="dialog" aria-label="all of this row" tabindex="-1" ref=${box}>
    <button onClick=${close}>close</button>${
      row
        ? html`<dl class="kv">${Object.entries(row)
            .filter(([name]) => name !== "_key")
            .map(
              ([name, value]) =>
                html`<dt>${plainText(name, 60)}</dt><dd class="text">
                ${/^basp\S*\/\d+@/.test(value) ? actorLink(value, plainText(value)) : name === "trace" && value ? traceLink(value) : plainText(value, 20000, "\n\t")}</dd>`,
            )}</dl>`
        : html`<p class="dim">This row is not among those that are shown; search for it.</p>`
    }</aside>`;
};
export const Table = ({
  view,
  label = view,
  columns,
  query = {},
  sort: first,
  rising: firstRising = false,
  hint,
  isInner = false,
}) => {
  const { path, query: there } = currentRoute(),
    at = isInner ? {} : there;
  const [search, setSearch] = useState(at.search || "");
  const [kind, setKind] = useState(at.kind || "");
  const [sort, setSort] = useState(at.sort || first);
  const [rising, setRising] = useState(at.rising ? at.rising === "true" : firstRising);
  const [selected, setSelected] = useState(at.row || "");
  const [skip, setSkip] = useState(0);
  const box = useRef(null),
    wait = useRef(0),
    last = useRef(0),
    field = useRef(null),
    per = useRef(new Map()),
    home = useRef(location.hash);
  const hasRates = columns.some((c) => c.per);
  const parameters = { ...query, search, rising, sort, ...(kind ? { kind } : {}) };
  const answer = useStream(view, { ...parameters, skip, limit: 90 }, true, hasRates);
  const cache = useRef({ count: 0, rows: new Map(), of: "" });
  const of = JSON.stringify(parameters);
  // Effects run after rendering; a click in between may have led elsewhere, also on the same page.
  useEffect(() => {
    if (!isInner && location.hash === home.current) {
      history.replaceState(
        null,
        "",
        link(path, {
          ...at,
          search,
          kind,
          row: selected,
          sort: sort === first ? "" : sort,
          rising: rising === firstRising ? "" : rising,
        }),
      );
      home.current = location.hash;
    }
  }, [of, selected]);
  if (answer && answer.rows && answer._asked.includes(`skip=${skip}&limit`)) {
    if (cache.current.of !== of) cache.current = { count: 0, rows: new Map(), of };
    cache.current.count = answer.count;
    const now = new Map();
    toRows(answer.rows).forEach((row, index) => now.set(skip + index, row));
    cache.current.rows = now;
  }
  if (hasRates)
    useMemo(() => {
      const now = performance.now(),
        next = new Map();
      for (const row of cache.current.rows.values())
        for (const c of columns)
          if (c.per) {
            const key = c.per + " " + row._key,
              last = per.current.get(key),
              value = Number(row[c.per]) || 0,
              due = !last || now - last.at > 800;
            next.set(
              key,
              due
                ? {
                    value,
                    at: now,
                    rate: last ? Math.max(0, ((value - last.value) / (now - last.at)) * 1000) : 0,
                  }
                : last,
            );
          }
      per.current = next;
    }, [answer]);
  useEffect(() => {
    const keys = (event) => {
      if (event.key === "/" && !isInner && !/INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) {
        event.preventDefault();
        field.current.focus();
      }
    };
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, []);
  // While scrolling, rows are prefetched in the direction of scrolling, at most ten times a second.
  const onScroll = () => {
    if (wait.current) return;
    wait.current = setTimeout(() => {
      wait.current = 0;
      if (!box.current) return;
      const top = Math.floor(box.current.scrollTop / HEIGHT),
        down = top >= last.current;
      last.current = top;
      setSkip((before) =>
        top >= before + (before && !down ? 15 : 0) && top + 45 <= before + 90
          ? before
          : Math.max(0, Math.floor((top - (down ? 10 : 50)) / 10) * 10),
      );
    }, 100);
  };
  const sortBy = (name) => {
    if (name === sort) setRising(!rising);
    else {
      setSort(name);
      setRising(!columns.find((c) => (c.per || c.name) === name).num);
    }
    setSkip(0);
    if (box.current) box.current.scrollTop = 0;
  };
  const minWidth = columns.reduce(
    (sum, c) => sum + 14 + Number((c.width || (c.num ? "90px" : "110px")).match(/\d+/)[0]),
    56,
  );
  const widths =
    columns.map((c) => c.width || (c.num ? "90px" : "minmax(110px,1fr)")).join(" ") + " 24px";
  const { count, rows } = cache.current;
  const silent = answer && answer.silent ? Object.entries(answer.silent) : [];
  const isShort = count < 14,
    isLoading = !answer || (cache.current.of !== of && !answer.error);
  const cellText = (c, row) => {
    const value = row[c.field || c.name];
    if (c.per) {
      const change = per.current.get(c.per + " " + row._key);
      return change ? rate(change.rate) : "–";
    }
    return c.show ? c.show(value, row) : plainText(value);
  };
  return html`<section aria-label=${label} aria-busy=${isLoading}>
    <div class="tools">
      <input type="search" ref=${field} placeholder="search  /" aria-label="search" value=${search} onInput=${(
        e,
      ) => {
        setSearch(e.target.value);
        setSkip(0);
      }} />
      ${
        answer && answer.kinds
          ? html`<select aria-label="kind" value=${kind} onChange=${(e) => {
              setKind(e.target.value);
              setSkip(0);
            }}><option value="">all kinds</option>${answer.kinds.map(
              (name) => html`<option value=${name}>
              ${plainText(name, 60)}</option>`,
            )}</select>`
          : null
      }
      <button aria-label="save as CSV" onClick=${() => saveRows(view, parameters, "csv")}>CSV</button>
        <button aria-label="save as JSON" onClick=${() => saveRows(view, parameters, "json")}>JSON</button>
      <span class="count" role="status">
        ${answer && answer.error ? "" : isLoading ? "asking …" : `${number(count)} rows`}</span>
    </div>
    ${answer && answer.error ? html`<p class="state lost">✕ ${plainText(answer.error, 600)}</p>` : null}
    ${silent.map(([name, why]) => html`<p class="state silent">◌ ${plainText(name)} did not answer: ${plainText(why, 600)}</p>`)}
    ${
      answer && answer.error && !count
        ? null
        : !isLoading && !count
          ? html`<div class="card dim">${search || kind ? "nothing matches" : hint || "nothing here"}</div>`
          : html`
    <div class=${"scroll" + (isShort ? " short" : "")} ref=${box} onScroll=${onScroll} tabindex="0" role="table" aria-label=${label} aria-rowcount=${count + 1}>
      <div class="tr head" role="row" style=${{ gridTemplateColumns: widths, minWidth: `${minWidth}px` }}>${columns.map(
        (c) => {
          const by = c.per || c.name;
          return html`<div class=${"td" + (c.num ? " num" : "")} role="columnheader" aria-sort=${by === sort ? (rising ? "ascending" : "descending") : "none"}>
            <button onClick=${() => sortBy(by)}>
            ${c.label}${by === sort && !c.per ? (rising ? " ↑" : " ↓") : ""}</button></div>`;
        },
      )}<div class="td" role="columnheader" aria-label="all of it"></div></div>
      <div class="body" role="rowgroup" style=${{ height: `${count * HEIGHT}px` }}>
        ${[...rows].map(
          ([index, row]) =>
            html`<div class="tr" role="row" aria-rowindex=${index + 2} key=${row._key} style=${{ top: `${index * HEIGHT}px`, gridTemplateColumns: widths, minWidth: `${minWidth}px` }}>
              ${columns.map((c) => {
                const answer = cellText(c, row),
                  value = row[c.field || c.name];
                return html`<div class=${"td" + (c.num ? " num" : "")} role="cell" title=${typeof value === "string" ? plainText(value, 1000) : typeof answer === "string" ? answer : undefined}>
                  ${answer}</div>`;
              })}<div class="td" role="cell">
              <a class="more" aria-label="all of this row" href=${link(path, { ...at, row: row._key })} onClick=${(
                e,
              ) => {
                e.preventDefault();
                setSelected(row._key);
              }}>›</a></div></div>`,
        )}
      </div>
    </div>`
    }
    ${
      selected && !isLoading
        ? html`<${Detail} of=${selected} row=${[...rows.values()].find((row) => row._key === selected)} close=${() => setSelected("")} />`
        : null
    }
  </section>`;
};
export const col = (name, label, more = {}) => ({ name, label, ...more });
export const num = (name, label, show = number, more = {}) => ({
  name,
  label,
  num: true,
  show,
  ...more,
});
