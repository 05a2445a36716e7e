// Scripts of all pages: live updates, keyboard shortcuts, copy buttons, and logs. Without scripts,
// every page works except the live log and the list of events.
"use strict";

const GATHER = 50; // milliseconds in which changes are collected for one reload, in addition to the 250 of the server
const SHORTEST = 1000; // milliseconds between two reloads
const LONGEST = 8000; // while changes continue
const NO_TAG = "-"; // the page has not shown all parts of its last reload
const body = document.body;
const followed = body.dataset.follow;
let index = Number(body.dataset.index);
let tag = body.dataset.tag; // identifies the page's content; a reload with the same tag has no content

// ---- live updates --------------------------------------------------------------------------

let waiting = null;
let stale = false;
let wanted = index; // index of the newest change that affects the page
let reloaded = -Infinity;
let pause = SHORTEST; // milliseconds until the next reload
let held = []; // IDs of the parts that have new content, which is not shown while they are used
let isLinked = null; // state of the event stream: true if open, null before its first message

function concerns(told) {
  if (followed === "*") return true;
  return told.Events.some((one) => one.Key === followed || (one.FilterKeys || []).includes(followed));
}

function isBusy(region) {
  return region.contains(document.activeElement) || region.querySelector("details.act[open]") !== null;
}

// Elements keep their open or closed state in the new part.
function keepOpen(shown, fresh) {
  const before = shown.querySelectorAll("details:not(.act)");
  fresh.querySelectorAll("details:not(.act)").forEach((one, place) => {
    if (before[place]) one.open = before[place].open;
  });
}

// The server's content of a part, without the texts of times: they change without a change.
function contentOf(region) {
  const copy = region.cloneNode(true);
  for (const time of copy.querySelectorAll("time[datetime]")) time.textContent = "";
  return copy.innerHTML;
}

const served = new Map(); // content of the parts that are shown, by ID
for (const shown of document.querySelectorAll("[data-live]")) served.set(shown.id, contentOf(shown));

async function refresh() {
  waiting = null;
  if (document.hidden) {
    stale = true;
    return;
  }
  stale = false;
  reloaded = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html", "If-None-Match": `"${tag}"` } });
  if (answer.redirected) { // to the sign-in page, because the session has ended
    const place = new URL(answer.url);
    place.searchParams.set("ended", "1");
    location.assign(place);
    return;
  }
  if (answer.status === 304) {
    reach(Number(answer.headers.get("X-Service-Index")));
    return;
  }
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  held = [];
  for (const shown of document.querySelectorAll("[data-live]")) {
    if (fresh.getElementById(shown.id)) continue;
    if (isBusy(shown)) held.push(shown.id);
    else shown.remove();
  }
  [...fresh.querySelectorAll("[data-live]")].forEach((region, place, regions) => {
    if (!show(region, place, regions)) held.push(region.id);
  });
  tag = held.length ? NO_TAG : fresh.body.dataset.tag;
  showLink();
  localize(document);
  reachByKeys();
  reach(Number(fresh.body.dataset.index));
}

// A part that the user was using gets its new content when the user leaves it.
function showHeld() {
  const isFree = held.some((id) => {
    const region = document.getElementById(id);
    return region && !isBusy(region);
  });
  if (isFree) refreshSoon();
}

document.addEventListener("focusout", () => setTimeout(showHeld)); // after the focus has moved
document.addEventListener("toggle", () => showHeld(), true);

// The page shows all changes up to this index. If a shared response is older than the newest
// change, the page reloads again.
function reach(shown) {
  index = Math.max(index, shown);
  if (index < wanted) refreshSoon();
}

