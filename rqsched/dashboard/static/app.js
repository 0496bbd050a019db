// What the pages do beyond HTML: live parts, dialogs, relative times, the preview of a form. Everything works without it.
"use strict";

const every = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

// The viewer's zone, in which the server renders times. The page of login tells it, too. If a page came before the server
// knew the zone, it is loaded again.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const hasZone = () => document.cookie.includes("rqsched_zone=" + encodeURIComponent(zone));
const isZoneNew = zone && !hasZone();
if (isZoneNew) {
  const base = document.querySelector(".brand")?.getAttribute("href")?.split("?")[0] || "/";
  document.cookie = `rqsched_zone=${encodeURIComponent(zone)}; path=${base.replace(/(.)\/$/, "$1")}; max-age=31536000; samesite=strict`;
  if (hasZone() && (document.body.dataset.zone ?? zone) !== zone) location.reload();
}

// Relative times stay true while one looks.
const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const relative = (at) => {
  const seconds = (at - Date.now()) / 1000;
  const [size, unit] = units.find(([size]) => Math.abs(seconds) >= 2 * size) || [1, "s"];
  if (Math.abs(seconds) < 1) return "now";
  const text = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
  return seconds > 0 ? `in ${text}` : `${text} ago`;
};
const drift = Date.now() - Date.parse(document.body.dataset.now || new Date().toISOString());
const tickTimes = () => every("time[data-relative]", (time) => {
  const text = relative(Date.parse(time.dateTime) + drift);
  if (time.textContent !== text) time.textContent = text;
});
setInterval(tickTimes, 1000);

// Live parts: the page is read again and the parts that differ are put in place, so nothing else moves. The server's
// stream tells when; without one, and for what no event announces, the page is read every few seconds.
const parts = document.querySelectorAll("[data-live]");
const live = document.getElementById("live");
const toggle = document.getElementById("live-toggle");
let isLive = true;
const isBusy = () => document.hidden || document.querySelector("dialog[open]") || document.querySelector("[data-live] :focus:not(summary, a), [data-live] input:checked");
const most = 15000, least = 3000, gap = 1000, tooLong = 20000;
let freshAt = Date.now(), readAt = document.body.dataset.now, askedAt = Date.now(), took = 0, isReading = false, isStale = false, hasFailed = false;
const refresh = async () => {
  if (!isLive || isReading || isBusy()) return;
  [isReading, isStale, hasFailed, askedAt] = [true, false, true, Date.now()];
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "error", signal: AbortSignal.timeout(most) });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isBusy()) { isStale = true; return; }
    [readAt, hasFailed, freshAt] = [fresh.body.dataset.now || readAt, false, Date.now()];
    document.getElementById("as-of").textContent = fresh.getElementById("as-of").textContent;
    every("[data-live]", (part) => {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (other && strip(other.innerHTML) !== strip(part.innerHTML)) replace(part, other);
    });
  } catch { /* the server is away: what is shown stays */ } finally { [isReading, took] = [false, Date.now() - askedAt]; }
};
// What somebody has opened stays open when the part around it is put in anew, and a link that has the focus keeps it.
const summaryOf = (details) => details.querySelector("summary")?.textContent;
const replace = (part, other) => {
  const opened = [...part.querySelectorAll("details[open]")].map(summaryOf);
  const focused = [...part.querySelectorAll("summary")].indexOf(document.activeElement);
  const address = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  part.innerHTML = other.innerHTML;
  openMarks(part);
  every("details", (details) => { if (opened.includes(summaryOf(details))) details.open = true; }, part);
  if (focused >= 0) part.querySelectorAll("summary")[focused]?.focus({ preventScroll: true });
  if (address) [...part.querySelectorAll("a")].find((link) => link.getAttribute("href") === address)?.focus({ preventScroll: true });
};
const strip = (html) => html.replace(/(data-relative="">)[^<]*/g, "$1").replace(/value="[0-9a-f]{64}"/g, "");
const pause = () => isStale ? Math.max(gap, 5 * took) : isFollowing && !hasFailed && !document.querySelector("[data-unannounced]") ? most : least;
// A page that nothing refreshes says so: the server is away or silent, or somebody has chosen rows.
const stale = document.getElementById("stale");
const tellStale = () => {
  const isOld = isLive && !document.hidden && Date.now() - freshAt > tooLong;
  if (stale.hidden === isOld) stale.hidden = !isOld;
  const text = `Not updating since ${new Date(freshAt).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })}.`;
  if (isOld && stale.textContent !== text) stale.textContent = text;
};
const refreshWhenDue = () => { if (Date.now() - askedAt >= pause()) refresh(); };

