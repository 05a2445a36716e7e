"""`notify test`: test messages to notification receivers."""

import click

from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.notification import ReceiverResult

_EXIT_FAILED = 1


@click.command()
@click.argument("name", default="", required=False)
@with_output
@with_client
def test(client: ApiClient, screen: Screen, name: str) -> int:
    """Send a test message to the receiver NAME, or to all, and print the responses.

    The receivers are those of notify_receivers and notify_commands in the daemon's configuration.
    The exit status is 0 only if all of them accepted the message.

    Example: steward notify test night
    """
    answer = client.send("POST", "/v1/operator/notify/test", {"Name": name})
    results = answer.decode(list[ReceiverResult])
    if screen.wants_document:
        screen.document(answer.body)
    elif not results:
        screen.line("the configuration has neither notify_receivers nor notify_commands: add one")
    else:
        rows = [
            [
                result.name,
                result.kind,
                "sent" if result.is_sent else "failed",
                f"{result.milliseconds} ms",
                result.answer,
            ]
            for result in results
        ]
        screen.table(["Receiver", "Kind", "Result", "Time", "Answer"], rows)
    return 0 if results and all(result.is_sent for result in results) else _EXIT_FAILED
