// Input files of a dispatch. Before the form is sent, each file is uploaded in pieces, unless the
// daemon has its content. WebCrypto cannot hash a file in pieces, and needs TLS.
"use strict";

const PIECE = 512 * 1024; // bytes, a multiple of SHA-256's block size

// SHA-256 defines its constants as the fractions of roots of the first primes.
const PRIMES = [2];
for (let number = 3; PRIMES.length < 64; number += 2) if (PRIMES.every((prime) => number % prime)) PRIMES.push(number);
const fraction = (root) => ((root % 1) * 2 ** 32) | 0;
const ROUNDS = PRIMES.map((prime) => fraction(Math.cbrt(prime)));

// Incremental SHA-256. The size of each piece except the last is a multiple of 64 bytes.
class Sha256 {
  constructor() {
    this.state = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
    this.words = new Int32Array(64);
    this.size = 0;
    this.rest = new Uint8Array();
  }

  add(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const whole = bytes.length - (bytes.length % 64);
    for (let at = 0; at < whole; at += 64) this.block(view, at);
    this.rest = bytes.subarray(whole);
    this.size += bytes.length;
  }

  block(view, at) {
    const w = this.words;
    const turn = (word, by) => (word >>> by) | (word << (32 - by));
    for (let i = 0; i < 16; i += 1) w[i] = view.getInt32(at + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const low = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3);
      const high = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10);
      w[i] = (w[i - 16] + low + w[i - 7] + high) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.state;
    for (let i = 0; i < 64; i += 1) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    this.state = [a, b, c, d, e, f, g, h].map((word, i) => (this.state[i] + word) | 0);
  }

  hex() {
    const end = new Uint8Array(this.rest.length < 56 ? 64 : 128);
    end.set(this.rest);
    end[this.rest.length] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(this.size / 2 ** 29));
    view.setUint32(end.length - 4, (this.size * 8) % 2 ** 32);
    for (let at = 0; at < end.length; at += 64) this.block(view, at);
    return this.state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

async function digestOf(file, tell) {
  const hash = new Sha256();
  for (let at = 0; at < file.size; at += PIECE) {
    hash.add(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()));
    tell(at);
  }
  return hash.hex();
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// Upload a file from the offset of an earlier upload; return its checksum.
async function upload(file, form, tell) {
  const digest = await digestOf(file, (at) => tell("hashed", at));
  const namespace = new URL(form.action).searchParams.get("namespace") || "default";
  const ask = async (query, body) => {
    const words = new URLSearchParams({ namespace, ...query });
    return fetch(`/ui/payload/${digest}?${words}`, body && { method: "POST", body });
  };
  let answer = await ask({});
  let state = null;
  for (let tries = 0; tries < 5;) {
    if (!state && answer.status === 409) { // another page also uploads this file
      tries += 1;
      answer = await ask({});
    }
    if (!state && !answer.ok) throw new Error(await answer.text());
    state = state || await answer.json();
    if (state.IsComplete) return digest;
    tell("uploaded", state.Received);
    const piece = file.slice(state.Received, state.Received + PIECE);
    const proof = form.elements.proof.value;
    const body = new URLSearchParams({ proof, piece: piece.size ? await base64(piece) : "" });
    answer = await ask({ size: file.size, offset: state.Received }, body);
    state = null;
  }
  throw new Error("another upload of the same file is active");
}

async function uploadAll(form, told) {
  const buttons = form.querySelectorAll("button.main");
  for (const button of buttons) button.disabled = true;
  try {
    for (const chosen of form.querySelectorAll("input[data-digest]")) {
      const [file] = chosen.files;
      if (!file) continue;
      const tell = (word, at) => { told.textContent = `${file.name}: ${word} ${Math.floor(100 * at / Math.max(file.size, 1))} %`; };
      form.elements[chosen.dataset.digest].value = await upload(file, form, tell);
    }
    form.submit();
  } catch (error) {
    told.textContent = `✖ The upload failed: ${error.message}. Send the form again to continue it.`;
    for (const button of buttons) button.disabled = false;
  }
}

for (const form of document.querySelectorAll("form[data-uploads]")) {
  for (const chosen of form.querySelectorAll("input[data-digest]")) {
    chosen.hidden = false;
    form.elements[chosen.dataset.digest].hidden = true;
    form.elements[chosen.dataset.digest].required = false;
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    uploadAll(form, form.querySelector("[role=status]"));
  });
}
