"""The keys of auth methods: fetched within limits, cached, and fetched again for a new key."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daemon.identity.jwt_keys import MethodKeys
from daemon.identity.jwt_verification import MAX_KEY_SET, MOST_KEY_VALUES, UnknownKey, parse_jwt
from daemon.identity.key_cache import KeyCache
from daemon.net import egress_policy
from daemon.net.http_client import allow_all
from storage.errors import Refused
from storage.records.auth_method import AuthMethod, AuthMethodConfig
from storage.records.base import SECOND
from tests.fakes.authority import Authority
from tests.unit.identity.tokens import KEY, NOW, claims, new_key, public, signed

OTHER = new_key()
TOKEN = parse_jwt(signed(claims()))
OTHERS = parse_jwt(signed(claims(), OTHER, {"kid": "two"}))


class Provider:
    """A provider that publishes keys and counts the requests for them."""

    def __init__(self) -> None:
        self.keys = [public(KEY)]
        self.status, self.body = 200, b""
        self.asked: list[str] = []
        self.url = ""
        self.named: dict[str, str] = {}  # other values of the discovery document

    def document(self, path: str) -> bytes:
        """Return the document at a path."""
        if path.endswith("openid-configuration"):
            own = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            return json.dumps({**own, **self.named}).encode()
        keys: list[dict[str, Any]] = [
            {"kty": "RSA", "kid": key.kid, "n": key.n, "e": key.e, "use": "sig"}
            for key in self.keys
        ]
        return self.body or json.dumps({"keys": [*keys, {"kty": "EC", "kid": "three"}]}).encode()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Answer one request."""
        async with stream:
            head = bytes(await stream.receive_some())
            if not head:  # the client does not trust the certificate
                return
            path = head.split()[1].decode()
            self.asked.append(path)
            body = self.document(path)
            length = f"Content-Length: {len(body)}\r\n".encode()
            await stream.send_all(b"HTTP/1.1 %d x\r\n%b\r\n" % (self.status, length))
            try:
                await stream.send_all(body)
            except trio.BrokenResourceError:  # the client reads no more
                return


@asynccontextmanager
async def providing(context: ssl.SSLContext | None = None) -> AsyncIterator[Provider]:
    """Run a provider, over TLS with a context."""
    provider = Provider()

    async def accept(stream: trio.SocketStream) -> None:
        if context is None:
            await provider.serve(stream)
            return
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await provider.serve(secure)
        except trio.BrokenResourceError:  # the client does not trust the certificate
            await trio.aclose_forcefully(secure)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, accept, 0, host="127.0.0.1"))
        scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
        provider.url = f"{scheme}://{host}:{listeners[0].socket.getsockname()[1]}"
        yield provider
        nursery.cancel_scope.cancel()


def method(**config: Any) -> AuthMethod:
    return AuthMethod(name="ci", type="JWT", modify_index=7, config=AuthMethodConfig(**config))


async def test_keys_are_fetched_once_and_again_after_their_expiry() -> None:
    async with providing() as provider:
        keys, ci = MethodKeys(KeyCache()), method(jwks_url=f"{provider.url}/keys")
        for now in (NOW, NOW + 299 * SECOND):
            await keys.verify(ci, TOKEN, now=now, permit=allow_all)
        assert provider.asked == ["/keys"]
        await keys.verify(ci, TOKEN, now=NOW + 300 * SECOND, permit=allow_all)
        assert provider.asked == ["/keys", "/keys"]


async def test_new_key_is_fetched_and_forged_keys_cause_few_requests() -> None:
    async with providing() as provider:
        keys, ci = MethodKeys(KeyCache()), method(oidc_discovery_url=f"{provider.url}/")
        for now in (NOW, NOW + SECOND, NOW + 29 * SECOND):
            with pytest.raises(UnknownKey):
                await keys.verify(ci, OTHERS, now=now, permit=allow_all)
        assert provider.asked == ["/.well-known/openid-configuration", "/keys"]
        provider.keys.append(public(OTHER, "two"))
        await keys.verify(ci, OTHERS, now=NOW + 30 * SECOND, permit=allow_all)
        await keys.verify(ci, TOKEN, now=NOW + 30 * SECOND, permit=allow_all)
        assert len(provider.asked) == 4


async def test_changed_method_drops_its_cached_keys() -> None:
    async with providing() as provider:
        keys, ci = MethodKeys(KeyCache()), method(jwks_url=f"{provider.url}/keys")
        await keys.verify(ci, TOKEN, now=NOW, permit=allow_all)
        changed = AuthMethod(name="ci", type="JWT", modify_index=8, config=ci.config)
        await keys.verify(changed, TOKEN, now=NOW, permit=allow_all)
        assert len(provider.asked) == 2


