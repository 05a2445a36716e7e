// One event stream for all tabs, because a browser allows six connections to a host in total.
"use strict";

const tabs = new Set();
let began = null;
let isOpen = false;

function tell(message) {
  for (const tab of tabs) tab.postMessage(message);
}

function listen() {
  const source = new EventSource("/ui/events");
  source.addEventListener("begin", (event) => {
    isOpen = true;
    began = Number(event.data);
    tell({ open: true, index: began });
  });
  source.addEventListener("message", (event) => tell(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    isOpen = false;
    tell({ open: false, over: source.readyState === EventSource.CLOSED });
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

self.addEventListener("connect", (event) => {
  const tab = event.ports[0];
  tabs.add(tab);
  tab.addEventListener("message", (told) => {
    if (told.data === "gone") tabs.delete(tab);
  });
  tab.start();
  if (tabs.size === 1 && began === null) listen();
  else if (isOpen) tab.postMessage({ open: true, index: null });
});
