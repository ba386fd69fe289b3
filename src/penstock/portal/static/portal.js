// Every page: live parts, links that keep the page, dialogs, menus, copying, theme, times, keys.
// The address of the page has the state of a view (range, filter, order, unfolded rows): a change
// of it is a change of the address and a new request.
"use strict";
(() => {
  const root = document.documentElement;
  const EVERY_MS = 2000, STALE_MS = 10000, TIMEOUT_MS = 10000, PAUSES_MS = [2000, 4000, 8000, 15000];
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const remember = (name, value) => { document.cookie = `penstock_${name}=${value}; path=/; max-age=31536000; samesite=strict`; };
  const recalled = (name) => document.cookie.split("; ").find((each) => each.startsWith(`penstock_${name}=`))?.split("=")[1] ?? "";

  // --- requests. The answer is parsed as a document of its own: nothing in it runs.
  const ask = async (address, kind, tag, signal) => {
    const headers = { "X-Live": kind };
    if (tag) headers["If-None-Match"] = tag;
    const signals = [AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])];
    return fetch(address, { headers, signal: AbortSignal.any(signals), redirect: "follow" });
  };
  const parse = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

  // --- morphing: nodes stay, and with them focus, selection, open menus and places of scrolling
  const KEPT = { DETAILS: ["open"], DIALOG: ["open"], BUTTON: ["aria-selected", "aria-pressed", "tabindex"] };
  const morph = (old, fresh, style = "outerHTML") => Idiomorph.morph(old, fresh, {
    morphStyle: style,
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (node, next) => {
        if (!(node instanceof Element)) return true;
        if (node.hasAttribute("data-chart") && next.hasAttribute("data-chart")) {
          for (const name of ["data-chart", "aria-label"]) node.setAttribute(name, next.getAttribute(name));
          return false;
        }
        return true;
      },
      beforeAttributeUpdated: (name, node) => {
        if (KEPT[node.tagName]?.includes(name)) return false;
        if (node.getAttribute("role") === "tabpanel" && name === "hidden") return false;
        return !(node.hasAttribute("data-scrolls") && ["tabindex", "role", "aria-label", "data-scrolls"].includes(name));
      },
    },
  });

  // A table keeps its order while somebody points at it.
  const keepOrder = (part, fresh) => all("table", part).forEach((table) => {
    const row = table.querySelector("tbody[id]");
    if (!row || !(table.matches(":hover") || table.contains(document.activeElement))) return;
    const next = fresh.querySelector(`#${CSS.escape(row.id)}`)?.closest("table");
    if (!next) return;
    const order = new Map(all(":scope > tbody[id]", table).map((each, index) => [each.id, index]));
    const bodies = all(":scope > tbody[id]", next);
    const kept = [...bodies].sort((a, b) => (order.get(a.id) ?? Infinity) - (order.get(b.id) ?? Infinity));
    if (kept.every((each, index) => each === bodies[index])) return;
    next.append(...kept);
    fresh.querySelector("[data-resort]")?.removeAttribute("hidden");
  });

  // --- live parts
  const live = document.querySelector("[data-live-toggle]");
  const isLivePage = document.body.hasAttribute("data-live-page") && live !== null;
  let tag = "", missed = 0, answered = Date.now(), running = null, timer = null, signedOut = false;
  let paused = false;
  try { paused = sessionStorage.getItem("penstock.paused") === "yes"; } catch { /* private mode */ }

  const showState = () => {
    if (!live) return;
    const seconds = Math.round((Date.now() - answered) / 1000);
    const isStale = signedOut || missed > 1;
    live.classList.toggle("stale", isStale);
    live.setAttribute("aria-pressed", String(!paused));
    live.textContent = signedOut ? "Signed out" : isStale ? `No answer for ${seconds} s` : paused ? "Paused" : "Live";
    const old = isStale && (signedOut || Date.now() - answered > STALE_MS);
    document.body.classList.toggle("stale", old);
    let note = document.getElementById("stale-note");
    if (!old) { note?.remove(); return; }
    if (!note) {
      note = document.createElement("div");
      note.id = "stale-note"; note.className = "notice warn"; note.setAttribute("role", "alert");
      document.querySelector("main").prepend(note);
    }
    const text = signedOut ? "You are signed out. Load this page again to sign in." : "The service does not answer. What you see is old; the page tries again by itself.";
    if (note.textContent !== text) note.textContent = text;
  };

  const apply = (fresh, isAsked) => {
    const parts = all("[data-live]").filter((part) => !part.parentElement.closest("[data-live]"));
    parts.forEach((part) => {
      const next = fresh.getElementById(part.id);
      if (!next) return;
      if (!isAsked) keepOrder(part, next);
      morph(part, next);
    });
    afterChange();
  };

  // `isAsked`: the user changed the address, so the order may change under the pointer.
  const refresh = async (isAsked = false) => {
    if (!isLivePage || signedOut || (!isAsked && (paused || document.hidden || running))) return false;
    running?.abort();
    const mine = running = new AbortController();
    try {
      const answer = await ask(location.href, "1", isAsked ? "" : tag, mine.signal);
      if (new URL(answer.url).pathname === "/signin") { signedOut = true; showState(); return false; }
      if (answer.status === 403 || answer.status === 404) { location.reload(); return false; }
      if (answer.status !== 304 && !answer.ok) throw new Error(String(answer.status));
      tag = answer.headers.get("etag") ?? "";
      if (answer.status !== 304) {
        const fresh = await parse(answer);
        if (mine.signal.aborted) return false;
        apply(fresh, isAsked);
      }
      missed = 0; answered = Date.now();
      return true;
    } catch {
      if (!mine.signal.aborted || running === mine) missed += 1;
      return false;
    } finally {
      if (running === mine) running = null;
      showState();
    }
  };
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => { await refresh(); again(); }, missed ? PAUSES_MS[Math.min(missed, PAUSES_MS.length) - 1] : EVERY_MS);
  };
  document.addEventListener("visibilitychange", () => { answered = Math.max(answered, Date.now() - EVERY_MS); refresh(); });
  const pause = () => {
    paused = !paused;
    try { sessionStorage.setItem("penstock.paused", paused ? "yes" : "no"); } catch { /* private mode */ }
    showState();
    if (!paused) refresh();
  };

  // --- another view of the same page: by its address, in place
  const show = async (address) => {
    const to = new URL(address, location.href);
    if (!isLivePage || to.pathname !== location.pathname) { location.assign(to); return; }
    history.replaceState(null, "", to);
    if (!await refresh(true) && missed) location.assign(to);
  };
  const formAddress = (form) => {
    const to = new URL(form.action || location.href, location.href);
    to.search = "";
    new FormData(form).forEach((value, name) => { if (value !== "") to.searchParams.append(name, value); });
    return to;
  };
  let typing = null;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-soft]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => show(formAddress(form)), 150);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-soft]")) return;
    event.preventDefault();
    clearTimeout(typing);
    show(formAddress(event.target));
  });

  // --- dialogs: a page with a form, opened in place
  const dialog = document.getElementById("dialog");
  const openDialog = async (address) => {
    try {
      const answer = await ask(address, "dialog");
      if (!answer.ok || new URL(answer.url).pathname === "/signin") throw new Error(String(answer.status));
      const content = (await parse(answer)).body.firstElementChild;
      dialog.replaceChildren(...Array.from(content.childNodes, (node) => document.importNode(node, true)));
    } catch { location.assign(address); return; }
    afterChange(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input:not([type=hidden]), select, textarea, button"))?.focus();
  };

  // --- go to
  const palette = document.getElementById("palette"), field = document.getElementById("goto");
  const results = document.getElementById("palette-results");
  const search = async () => {
    const words = field.value;
    try {
      const to = formAddress(field.form);
      const found = (await parse(await ask(to, "1"))).getElementById("live-results");
      if (field.value !== words || !found) return;
      morph(results, `<div id="palette-results">${found.innerHTML}</div>`);
      results.querySelector("li a")?.classList.add("on");
    } catch { /* the form leads to the page of the search */ }
  };
  const openPalette = () => { if (!palette) return; palette.showModal(); field.select(); search(); };
  field?.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 80); });
  palette?.addEventListener("keydown", (event) => {
    const links = all("li a", results), index = links.findIndex((each) => each.classList.contains("on"));
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && links.length) {
      event.preventDefault();
      links[index]?.classList.remove("on");
      const next = links[(index + step + links.length) % links.length];
      next.classList.add("on"); next.scrollIntoView({ block: "nearest" });
    }
    if (event.key === "Enter" && links[index]) { event.preventDefault(); links[index].click(); }
  });

  // --- toasts
  const toasts = document.querySelector(".toasts");
  const expire = (toast) => {
    const end = () => { if (toast.matches(":hover, :focus-within")) setTimeout(end, 1000); else toast.remove(); };
    setTimeout(end, 6000);
  };
  const toast = (text, tone = "") => {
    if (!toasts) return;
    const made = document.createElement("div"), words = document.createElement("div");
    made.className = `toast ${tone}`; words.textContent = text;
    made.append(words); toasts.append(made); expire(made);
  };
  all(".toast").forEach(expire);

  const copy = async (button) => {
    try { await navigator.clipboard.writeText(button.dataset.copy); toast("Copied"); } catch {
      const text = button.parentElement.querySelector("code, pre, .mono");
      if (text) getSelection().selectAllChildren(text);
      toast("The browser refused the clipboard: the text is selected.", "bad");
    }
  };

  // --- theme, density, time zone
  const switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remember("theme", root.dataset.theme);
  };
  const isLocal = () => recalled("zone") === "local";
  const two = (number) => String(number).padStart(2, "0");
  const localText = (when) => `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  const showTimes = (from) => {
    const zone = document.querySelector("[data-zone]");
    if (!zone) return;
    const minutes = -new Date().getTimezoneOffset(), far = Math.abs(minutes);
    zone.textContent = isLocal() ? `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(far / 60))}:${two(far % 60)}` : "UTC";
    const item = document.querySelector("[data-zone-switch] span");
    if (item) item.textContent = isLocal() ? "Show UTC" : "Show local time";
    all("time[data-time]", from).forEach((each) => {
      if (isLocal()) each.textContent = localText(new Date(each.dateTime));
    });
  };

  // --- what scrolls sideways can be reached with the keyboard
  const focusable = (from) => all(".table-box, .code pre, .json", from).forEach((box) => {
    const scrolls = box.scrollWidth > box.clientWidth;
    if (scrolls === box.hasAttribute("data-scrolls")) return;
    box.toggleAttribute("data-scrolls", scrolls);
    if (scrolls) { box.tabIndex = 0; box.setAttribute("role", "group"); box.setAttribute("aria-label", box.matches(".table-box") ? "Table" : "Code"); }
    else for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
  });
  addEventListener("resize", () => focusable(document));

  // --- the button of a deletion works when the name is typed
  const judge = (input) => {
    const button = input.form?.querySelector("button.danger");
    if (button) button.disabled = input.value !== input.dataset.confirm;
  };
  document.addEventListener("input", (event) => { if (event.target.matches("[data-confirm]")) judge(event.target); });

  const afterChange = (from = document) => {
    showTimes(from);
    focusable(from);
    all("[data-confirm]", from).forEach(judge);
    window.penstockDraw?.();
  };

  document.addEventListener("click", (event) => {
    const hit = (selector) => event.target.closest(selector);
    const plain = !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0;
    all("details.menu[open], details.switcher[open]").forEach((each) => { if (!each.contains(event.target)) each.open = false; });
    const link = hit("a[href]");
    if (link && plain && link.matches("[data-close]") && dialog?.open) { event.preventDefault(); dialog.close(); return; }
    if (link && plain && link.matches("[data-palette]")) { event.preventDefault(); openPalette(); return; }
    if (link && plain && link.matches("[data-dialog]")) { event.preventDefault(); link.closest("details.menu, details.switcher")?.removeAttribute("open"); openDialog(link.href); return; }
    if (link && plain && link.matches("[data-soft]")) { event.preventDefault(); show(link.href); return; }
    if (hit("tr.row") && plain && !hit("a, button, input, select, label, summary, details")) {
      const unfold = hit("tr.row").querySelector("a.unfold");
      if (unfold && getSelection().isCollapsed) show(unfold.href);
    }
    if (hit("[data-resort]")) refresh(true);
    if (hit("[data-theme-switch]")) switchTheme();
    if (hit("[data-zone-switch]")) { remember("zone", isLocal() ? "utc" : "local"); location.reload(); }
    if (hit("[data-density-switch]")) remember("density", document.body.classList.toggle("dense") ? "dense" : "normal");
    if (hit("[data-live-toggle]")) pause();
    if (hit(".copy")) copy(hit(".copy"));
    if (hit("[data-open]")) document.getElementById(hit("[data-open]").dataset.open)?.showModal();
    if (hit("button[data-close]")) hit("dialog")?.close();
    if (event.target.matches("dialog")) event.target.close(); // beside its content
    if (hit(".menu-button")) document.querySelector(".side").classList.toggle("open");
    else if (!hit(".side")) document.querySelector(".side")?.classList.remove("open");
    if (hit("[data-step]")) {
      const input = hit(".stepper").querySelector("input");
      input.value = Math.max(Number(input.min), Number(input.value) + Number(hit("[data-step]").dataset.step));
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (hit("[role=tab]")) chooseTab(hit("[role=tab]"));
  });
  const chooseTab = (tab) => all("[role=tab]", tab.parentElement).forEach((each) => {
    each.setAttribute("aria-selected", String(each === tab));
    each.tabIndex = each === tab ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls"))?.toggleAttribute("hidden", each !== tab);
  });

  // --- the name of Capture's files
  const preview = document.querySelector("[data-capture-preview]");
  if (preview) {
    const form = preview.closest("form");
    const value = (name) => form.elements[name]?.value ?? "";
    const update = () => {
      const now = new Date();
      const words = {
        Namespace: preview.dataset.namespace, EventHub: preview.dataset.hub, PartitionId: "0",
        Year: String(now.getUTCFullYear()), Month: two(now.getUTCMonth() + 1), Day: two(now.getUTCDate()),
        Hour: two(now.getUTCHours()), Minute: two(now.getUTCMinutes()), Second: two(now.getUTCSeconds()),
      };
      const name = value("name_format").replace(/\{(\w+)\}/g, (found, word) => words[word] ?? found);
      preview.querySelector("[data-name]").textContent = name + (value("encoding") === "Parquet" ? ".parquet" : ".avro");
      const files = Math.ceil(86400 / Math.max(1, Number(value("interval_s")))) * Number(preview.dataset.partitions);
      preview.querySelector("[data-files]").textContent = files.toLocaleString("en-US");
    };
    form.addEventListener("input", update);
    update();
  }

  // --- keys
  let waiting = false;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
    if (event.key === "Escape") all("details.menu[open], details.switcher[open]").forEach((each) => { each.open = false; each.querySelector("summary").focus(); });
    if (event.key === "Escape") document.querySelector(".side")?.classList.remove("open");
    if (event.target.matches("[role=tab]") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      const tabs = all("[role=tab]", event.target.parentElement), step = event.key === "ArrowRight" ? 1 : -1;
      const next = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
      next.focus(); chooseTab(next);
    }
    if (event.key === " " && event.target.matches("a[role=button]")) { event.preventDefault(); event.target.click(); return; }
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    if (waiting) {
      waiting = false;
      const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { waiting = true; setTimeout(() => { waiting = false; }, 1500); }
    if (event.key === "t") switchTheme();
    if (event.key === "l") pause();
    if (event.key === "?") document.getElementById("keys")?.showModal();
    if (event.key === "/") {
      const first = document.querySelector("main input[type=search], main input:not([type=hidden]), main select, main textarea");
      if (first) { event.preventDefault(); first.focus(); }
    }
    if (event.key === "j" || event.key === "k") {
      const rows = all("main a.unfold, main tr.row th > a.name"), index = rows.indexOf(document.activeElement);
      (rows[index + (event.key === "j" ? 1 : -1)] ?? rows[event.key === "j" ? 0 : rows.length - 1])?.focus();
    }
  });

  showState();
  afterChange();
  again();
})();