// Elements that are wider than their container get the keyboard focus, for scrolling with keys.
function reachByKeys() {
  for (const place of document.querySelectorAll(".wide")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
}

// Show the new content of a region. Insert a new region before the next existing region, or at the
// end. Return whether its content is shown: a region that the user is using does not change.
function show(region, place, regions) {
  const shown = document.getElementById(region.id);
  const content = contentOf(region);
  if (shown && isBusy(shown)) return content === served.get(region.id);
  served.set(region.id, content);
  if (shown) {
    keepOpen(shown, region);
    if (shown.innerHTML !== region.innerHTML) shown.replaceWith(region);
    return true;
  }
  const next = regions.slice(place + 1).map((one) => document.getElementById(one.id)).find(Boolean);
  if (next) next.before(region);
  else if (place) document.getElementById(regions[place - 1].id).after(region);
  return true;
}

// Show the first change immediately. While changes continue, the intervals become longer.
function refreshSoon() {
  if (waiting !== null) return;
  const since = performance.now() - reloaded;
  waiting = setTimeout(() => refresh().catch(() => {}), Math.max(GATHER, pause - since));
  pause = since > 2 * LONGEST ? SHORTEST : Math.min(2 * pause, LONGEST);
}

// Reload a part of the page regularly, because it changes without an event.
async function renew(place) {
  if (document.hidden || place.matches(":hover") || isBusy(place)) return;
  const answer = await fetch(place.dataset.source, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const part = fresh.getElementById(place.id);
  if (!part) return;
  keepOpen(place, part);
  if (place.innerHTML !== part.innerHTML) place.replaceChildren(...part.childNodes);
}

let seconds = 0;

function renewRegularly() {
  seconds += 1;
  for (const place of document.querySelectorAll("[data-every]")) {
    if (seconds % Number(place.dataset.every) === 0) renew(place).catch(() => {});
  }
}

function showLink() {
  if (isLinked === null) return;
  const mark = document.getElementById("live");
  const words = held.length ? "live, changes wait" : "live";
  const shown = isLinked ? words : "not connected";
  if (mark.textContent !== shown) mark.textContent = shown; // screen readers announce each new text
  mark.title = held.length
    ? "Changes of the part with the keyboard focus, or with an open form, appear when you leave it"
    : "Changes appear automatically";
  mark.classList.toggle("is-open", isLinked);
}

function hear(told) {
  if (told.open !== undefined) {
    isLinked = told.open;
    showLink();
    if (told.open && told.index !== null) wanted = told.index;
    if (told.over || (told.open && (told.index === null || told.index > index))) refreshSoon();
  } else if (told.Index > index && concerns(told)) {
    wanted = Math.max(wanted, told.Index);
    refreshSoon();
  }
}

function follow() {
  if (!followed) return;
  if (window.SharedWorker) {
    const worker = new SharedWorker(body.dataset.liveScript);
    worker.port.addEventListener("message", (event) => hear(event.data));
    worker.port.start();
    addEventListener("pagehide", () => worker.port.postMessage("gone"));
    return;
  }
  const source = new EventSource("/ui/events");
  source.addEventListener("begin", (event) => hear({ open: true, index: Number(event.data) }));
  source.addEventListener("message", (event) => hear(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    hear({ open: false, over: source.readyState === EventSource.CLOSED });
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && stale) refreshSoon();
});
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

// ---- times and buttons ---------------------------------------------------------------------

const TICK = 5000; // milliseconds
const SPANS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// The two largest units, as on the server.
function spanOf(seconds) {
  const words = [];
  let left = seconds;
  for (const [length, unit] of SPANS) {
    if (left >= length && words.length < 2) {
      words.push(`${Math.floor(left / length)} ${unit}`);
      left %= length;
    } else if (words.length) break;
  }
  return words.join(" ") || "0 s";
}

function relativeTime(time) {
  const passed = Math.round((Date.now() - new Date(time.dateTime)) / 1000);
  if (!passed) return "now";
  return passed > 0 ? `${spanOf(passed)} ago` : `in ${spanOf(-passed)}`;
}

// A time in UTC, with its milliseconds unless they are 0.
function exactTime(at) {
  return `${at.toISOString().replace("T", " ").replace(/(\.000)?Z$/, "")} UTC`;
}

// Creating a format takes longer than using it a hundred times.
const LONG_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const SHORT_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

// Dates in local time.
function localize(within) {
  for (const time of within.querySelectorAll("time[data-date]")) {
    time.textContent = SHORT_TIME.format(new Date(time.dateTime));
  }
}

// The local time with its zone, and UTC. A page can have hundreds of times.
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest("time[datetime]");
  if (!time) return;
  const at = new Date(time.dateTime);
  time.title = `${LONG_TIME.format(at)}\n${exactTime(at)}`;
});

