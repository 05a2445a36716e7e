"""Masks in the audit entry of an exec session.

The command may contain secrets that its task received, and sensitive variables of its job file.
"""

from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import urlencode

import msgspec

from daemon.text.json_masks import with_parents
from daemon.text.masking import Matcher
from daemon.web.request import Request
from storage import garbage
from storage.queries import allocations
from storage.records.codec import encode

_COMMAND = "command"
_LONGEST = 16 * 1024  # characters of a command; an entry has 500 characters
_WORDS = msgspec.json.Decoder(list[str])


async def masked_query(request: Request) -> str:
    """Return the query of an exec session with masks in the words of its command."""
    matchers = [matcher async for matcher in _matchers(request)]
    return urlencode(
        [
            (name, await _masked(value, matchers) if name == _COMMAND else value)
            for name, value in request.query.pairs
        ]
    )


async def _matchers(request: Request) -> AsyncIterator[Matcher]:
    """Yield the matchers of an allocation, and of its job."""
    parts, alloc_id = request.parts, request.parameters.get("alloc_id", "")
    if (matcher := await parts.output.matcher(alloc_id)) is not None:
        yield matcher
    owners = await parts.store.read_any(partial(allocations.owning_jobs, ids=[alloc_id]))
    if alloc_id not in owners or parts.job_masks is None:
        return
    namespace, job_id = owners[alloc_id]
    for owner in with_parents(job_id):
        if (matcher := await parts.job_masks.matcher((namespace, owner))) is not None:
            yield matcher


async def _masked(command: str, matchers: list[Matcher]) -> str:
    """Return a command, which is a list of words as JSON, with masks."""
    if not matchers:
        return command
    try:
        words = _WORDS.decode(command if len(command) <= _LONGEST else "")
    except msgspec.DecodeError:  # an invalid command does not run, and a long one is not shown
        return ""
    return await garbage.in_thread(
        lambda: encode([_without_secrets(word, matchers) for word in words]).decode()
    )


def _without_secrets(word: str, matchers: list[Matcher]) -> str:
    text = word.encode(errors="replace")
    for matcher in matchers:
        text = matcher.mask(text)
    return text.decode(errors="replace")