// One stream while the page is visible: a browser has few connections for a server, and hidden pages need none.
let source = null, isFollowing = false, waiting = 0;
const follow = () => {
  if (source || !isLive || document.hidden || !document.body.dataset.stream) return;
  const address = new URL(document.body.dataset.stream, location.href);
  address.searchParams.set("since", readAt);
  source = new EventSource(address);
  let hadOpened = false; // what was recorded while the connection was lost is read with the page
  source.onopen = () => { mark(true); if (hadOpened) { isStale = true; refreshWhenDue(); } hadOpened = true; };
  source.onerror = () => { mark(false); if (source?.readyState === EventSource.CLOSED) { leave(); setTimeout(follow, 60000); } };
  source.onmessage = (message) => {
    const { schedule } = document.body.dataset;
    if (schedule && JSON.parse(message.data).schedule_id !== schedule) return;
    isStale = true;
    waiting ||= setTimeout(() => { waiting = 0; refreshWhenDue(); }, Math.max(100, askedAt + pause() - Date.now()));
  };
};
const leave = () => { source?.close(); source = null; mark(false); };
const mark = (is) => { isFollowing = is; live.dataset.by = is ? "stream" : "reading"; };
if (parts.length && live) {
  live.hidden = false;
  mark(false);
  toggle.addEventListener("click", () => {
    isLive = !isLive;
    toggle.setAttribute("aria-pressed", String(isLive));
    toggle.textContent = isLive ? "live" : "not live";
    if (isLive) { freshAt = Date.now(); refresh(); follow(); } else leave();
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else { freshAt = Date.now(); refresh(); follow(); } });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", follow);
  setInterval(() => { refreshWhenDue(); tellStale(); }, 1000);
}

// Confirmations open as a dialog; without a script they are pages.
const dialog = document.getElementById("dialog");
const openDialog = async (address) => {
  try {
    const answer = await fetch(address);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("confirm");
    if (!found) { location.href = address; return; }
    dialog.replaceChildren(document.importNode(found, true));
    dialog.showModal();
    const first = "input:not([type=hidden]), select, button";
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector(first))?.focus();
  } catch { location.href = address; }
};
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (link && dialog && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    link.classList.add("busy");
    await openDialog(link.href);
    link.classList.remove("busy");
  }
  if (event.target.closest("dialog [data-close]")) { event.preventDefault(); dialog.close(); }
  if (event.target === dialog) dialog.close();
});
document.addEventListener("submit", (event) => {
  const ask = event.submitter?.dataset.ask;
  if (ask && !window.confirm(ask)) event.preventDefault();
});

// A form shows its command with the values that are entered, in place; without a script, on a page.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[name=as_text]"), form = button?.form;
  if (!button) return;
  event.preventDefault();
  if (!form.reportValidity()) return;
  try {
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form, button)) });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("as-text");
    if (found) button.closest("details").querySelector("[data-as-text]").replaceChildren(...document.importNode(found, true).childNodes);
    else form.requestSubmit(button);
  } catch { form.requestSubmit(button); }
});
document.addEventListener("toggle", (event) => {
  const button = event.target.matches("details.same[open]") && event.target.querySelector("button[name=as_text]");
  if (button && button.form.checkValidity()) button.click();
}, true);