// Only durations change. The browser's clock can differ from the server's clock.
function tick() {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[datetime]")) {
    if (/ ago$|^in |^now$/.test(time.textContent)) time.textContent = relativeTime(time);
  }
}

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (!copy || !navigator.clipboard) return;
  await navigator.clipboard.writeText(copy.dataset.copy);
  copy.textContent = "copied";
});

// ---- keyboard shortcuts and palette --------------------------------------------------------

const palette = document.getElementById("palette");
const keyList = document.getElementById("key-list");
const SOON = 120; // milliseconds between the last key and the search
const TOGETHER = 1500; // milliseconds between the keys of a shortcut: "g" and a letter
let lastG = 0;

async function pageOf(address, id, signal) {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, signal });
  if (!answer.ok || answer.redirected) throw new Error(`status ${answer.status}`);
  const part = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  return part ? [...part.childNodes] : [];
}

// The results come from the search page, so they are the same as without scripts.
class Palette {
  constructor(dialog) {
    this.dialog = dialog;
    this.input = dialog.querySelector("input");
    this.results = dialog.querySelector(".results");
    this.number = 0;
    this.request = new AbortController(); // the latest search
    this.due = null;
    this.shown = null; // search text of the shown results
    this.input.addEventListener("input", () => {
      clearTimeout(this.due);
      this.due = setTimeout(() => this.show(), SOON);
    });
    dialog.addEventListener("keydown", (event) => this.press(event));
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // a click outside the dialog
    });
  }

  open() {
    if (this.dialog.open) return;
    this.dialog.showModal();
    this.input.select();
    this.show();
  }

  async show() {
    const text = this.input.value.trim();
    const number = ++this.number;
    this.request.abort(); // its response would be for an older text
    if (text.length === 1) { // too many names match
      this.results.textContent = "Type at least two characters.";
      this.shown = text;
      return;
    }
    this.request = new AbortController();
    try {
      const found = await pageOf(`/ui/find?q=${encodeURIComponent(text)}`, "found", this.request.signal);
      if (number !== this.number) return; // the text has changed
      this.results.replaceChildren(...found);
      this.shown = text;
    } catch {
      if (number === this.number) this.results.textContent = "The search failed: try again.";
    }
  }

  async press(event) {
    const links = [...this.results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = at + (event.key === "ArrowDown" ? 1 : -1);
      (links[Math.min(next, links.length - 1)] || this.input).focus();
    } else if (event.key === "Enter" && document.activeElement === this.input) {
      event.preventDefault();
      if (this.shown !== this.input.value.trim()) {
        clearTimeout(this.due);
        await this.show();
      }
      const first = this.results.querySelector("a");
      if (first) first.click();
    } else if (event.key.length === 1 && at >= 0 && !event.ctrlKey && !event.metaKey) {
      this.input.focus(); // the field gets this key
    }
  }
}

const finder = new Palette(palette);
palette.addEventListener("click", (event) => {
  if (event.target.closest("a")) palette.close(); // the link can point to this page
});
keyList.querySelector("button").addEventListener("click", () => keyList.close());

async function showKeys() {
  keyList.showModal();
  keyList.querySelector(".results").replaceChildren(...(await pageOf("/ui/keys", "all-keys")));
}

