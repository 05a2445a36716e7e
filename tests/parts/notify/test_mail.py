"""E-mail: encrypted, with a login, and without headers from jobs or receivers."""

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.net import egress_policy
from daemon.notify.channels import DeliveryFailed
from daemon.notify.delivery import Delivery
from daemon.notify.mail import compose, send
from daemon.notify.message import Batch, Context, FailureCause, NotificationWithContext
from storage.records.notification import Encryption, Receiver, ReceiverKind
from tests.fakes.authority import Authority
from tests.fakes.mailserver import MailServer, open_mail_server
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN
from tests.unit.notify.batches import FAILURE, batch

PASSWORD = "pass word"  # noqa: S105  # not a real secret
PERMIT = partial(egress_policy.check, own_ports={4646})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[MailServer]:
    certificate, key = authority.certify("localhost")
    pair = (str(certificate), str(key))
    async with open_mail_server(certificate=pair, logins={"steward": "pass word"}) as opened:
        yield opened


def receiver(server: MailServer, authority: Authority | None = None, **fields: object) -> Receiver:
    made = Receiver(
        kind=ReceiverKind.EMAIL,
        server=f"localhost:{server.port}",
        ca_file=str(authority.file) if authority else "",
        user="steward",
        sender="steward@example.com",
        to=["ops@example.com", "night@example.com"],
    )
    return msgspec.structs.replace(made, **fields)


async def sent(receiver: Receiver, password: str = PASSWORD, given: Batch | None = None) -> str:
    mail = compose(given or batch(FAILURE), receiver, NOW)
    with trio.fail_after(HAPPENS_WITHIN):
        return await send(mail, receiver, password, "vm1", PERMIT)


async def test_mail_arrives_over_starttls_with_a_login(
    server: MailServer, authority: Authority
) -> None:
    assert await sent(receiver(server, authority)) == "250 2.0.0 queued as 4711"
    (letter,) = server.letters
    assert (letter.is_encrypted, letter.user) == (True, "steward")
    assert (letter.sender, letter.to) == (
        "steward@example.com",
        ("ops@example.com", "night@example.com"),
    )
    mail = letter.mail
    assert mail["Subject"] == '[vm1] backup is failing: task "main" was ended by SIGKILL'
    assert mail["Date"] == "Sat, 21 Nov 2026 01:40:00 +0000"
    assert mail["Message-ID"] == "<c-7@vm1>"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert "signal SIGKILL" in mail.get_content()
    assert server.faults == []


async def test_mail_arrives_over_implicit_tls(authority: Authority) -> None:
    certificate, key = authority.certify("localhost")
    async with open_mail_server(
        certificate=(str(certificate), str(key)), is_wrapped=True
    ) as server:
        one = receiver(server, authority, tls=Encryption.TLS, user="")
        assert await sent(one, password="") == "250 2.0.0 queued as 4711"
        assert server.letters[0].is_encrypted


async def test_mail_is_sent_unencrypted_if_configured() -> None:
    async with open_mail_server() as server:
        await sent(receiver(server, tls=Encryption.NONE, user=""), password="")
        assert not server.letters[0].is_encrypted


async def test_mail_is_not_sent_to_a_server_without_encryption() -> None:
    async with open_mail_server() as server:
        with pytest.raises(DeliveryFailed, match="STARTTLS extension not supported"):
            await sent(receiver(server))
        assert server.letters == []


async def test_mail_is_not_sent_to_a_server_of_an_unknown_authority(server: MailServer) -> None:
    with pytest.raises(
        DeliveryFailed, match=r"the connection cannot be encrypted: .*verify failed"
    ):
        await sent(receiver(server))
    assert server.letters == []


async def test_wrong_password_is_reported_with_the_response(
    server: MailServer, authority: Authority
) -> None:
    with pytest.raises(DeliveryFailed, match="the mail server answered with 535") as caught:
        await sent(receiver(server, authority), password="wrong")
    assert "wrong password" in caught.value.answer


async def test_mail_reaches_the_recipients_accepted_by_the_server(
    server: MailServer, authority: Authority
) -> None:
    one = receiver(server, authority, to=["nobody@example.com", "ops@example.com"])
    assert await sent(one) == "250 2.0.0 queued as 4711; 1 of 2 addresses refused"
    with pytest.raises(DeliveryFailed, match="the mail server answered with 550"):
        await sent(receiver(server, authority, to=["nobody@example.com"]))


