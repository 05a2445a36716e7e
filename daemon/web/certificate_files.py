"""The daemon's certificate and key: errors that name the file, and the period of validity."""

import logging
import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import trio

from daemon.clock import Clock
from storage.errors import Invalid
from storage.records.base import SECOND

log = logging.getLogger("steward.web")

SOON = timedelta(days=14)  # before the end of a certificate, the log recommends its renewal
_CHECKED_EVERY = 86_400.0  # seconds
_CERTIFICATE, _KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
_ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
_REMEDY = "renew the certificate, and reload the daemon"


class CertificateFile(msgspec.Struct, frozen=True):
    """A file that a setting names; `opened` is the path from which the daemon reads it."""

    setting: str
    path: Path
    opened: Path

    def __str__(self) -> str:
        return f"{self.setting} = {str(self.path)!r}"

    def content(self) -> bytes:
        """Return the content. Raises `Invalid`."""
        try:
            return self.opened.read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read {self}: {error.strerror or error}") from error


class CertificateValidity(msgspec.Struct, frozen=True):
    """The period in which a certificate is valid.

    `setting` names the certificate's file, and `name` is the certificate with its file.
    """

    setting: str
    name: str
    begins: datetime
    ends: datetime

    def problem(self, now: int) -> str:
        """Return why clients can refuse the certificate now or soon; empty without a reason."""
        today = datetime.fromtimestamp(now / SECOND, self.ends.tzinfo)
        if today > self.ends:
            return f"{self.name} expired at {_text(self.ends)}; {_REMEDY}"
        if today < self.begins:
            return (
                f"{self.name} is not valid before {_text(self.begins)}; "
                "check the clock of this host, or replace the certificate"
            )
        lifetime = self.ends - self.begins
        if self.ends - today < min(SOON, lifetime / 3):
            return f"{self.name} expires at {_text(self.ends)}; {_REMEDY}"
        return ""


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def load_pair(
    context: ssl.SSLContext, certificate: CertificateFile, key: CertificateFile
) -> tuple[CertificateValidity, ...]:
    """Load a certificate and its key for new connections, and return the periods of validity.

    The first period is that of the certificate, and the others are those of its chain. Return none
    if the dates cannot be read. Raises `Invalid`.
    """
    chain, secret = certificate.content(), key.content()
    if any(mark in secret for mark in _ENCRYPTED):  # OpenSSL would ask for it on the terminal
        raise Invalid(
            f"cannot use the certificate: {key}: a passphrase protects it; remove the passphrase"
        )
    try:
        context.load_cert_chain(certificate.opened, key.opened)
    except OSError as error:  # includes ssl.SSLError
        if _CERTIFICATE not in chain:
            problem = f"{certificate}: it contains no certificate in PEM format"
        elif _KEY not in secret:
            problem = f"{key}: it contains no private key in PEM format"
        else:
            problem = f"{certificate} with {key}: {_reason(error)}"
        raise Invalid(f"cannot use the certificate: {problem}") from error
    return _validity(certificate, chain)


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate (key values mismatch); install both files"
    reason = (error.reason or "").lower().replace("_", " ")
    return reason or "the content of one file is damaged"


def _validity(file: CertificateFile, chain: bytes) -> tuple[CertificateValidity, ...]:
    # Imported late: most daemons have no certificate.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        found = []
        for place, certificate in enumerate(load_pem_x509_certificates(chain), 1):
            name = "the certificate" if place == 1 else f"certificate {place} of the chain"
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            found.append(CertificateValidity(file.setting, f"{file}: {name}", begins, ends))
    except ValueError:  # OpenSSL accepts more than this parser
        return ()
    return tuple(found)


class ServerContext(ssl.SSLContext):
    """The TLS settings of a listener, with the validity of its current certificate and chain."""

    validity: tuple[CertificateValidity, ...] = ()


def report_validity(contexts: Sequence[ServerContext], now: int) -> None:
    """Log each certificate that clients can refuse now or soon, once."""
    problems = [one.problem(now) for context in contexts for one in context.validity]
    for problem in dict.fromkeys(filter(None, problems)):
        log.warning("%s", problem)


def remaining_seconds(contexts: Sequence[ServerContext], now: int) -> dict[str, float]:
    """Return the time until the first certificate of each file expires, by setting."""
    remaining: dict[str, float] = {}
    for one in (validity for context in contexts for validity in context.validity):
        left = one.ends.timestamp() - now / SECOND
        remaining[one.setting] = min(left, remaining.get(one.setting, left))
    return remaining


async def watch_validity(contexts: Sequence[ServerContext], clock: Clock) -> None:
    """Report the certificates now, and then once a day, until cancelled."""
    while True:
        report_validity(contexts, clock.now())
        await trio.sleep(_CHECKED_EVERY)