// An action on all that match goes on chunk by chunk while its page is open, until somebody stops it or a chunk fails.
const chunks = document.getElementById("chunks");
if (chunks) {
  const told = document.getElementById("chunks-told"), stop = document.getElementById("chunks-stop"), go = chunks.querySelector("button");
  let isGoing = false;
  const show = (text) => { [go.hidden, stop.hidden, told.textContent] = [isGoing, !isGoing, text]; };
  const next = async () => {
    const answer = await fetch(chunks.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(chunks)), redirect: "error", signal: AbortSignal.timeout(60_000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.status === 401) {
      chunks.submit(); // the login keeps the form
      throw new Error("your session has ended.");
    }
    if (!answer.ok) throw new Error(page.querySelector("main p")?.textContent);
    every("[data-chunk]", (part) => part.replaceChildren(...(page.querySelector(`[data-chunk=${part.dataset.chunk}]`)?.childNodes ?? [])));
    return page.getElementById("chunks");
  };
  const goOn = async () => {
    isGoing = true;
    show("It continues while this page is open.");
    try {
      while (isGoing) if (!await next()) { chunks.remove(); return; }
      show("Stopped.");
    } catch (error) {
      isGoing = false;
      const why = error.name === "TimeoutError" ? "the server has not answered for a minute." : error instanceof TypeError ? "the server is away, or your session has ended." : error.message;
      show(`Interrupted: ${why} Continue resumes after the last part.`);
    }
    go.focus();
  };
  stop.addEventListener("click", () => { isGoing = false; told.textContent = "It stops after this part."; });
  chunks.addEventListener("submit", (event) => { event.preventDefault(); goOn(); });
  goOn();
}

// The button offers what is not shown: the server does not know what the system prefers.
const chooser = document.querySelector("[data-theme-choice]");
if (chooser && !document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches) {
  chooser.value = "light";
  chooser.textContent = "\u2600";
  chooser.title = "Light colours";
  chooser.setAttribute("aria-label", chooser.title);
}

// A search that looked at as many schedules as a page may and found none goes on by itself, to the first page with one.
const searchOn = async () => {
  const looked = document.querySelector("[data-looked-at]");
  let link = document.querySelector("a[data-search-on]");
  for (let pages = 2; link; pages++) {
    const answer = await fetch(link.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const following = answer.ok && page.querySelector("a[data-search-on]");
    if (!following) { location.replace(link.href); return; }
    document.querySelector("a[data-search-on]").href = following.href;
    looked.textContent = pages * Number(looked.dataset.lookedAt);
    link = following;
  }
};
searchOn().catch(() => { /* the server is away: the link stays */ });

// Selects that submit their form, and the choice of schedules.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.submit();
  if (event.target.matches("[data-all]")) every("input[name=id]", (box) => { box.checked = event.target.checked; });
  const chosen = document.querySelectorAll("input[name=id]:checked").length;
  every("[data-chosen]", (text) => { text.textContent = document.querySelector("[data-all-matching]:checked") ? "All that match" : chosen ? `${chosen} chosen` : "Choose schedules to act on them"; });
});

