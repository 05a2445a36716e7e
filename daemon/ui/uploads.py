"""Uploads of input files: a page sends a file in chunks, which are passed on to the API."""

import binascii
from base64 import b64decode

from daemon.ui import formatting
from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import Malformed, NotFound, StewardError


async def state(ui_request: UiRequest) -> HandlerReply:
    """Return, as JSON for the page, how many bytes of a file have been received."""
    try:
        return await ui_request.ask(
            "GET", _path(ui_request), namespace=ui_request.query.text("namespace") or "default"
        )
    except NotFound:
        return HandlerReply(body={"Received": 0, "IsComplete": False})
    except StewardError as error:
        return of_error(error)


async def receive(ui_request: UiRequest) -> HandlerReply:
    """Store a chunk of a file, which the form contains in base64."""
    query = ui_request.query
    try:
        return await ui_request.ask(
            "POST",
            _path(ui_request),
            await build_in_thread(_decode_chunk, ui_request.form.get("piece", "")),
            namespace=query.text("namespace") or "default",
            size=query.text("size"),
            offset=query.text("offset"),
        )
    except StewardError as error:
        return of_error(error)


def _path(ui_request: UiRequest) -> str:
    return formatting.address("/v1/payload/", ui_request["digest"])


def _decode_chunk(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise Malformed(f"piece is not base64 ({error}): encode the bytes of the file") from error