async def test_mail_server_that_refuses_the_content_is_reported(
    server: MailServer, authority: Authority
) -> None:
    server.answers["DATA"] = "552 5.3.4 too large"
    with pytest.raises(DeliveryFailed, match="552"):
        await sent(receiver(server, authority))


@pytest.mark.parametrize("at", ["EHLO", "MAIL", "DATA"])
async def test_unresponsive_server_is_aborted_at_the_deadline(
    server: MailServer, authority: Authority, at: str
) -> None:
    server.silent_at = at
    mail = compose(batch(FAILURE), receiver(server, authority), NOW)
    with trio.fail_after(HAPPENS_WITHIN):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, mail, receiver(server, authority), "pass word", "vm1", PERMIT)
            await server.reached.wait()
            nursery.cancel_scope.cancel()
    # The thread has closed the connection and ended, because the nursery waits for threads of
    # `to_thread`.


@pytest.mark.parametrize("at", ["job_id", "reason", "run_id"])
async def test_text_of_a_job_cannot_become_a_header(
    server: MailServer, authority: Authority, at: str
) -> None:
    evil = "x\r\nBcc: victim@example.com\r\n\r\n.\r\nMAIL FROM:<x@y>\u2028\x00\x85"
    one = msgspec.structs.replace(FAILURE.notification, **{at: evil})
    cause = msgspec.structs.replace(_cause(), summary=evil, stderr=f"{evil}\n.\n..\n")
    context = Context(host=evil, error=cause, state="failing", link=evil, command=evil)
    given = Batch(
        id=f"c-{evil}",
        first=(NotificationWithContext(notification=one, context=context),),
        node_name=evil,
    )
    await sent(receiver(server, authority), given=given)
    (letter,) = server.letters
    assert letter.to == ("ops@example.com", "night@example.com")
    assert letter.mail["Bcc"] is None
    assert len(letter.mail.keys()) == 9
    assert "\r\n  .\r\n  ..\r\n" in letter.mail.get_content()
    assert server.faults == []


def _cause() -> FailureCause:
    assert FAILURE.context.error is not None
    return FAILURE.context.error


async def test_long_non_ascii_lines_arrive_complete(
    server: MailServer, authority: Authority
) -> None:
    said = "ошибка ‹masked› 失敗 " * 100
    cause = msgspec.structs.replace(_cause(), stderr=said)
    context = msgspec.structs.replace(FAILURE.context, error=cause)
    given = batch(msgspec.structs.replace(FAILURE, context=context))
    await sent(receiver(server, authority), given=given)
    assert said.strip() in server.letters[0].mail.get_content()
    assert server.faults == []


async def test_password_is_read_from_a_file_closed_to_others(
    server: MailServer, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("pass word\n")
    one = receiver(server, authority, secret_file=str(file))
    delivery = Delivery(
        receivers={"night": one}, commands={}, permit=PERMIT, now=lambda: NOW, node_name="vm1"
    )
    file.chmod(0o604)
    with pytest.raises(
        DeliveryFailed, match=f"every user can read secret_file {file}: run chmod o-r"
    ):
        await delivery.send("night", delivery.sample(site=""))
    file.chmod(0o600)
    assert await delivery.send("night", delivery.sample(site="")) == "250 2.0.0 queued as 4711"
    assert server.letters[0].mail["Subject"] == "[vm1] Test of Steward's notifications"


async def test_response_without_an_end_is_not_kept() -> None:
    sent_lines = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal sent_lines
        await stream.send_all(b"220 hello\r\n")
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):  # the client has disconnected
            while True:
                await stream.send_all(b"250-more and more\r\n" * 1000)
                sent_lines += 1000

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
        port = listener.socket.getsockname()[1]
        made = Receiver(
            kind=ReceiverKind.EMAIL,
            server=f"127.0.0.1:{port}",
            tls=Encryption.NONE,
            sender="steward@example.com",
            to=["ops@example.com"],
        )
        with pytest.raises(DeliveryFailed, match="the connection failed: Connection unexpectedly"):
            await sent(made)
        nursery.cancel_scope.cancel()
    assert sent_lines < 1_000_000