// The search of the header as a list below its field: first what this page offers, then what the server finds.
const finder = document.getElementById("find"), options = document.getElementById("find-list");
const isMac = navigator.platform.startsWith("Mac");
const chosenOption = () => options.querySelector("[aria-selected=true]");
const choose = (option) => {
  chosenOption()?.setAttribute("aria-selected", "false");
  if (!option) { finder.removeAttribute("aria-activedescendant"); return; }
  option.setAttribute("aria-selected", "true");
  option.scrollIntoView({ block: "nearest" });
  finder.setAttribute("aria-activedescendant", option.id);
};
const offer = (links) => {
  const known = new Set([...options.children].map((option) => option.dataset.href));
  for (const link of links.filter((one) => !known.has(one.href))) {
    const option = document.createElement("li");
    [option.id, option.dataset.href] = [`find-${options.childElementCount}`, link.href];
    for (const [name, value] of [["role", "option"], ["aria-selected", "false"]]) option.setAttribute(name, value);
    option.toggleAttribute("data-dialog", "dialog" in link.dataset);
    option.append(...document.importNode(link, true).childNodes);
    options.append(option);
  }
  options.hidden = !options.childElementCount;
  finder.setAttribute("aria-expanded", String(!options.hidden));
  if (!chosenOption()) choose(options.firstElementChild);
};
let searches = 0;
const closeOptions = () => {
  searches++;
  options.replaceChildren();
  choose(null);
  offer([]);
  document.getElementById("find-told").textContent = "";
};
const search = async () => {
  closeOptions();
  const number = searches, words = finder.value.trim().toLowerCase();
  offer([...document.querySelectorAll("main .head a.button")].filter((link) => words && link.textContent.toLowerCase().includes(words)));
  if (words) await new Promise((resolve) => setTimeout(resolve, 150)); // what is typed on meanwhile asks anew
  if (number !== searches) return;
  const address = new URL(finder.form.action, location.href);
  new FormData(finder.form).forEach((value, name) => address.searchParams.set(name, value));
  try {
    const answer = await fetch(address, { headers: { "X-Live": "1" }, redirect: "error" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (number !== searches || !answer.ok) return;
    offer([...page.querySelectorAll("#found a")]);
    document.getElementById("find-told").textContent = options.childElementCount ? `${options.childElementCount} found` : "Nothing found";
  } catch { /* the server is away: what this page offers stays */ }
};
const take = (option) => {
  const { href } = option.dataset, isAsked = "dialog" in option.dataset;
  closeOptions();
  finder.value = "";
  if (isAsked) openDialog(href); else location.href = href;
};
if (finder) {
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-controls": "find-list", "aria-autocomplete": "list", "aria-keyshortcuts": isMac ? "Meta+K" : "Control+K" })) finder.setAttribute(name, value);
  finder.nextElementSibling.textContent = isMac ? "\u2318 K" : "Ctrl K";
  finder.nextElementSibling.hidden = false;
  finder.addEventListener("input", search);
  finder.addEventListener("blur", closeOptions);
  finder.addEventListener("keydown", (event) => {
    const chosen = chosenOption(), isDown = event.key === "ArrowDown";
    if (event.key === "Enter" && chosen) { event.preventDefault(); take(chosen); }
    if (event.key === "Escape" && chosen) { event.preventDefault(); closeOptions(); }
    if (!isDown && event.key !== "ArrowUp") return;
    event.preventDefault();
    if (!chosen) search();
    else choose(isDown ? chosen.nextElementSibling || options.firstElementChild : chosen.previousElementSibling || options.lastElementChild);
  });
  options.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
  options.addEventListener("click", (event) => { const option = event.target.closest("li"); if (option) take(option); });
}

// Pages by keyboard. Keys without Ctrl can be turned off: what is spoken to a browser may be typed.
const keys = document.getElementById("keys"), keysToggle = document.getElementById("keys-toggle");
let hasKeys = true, typedNumber = "", typedAt = 0;
const setKeys = (is) => {
  hasKeys = is;
  document.body.classList.toggle("has-keys", is);
  keysToggle.setAttribute("aria-pressed", String(is));
  keysToggle.textContent = `single keys are ${is ? "on" : "off"}`;
};
if (keys) {
  keys.hidden = false;
  try { setKeys(localStorage.getItem("rqsched_keys") !== "off"); } catch { setKeys(true); } // storage may be forbidden
  keysToggle.addEventListener("click", () => { setKeys(!hasKeys); try { localStorage.setItem("rqsched_keys", hasKeys ? "on" : "off"); } catch { /* for this page alone */ } });
}
const linkOf = (row) => row?.querySelector("a.id");
const goToRow = (digit) => {
  typedNumber = Date.now() - typedAt < 1500 ? typedNumber + digit : digit;
  typedAt = Date.now();
  linkOf(document.querySelectorAll("[data-rows] tbody tr:not(.group)")[Number(typedNumber) - 1])?.focus();
};
const onRow = (row, key) => {
  const action = new URLSearchParams(row.dataset.keys).get(key), link = linkOf(row);
  if (action) { const address = new URL(link.href); address.pathname += "/confirm"; address.searchParams.set("action", action); openDialog(address.href); }
  if (key === "x") row.querySelector("input[name=id]")?.click();
  const other = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[key];
  if (other) linkOf(other)?.focus();
  return Boolean(action || other);
};
const onKey = (key, target) => {
  const link = [...document.querySelectorAll("a[data-key]")].find((one) => one.dataset.key === key);
  const row = target.closest("[data-rows] tbody tr"), field = document.querySelector("main input[type=search]") || finder;
  if (link) link.click();
  else if (key === "/" && field) field.focus();
  else if (key === "?" && keys) { keys.open = true; keys.querySelector("summary").focus(); }
  else if (/^\d$/.test(key)) goToRow(key);
  else return Boolean(row) && onRow(row, key);
  return true;
};
document.addEventListener("keydown", (event) => {
  const mark = event.target.closest(marked);
  if (mark && moveMark(mark, event.key)) event.preventDefault();
  else if (finder && event.key?.toLowerCase() === "k" && (isMac ? event.metaKey : event.ctrlKey) && !dialog.open) {
    event.preventDefault();
    finder.focus();
    finder.select();
    search();
  } else if (hasKeys && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input:not([type=checkbox]), select, textarea, dialog") && onKey(event.key, event.target)) event.preventDefault();
});

// Marks of charts, which have their value as title. Tab reaches one mark of each chart and arrow keys the others; the mark
// that has the focus shows its value.
const tip = document.getElementById("tip"), marked = "main svg :has(> title)";
const openMark = (mark) => { mark?.setAttribute("tabindex", "0"); if (mark && !mark.matches("a")) mark.setAttribute("role", "img"); };
const openMarks = (within) => {
  every("main svg:not(:has([tabindex='0']))", (svg) => openMark([...svg.querySelectorAll(":has(> title)")].pop()), within);
  if (!document.activeElement?.closest(marked)) tip.hidden = true;
};
const moveMark = (mark, key) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (key === "Escape") tip.hidden = true;
  if (!step) return false;
  const marks = [...mark.ownerSVGElement.querySelectorAll(":has(> title)")].sort((one, other) => one.getBoundingClientRect().left - other.getBoundingClientRect().left);
  const next = marks[marks.indexOf(mark) + step];
  if (next) { mark.setAttribute("tabindex", "-1"); openMark(next); next.focus(); }
  return true;
};
if (tip) {
  openMarks(document);
  document.addEventListener("focusin", (event) => {
    const mark = event.target.closest(marked);
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.querySelector("title").textContent;
    const { left, bottom } = mark.getBoundingClientRect();
    [tip.style.left, tip.style.top] = [`${Math.max(0, Math.min(left, innerWidth - tip.offsetWidth))}px`, `${Math.min(bottom + 6, innerHeight - tip.offsetHeight)}px`];
  });
  document.addEventListener("focusout", () => { tip.hidden = true; });
}

// The preview of a timing while one types; the newest answer wins.
const editor = document.querySelector("form[data-preview]");
if (editor) {
  if (isZoneNew && "new" in editor.dataset) editor.elements.timezone.value = zone;
  let wait, asked = 0;
  const preview = async () => {
    const number = ++asked;
    const query = new URLSearchParams(["kind", "timing", "timezone", "exclude", "on_excluded", "dst_gap", "dst_fold", ...(editor.elements.schedule_id ? ["schedule_id"] : [])].map((name) => [name, editor.elements[name].value]));
    const address = new URL(editor.dataset.preview, location.href);
    query.forEach((value, name) => address.searchParams.set(name, value));
    const answer = await fetch(address);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("preview-result");
    if (found && number === asked) document.getElementById("preview").replaceChildren(document.importNode(found, true));
  };
  editor.addEventListener("input", (event) => { if (event.target.matches("[data-watch], [name=schedule_id]")) { clearTimeout(wait); wait = setTimeout(preview, 200); } });
  if (!document.getElementById("preview-result")) preview();
}

// A form that was edited and not sent asks before its page is left.
every("form[data-unsaved]", (form) => {
  const fields = () => new URLSearchParams(new FormData(form)).toString();
  const shown = form.dataset.unsaved ? null : fields();
  let isSent = false;
  form.addEventListener("submit", () => { isSent = true; });
  addEventListener("pageshow", () => { isSent = false; });
  addEventListener("beforeunload", (event) => { if (!isSent && fields() !== shown) event.preventDefault(); });
});

// A form that a login has interrupted is sent on, to be shown again.
document.querySelector("form[data-send]")?.requestSubmit();
