// A fake browser without a page: all objects exist, and their methods do nothing. The program runs
// scripts of the UI and then the code of a test, and prints the value of the code as JSON.
"use strict";
const fs = require("fs");
const vm = require("vm");

function nothing() {
  const known = {};
  return new Proxy(function () {}, {
    get(_, name) {
      if (name === Symbol.iterator) return [][Symbol.iterator].bind([]);
      if (name === Symbol.toPrimitive) return () => "";
      if (name === "then") return undefined;
      if (name in known) return known[name];
      return nothing();
    },
    set(_, name, value) {
      known[name] = value;
      return true;
    },
    apply: () => nothing(),
    construct: () => nothing(),
  });
}

class Storage {
  getItem(name) { return Object.hasOwn(this, name) ? this[name] : null; }
  setItem(name, value) { this[name] = String(value); }
  removeItem(name) { delete this[name]; }
}

function stored(values) {
  return Object.assign(new Storage(), values);
}

const { user, index, path, hash, local, session, isBlocked, scripts, code } = JSON.parse(fs.readFileSync(0, "utf8"));
const listeners = {};
const page = {
  location: { pathname: path, hash, search: "" },
  document: nothing(),
  history: nothing(),
  navigator: {},
  addEventListener() {},
  setInterval() {},
  requestAnimationFrame() {},
  setTimeout(work, delay) {
    page.timers.push({ work, delay });
    return page.timers.length;
  },
  timers: [],
  clock: 0, // milliseconds
  performance: { now: () => page.clock },
  clearTimeout(timer) { page.cleared.push(timer); },
  cleared: [],
  fetched: [],
  fetch(address, options) {
    page.fetched.push({ address, signal: options && options.signal });
    return new Promise(() => {});
  },
  URLSearchParams, URL, AbortController, console,
  submit: (action, fields = []) => {
    const form = {
      getAttribute: () => action,
      querySelector: (what) => (fields.some((one) => what.includes(one)) ? {} : null),
    };
    for (const listener of listeners.submit || []) listener({ target: form });
  },
};
page.document.body = nothing();
page.document.body.dataset = { user, index };
page.document.addEventListener = (kind, listener) => (listeners[kind] = listeners[kind] || []).push(listener);
page.document.querySelector = () => null;
page.document.querySelectorAll = () => [];
page.document.getElementById = (id) => (["events", "sign-in"].includes(id) ? null : nothing());
page.window = page;
for (const [name, values] of [["localStorage", local], ["sessionStorage", session]]) {
  Object.defineProperty(page, name, {
    value: isBlocked ? undefined : stored(values),
    configurable: true,
  });
  if (isBlocked) Object.defineProperty(page, name, { get() { throw new Error("storage is blocked"); } });
}
page.nothing = nothing;
vm.createContext(page);
for (const script of scripts) vm.runInContext(fs.readFileSync(script, "utf8"), page, { filename: script });
const value = vm.runInContext(code, page);
console.log(JSON.stringify(value === undefined ? null : value));
