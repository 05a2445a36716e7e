"""Warnings about fields of a request body that have no effect."""

from storage.records.auth_method import AuthMethodConfig, AuthMethodRequest
from storage.records.base import inert_fields
from storage.records.namespace import Namespace


def test_set_field_without_effect_causes_a_warning_with_its_reason() -> None:
    assert list(inert_fields(Namespace(quota="small"))) == [
        'field "Quota" has no effect: Steward has no quotas'
    ]


def test_empty_field_without_effect_causes_no_warning() -> None:
    assert not list(inert_fields(Namespace(name="ops", required_extra_claims=[])))


def test_field_without_effect_of_a_member_causes_a_warning() -> None:
    method = AuthMethodRequest(config=AuthMethodConfig(verbose_logging=True, oidc_scopes=["a"]))
    assert list(inert_fields(method)) == [
        'field "OIDCScopes" has no effect: Steward has no OIDC login for the jobs API',
        'field "VerboseLogging" has no effect: Steward never logs claims',
    ]
