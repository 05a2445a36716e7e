// The job file editor: highlighting, problems at their lines, completion of keys, drafts, and the
// plan next to the text. Without scripts, the page has a plain text field and the same buttons.
"use strict";

const MOST_PAINTED = 100000; // characters; a longer text has no highlighting
const CHECKED_AFTER = 500; // milliseconds without a change
const PLANNED_AFTER = 900;
const MOST_OFFERED = 12;

// Each repetition asserts the end of the word, so the search never starts again inside a word.
const PIECE = new RegExp(
  [
    "(?<comment>#[^\\n]*|//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$(?![\\s\\S])))",
    "(?<heredoc><<-?(?<mark>\\w+)\\n[\\s\\S]*?(?:^[ \\t]*\\k<mark>[ \\t]*$|$(?![\\s\\S])))",
    '(?<key>"(?:[^"\\\\\\n]|\\\\.)*"(?=[ \\t]{0,99}:))',
    '(?<text>"(?:[^"\\\\\\n]|\\\\.)*"?)',
    "(?<number>\\b\\d+(?:\\.\\d+)?\\b)",
    "(?<word>\\b(?:true|false|null)\\b)",
    "(?<name>[A-Za-z_][\\w-]*(?![\\w-])(?=[ \\t]{0,99}=(?!=)))",
    "(?<block>^[ \\t]*[A-Za-z_][\\w-]*(?![\\w-])(?=[^\\n={]{0,999}\\{))",
    "(?<plain>[A-Za-z_][\\w-]*)",
    "(?<brace>[{}])",
  ].join("|"),
  "gm",
);
const ALIKE = { heredoc: "text", name: "key" };

function pieces(text) {
  const found = [];
  for (const match of text.matchAll(PIECE)) {
    const kind = Object.keys(match.groups).find((one) => one !== "mark" && match.groups[one] !== undefined);
    found.push({ kind, at: match.index, text: match[0] });
  }
  return found;
}

// The names of the blocks around a position; null in a comment, a string or an expression.
function blocksAround(text, place) {
  const around = [];
  let since = 0; // position after the last brace
  for (const one of pieces(text)) {
    if (one.at >= place) break;
    if (["comment", "text", "heredoc", "key"].includes(one.kind) && one.at + one.text.length >= place && !one.text.endsWith("\n")) {
      if (one.kind === "comment" || one.at + one.text.length > place) return null;
    }
    if (one.kind !== "brace") continue;
    if (one.text === "{") {
      const head = text.slice(Math.max(since, text.lastIndexOf("\n", one.at - 1) + 1), one.at);
      const block = /^\s*([A-Za-z_][\w-]*)(?:\s+"[^"\n]*")*\s*$/.exec(head);
      around.push(block ? block[1] : "");
    } else {
      around.pop();
    }
    since = one.at + 1;
  }
  return around;
}

class Editor {
  constructor(form) {
    this.form = form;
    this.field = form.elements.source;
    this.place = document.getElementById("editor");
    this.problems = document.getElementById("problems");
    this.aside = document.getElementById("plan-beside");
    this.name = OWN_DRAFTS + this.place.dataset.draft; // app.js defines it
    this.first = this.field.value;
    this.firstState = this.state();
    this.lines = new Map(); // problems by line
    this.offered = [];
    this.isSending = false;
    this.build();
    this.listen();
    this.paint();
    this.offerDraft();
    this.check();
  }

