// A terminal in a task: it sends keys to a command, and shows its output. The command starts only
// when the user presses the button, so a link cannot run anything.
"use strict";

const MOST_WAITING = 16 * 1024 * 1024; // limit of unshown bytes; more bytes are dropped and counted
const PIECE = 24 * 1024; // maximum bytes of a paste in one message

// ---- styles ---------------------------------------------------------------------------------
// The terminal writes <style> elements and style attributes, which the content security policy
// forbids. These functions convert them to adopted style sheets and style properties.

const makeElement = Document.prototype.createElement;
Document.prototype.createElement = function (name, options) {
  if (name !== "style") return makeElement.call(this, name, options);
  const sheet = new CSSStyleSheet();
  this.adoptedStyleSheets = [...this.adoptedStyleSheets, sheet];
  const place = makeElement.call(this, "template"); // browsers do not show it
  Object.defineProperty(place, "textContent", { set: (text) => sheet.replaceSync(text) });
  return place;
};

const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

// ---- base64 ---------------------------------------------------------------------------------

function* pieces(bytes) {
  for (let at = 0; at < bytes.length; at += PIECE) {
    yield btoa(String.fromCharCode(...bytes.subarray(at, at + PIECE)));
  }
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

// ---- exec session ---------------------------------------------------------------------------

class Conversation {
  constructor(form, place, state) {
    this.form = form;
    this.state = state;
    this.socket = null;
    this.waiting = this.leftOut = 0;
    this.terminal = new Terminal({
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      disableStdin: true,
      fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
      fontSize: 14,
      linkHandler: { activate: () => {} }, // links in a task's output are untrusted
      screenReaderMode: form.elements.reader.checked,
      theme: { background: "#12161c", foreground: "#e3e8ef" },
    });
    this.size = new FitAddon.FitAddon();
    this.terminal.loadAddon(this.size);
    this.terminal.open(place);
    this.size.fit();
    new ResizeObserver(() => this.size.fit()).observe(place);
    this.terminal.onResize(() => this.tellSize());
    this.terminal.onData((text) => this.type(new TextEncoder().encode(text)));
    this.terminal.onBinary((text) => this.type(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    // The command gets the Tab key, so keyboard users leave the terminal with Ctrl-F6.
    this.terminal.attachCustomKeyEventHandler((event) => {
      if (event.key !== "F6" || !event.ctrlKey) return true;
      document.getElementById("terminal-end").focus();
      return false;
    });
    form.elements.reader.addEventListener("change", (event) => {
      this.terminal.options.screenReaderMode = event.target.checked;
    });
  }

  begin(address) {
    this.terminal.reset();
    this.status = null;
    const target = new URL(address, location.href);
    target.protocol = target.protocol.replace("http", "ws");
    this.show("connecting", true);
    const socket = this.socket = new WebSocket(target);
    socket.addEventListener("open", () => {
      this.say({ version: 1, auth_token: this.form.dataset.proof });
      this.tellSize();
      this.show("connected", true);
      this.terminal.options.disableStdin = false;
      this.terminal.focus();
    });
    socket.addEventListener("message", (event) => this.hear(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.over(event.reason));
  }

  show(words, isOpen) {
    this.state.textContent = words;
    this.form.querySelector("button.main").disabled = isOpen;
    document.getElementById("terminal-end").disabled = !isOpen;
  }

  say(frame) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame));
  }

  tellSize() {
    this.say({ tty_size: { height: this.terminal.rows, width: this.terminal.cols } });
  }

  type(bytes) {
    for (const data of pieces(bytes)) this.say({ stdin: { data } });
  }

  hear(frame) {
    const data = (frame.stdout && frame.stdout.data) || (frame.stderr && frame.stderr.data);
    if (data) this.print(bytesOf(data));
    if (frame.exited) this.status = (frame.result && frame.result.exit_code) || 0;
  }

  print(bytes) {
    if (this.waiting + bytes.length > MOST_WAITING) {
      this.leftOut += bytes.length;
      return;
    }
    this.waiting += bytes.length;
    this.terminal.write(bytes, () => {
      this.waiting -= bytes.length;
      if (this.waiting === 0 && this.leftOut) {
        this.terminal.write(`\r\n[${this.leftOut} bytes arrived too fast and are not shown]\r\n`);
        this.leftOut = 0;
      }
    });
  }

  over(reason) {
    this.terminal.options.disableStdin = true;
    const lost = reason || "the connection has ended";
    this.show(this.status === null ? `The session is over: ${lost}.` : `The command has ended with exit status ${this.status}.`, false);
    this.socket = null;
  }
}

// ---- page -----------------------------------------------------------------------------------

// Split a command into words as a shell does, with blanks, quotes and backslashes. Return null if a
// quote or a backslash is incomplete.
function wordsOf(text) {
  const words = [];
  let word = null, at = 0;
  const pieces = /(\s+)|'([^']*)'|"((?:[^"\\]|\\[^])*)"|\\([^])|([^\s'"\\]+)/gy;
  for (const [whole, blank, single, double, escaped, plain] of text.matchAll(pieces)) {
    at += whole.length;
    if (!blank) {
      word = (word ?? "") + (single ?? double?.replace(/\\(["\\$`])/g, "$1") ?? escaped ?? plain);
    } else if (word !== null) {
      words.push(word);
      word = null;
    }
  }
  if (word !== null) words.push(word);
  return at === text.length ? words : null;
}

function whatIsWanted(form) {
  const target = new URL(form.dataset.talk, location.href);
  if (form.elements.command) { // otherwise an action in the job's definition
    const words = wordsOf(form.elements.command.value);
    if (words === null) return null;
    target.searchParams.set("task", form.elements.task.value);
    target.searchParams.set("command", JSON.stringify(words));
  }
  return target;
}

function offer(form) {
  const state = document.getElementById("terminal-state");
  let conversation = null;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = whatIsWanted(form);
    if (wanted === null) {
      state.textContent = "A quote in the command is not closed, or the command ends with a backslash.";
      return;
    }
    const place = document.getElementById("terminal");
    place.hidden = false;
    conversation ??= new Conversation(form, place, state);
    conversation.begin(wanted);
  });
  document.getElementById("terminal-end").addEventListener("click", () => {
    if (conversation && conversation.socket) conversation.socket.close();
  });
}

const terminalForm = document.getElementById("terminal-form");
if (terminalForm) offer(terminalForm);
