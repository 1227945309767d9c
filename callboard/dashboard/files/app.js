// The dashboard: its frame, its menu, and the page that the address names.
import { html, render, useState, useEffect, useRef, useErrorBoundary } from "./vendor/preact.js";
import { ownValue, plainText } from "./core/format.js";
import { API, frame } from "./core/requests.js";
import { currentRoute, link } from "./core/routing.js";
import { Actor } from "./pages/actor.js";
import { Actors } from "./pages/actors.js";
import { Entities } from "./pages/entities.js";
import { Events } from "./pages/events.js";
import { Logs } from "./pages/logs.js";
import { Mqtt } from "./pages/mqtt.js";
import { Overview } from "./pages/overview.js";
import { Queries } from "./pages/queries.js";
import { Queues } from "./pages/queues.js";
import { Stores } from "./pages/stores.js";
import { Topics } from "./pages/topics.js";

const PAGES = {
  overview: ["Overview", Overview],
  actors: ["Actors", Actors],
  topics: ["Topics", Topics],
  stores: ["Stores", Stores],
  mqtt: ["MQTT", Mqtt],
  entities: ["Entities", Entities],
  queues: ["Queues", Queues],
  logs: ["Logs", Logs],
  queries: ["Queries", Queries],
  events: ["Events", Events],
  actor: [null, Actor],
};
// An error of one page does not affect the others.
const PageBoundary = ({ page: Page, session }) => {
  const [error, retry] = useErrorBoundary((failed) => console.warn(failed));
  return error
    ? html`<h1>This page could not be shown</h1><p class="state lost">✕ ${plainText(error.message)}</p><p>
      <button onClick=${retry}>try again</button></p>`
    : html`<${Page} session=${session} />`;
};
let toastTimer = 0;
const App = () => {
  const [route, setRoute] = useState({ ...currentRoute(), turn: 0 }),
    [session, setSession] = useState(null),
    [head, setHead] = useState(null),
    [toast, setToast] = useState(""),
    main = useRef(null),
    nav = useRef(null);
  frame.summarize = setHead;
  frame.notify = (text) => {
    setToast(text);
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => setToast(""), 8000);
  };
  useEffect(() => {
    const onHashChange = () => setRoute((before) => ({ ...currentRoute(), turn: before.turn + 1 }));
    window.addEventListener("hashchange", onHashChange);
    fetch(`${API}session`)
      .then((a) => (a.ok ? a.json() : null))
      .then(setSession)
      .catch(() => {});
    return () => window.removeEventListener("hashchange", onHashChange);
  }, []);
  const [title, Page] = ownValue(PAGES, route.path) || PAGES.overview,
    current =
      route.path === "actor" ? "actors" : ownValue(PAGES, route.path) ? route.path : "overview";
  useEffect(() => {
    document.title = `${title || "Actor"} · callboard`;
    const entry = nav.current.querySelector("[aria-current]");
    if (entry) nav.current.scrollLeft = entry.offsetLeft - nav.current.offsetLeft - 20;
    // Like a newly loaded page:
    if (route.turn) {
      main.current.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
  }, [route]);
  const pill = !head
    ? null
    : head.away
      ? ["bad", "✕ no answer, trying again"]
      : head.bad
        ? ["bad", `✕ ${head.bad} of ${head.nodes} nodes`]
        : head.alarms
          ? ["warn", `▲ ${head.alarms} alarms`]
          : ["", `● ${head.nodes} nodes`];
  return html`<header class="top"><b class="brand"><a href="#/">callboard</a></b>
    <nav ref=${nav} aria-label="pages">${Object.entries(PAGES)
      .filter(([, [name]]) => name)
      .map(
        ([path, [name]]) =>
          html`<a href=${link(path)} aria-current=${current === path ? "page" : undefined}>${name}</a>`,
      )}</nav>${pill ? html`<a href="#/" class=${"pill " + pill[0]} role="status">${pill[1]}</a>` : null}</header>
      <main key=${route.turn} ref=${main} tabindex="-1"><${PageBoundary} page=${Page} session=${session} />
      </main>${toast ? html`<div class="toast" role="alert">${toast}</div>` : null}`;
};
render(html`<${App} />`, document.getElementById("app"));
