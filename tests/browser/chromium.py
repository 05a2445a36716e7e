"""A real browser controlled by its debugging protocol, with waits for visible results."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from tests.http_clients import trusted
from tests.service.daemon import HAPPENS_WITHIN

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = os.environ.get("PICTURES", "")  # the directory for the documentation's pictures
READY_WITHIN = 60  # seconds; a browser starts slowly on a busy host
ENDS_WITHIN = 20
SIZE = (1280, 900)
_LISTENING = re.compile(rb"DevTools listening on ws://([^\s]{1,200})\n")
_MAX_MESSAGE = 64 * 1024 * 1024  # bytes: a screenshot is one message

# The browser does nothing in the background, and reaches only this host.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--metrics-recording-only",
    "--hide-scrollbars",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>;127.0.0.1",
    "--remote-debugging-port=0",
)

# Keys by name, each with its key code and the text that it enters.
KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "/": (191, "/"),
    "F6": (117, ""),
    "ArrowDown": (40, ""),
    "?": (191, "?"),
    "g": (71, "g"),
    "j": (74, "j"),
    "k": (75, "k"),
}

# A promise that resolves when an expression is true. It checks the expression immediately, and
# after each change of the page. It also checks after each scroll event, because listeners of that
# event may set properties without changing the page.
_UNTIL = """
new Promise((resolve) => {
  const look = () => { try { return Boolean(%s); } catch { return false; } };
  if (look()) { resolve(true); return; }
  const observer = new MutationObserver(() => {
    if (look()) { observer.disconnect(); resolve(true); }
  });
  observer.observe(document, {
    subtree: true, childList: true, characterData: true, attributes: true
  });
  addEventListener("load", () => { if (look()) resolve(true); });
  addEventListener("scroll", () => setTimeout(() => { if (look()) resolve(true); }), true);
})
"""


class Failed(Exception):
    """The browser rejected a command, or the page closed in the meantime."""


class Tab:
    """One page of the browser."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._waiting: dict[int, trio.Event] = {}
        self.faults: list[str] = []  # errors that scripts reported

    async def listen(self) -> None:
        """Receive messages of the browser until it is closed."""
        try:
            while True:
                told = json.loads(await self._socket.get_message())
                if "id" in told:
                    self._answers[told["id"]] = told
                    self._waiting[told["id"]].set()
                else:
                    self._note(told)
        except ConnectionClosed:
            return

    def _note(self, told: dict[str, Any]) -> None:
        given = told.get("params", {})
        if told["method"] == "Runtime.exceptionThrown":
            self.faults.append(str(given["exceptionDetails"]))
        elif told["method"] == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.faults.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    async def tell(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command to the browser; return its answer. Raises `Failed`."""
        number = next(self._numbers)
        answered = self._waiting[number] = trio.Event()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_message(json.dumps(message))
        with trio.fail_after(HAPPENS_WITHIN):
            await answered.wait()
        del self._waiting[number]
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Failed(answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page. Raises `Failed`."""
        found = await self.tell(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise Failed(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page, or in the page that follows it."""
        with trio.move_on_after(HAPPENS_WITHIN):
            while True:
                try:
                    await self.value(_UNTIL % expression)
                except Failed:  # the browser has loaded another page
                    await trio.lowlevel.checkpoint()
                else:
                    return
        shown = await self.value("document.body.innerText")
        raise AssertionError(f"{expression} does not become true; the page:\n{shown}")

    async def until_text(self, selector: str, text: str) -> None:
        """Wait until an element contains a text."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{place}.textContent.includes({json.dumps(text)})")

    async def open(self, address: str) -> None:
        """Go to an address; return when its page is loaded."""
        await self.value("window.gone = true")
        found = await self.tell("Page.navigate", url=address)
        assert "errorText" not in found, found
        await self.until_loaded()

    async def resize(self, width: int, height: int, *, is_phone: bool) -> None:
        """Show the page with this size, in CSS pixels."""
        await self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    async def press(self, selector: str) -> None:
        """Press a button or a link that opens another page; return when this page is loaded."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{place} !== null")
        await self.value(f"window.gone = true; {place}.click()")
        await self.until_loaded()

    async def until_loaded(self, path: str = "") -> None:
        """Wait until a new page is loaded, and its scripts have run; `path` is its path if given.

        Before the old page is left, set `window.gone` there.
        """
        is_there = f" && location.pathname === {json.dumps(path)}" if path else ""
        await self.until(
            f"window.gone === undefined{is_there} && document.readyState === 'complete'"
        )

    async def click(self, selector: str) -> None:
        """Click an element that does not navigate."""
        await self.value(f"document.querySelector({json.dumps(selector)}).click()")

    async def write(self, selector: str, text: str) -> None:
        """Type into a field, and replace its text."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.value(f"{place}.value = {json.dumps(text)}")
        await self.value(f"{place}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    async def choose(self, selector: str, path: Path) -> None:
        """Choose a file in a field, as in the dialog of the browser."""
        place = f"document.querySelector({json.dumps(selector)})"
        field = await self.tell("Runtime.evaluate", expression=place)
        await self.tell(
            "DOM.setFileInputFiles", objectId=field["result"]["objectId"], files=[str(path)]
        )

    async def type(self, line: str) -> None:
        """Type a line into the focused element, and press Enter."""
        await self.tell("Input.insertText", text=line)
        await self.key("Enter")

    async def key(self, name: str, *, control: bool = False) -> None:
        """Press a key."""
        number, text = KEYS[name]
        key: dict[str, object] = {"key": name, "code": name, "windowsVirtualKeyCode": number}
        for kind in ("keyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            modifiers = 2 if control else 0
            await self.tell("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, **key, **said)

    async def picture(self, path: Path) -> None:
        """Store a screenshot as a PNG."""
        shot = await self.tell("Page.captureScreenshot", format="png")
        await trio.Path(path).write_bytes(base64.b64decode(shot["data"]))


async def keep(tab: Tab, picture: str) -> None:
    """Store a screenshot if screenshots are enabled."""
    if PICTURES:
        await tab.picture(Path(PICTURES, f"ui-{picture}.png"))


@asynccontextmanager
async def open_browser(directory: Path) -> AsyncIterator[Tab]:
    """Run a browser with its own profile; yield its first page."""
    assert PROGRAM is not None
    profile = directory / "profile"
    command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"]
    process = await trio.lowlevel.open_process(
        [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        with trio.fail_after(READY_WITHIN):
            place = await _place(process.stderr)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, process.stderr)
            async with _connect(place, urlsplit(await _page_of(place)).path) as tab:
                nursery.start_soon(tab.listen)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.tell(f"{domain}.enable")
                yield tab
                # The request closes all processes of the browser. They may exit before the browser
                # answers.
                nursery.start_soon(tab.tell, "Browser.close")
                with trio.move_on_after(ENDS_WITHIN):
                    await process.wait()
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stderr.aclose()


async def _place(errors: trio.abc.ReceiveStream) -> str:
    """Return the address that the browser prints on standard error."""
    said = b""
    while b"DevTools listening on " not in said or not said.endswith(b"\n"):
        piece = await errors.receive_some()
        assert piece, f"the browser did not start:\n{said.decode()}"
        said += piece
    line = said.partition(b"DevTools listening on ws://")[2]
    return line.partition(b"/")[0].decode()


async def _drain(errors: trio.abc.ReceiveStream) -> None:
    while await errors.receive_some():
        pass


@contextmanager
def running_browser(directory: Path) -> Iterator[str]:
    """Run a browser with its own profile; yield the address of its debugging protocol."""
    assert PROGRAM is not None
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    command = [PROGRAM, *FLAGS, f"--user-data-dir={directory / 'profile'}", size, "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = b""
        while not (found := _LISTENING.search(said)):
            line = process.stderr.readline()
            assert line, f"the browser did not start:\n{said.decode()}"
            said += line
        draining = threading.Thread(target=process.stderr.read)
        draining.start()
        yield found[1].decode()
    finally:
        process.terminate()  # the main process stops the others
        try:
            process.wait(ENDS_WITHIN)
        finally:
            process.kill()
            process.wait()
    draining.join()
    process.stderr.close()


@asynccontextmanager
async def open_tab(address: str) -> AsyncIterator[Tab]:
    """Open a page of a running browser, with separate cookies and storage."""
    place, _, path = address.partition("/")
    async with _connect(place, f"/{path}") as browser, trio.open_nursery() as nursery:
        nursery.start_soon(browser.listen)
        context = await browser.tell("Target.createBrowserContext")
        page = await browser.tell(
            "Target.createTarget", url="about:blank", width=SIZE[0], height=SIZE[1], **context
        )
        try:
            async with _connect(place, f"/devtools/page/{page['targetId']}") as tab:
                nursery.start_soon(tab.listen)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.tell(f"{domain}.enable")
                yield tab
        finally:
            with trio.CancelScope(shield=True):
                await browser.tell("Target.disposeBrowserContext", **context)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _connect(place: str, path: str) -> AsyncIterator[Tab]:
    """Connect to the debugging protocol of the browser, or of one of its pages."""
    host, _, port = place.partition(":")
    # Close the stream, even if the browser has closed the connection without a handshake.
    async with (
        await trio.open_tcp_stream(host, int(port)) as stream,
        trio.open_nursery() as nursery,
    ):
        yield Tab(
            await wrap_client_stream(nursery, stream, place, path, max_message_size=_MAX_MESSAGE)
        )
        nursery.cancel_scope.cancel()


async def _page_of(place: str) -> str:
    """Return the address at which the browser offers the protocol of its first page."""
    async with httpx.AsyncClient(verify=trusted(), trust_env=False, timeout=READY_WITHIN) as client:
        pages = (await client.get(f"http://{place}/json/list")).json()
    address: str = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
    return address
