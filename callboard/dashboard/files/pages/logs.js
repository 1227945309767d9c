// Logs.
import { html } from "../vendor/preact.js";
import { bytes, rate } from "../core/format.js";
import { Table, col, num } from "../core/table.js";

export const Logs = () =>
  html`<h1>Logs</h1><${Table} view="logs" sort="log" rising=${true} hint="no node writes a log" columns=${[
    col("log", "log"),
    col("node", "node"),
    col("folder", "folder", { width: "minmax(160px,2fr)" }),
    col("furthest", "furthest behind"),
    num("start", "first"),
    num("end", "end"),
    num("durable", "durable"),
    num("growth", "growth", rate, { per: "end" }),
    num("bytes", "size", bytes),
    num("readers", "readers"),
    num("behind", "behind"),
  ]} />`;