function isWriting(element) {
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const open of document.querySelectorAll("details.act[open]")) {
      // An element in a closed part would lose the focus, and the user's place in the page.
      if (open.contains(document.activeElement)) open.querySelector("summary").focus();
      open.open = false;
    }
    return;
  }
  const inTerminal = event.target.closest(".console") !== null;
  if (event.key === "k" && (event.ctrlKey || event.metaKey) && !inTerminal) {
    event.preventDefault();
    finder.open();
    return;
  }
  if (isWriting(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    event.preventDefault();
    finder.open();
  } else if (event.key === "?") {
    showKeys().catch(() => keyList.close());
  } else if (event.key === "g") {
    lastG = event.timeStamp;
  } else if (event.timeStamp - lastG < TOGETHER) {
    lastG = 0;
    const target = document.querySelector(`.top nav a[data-key="${CSS.escape(event.key)}"]`);
    if (target) target.click();
  }
});

// Ignore an invalid fragment.
function targetName() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// A link of the palette can point into a closed part of the page.
function openTarget() {
  const name = targetName();
  const target = name && document.getElementById(name);
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// The secret of a link is in its fragment, which browsers do not send.
function signInByLink() {
  const form = document.getElementById("sign-in");
  const secret = new URLSearchParams(location.hash.slice(1)).get("one-time");
  if (!form || !secret) return;
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.one_time.value = secret;
  form.querySelector(".by-token").hidden = true;
  form.querySelector(".by-link").hidden = false;
}

function openFiles() {
  for (const chosen of document.querySelectorAll("input[data-into]")) {
    chosen.parentElement.hidden = false;
    chosen.addEventListener("change", async () => {
      if (!chosen.files[0]) return;
      const field = document.querySelector(chosen.dataset.into);
      field.value = await chosen.files[0].text();
      field.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }
}

// The name of a draft starts with the accessor of the user's token; empty without a token.
const DRAFTS = "steward draft ";
const OWN_DRAFTS = `${DRAFTS}${body.dataset.user || ""} `;

// Browsers can block storage, and storage can be full.
function withStorage(work) {
  try {
    return work();
  } catch {
    return null;
  }
}

function removeDrafts(isMeant) {
  withStorage(() => {
    for (const name of Object.keys(localStorage)) {
      if (name.startsWith(DRAFTS) && isMeant(name)) localStorage.removeItem(name);
    }
  });
}

// Return whether a form ends the session of this browser.
function signsOut(form) {
  const action = form.getAttribute("action");
  const isOwnToken = body.dataset.user && action === `/ui/token/${body.dataset.user}/end`;
  return action === "/ui/sign-out" || isOwnToken || form.querySelector("input[name=ends_this]") !== null;
}

// A draft is stored until its job runs, or until the user signs out. Only the page directly after
// the submit shows that the job runs.
function dropDrafts() {
  withStorage(() => {
    const ran = sessionStorage.getItem("steward ran");
    sessionStorage.removeItem("steward ran");
    if (ran && location.pathname.startsWith("/ui/job/")) localStorage.removeItem(ran);
  });
  if (body.dataset.user) removeDrafts((name) => !name.startsWith(OWN_DRAFTS));
  document.addEventListener("submit", (event) => {
    if (!signsOut(event.target)) return;
    if (window.editor) window.editor.close();
    removeDrafts(() => true);
  });
}

// ---- logs ----------------------------------------------------------------------------------

const MOST_LINES = 5000; // maximum number of log lines; the download has older lines

class Log {
  constructor(place) {
    this.place = place;
    this.filter = document.getElementById("log-filter");
    this.pause = document.getElementById("log-pause");
    this.state = document.getElementById("log-state");
    this.rest = "";
    this.lines = [];
    this.isPaused = false;
    this.filter.addEventListener("input", () => this.show(true));
    this.pause.addEventListener("click", () => {
      this.isPaused = !this.isPaused;
      this.pause.setAttribute("aria-pressed", String(this.isPaused));
      this.pause.textContent = this.isPaused ? "Go on" : "Pause";
      if (!this.isPaused) this.show(true);
    });
  }

  // After a restart of the daemon, read the shown lines again.
  async follow() {
    for (;;) {
      try {
        await this.read();
        return;
      } catch {
        this.state.textContent = "The connection is lost: trying again.";
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }

  async read() {
    const answer = await fetch(this.place.dataset.source);
    if (!answer.ok) {
      this.state.textContent = await answer.text();
      return;
    }
    this.rest = "";
    this.lines = [];
    this.place.textContent = "";
    this.state.textContent = "following";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      this.add(value);
    }
    this.state.textContent = "The log has ended.";
  }

  add(text) {
    const pieces = (this.rest + text).split("\n");
    this.rest = pieces.pop();
    const before = this.lines.length;
    this.lines.push(...pieces);
    this.fresh = (this.fresh || []).concat(pieces);
    if (this.lines.length > MOST_LINES) this.lines.splice(0, this.lines.length - MOST_LINES);
    if (!this.isPaused && !this.due) {
      this.due = requestAnimationFrame(() => {
        this.due = null;
        this.show(before + pieces.length > MOST_LINES);
      });
    }
  }

  show(whole) {
    const wanted = this.filter.value.toLowerCase();
    const has = (line) => line.toLowerCase().includes(wanted);
    const place = this.place;
    const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 8;
    const lines = (whole ? this.lines : this.fresh || []).filter(has);
    if (whole) place.textContent = "";
    if (lines.length) place.append(lines.join("\n") + "\n");
    this.fresh = [];
    if (atEnd || whole) place.scrollTop = place.scrollHeight;
  }
}

// ---- event list ----------------------------------------------------------------------------

const MOST_EVENTS = 500;
const PAGES = { Job: "/ui/job/", Allocation: "/ui/allocation/", Evaluation: "/ui/evaluation/", Node: "/ui/node/" };
const HAPPENED = {
  JobRegistered: "was registered",
  JobDeregistered: "was stopped",
  AllocationCreated: "was placed",
  AllocationUpdated: "changed",
  AllocationUpdateDesiredStatus: "has another desired state",
  EvaluationUpdated: "changed",
  DeploymentStatusUpdate: "changed",
  NodeRegistration: "registered",
  NodeDeregistration: "was removed",
  NodeEligibility: "has a new eligibility",
  NodeDrain: "began or ended its drain",
  NodeDown: "is down",
  ServiceRegistration: "was registered",
  ServiceDeregistration: "was removed",
  RunBegan: "began",
  RunEnded: "ended",
  RunActed: "was changed by a user",
  StepOpened: "began",
  StepHeld: "is held",
  StepEnded: "ended",
  StepActed: "was changed by a user",
  QueueSet: "has a new number of slots",
  QueueDeleted: "has 1 slot again",
  SlotGranted: "gave a slot to a run or a step",
  TriggerFired: "started a job",
  TriggerWaits: "waits for other jobs",
  TriggerRefused: "could not start a job",
  TriggerReplaced: "was replaced by a newer run",
  TriggerExpired: "waited too long for other jobs",
};

function cell(row, content) {
  const place = row.insertCell();
  place.dataset.label = row.closest("table").tHead.rows[0].cells[place.cellIndex].textContent; // label on a narrow screen
  place.append(...[content].flat());
  return place;
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

// Return the page of a job or run.
function jobPage(job, namespace, number = "") {
  const query = new URLSearchParams();
  if (number) query.set("number", number);
  if (namespace && namespace !== "default") query.set("namespace", namespace);
  const words = query.toString();
  return `${PAGES.Job}${encodeURIComponent(job)}${number ? "/run" : ""}${words ? `?${words}` : ""}`;
}

// Return the page of an event's object; empty if it has no page.
function pageOfEvent(one) {
  if (one.Topic === "Run" || one.Topic === "Step") { // the key is job/number, or job/number/step
    const job = (one.FilterKeys || [])[0];
    return job ? jobPage(job, one.Namespace, one.Key.slice(job.length + 1).split("/")[0]) : "";
  }
  if (one.Topic === "Job") return jobPage(one.Key, one.Namespace);
  return PAGES[one.Topic] ? PAGES[one.Topic] + encodeURIComponent(one.Key) : "";
}

// "was created" for FreezeCreated.
function otherVerb(one) {
  const rest = one.Type.startsWith(one.Topic) ? one.Type.slice(one.Topic.length) : one.Type;
  const words = rest.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return words.endsWith("ed") ? `was ${words}` : words;
}

// "Allocation 1a2b3c4d of web changed", with links.
function sentence(one) {
  let object = UUID.test(one.Key) ? one.Key.slice(0, 8) : one.Key;
  if (one.Topic === "Service") object = (one.FilterKeys || [])[1] || one.Key; // the key is an identifier
  const linked = (text, target) => {
    const link = document.createElement("a");
    link.href = target;
    link.textContent = text;
    return link;
  };
  const page = pageOfEvent(one);
  const others = (one.FilterKeys || []).filter((key) => key !== one.Key && !UUID.test(key));
  const parts = [`${one.Topic} `, page ? linked(object, page) : object];
  if (others.length && one.Topic !== "Job") parts.push(" of ", linked(others[0], jobPage(others[0], one.Namespace)));
  parts.push(` ${HAPPENED[one.Type] || otherVerb(one)}`);
  return parts;
}

function filterEvents(form, rows) {
  const topic = form.elements.topic.value;
  const text = form.elements.text.value.trim().toLowerCase();
  for (const row of rows.rows) {
    row.hidden = (topic && row.dataset.topic !== topic) || (text && !row.textContent.toLowerCase().includes(text)) || false;
  }
}

// The time of an event; if unknown, the last known time before it.
function eventTime(row, time, before) {
  const place = cell(row, []);
  if (!time && !before) return place.append("unknown");
  const at = new Date(time || before);
  const shown = document.createElement("time");
  shown.dateTime = at.toISOString();
  shown.title = `${at.toISOString()} (UTC)`;
  shown.textContent = at.toLocaleString();
  place.append(...(time ? [shown] : ["after ", shown]));
}

function listEvents(table) {
  const source = new EventSource(table.dataset.source);
  const rows = table.tBodies[0];
  const form = document.getElementById("event-filter");
  const topics = new Set();
  let first = Infinity; // newest index at the page load
  let known = 0; // time of the newest write with a known time
  form.hidden = false;
  form.addEventListener("input", () => filterEvents(form, rows));
  form.addEventListener("submit", (event) => event.preventDefault());
  source.addEventListener("begin", (event) => {
    first = Math.min(first, Number(event.data));
    rows.replaceChildren();
    showLink(true);
  });
  source.addEventListener("error", () => showLink(false));
  source.addEventListener("message", (event) => {
    const told = JSON.parse(event.data);
    if (told.Time) known = told.Time;
    for (const one of told.Events) {
      const row = rows.insertRow(0);
      row.dataset.topic = one.Topic;
      cell(row, sentence(one));
      cell(row, one.Type);
      cell(row, one.Namespace);
      eventTime(row, told.Time || (told.Index > first ? Date.now() : 0), known);
      cell(row, String(told.Index));
      if (!topics.has(one.Topic)) {
        topics.add(one.Topic);
        form.elements.topic.append(new Option(one.Topic));
      }
    }
    while (rows.rows.length > MOST_EVENTS) rows.deleteRow(-1);
    filterEvents(form, rows);
  });
}

// These need the layout, so they wait until the browser has painted the page.
requestAnimationFrame(() => setTimeout(() => {
  document.querySelector(".top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // for narrow screens
  reachByKeys();
}));
localize(document);
addEventListener("resize", reachByKeys);
signInByLink();
openFiles();
dropDrafts();
setInterval(renewRegularly, 1000);
setInterval(tick, TICK);
follow();
const log = document.querySelector("pre#log");
if (log) new Log(log).follow();
const events = document.getElementById("events");
if (events) listEvents(events);