  build() {
    this.back = document.createElement("pre");
    this.back.className = "paint";
    this.back.setAttribute("aria-hidden", "true");
    this.field.before(this.back);
    this.list = document.createElement("ul");
    this.list.className = "offers";
    this.list.id = "offers";
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "Keys");
    this.list.hidden = true;
    this.place.append(this.list);
    this.field.setAttribute("wrap", "off");
    this.field.setAttribute("aria-autocomplete", "list");
    this.field.setAttribute("aria-controls", "offers problems");
    this.place.classList.add("is-active");
    document.getElementById("editor-hint").hidden = false;
    fetch(this.place.dataset.keys)
      .then((answer) => answer.json())
      .then((keys) => { this.keys = keys; })
      .catch(() => {});
  }

  listen() {
    this.form.addEventListener("input", (event) => {
      if (event.target === this.field) this.changed();
      else if (event.target.name) this.changedValues();
    });
    this.field.addEventListener("scroll", () => this.follow());
    this.field.addEventListener("keydown", (event) => this.press(event));
    this.field.addEventListener("blur", () => this.closeOffers());
    this.field.addEventListener("click", () => this.closeOffers());
    this.list.addEventListener("mousedown", (event) => {
      const chosen = event.target.closest("li");
      event.preventDefault(); // the field keeps the focus
      if (chosen) this.take(Number(chosen.dataset.at));
    });
    this.problems.addEventListener("click", (event) => {
      const line = event.target.closest("[data-line]");
      if (line) this.goTo(Number(line.dataset.line));
    });
    addEventListener("beforeunload", (event) => {
      if (!this.isSending && this.state() !== this.firstState) event.preventDefault();
    });
    document.addEventListener("submit", (event) => {
      this.isSending = true;
      if (event.target.getAttribute("action") !== "/ui/run") return;
      withStorage(() => sessionStorage.setItem("steward ran", this.name));
    });
  }

  changed() {
    this.paint();
    this.offer();
    this.changedValues();
  }

  // The plan depends on the text and on the values of variables.
  changedValues() {
    this.markStale();
    if (this.isClosed) return;
    clearTimeout(this.due);
    this.due = setTimeout(() => {
      this.keepDraft();
      this.check();
    }, CHECKED_AFTER);
  }

  // All inputs of a plan.
  state() {
    return new URLSearchParams(new FormData(this.form)).toString();
  }

  // After the end of the session, do not store the draft.
  close() {
    this.isClosed = true;
    clearTimeout(this.due);
    clearTimeout(this.planDue);
  }

  // ---- highlighting

  paint() {
    const text = this.field.value;
    const made = document.createDocumentFragment();
    let line = null;
    let number = 0;
    const begin = () => {
      number += 1;
      line = document.createElement("span");
      line.className = this.lines.has(number) ? "line has-problem" : "line";
      made.append(line);
    };
    const add = (kind, part) => {
      part.split("\n").forEach((one, at) => {
        if (at) begin();
        if (!one) return;
        if (!kind) { line.append(one); return; }
        const span = document.createElement("span");
        span.className = `hl-${ALIKE[kind] || kind}`;
        span.textContent = one;
        line.append(span);
      });
    };
    begin();
    let at = 0;
    for (const one of text.length > MOST_PAINTED ? [] : pieces(text)) {
      if (one.at > at) add("", text.slice(at, one.at));
      add(one.kind === "plain" || one.kind === "brace" ? "" : one.kind, one.text);
      at = one.at + one.text.length;
    }
    add("", text.slice(at));
    this.back.replaceChildren(made);
    this.follow();
  }

  follow() {
    this.back.scrollTop = this.field.scrollTop;
    this.back.scrollLeft = this.field.scrollLeft;
    this.closeOffers();
  }

  goTo(number) {
    const lines = this.field.value.split("\n");
    const begin = lines.slice(0, number - 1).join("\n").length + (number > 1 ? 1 : 0);
    this.field.focus();
    this.field.setSelectionRange(begin, begin + (lines[number - 1] || "").length);
    const height = this.field.scrollHeight / lines.length;
    this.field.scrollTop = Math.max(0, (number - 4) * height);
  }

  // ---- problems

  async ask(address) {
    const answer = await fetch(address, {
      method: "POST",
      body: new URLSearchParams(new FormData(this.form)),
      headers: { Accept: "text/html" },
    });
    if (answer.redirected) throw new Error("signed out");
    return answer;
  }

  async check() {
    const state = this.state();
    const number = (this.checks = (this.checks || 0) + 1);
    try {
      const answer = await this.ask("/ui/check");
      if (number !== this.checks || state !== this.state()) return; // the text has changed
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const found = await answer.json();
      this.showProblems(found);
      if (!found.Problems.length && !found.Note) {
        clearTimeout(this.planDue);
        this.planDue = setTimeout(() => this.plan(state), PLANNED_AFTER - CHECKED_AFTER);
      }
    } catch {
      if (number === this.checks) this.problems.textContent = "The file could not be checked.";
    }
  }

  showProblems(found) {
    this.lines = new Map(found.Problems.filter((one) => one.Line).map((one) => [one.Line, one.Text]));
    this.problems.replaceChildren();
    for (const one of found.Problems) {
      const row = document.createElement("p");
      row.className = "problem";
      if (one.Line) {
        const link = document.createElement("button");
        link.type = "button";
        link.className = "plain";
        link.dataset.line = one.Line;
        link.textContent = `Line ${one.Line}`;
        row.append(link, " ");
      }
      row.append(one.Text);
      this.problems.append(row);
    }
    if (!found.Problems.length) this.problems.textContent = found.Note || "✔ The file is valid.";
    this.problems.classList.toggle("good", !found.Problems.length && !found.Note);
    this.paint();
  }

  // ---- plan

  markStale() {
    this.aside.classList.add("is-stale");
    this.aside.querySelectorAll("form[action='/ui/run'] button.main").forEach((one) => { one.disabled = true; });
  }

  async plan(state) {
    const isWanted = document.getElementById("plan-live").checked && !this.form.querySelector("button[disabled]");
    if (!isWanted || state !== this.state()) return;
    if (state === this.firstState && !this.aside.classList.contains("is-stale")) return;
    const answer = await this.ask("/ui/plan").catch(() => null);
    if (!answer || !answer.ok || state !== this.state()) return;
    const part = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("plan");
    if (!part) return;
    this.aside.replaceChildren(part);
    this.aside.classList.remove("is-stale");
    localize(this.aside); // app.js defines it
    reachByKeys();
  }

  // ---- keys

  shapeAt(around) {
    let shape = this.keys.shapes[this.keys.root];
    for (const name of around) {
      const number = shape ? shape.b[name] : undefined;
      shape = number === undefined || number < 0 ? null : this.keys.shapes[number];
    }
    return shape;
  }

  offer(isAsked = false) {
    this.closeOffers();
    if (!this.keys || this.field.selectionStart !== this.field.selectionEnd) return;
    const text = this.field.value;
    const place = this.field.selectionStart;
    const begin = text.lastIndexOf("\n", place - 1) + 1;
    const typed = /^([ \t]*)([A-Za-z_][\w-]*)?$/.exec(text.slice(begin, place));
    if (!typed || (!typed[2] && !isAsked) || text.length > MOST_PAINTED) return;
    if (/^[\w"=]/.test(text.slice(place))) return; // the cursor is inside a word
    const around = blocksAround(text, begin);
    const shape = around && this.shapeAt(around);
    if (!shape) return;
    const prefix = typed[2] || "";
    const names = [...shape.a.map((one) => [one, false]), ...Object.keys(shape.b).map((one) => [one, true])];
    this.offered = names
      .filter(([one]) => one.startsWith(prefix) && one !== prefix)
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .slice(0, MOST_OFFERED)
      .map(([name, isBlock]) => ({ name, isBlock, prefix, indent: typed[1] }));
    if (this.offered.length) this.openOffers(place - begin);
  }

  openOffers(column) {
    this.list.replaceChildren(
      ...this.offered.map((one, at) => {
        const item = document.createElement("li");
        item.setAttribute("role", "option");
        item.id = `offer-${at}`;
        item.dataset.at = at;
        item.textContent = one.isBlock ? `${one.name} { }` : one.name;
        return item;
      }),
    );
    const style = getComputedStyle(this.field);
    const row = this.field.value.slice(0, this.field.selectionStart).split("\n").length;
    const ruler = this.measure(style);
    const left = parseFloat(style.paddingLeft) + column * ruler - this.field.scrollLeft;
    const top = parseFloat(style.paddingTop) + row * parseFloat(style.lineHeight) - this.field.scrollTop;
    this.list.style.left = `${Math.max(0, Math.min(left, this.field.clientWidth - 180))}px`;
    this.list.style.top = `${this.field.offsetTop + top}px`;
    this.list.hidden = false;
    this.choose(0);
  }

  measure(style) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    return pen.measureText("0").width;
  }

  choose(at) {
    this.chosen = (at + this.offered.length) % this.offered.length;
    [...this.list.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === this.chosen)));
    this.field.setAttribute("aria-activedescendant", `offer-${this.chosen}`);
  }

  closeOffers() {
    this.list.hidden = true;
    this.field.removeAttribute("aria-activedescendant");
  }

  take(at) {
    const { name, isBlock, prefix, indent } = this.offered[at];
    this.closeOffers();
    this.insert(isBlock ? `${name} {\n${indent}  \n${indent}}` : `${name} = `, prefix.length);
    if (isBlock) {
      const place = this.field.selectionStart - indent.length - 2;
      this.field.setSelectionRange(place, place);
    }
    this.closeOffers();
  }

  // Insert text like typing, so that the browser can undo it.
  insert(text, before = 0) {
    const place = this.field.selectionStart;
    this.field.setSelectionRange(place - before, this.field.selectionEnd);
    if (!document.execCommand("insertText", false, text)) {
      this.field.setRangeText(text, place - before, this.field.selectionEnd, "end");
      this.field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  press(event) {
    const isOpen = !this.list.hidden;
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.offer(true);
    } else if (isOpen && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.choose(this.chosen + (event.key === "ArrowDown" ? 1 : -1));
    } else if (isOpen && (event.key === "Enter" || event.key === "Tab")) {
      event.preventDefault();
      this.take(this.chosen);
    } else if (isOpen && event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.closeOffers();
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const before = this.field.value.slice(0, this.field.selectionStart);
      const line = before.slice(before.lastIndexOf("\n") + 1);
      const indent = /^[ \t]*/.exec(line)[0] + (/[{[(]\s*$/.test(line) ? "  " : "");
      this.insert(`\n${indent}`);
    }
  }

  // ---- drafts

  keepDraft() {
    if (this.isClosed || this.field.value === this.first) return;
    withStorage(() => localStorage.setItem(this.name, JSON.stringify({ text: this.field.value, at: Date.now() })));
  }

  offerDraft() {
    const draft = withStorage(() => JSON.parse(localStorage.getItem(this.name)));
    const notice = document.getElementById("draft");
    if (!draft || draft.text === this.field.value || this.aside.children.length) return;
    notice.hidden = false;
    notice.querySelector("span").textContent = new Date(draft.at).toLocaleString();
    notice.querySelector(".use").addEventListener("click", () => {
      notice.hidden = true;
      this.field.value = draft.text;
      this.changed();
      this.field.focus();
    });
    notice.querySelector(".drop").addEventListener("click", () => {
      notice.hidden = true;
      withStorage(() => localStorage.removeItem(this.name));
    });
  }
}

const form = document.querySelector("form[action='/ui/plan']");
if (form) window.editor = new Editor(form);
