// The explorer's search and live tail: rows come as texts and are shown as texts.
"use strict";
(() => {
  const form = document.getElementById("explorer");
  const results = document.getElementById("results");
  if (!form || !results) return;
  const ROWS_MAX = 1000;
  const tail = document.getElementById("tail"), stop = document.getElementById("stop");
  const progress = document.getElementById("progress"), turn = document.getElementById("turn");
  const heads = JSON.parse(results.dataset.heads), classes = JSON.parse(results.dataset.classes);
  let source = null, shown = 0, scanned = 0;

  const cell = (tag, index, text) => {
    const made = document.createElement(tag);
    made.className = classes[index];
    if (text !== undefined) made.textContent = text === "" ? "–" : text;
    return made;
  };

  const freshTable = () => {
    const table = document.createElement("table");
    table.className = "dense events";
    const head = document.createElement("thead");
    const row = document.createElement("tr");
    heads.forEach((text, index) => row.append(cell("th", index, text)));
    head.append(row);
    const body = document.createElement("tbody");
    table.append(head, body);
    const box = document.createElement("div");
    box.className = "table-box";
    box.append(table);
    results.replaceChildren(box);
    return body;
  };

  const add = (body, [link, ...texts], newestFirst) => {
    const row = document.createElement("tr");
    row.className = "row";
    texts.forEach((text, index) => {
      const made = cell("td", index, index === 1 ? undefined : text);
      if (index === 1) {
        const anchor = document.createElement("a");
        anchor.textContent = text;
        if (link.startsWith("/")) anchor.href = link;
        made.append(anchor);
      }
      row.append(made);
    });
    if (newestFirst) body.prepend(row); else body.append(row);
    while (body.rows.length > ROWS_MAX) (newestFirst ? body.lastElementChild : body.firstElementChild).remove();
  };

  const end = (text) => {
    if (source) source.close();
    source = null;
    stop.hidden = true;
    tail.hidden = false;
    if (text) progress.textContent = text;
  };

  const begin = (address, follow) => {
    end("");
    turn.hidden = true;
    const body = freshTable();
    shown = 0; scanned = 0;
    stop.hidden = false;
    tail.hidden = true;
    progress.textContent = follow ? "Waiting for events…" : "Searching…";
    source = new EventSource(address);
    const said = () => `${scanned.toLocaleString()} events scanned, ${shown.toLocaleString()} found`;
    const take = (event) => {
      const data = JSON.parse(event.data);
      scanned = data.scanned;
      shown += data.rows.length;
      data.rows.forEach((row) => add(body, row, follow));
      progress.textContent = follow
        ? (scanned ? `Live: ${shown.toLocaleString()} shown of ${scanned.toLocaleString()}` : "Waiting for events…")
        : `Searching: ${said()}`;
    };
    source.addEventListener("rows", take);
    source.addEventListener("over", (event) => { take(event); end(`Done: ${said()}`); });
    source.addEventListener("failed", (event) => end(JSON.parse(event.data).text));
    // A tail that was cut off is not picked up silently: what was missed would not be seen.
    source.onerror = () => { if (source) end(`Stopped: the connection ended after ${said()}.`); };
    stop.onclick = () => end(`Stopped: ${said()}`);
  };

  const address = (follow) => {
    const url = new URL(tail.dataset.tail, location.origin);
    new FormData(form).forEach((value, name) => { if (value && name !== "count") url.searchParams.set(name, value); });
    if (follow) url.searchParams.set("follow", "1");
    return url;
  };

  tail.addEventListener("click", () => begin(address(true), true));
  const search = () => form.elements.find.value || form.elements.where.value;
  form.addEventListener("submit", (event) => {
    if (!search()) return;
    event.preventDefault();
    const shownAs = new URL(form.action);
    new FormData(form).forEach((value, name) => { if (value) shownAs.searchParams.set(name, value); });
    history.replaceState(null, "", shownAs);
    document.querySelectorAll("[data-download]").forEach((link) => {
      const file = new URL(link.href);
      file.search = shownAs.search;
      file.searchParams.set("format", link.dataset.download);
      link.href = file.pathname + file.search;
    });
    document.querySelectorAll("main > .notice.bad").forEach((old) => old.remove());
    begin(address(false), false);
  });
  if (search() && !document.querySelector("main > .notice.bad")) begin(address(false), false);
  addEventListener("pagehide", () => end(""));
})();
