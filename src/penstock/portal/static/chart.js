// Line, area and bar charts over time, drawn as SVG from a data attribute. No dependency, no inline style attribute.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 22;
  const SPANS_S = [120, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 259200, 604800];
  const TICKS_S = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600, 604800];

  const node = (tag, attributes, text) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Times as the page shows them: UTC, or local if the user chose that.
  const shift = (seconds) => new Date((seconds - (document.cookie.includes("penstock_zone=local") ? new Date(seconds * 1000).getTimezoneOffset() * 60 : 0)) * 1000);
  const zone = () => document.querySelector("[data-zone]")?.textContent ?? "UTC";
  const two = (number) => String(number).padStart(2, "0");
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const day = (seconds) => { const at = shift(seconds); return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`; };
  const clock = (seconds, exact) => {
    const at = shift(seconds);
    return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}${exact ? `:${two(at.getUTCSeconds())}` : ""}`;
  };

  // Three significant digits with a unit; 1 KB is 1,024 bytes, as everywhere in Penstock.
  const short = (value, unit) => {
    if (value === null || value === undefined) return "–";
    const names = unit === "B" ? ["B", "KB", "MB", "GB", "TB"] : ["", "k", "M", "G", "T"];
    const base = unit === "B" ? 1024 : 1000;
    let step = 0, amount = value;
    while (Math.abs(amount) >= base && step < names.length - 1) { amount /= base; step += 1; }
    const digits = Math.abs(amount) >= 100 || Number.isInteger(amount) ? 0 : unit === "B" || Math.abs(amount) >= 10 ? 1 : 2;
    const text = digits ? amount.toFixed(digits).replace(/\.?0+$/, "") : amount.toFixed(0);
    if (unit === "B") return `${text} ${names[step]}`;
    if (unit === "ms") return `${text} ms`;
    return text + names[step];
  };
  const exact = (value, unit) => {
    if (value === null || value === undefined) return "–";
    return unit === "B" || unit === "ms" ? short(value, unit) : value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 1 : 0 });
  };

  // Three to five intervals of 1, 2, 2.5 or 5 times a power of ten; counts never get fractions.
  // Bytes: 1, 2 or 5 times a power of ten of a unit, which is a power of 1,024.
  const scale = (most, counts, unit) => {
    let top = most > 0 ? most : 1;
    if ((counts || unit === "B") && top < 4) top = 4;
    const size = unit === "B" ? 1024 ** Math.floor(Math.log(top) / Math.log(1024) + 1e-9) : 1;
    const rough = top / size / 4, power = 10 ** Math.floor(Math.log10(rough));
    const factors = unit === "B" ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
    const step = size * (factors.map((factor) => factor * power).find((each) => each >= rough - 1e-9 && (!(counts || (unit === "B" && size === 1)) || Number.isInteger(each))) || 10 * power);
    const ticks = [];
    for (let value = 0; value < top + step * 0.999; value += step) ticks.push(value);
    return ticks;
  };

  const groups = new Map();

  const drawn = new WeakMap(); // what each plot shows: size and data

  const draw = (box) => {
    const data = JSON.parse(box.dataset.chart);
    const legend = box.closest(".chart-card")?.querySelector(".legend");
    const hidden = new Set([...(legend?.querySelectorAll('[aria-pressed="false"]') ?? [])].map((each) => each.dataset.series));
    const series = data.series.filter((each) => !hidden.has(each.name));
    const width = Math.max(box.clientWidth, 160), height = box.clientHeight;
    const count = Math.max(0, ...data.series.map((each) => each.values.length));
    if (count < 3) {
      const none = document.createElement("div");
      none.className = "none";
      none.textContent = data.series.length === 0 ? "nothing to show yet" : `collecting, first points in ${Math.max(1, 3 - count) * data.step} s`;
      box.replaceChildren(none);
      ["onpointermove", "onpointerleave", "onblur", "onkeydown"].forEach((each) => { box[each] = null; });
      return;
    }
    if (box.parentElement.classList.contains("as-table")) { table(box, data); return; }
    const last = data.end, first = last - (count - 1) * data.step;
    // A young service: the axis spans what there is, up to the chosen range.
    const age = last - first;
    const span = Math.min(data.range, SPANS_S.find((each) => each >= age) ?? data.range);
    const begin = last - span;
    const most = Math.max(...series.flatMap((each) => each.values.filter((value) => value !== null)), data.limit && data.showLimit ? data.limit : 0, 0);
    const ticks = scale(most * 1.04, data.counts, data.unit), top = ticks[ticks.length - 1];
    const x = (at) => LEFT + ((at - begin) / span) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
    const at = (index) => first + index * data.step;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });

    ticks.forEach((value, index) => {
      const level = Math.round(y(value)) + 0.5;
      svg.append(node("line", { class: index ? "gridline" : "gridline base", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
      svg.append(node("text", { x: LEFT - 8, y: level + 3.5, "text-anchor": "end" }, short(value, data.unit)));
    });
    const wanted = Math.max(2, Math.floor((width - LEFT - RIGHT) / 84));
    const tick = TICKS_S.find((each) => span / each <= (each >= 86400 ? (width - LEFT - RIGHT) / 56 : wanted)) ?? 604800;
    for (let when = Math.ceil(begin / tick) * tick; when <= last; when += tick) {
      const px = x(when);
      if (px < LEFT + 12 || px > width - RIGHT - 10) continue;
      svg.append(node("text", { x: px, y: height - 5, "text-anchor": "middle" }, tick >= 86400 ? day(when) : clock(when, tick < 60)));
    }
    if (first - begin > span * 0.02) {
      svg.append(node("rect", { class: "before", x: LEFT, y: TOP, width: x(first) - LEFT, height: height - TOP - BOTTOM }));
      svg.append(node("line", { class: "before-line", x1: x(first), x2: x(first), y1: TOP, y2: height - BOTTOM }));
      if (x(first) - LEFT > 120) svg.append(node("text", { x: (LEFT + x(first)) / 2, y: (height - BOTTOM) / 2 + 6, "text-anchor": "middle" }, data.note ?? "no data before"));
    }
    data.series.forEach((each, order) => {
      if (hidden.has(each.name)) return;
      const holder = node("g", { class: `k${each.color}` });
      if (data.kind === "bars") {
        const wide = Math.max(1.5, (x(at(1)) - x(at(0))) * 0.7);
        each.values.forEach((value, index) => { if (value) holder.append(node("rect", { class: "bar", x: x(at(index)) - wide / 2, y: y(value), width: wide, height: Math.max(1, y(0) - y(value)) })); });
      } else {
        let run = [];
        const flush = () => {
          if (run.length) {
            const line = run.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L");
            if (order === 0 && !data.noArea) holder.append(node("path", { class: "area", d: `M${run[0][0].toFixed(1)} ${y(0)}L${line}L${run[run.length - 1][0].toFixed(1)} ${y(0)}Z` }));
            holder.append(node("path", { class: "curve", d: `M${line}` }));
          }
          run = [];
        };
        each.values.forEach((value, index) => { if (value === null) flush(); else run.push([x(at(index)), y(value)]); });
        flush();
      }
      svg.append(holder);
    });
    if (data.kind === "bars" && most === 0) svg.append(node("text", { x: (Math.max(LEFT, x(first)) + width - RIGHT) / 2, y: (TOP + height - BOTTOM) / 2 + 4, "text-anchor": "middle" }, "none in this time range"));
    if (data.limit && data.limit <= top) {
      const level = Math.round(y(data.limit)) + 0.5;
      svg.append(node("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
      svg.append(node("text", { class: "limit-text", x: width - RIGHT - 4, y: level - 5, "text-anchor": "end" }, data.limitName));
    }
    const cross = node("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    const pins = node("g", { visibility: "hidden" });
    svg.append(cross, pins);
    const tip = document.createElement("div");
    tip.className = "tip"; tip.hidden = true;
    box.replaceChildren(svg, tip);

    const say = (index) => {
      data.series.forEach((each) => {
        const slot = legend?.querySelector(`[data-series="${CSS.escape(each.name)}"] b`);
        if (slot) slot.textContent = exact(index === null ? each.values.findLast((value) => value !== null) : each.values[index], data.unit);
      });
    };
    const point = (index, owner) => {
      if (index === null) {
        cross.setAttribute("visibility", "hidden"); pins.setAttribute("visibility", "hidden"); tip.hidden = true; say(null);
        return;
      }
      const px = Math.round(x(at(index))) + 0.5;
      cross.setAttribute("x1", px); cross.setAttribute("x2", px); cross.setAttribute("visibility", "visible");
      pins.replaceChildren(...series.filter((each) => each.values[index] !== null && data.kind !== "bars").map((each) => node("circle", { class: `pin k${each.color}`, cx: px, cy: y(each.values[index]), r: 3.5 })));
      pins.setAttribute("visibility", "visible");
      say(index);
      tip.hidden = !owner;
      if (!owner) return;
      const table = document.createElement("table");
      const head = table.insertRow(), cell = head.insertCell();
      cell.colSpan = 2; cell.className = "when"; cell.textContent = `${span > 86400 ? `${day(at(index))} ` : ""}${clock(at(index), span <= 86400)} ${zone()}`;
      series.forEach((each) => {
        const row = table.insertRow(), label = row.insertCell(), value = row.insertCell();
        const mark = document.createElement("i"); mark.className = `k${each.color}`;
        label.append(mark, each.name); value.className = "num strong"; value.textContent = exact(each.values[index], data.unit) + (data.suffix ?? "");
      });
      tip.replaceChildren(table);
      const flip = px > width / 2;
      tip.style.transform = `translate(${flip ? px - tip.offsetWidth - 12 : px + 12}px, ${TOP}px)`;
    };
    const share = (index) => (groups.get(box.dataset.sync ?? box) ?? []).forEach((each) => each.box.isConnected && each.point(index, each.box === box));
    const key = box.dataset.sync ?? box;
    groups.set(key, [...(groups.get(key) ?? []).filter((each) => each.box !== box), { box, point }]);
    let held = count - 1;
    box.onpointermove = (event) => {
      const px = event.clientX - box.getBoundingClientRect().left;
      const when = begin + ((px - LEFT) / (width - LEFT - RIGHT)) * span;
      held = Math.max(0, Math.min(count - 1, Math.round((when - first) / data.step)));
      share(held);
    };
    box.onpointerleave = () => share(null);
    box.onblur = () => share(null);
    box.onkeydown = (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -count, End: count };
      if (event.key === "Escape") { share(null); return; }
      if (!(event.key in moves)) return;
      event.preventDefault();
      held = Math.max(0, Math.min(count - 1, held + moves[event.key]));
      share(held);
    };
    say(null);
  };

  // The same values as text, the newest first.
  const table = (box, data) => {
    const holder = document.createElement("div"), made = document.createElement("table");
    holder.className = "table-box"; holder.tabIndex = 0;
    const head = made.createTHead().insertRow();
    [`Time (${zone()})`, ...data.series.map((each) => each.name)].forEach((text, index) => {
      const cell = document.createElement("th");
      cell.scope = "col"; cell.textContent = text; if (index) cell.className = "num";
      head.append(cell);
    });
    const body = made.createTBody(), count = data.series[0].values.length;
    for (let index = count - 1; index >= 0; index -= 1) {
      const row = body.insertRow(), when = data.end - (count - 1 - index) * data.step;
      row.insertCell().textContent = `${day(when)} ${clock(when, true)}`;
      data.series.forEach((each) => { const cell = row.insertCell(); cell.className = "num"; cell.textContent = exact(each.values[index], data.unit); });
    }
    holder.append(made);
    box.replaceChildren(holder);
  };

  const drawAll = () => document.querySelectorAll("[data-chart]").forEach((box) => {
    const shown = `${box.clientWidth} ${box.clientHeight} ${box.dataset.chart}`;
    if (drawn.get(box) === shown) return;
    drawn.set(box, shown);
    draw(box);
  });
  document.addEventListener("click", (event) => {
    const entry = event.target.closest(".legend button");
    if (!entry) return;
    entry.setAttribute("aria-pressed", String(entry.getAttribute("aria-pressed") === "false"));
    entry.closest(".chart-card").querySelectorAll("[data-chart]").forEach(draw);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".chart-table");
    if (!button) return;
    const card = button.closest(".chart-card"), is = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(is));
    card.classList.toggle("as-table", is);
    card.querySelectorAll("[data-chart]").forEach((box) => { box.setAttribute("role", is ? "group" : "img"); draw(box); });
  });
  window.penstockDraw = drawAll;
  new ResizeObserver(() => requestAnimationFrame(drawAll)).observe(document.documentElement);
  drawAll();
})();
