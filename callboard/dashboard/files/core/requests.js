// Requests to the node: streams of rows, actions, saved tables, and scripts that load late.
import { useState, useEffect } from "../vendor/preact.js";
import { number, plainText } from "./format.js";

export const API = "api/v1/";
const applyPatch = (old, patch) => {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const merged = Object.assign(
    Object.create(null),
    old && typeof old === "object" && !Array.isArray(old) ? old : null,
  );
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = applyPatch(merged[name], value);
  }
  return merged;
};
export const toRows = (rows) =>
  rows && rows.order ? rows.order.map((key) => ({ ...rows.rows[key], _key: key })) : [];
// The frame of the page sets these: a line for the user, and the summary of the nodes.
export const frame = { notify() {}, summarize() {} };
export const useStream = (view, query = {}, on = true, everyBeat = false) => {
  const [answer, setAnswer] = useState(null);
  const parameters = new URLSearchParams({ view, ...query }).toString();
  useEffect(() => {
    if (!on) return undefined;
    let state = null,
      source = null,
      retry = 0;
    const open = () => {
      clearTimeout(retry);
      source = new EventSource(`${API}stream?${parameters}`);
      source.onmessage = (event) => {
        const change = JSON.parse(event.data);
        if (change.whole) state = change.whole;
        else if (change.patch) state = applyPatch(state, change.patch);
        else if (!change.messages && !(everyBeat && state)) {
          if (state) frame.summarize(state.summary);
          return;
        }
        if (change.messages)
          setAnswer((before) => ({
            messages: [...change.messages, ...((before && before.messages) || [])].slice(0, 200),
            left: ((before && before.left) || 0) + change.left_out,
          }));
        else {
          frame.summarize(state.summary);
          setAnswer({ ...state, _asked: parameters });
        }
      };
      source.onerror = () => {
        frame.summarize({ away: true });
        if (source.readyState !== 2) return; // the browser reconnects automatically
        fetch(`${API}stream?${parameters}`, { signal: AbortSignal.timeout(3000) })
          .then(async (response) => {
            if (!response.ok)
              setAnswer({
                error:
                  response.status === 401
                    ? "This page needs the link that was printed: it holds the token."
                    : (await response.json()).error,
              });
          })
          .catch(() => {});
        retry = setTimeout(open, 3000);
      };
    };
    const onVisibilityChange = () => {
      if (document.hidden) {
        clearTimeout(retry);
        if (source) source.close();
        source = null;
      } else if (!source) open();
    };
    document.addEventListener("visibilitychange", onVisibilityChange);
    onVisibilityChange();
    return () => {
      clearTimeout(retry);
      document.removeEventListener("visibilitychange", onVisibilityChange);
      if (source) source.close();
    };
  }, [parameters, on]);
  return answer;
};
export const runAction = async (action, body) => {
  try {
    const answer = await fetch(`${API}actions/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const result = await answer.json();
    frame.notify(
      answer.ok
        ? `${action}: ${plainText(result.outcome)}`
        : `${action} was not done: ${plainText(result.error, 600)}`,
    );
    return answer.ok ? result.outcome : null;
  } catch (error) {
    frame.notify(`${action} was not done: ${error.message}`);
    return null;
  }
};
export const parseValue = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
};
export const saveRows = async (view, query, kind) => {
  const answer = await fetch(
    `${API}${view}?${new URLSearchParams({ ...query, skip: 0, limit: 5000 })}`,
  )
    .then((answer) => answer.json())
    .catch((error) => ({ error: error.message }));
  if (!answer.rows) {
    frame.notify(`nothing was saved: ${plainText(answer.error)}`);
    return;
  }
  const { rows } = answer;
  if (answer.count > rows.length)
    frame.notify(
      `saved are the first ${number(rows.length)} of ${number(answer.count)} rows; a search makes them fewer`,
    );
  const names = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => {
    let text =
      value == null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (/^[=+\-@\t\r]/.test(text) && typeof value === "string") text = "'" + text;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const text =
    kind === "csv"
      ? [
          names.map(cell).join(","),
          ...rows.map((row) => names.map((name) => cell(row[name])).join(",")),
        ].join("\n")
      : JSON.stringify(rows, null, 1);
  const a = document.createElement("a");
  a.href = URL.createObjectURL(
    new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }),
  );
  a.download = `${view.replace("/", "-")}.${kind}`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
};
const scripts = {};
export const loadScript = (name) =>
  scripts[name] ||
  (scripts[name] = new Promise((done) => {
    const tag = document.createElement("script");
    tag.src = `static/vendor/${name}`;
    tag.async = false;
    tag.onload = done;
    document.head.append(tag);
  }));
