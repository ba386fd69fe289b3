// Lines over time, drawn as SVG from an attribute of plain data. Text is only ever text.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const WIDTH = 640, HEIGHT = 160, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

  const make = (tag, attributes, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const short = (value, bytes) => {
    const step = bytes ? 1024 : 1000;
    const names = bytes ? ["B", "KB", "MB", "GB", "TB"] : ["", "k", "M", "G", "T"];
    let index = 0, amount = value;
    while (Math.abs(amount) >= step && index < names.length - 1) { amount /= step; index += 1; }
    const text = Math.abs(amount) >= 100 || Number.isInteger(amount) ? amount.toFixed(0) : amount.toFixed(1);
    return text + (bytes ? " " : "") + names[index];
  };

  // The top of the scale: 1, 2 or 5 times a power, so that its parts are round.
  const roundUp = (value, bytes) => {
    if (value <= 0) return 1;
    const base = bytes ? 1024 ** Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024)) : 1;
    const rest = value / base;
    const power = 10 ** Math.floor(Math.log10(rest));
    for (const factor of [1, 2, 4, 5, 10]) if (rest <= factor * power) return factor * power * base;
    return 10 * power * base;
  };

  const clock = (ms, span) => {
    const when = new Date(ms);
    const two = (number) => String(number).padStart(2, "0");
    const time = `${two(when.getHours())}:${two(when.getMinutes())}`;
    if (span <= 2 * 3600e3) return time;
    return span <= 2 * 86400e3 ? time : `${two(when.getMonth() + 1)}-${two(when.getDate())} ${time}`;
  };

  const draw = (box) => {
    const source = box.dataset.chart;
    if (box.drawn === source) return;
    box.drawn = source;
    const data = JSON.parse(source);
    const names = Object.keys(data.series);
    const all = names.flatMap((name) => data.series[name]).filter((value) => value !== null);
    box.replaceChildren();
    if (all.length === 0 || data.at.length < 2) {
      const none = document.createElement("div");
      none.className = "none";
      none.textContent = box.dataset.empty;
      box.append(none);
      return;
    }
    const first = data.at[0], last = data.at[data.at.length - 1], span = last - first || 1;
    const most = roundUp(Math.max(...all, data.bytes ? 1 : 0), data.bytes);
    const x = (ms) => LEFT + ((ms - first) / span) * (WIDTH - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    // The picture is as wide as its box: text is not stretched.
    const width = Math.max(box.clientWidth, 200);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const wide = (ms) => LEFT + ((ms - first) / span) * (width - LEFT - RIGHT);
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const at = y(most * part);
      svg.append(make("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      if (part % 0.5 === 0) svg.append(make("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, short(most * part, data.bytes)));
    }
    const count = Math.max(2, Math.min(6, Math.floor(width / 110)));
    for (let index = 0; index <= count; index += 1) {
      const ms = first + (span * index) / count;
      const anchor = index === 0 ? "start" : index === count ? "end" : "middle";
      svg.append(make("text", { x: wide(ms), y: HEIGHT - 6, "text-anchor": anchor }, clock(ms, span)));
    }
    names.forEach((name, index) => {
      const values = data.series[name];
      let run = [];
      const flush = () => {
        if (run.length > 0) {
          if (run.length === 1) run.push([run[0][0] + 1, run[0][1]]);
          const line = run.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" L");
          const floor = y(0).toFixed(1);
          if (name !== "limit") svg.append(make("path", { class: `fill s${index % 6}`, d: `M${run[0][0].toFixed(1)},${floor} L${line} L${run[run.length - 1][0].toFixed(1)},${floor} Z` }));
          svg.append(make("path", { class: `curve s${index % 6}`, d: `M${line}` }));
        }
        run = [];
      };
      values.forEach((value, at) => { if (value === null) flush(); else run.push([wide(data.at[at]), y(value)]); });
      flush();
    });
    const cross = make("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.append(cross);
    const legend = document.createElement("div");
    legend.className = "legend";
    const shown = names.map((name, index) => {
      const entry = document.createElement("span");
      const mark = make("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
      mark.append(make("rect", { width: 10, height: 10, rx: 2, class: `s${index % 6}` }));
      const value = document.createElement("b");
      entry.append(mark, document.createTextNode(name), value);
      legend.append(entry);
      return value;
    });
    const when = document.createElement("span");
    legend.append(when);
    const show = (at) => {
      names.forEach((name, index) => {
        const value = data.series[name][at];
        shown[index].textContent = value === null || value === undefined ? "–" : short(value, data.bytes);
      });
    };
    const rest = () => {
      cross.setAttribute("visibility", "hidden");
      when.textContent = "";
      names.forEach((name, index) => {
        const values = data.series[name].filter((value) => value !== null);
        shown[index].textContent = values.length ? short(values[values.length - 1], data.bytes) : "–";
      });
    };
    svg.addEventListener("pointermove", (event) => {
      const px = event.clientX - svg.getBoundingClientRect().left;
      const ms = first + ((px - LEFT) / (width - LEFT - RIGHT)) * span;
      let best = 0;
      data.at.forEach((each, at) => { if (Math.abs(each - ms) < Math.abs(data.at[best] - ms)) best = at; });
      cross.setAttribute("x1", wide(data.at[best]));
      cross.setAttribute("x2", wide(data.at[best]));
      cross.setAttribute("visibility", "visible");
      when.textContent = new Date(data.at[best]).toLocaleString();
      show(best);
    });
    svg.addEventListener("pointerleave", rest);
    rest();
    box.append(svg, legend);
  };

  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
  window.penstockDraw = drawAll;
  window.addEventListener("resize", () => {
    document.querySelectorAll("[data-chart]").forEach((box) => { box.drawn = null; });
    drawAll();
  });
  drawAll();
})();
