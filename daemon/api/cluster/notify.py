"""Test messages to notification receivers."""

from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.records.notification import ReceiverTest


async def test(request: Request) -> HandlerReply:
    """Send a test message to the receiver in `Name`, or to all; show the results."""
    receiver_test = await request.decoded(ReceiverTest)
    return HandlerReply(body=await request.parts.notify.test(receiver_test.name))
