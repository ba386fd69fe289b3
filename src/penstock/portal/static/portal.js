// What makes pages live: parts marked data-live are taken from the same page, asked for again.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const root = document.documentElement;

  // --- live parts. The answer is parsed as a document of its own: nothing in it runs.
  const refresh = async () => {
    const parts = document.querySelectorAll("[data-live]");
    if (parts.length === 0 || document.hidden) return;
    let fresh;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(10000) });
      if (answer.redirected) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      stale(true);
      return;
    }
    stale(false);
    parts.forEach((part) => {
      const next = fresh.getElementById(part.id);
      if (next && next.innerHTML !== part.asked && !part.contains(document.activeElement)) {
        part.asked = next.innerHTML;
        replaceKeepingCharts(part, next);
      }
    });
    window.penstockDraw();
  };

  // A chart that is there gets its new data; the rest is replaced.
  const replaceKeepingCharts = (part, next) => {
    const old = part.querySelectorAll("[data-chart]"), fresh = next.querySelectorAll("[data-chart]");
    if (old.length > 0 && old.length === fresh.length && part.children.length === old.length) {
      old.forEach((box, index) => {
        box.dataset.chart = fresh[index].dataset.chart;
        box.setAttribute("aria-label", fresh[index].getAttribute("aria-label"));
      });
      return;
    }
    part.replaceChildren(...Array.from(next.childNodes, (node) => document.importNode(node, true)));
  };

  const stale = (is) => {
    document.body.classList.toggle("old", is);
    const note = document.querySelector(".stale-note");
    if (is && !note) {
      const made = document.createElement("div");
      made.className = "flash error stale-note";
      made.setAttribute("role", "alert");
      made.textContent = document.body.dataset.stopped;
      document.body.append(made);
    } else if (!is && note) note.remove();
  };

  const again = () => setTimeout(async () => { await refresh(); again(); }, EVERY_MS);
  again();
  document.addEventListener("visibilitychange", refresh);

  // --- theme
  const switchTheme = () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `penstock_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  };

  // --- a small screen begins with its menu closed
  const side = document.querySelector("details.side");
  if (side && matchMedia("(max-width: 860px)").matches) side.open = false;

  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-copy],[data-theme-switch]");
    if (!target) return;
    if (target.hasAttribute("data-theme-switch")) switchTheme();
    if (target.hasAttribute("data-copy")) {
      const text = target.parentElement.querySelector("code").textContent;
      try { await navigator.clipboard.writeText(text); target.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(target.parentElement.querySelector("code")); }
      setTimeout(() => { target.textContent = "Copy"; }, 1500);
    }
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  // --- the button of a deletion works when the name is typed
  document.querySelectorAll("[data-confirm]").forEach((input) => {
    const button = input.form.querySelector("button.danger");
    const judge = () => { button.disabled = input.value !== input.dataset.confirm; };
    input.addEventListener("input", judge);
    judge();
  });

  // --- numbers beside sliders, and what an input makes of itself
  document.querySelectorAll("input[type=range]").forEach((input) => {
    const output = document.querySelector(`[data-shows="${CSS.escape(input.id)}"]`);
    if (output) input.addEventListener("input", () => { output.textContent = input.value; });
  });
  const preview = document.querySelector("[data-capture-preview]");
  if (preview) {
    const form = preview.closest("form");
    const value = (name) => form.elements[name] ? form.elements[name].value : "";
    const show = () => {
      const now = new Date();
      const two = (number) => String(number).padStart(2, "0");
      const words = {
        Namespace: preview.dataset.namespace, EventHub: preview.dataset.hub, PartitionId: "0",
        Year: String(now.getUTCFullYear()), Month: two(now.getUTCMonth() + 1), Day: two(now.getUTCDate()),
        Hour: two(now.getUTCHours()), Minute: two(now.getUTCMinutes()), Second: two(now.getUTCSeconds()),
      };
      const name = value("name_format").replace(/\{(\w+)\}/g, (all, word) => words[word] ?? all);
      preview.querySelector("[data-name]").textContent = name + (value("encoding") === "Parquet" ? ".parquet" : ".avro");
      const files = Math.ceil(86400 / Math.max(1, Number(value("interval_s")))) * Number(preview.dataset.partitions);
      preview.querySelector("[data-files]").textContent = files.toLocaleString();
    };
    form.addEventListener("input", show);
    show();
  }

  // --- keys
  let waiting = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.matches("input, textarea, select")) return;
    if (waiting) {
      waiting = false;
      const link = document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { waiting = true; setTimeout(() => { waiting = false; }, 1500); }
    if (event.key === "t") switchTheme();
    if (event.key === "?") document.getElementById("keys")?.showModal();
    if (event.key === "/") {
      const first = document.querySelector("main input:not([type=hidden]), main select, main textarea");
      if (first) { event.preventDefault(); first.focus(); }
    }
  });
})();
