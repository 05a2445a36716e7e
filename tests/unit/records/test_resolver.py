"""Each text of a `dns` block is one word, because resolv.conf is read line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.records.resolver import faults
from storage.records.task import NetworkDNS


def block(field: str, text: str) -> NetworkDNS:
    return NetworkDNS(**{field: [text]})


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("servers", "10.0.0.1"),
        ("servers", "2001:db8::1"),
        ("servers", "fe80::1%eth0.5"),
        ("searches", "svc.local"),
        ("searches", "_tcp.example."),
        ("searches", "."),
        ("options", "ndots:2"),
        ("options", "single-request-reopen"),
        ("options", "edns0"),
    ],
)
def test_valid_text_has_no_error(field: str, text: str) -> None:
    assert list(faults(block(field, text), filled=True)) == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("servers", ""),
        ("servers", "dns.example"),
        ("servers", "1.1.1.1\n* * * * * root id"),
        ("servers", "fe80::1%\n* * * * * root id"),
        ("servers", "fe80::1%"),
        ("searches", "a b"),
        ("searches", "a\n"),
        ("searches", "a..b"),
        ("searches", "a" * 64),
        ("searches", ".".join(["a" * 60] * 5)),
        ("options", "NDOTS"),
        ("options", "a\tb"),
    ],
)
def test_an_invalid_text_is_named_on_one_line(field: str, text: str) -> None:
    (fault,) = faults(block(field, text), filled=True)
    assert "is not valid: use" in fault
    assert fault.isprintable()


@pytest.mark.parametrize("field", ["servers", "searches", "options"])
@given(text=st.text(alphabet="a1.:%-\n\r\t #;\0\x85\u2028${}"))
def test_text_without_an_error_is_one_word(field: str, text: str) -> None:
    assert list(faults(block(field, text), filled=True)) or text.split() == [text]


def test_reference_is_checked_after_its_resolution() -> None:
    dns = block("servers", "${meta.dns}")
    assert list(faults(dns, filled=False)) == []
    assert list(faults(dns, filled=True)) != []
