"""Authorization to submit a task with a Vault token."""

import pytest

from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet
from daemon.acl.policy_rules import parse_policy
from daemon.acl.task_tokens import why_refused
from storage.queries import tokens
from storage.records.acl import Token, TokenRole
from storage.records.task import SecretsConfig
from storage.store import Store

MAY_MAKE = 'path "auth/token/create/web" { capabilities = ["update"] }'
SUDO = 'path "auth/token/create" { capabilities = ["update", "sudo"] }'


def caller(rules: str = "", *policies: str) -> Caller:
    token = Token(accessor="a", policies=policies, created_at=0)
    return Caller(token, CapabilitySet([("given", parse_policy(rules))] if rules else []))


ROOT = Token(accessor="a", policies=("root",), created_at=0)
EVERYTHING = Caller(ROOT, CapabilitySet((), everything=True))


@pytest.mark.parametrize(
    ("who", "block", "problem"),
    [
        (caller(), SecretsConfig(), ""),
        (caller(), SecretsConfig(policies=["default"]), ""),
        (caller(), SecretsConfig(role="web"), "capability update on auth/token/create/web"),
        (caller(MAY_MAKE), SecretsConfig(role="web"), ""),
        (EVERYTHING, SecretsConfig(role="web"), ""),
        (EVERYTHING, SecretsConfig(role="none"), 'there is no role "none": write auth/token/roles'),
        (caller("", "reader"), SecretsConfig(policies=["reader"]), ""),
        (caller("", "reader"), SecretsConfig(policies=["Writer"]), 'the policy "writer" yourself'),
        (caller(SUDO), SecretsConfig(policies=["writer"]), ""),
        (EVERYTHING, SecretsConfig(policies=["writer"]), ""),
        (EVERYTHING, SecretsConfig(policies=["root"]), 'a task cannot have the policy "root"'),
    ],
)
async def test_task_token_has_no_more_policies_than_its_submitter_could_grant(
    store: Store, who: Caller, block: SecretsConfig, problem: str
) -> None:
    role = TokenRole(name="web", allowed_policies=("reader",))
    await store.write(lambda tx: tokens.put_role(tx, role))
    found = store.read(lambda db: why_refused(db, who, block))
    assert problem in found
    assert bool(found) == bool(problem)