async def test_keys_of_the_configuration_need_no_provider() -> None:
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    ci = method(jwt_validation_pub_keys=[pem])
    await MethodKeys(KeyCache()).verify(ci, TOKEN, now=NOW, permit=allow_all)
    with pytest.raises(UnknownKey):
        await MethodKeys(KeyCache()).verify(ci, OTHERS, now=NOW, permit=allow_all)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (302, b"", "the provider answered with the status 302"),
        (200, b"<html>", "not a JSON document of keys"),
        (200, b'{"keys": 3}', "not a JSON document of keys"),
        (200, b" " * (MAX_KEY_SET + 1), "larger than 262144 bytes"),
        (
            200,
            b'{"keys": [%b{}]}' % (b"{}," * MOST_KEY_VALUES),
            "more than 5000 JSON values",
        ),
    ],
)
async def test_invalid_response_is_reported_and_not_requested_again_immediately(
    status: int, body: bytes, text: str
) -> None:
    async with providing() as provider:
        provider.status, provider.body = status, body
        keys, ci = MethodKeys(KeyCache()), method(jwks_url=f"{provider.url}/keys?token=hidden")
        for now in (NOW, NOW + 9 * SECOND, NOW + 10 * SECOND):
            with pytest.raises(Refused, match=text) as told:
                await keys.verify(ci, TOKEN, now=now, permit=allow_all)
            assert "hidden" not in str(told.value)
        assert len(provider.asked) == 2


async def test_the_daemon_connects_to_no_forbidden_address() -> None:
    async with providing() as provider:
        port = int(provider.url.rpartition(":")[2])
        permit = partial(egress_policy.check, own_ports={port})
        with pytest.raises(Refused, match="is the daemon itself"):
            await MethodKeys(KeyCache()).verify(
                method(jwks_url=f"{provider.url}/keys"), TOKEN, now=NOW, permit=permit
            )
        with pytest.raises(Refused, match="link-local"):
            await MethodKeys(KeyCache()).verify(
                method(jwks_url="http://169.254.169.254/keys"), TOKEN, now=NOW, permit=permit
            )
        assert provider.asked == []


async def test_only_the_authority_of_the_method_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("server"))
    async with providing(context) as provider:
        url = f"{provider.url}/keys"
        trusted = method(jwks_url=url, jwks_ca_cert=authority.file.read_text())
        await MethodKeys(KeyCache()).verify(trusted, TOKEN, now=NOW, permit=allow_all)
        with pytest.raises(Refused, match="certificate"):
            await MethodKeys(KeyCache()).verify(
                method(jwks_url=url), TOKEN, now=NOW, permit=allow_all
            )
        unreadable = method(jwks_url=url, jwks_ca_cert="no certificate")
        with pytest.raises(Refused, match="the CA certificates cannot be read"):
            await MethodKeys(KeyCache()).verify(unreadable, TOKEN, now=NOW, permit=allow_all)


@pytest.mark.parametrize(
    "named", [{"issuer": "https://other.example"}, {"issuer": ""}, {"issuer": "x" * 10_000}]
)
async def test_a_discovery_document_of_another_issuer_is_refused(named: dict[str, str]) -> None:
    async with providing() as provider:
        provider.named = named
        ci = method(oidc_discovery_url=provider.url)
        with pytest.raises(Refused, match="names a different issuer") as told:
            await MethodKeys(KeyCache()).verify(ci, TOKEN, now=NOW, permit=allow_all)
        assert len(str(told.value)) < 500
        assert provider.asked == ["/.well-known/openid-configuration"]


async def test_keys_of_an_https_provider_are_not_fetched_over_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("server"))
    async with providing() as plain, providing(context) as provider:
        ci = method(
            oidc_discovery_url=f"{provider.url}/", discovery_ca_pem=[authority.file.read_text()]
        )
        await MethodKeys(KeyCache()).verify(ci, TOKEN, now=NOW, permit=allow_all)
        provider.named = {"jwks_uri": f"{plain.url}/keys"}
        with pytest.raises(Refused, match="names a key URL without https"):
            await MethodKeys(KeyCache()).verify(ci, TOKEN, now=NOW, permit=allow_all)
        assert plain.asked == []


async def test_discovered_address_that_is_no_url_is_refused() -> None:
    async with providing() as provider:
        provider.named = {"jwks_uri": "http://[::1"}
        ci = method(oidc_discovery_url=provider.url)
        with pytest.raises(Refused, match=r"from the URL: 'http://\[::1' is not an address"):
            await MethodKeys(KeyCache()).verify(ci, TOKEN, now=NOW, permit=allow_all)
