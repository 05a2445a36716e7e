// The log of a task: it follows the log, loads earlier lines, and keeps the scroll position. Log
// lines are inserted as text, never as HTML. The daemon provides the classes of styled parts.
"use strict";

const MOST = 5000; // maximum number of lines in the page; older lines are loaded on request
const FIRST_PAUSE = 500, LONGEST_PAUSE = 5000; // backoff of reconnects, in milliseconds

const place = document.getElementById("log");
const stateLine = document.getElementById("log-state");
const jump = document.getElementById("log-jump");
const followBox = document.getElementById("log-follow");
const wrapBox = document.getElementById("log-wrap");

function two(number) {
  return String(number).padStart(2, "0");
}

function localTime(time) {
  const date = new Date(time.dateTime);
  time.textContent = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  time.title = date.toLocaleString();
}

function element(name, text, classes) {
  const made = document.createElement(name);
  made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

class TaskLog {
  constructor() {
    const merged = Boolean(place.dataset.merged);
    this.isMerged = merged;
    this.after = place.dataset.after || "";
    this.before = place.dataset.before || "";
    this.kinds = merged ? ["stdout", "stderr"] : [new URL(place.dataset.lines, location).searchParams.get("type")];
    this.earlier = document.getElementById("log-earlier");
    if (this.earlier) this.earlier.addEventListener("click", (event) => { event.preventDefault(); this.loadEarlier(); });
    place.addEventListener("scroll", () => this.scrolled());
    jump.addEventListener("click", () => this.toEnd());
    followBox.addEventListener("change", () => followBox.checked && this.toEnd());
    wrapBox.checked = localStorage.getItem("log-wrap") !== "off";
    this.wrap();
    wrapBox.addEventListener("change", () => this.wrap());
    for (const label of document.querySelectorAll("#log-tools .toggle")) {
      label.hidden = label.contains(followBox) && !place.dataset.follow;
    }
    for (const time of place.querySelectorAll("time")) localTime(time);
  }

  wrap() {
    place.classList.toggle("is-unwrapped", !wrapBox.checked);
    localStorage.setItem("log-wrap", wrapBox.checked ? "on" : "off");
  }

  isAtEnd() {
    return place.scrollTop + place.clientHeight >= place.scrollHeight - 8;
  }

  toEnd() {
    place.scrollTop = place.scrollHeight;
    this.endTop = place.scrollTop;
    jump.hidden = true;
  }

  scrolled() {
    if (place.dataset.follow) {
      followBox.checked = this.isAtEnd();
      if (followBox.checked) jump.hidden = true;
    }
    if (place.scrollTop < 40 && place.scrollTop < (this.lastTop || 0)) this.loadEarlier();
    this.lastTop = place.scrollTop;
  }

  row(line) {
    const at = line.At || 0;
    const isOfJob = Boolean(place.dataset.allocations);
    const made = element("div", "", "line");
    if (this.isMerged && line.Stream === "stderr") made.classList.add("is-stderr");
    made.id = `${line.Log || line.Stream}-${at}`;
    made.dataset.end = line.End;
    const link = element("a", "");
    const target = new URL(isOfJob ? `/ui/allocation/${line.Allocation}/logs` : place.dataset.page, location);
    if (isOfJob) target.searchParams.set("task", line.Task);
    target.searchParams.set("type", line.Stream);
    target.searchParams.set("at", at);
    link.href = `${target.pathname}${target.search}#${line.Stream}-${at}`;
    link.setAttribute("aria-label", "Link to this line");
    const time = element("time", "");
    time.dateTime = new Date((line.Time || 0) / 1e6).toISOString();
    localTime(time);
    link.append(time);
    made.append(link);
    if (isOfJob) made.append(element("b", `${line.Allocation.slice(0, 8)} ${line.Task}`, "from"), " ");
    if (made.classList.contains("is-stderr")) made.append(element("b", "err"), " ");
    const text = element("span", "");
    for (const [classes, piece] of line.Pieces) text.append(classes ? element("span", piece, classes) : piece);
    made.append(text);
    if (line.Cut) made.append(" ", element("i", "cut: the rest is in the download"));
    if (line.Unfinished) {
      made.classList.add("is-unfinished");
      made.append(" ", element("i", "unfinished"));
    }
    return made;
  }

  add(lines) {
    // The user may have scrolled up without a scroll event yet: the browser sends it with the next frame.
    const stays = followBox.checked && (this.isAtEnd() || place.scrollTop >= this.endTop);
    const rows = document.createDocumentFragment();
    for (const line of lines) {
      const row = this.row(line);
      const shown = document.getElementById(row.id);
      if (shown) shown.replaceWith(row); // the line was unfinished
      else rows.append(row);
    }
    const empty = document.getElementById("log-empty");
    if (empty) empty.remove();
    place.append(rows);
    if (stays) {
      this.trim();
      this.toEnd();
    } else {
      jump.hidden = false;
    }
  }

  // Only at the end of the log, because elsewhere the lines would move while the user reads them.
  trim() {
    const rows = place.getElementsByClassName("line");
    if (rows.length <= MOST) return;
    const ends = {};
    while (rows.length > MOST) {
      ends[rows[0].id.split("-")[0]] = rows[0].dataset.end;
      rows[0].remove();
    }
    const known = this.before.split(",");
    if (place.dataset.allocations) this.trimmed(ends);
    else this.before = this.kinds.map((kind, number) => ends[kind] || known[number] || "0").join(",");
    if (!this.earlier) {
      const more = element("p", "", "more");
      this.earlier = element("a", "Earlier lines");
      this.earlier.href = place.dataset.page;
      this.earlier.addEventListener("click", (event) => { event.preventDefault(); this.loadEarlier(); });
      more.append(this.earlier);
      place.prepend(more);
    }
  }

  // The cursor of a job has an offset for each stream. Move it to the end of the removed lines.
  trimmed(ends) {
    const known = new Map((this.before || this.after).split(",").map((one) => one.split(":")));
    if (!this.before) for (const name of known.keys()) known.set(name, "0");
    for (const [name, end] of Object.entries(ends)) known.set(name, end);
    this.before = [...known].map((one) => one.join(":")).join(",");
  }

  async loadEarlier() {
    if (!this.before || this.isLoading) return;
    this.isLoading = true;
    try {
      const answer = await fetch(`${place.dataset.lines}&before=${this.before}`);
      if (!answer.ok) return;
      const page = await answer.json();
      const height = place.scrollHeight, top = place.scrollTop;
      const rows = document.createDocumentFragment();
      for (const line of page.Lines) if (!document.getElementById(`${line.Log || line.Stream}-${line.At || 0}`)) rows.append(this.row(line));
      this.earlier.parentElement.after(rows);
      place.scrollTop = top + place.scrollHeight - height;
      this.before = page.Before || "";
      if (!this.before) {
        this.earlier.parentElement.remove();
        this.earlier = null;
      }
    } finally {
      this.isLoading = false;
    }
  }

  // Return whether more lines can follow.
  async read() {
    const answer = await fetch(`${place.dataset.lines}&follow=true&after=${this.after}`);
    if (answer.status === 401 || answer.status === 403) {
      location.reload(); // redirects to the sign-in page after the session
      return false;
    }
    if (answer.status === 404 || answer.status === 400) {
      stateLine.textContent = await answer.text();
      return false;
    }
    if (!answer.ok) return true;
    stateLine.textContent = "following";
    this.pause = FIRST_PAUSE;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) {
        const told = JSON.parse(part);
        if (told.Lines && told.Lines.length) this.add(told.Lines);
        if (told.After) this.after = told.After;
        if (told.Ended) {
          stateLine.textContent = place.dataset.ended || "The task has ended.";
          return false;
        }
      }
    }
  }

  async follow() {
    this.pause = FIRST_PAUSE;
    this.toEnd();
    for (;;) {
      try {
        if (!(await this.read())) return;
      } catch { /* the daemon does not respond; it may be restarting */ }
      stateLine.textContent = "The connection is lost: trying again.";
      await new Promise((resolve) => setTimeout(resolve, this.pause));
      this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
    }
  }
}

if (place) {
  const log = new TaskLog();
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) target.scrollIntoView({ block: "center" });
  if (place.dataset.follow) log.follow();
}
