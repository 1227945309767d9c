// Charts over time.
import { html, useState, useEffect, useRef } from "../vendor/preact.js";
import { loadScript } from "./requests.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");
// Charts over time: `series` are [label, color, dash], `data` are times and the values of each series.
export const Plot = ({ series, data, show, about }) => {
  const [isDark, setDark] = useState(DARK.matches),
    box = useRef(null),
    chart = useRef(null),
    latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const onSchemeChange = () => setDark(DARK.matches);
    DARK.addEventListener("change", onSchemeChange);
    return () => DARK.removeEventListener("change", onSchemeChange);
  }, []);
  useEffect(() => {
    let isOver = false;
    if (!document.getElementById("plots")) {
      const css = document.createElement("link");
      css.id = "plots";
      css.rel = "stylesheet";
      css.href = "static/vendor/uPlot.css";
      document.head.append(css);
    }
    loadScript("uPlot.js").then(() => {
      if (isOver || !box.current) return;
      const color = (name) =>
        getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const axis = {
        stroke: color("--dim"),
        grid: { stroke: color("--line"), width: 1 },
        ticks: { show: false },
      };
      const toSeries = ([label, name, dash]) => ({
        label,
        stroke: color(name),
        width: 2,
        dash,
        points: { show: dash === null },
        paths: dash === null ? () => null : undefined,
        value: (_, v) => (v == null ? "" : show(v)),
      });
      chart.current = new window.uPlot(
        {
          width: box.current.clientWidth,
          height: 190,
          cursor: { y: false },
          axes: [axis, { ...axis, size: 62, values: (_, all) => all.map(show) }],
          scales: {
            y: {
              range: (_, least, most) => [
                Math.min(0, least || 0),
                Math.max(least < 1 && most <= 1 ? 0.01 : 1, most * 1.15),
              ],
            },
          },
          series: [{}, ...series.map(toSeries)],
        },
        latest.current,
        box.current,
      );
    });
    const onResize = () => {
      if (chart.current) chart.current.setSize({ width: box.current.clientWidth, height: 190 });
    };
    window.addEventListener("resize", onResize);
    return () => {
      isOver = true;
      window.removeEventListener("resize", onResize);
      if (chart.current) chart.current.destroy();
      chart.current = null;
    };
  }, [isDark, JSON.stringify(series)]);
  useEffect(() => {
    if (chart.current) chart.current.setData(data);
  }, [data]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${about}></div>`;
};
