"""Parsing of policies: their words are checked and expanded."""

import re

import pytest

from daemon.acl import policy_rules
from daemon.acl.builtin import DEFAULT_RULES
from daemon.acl.policy_rules import (
    NamedRule,
    PathRule,
    PolicyRules,
    VariableRule,
    check,
    parse_policy,
)
from daemon.acl.policy_store import check_policy
from storage.errors import Malformed
from storage.records.acl import Policy


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", PolicyRules()),
        ('agent { policy = "read" }', PolicyRules(scopes={"agent": "read"})),
        ('{"operator": {"policy": "write"}}', PolicyRules(scopes={"operator": "write"})),
        (
            'namespace "a-*" { capabilities = ["submit-job"] }',
            PolicyRules(namespaces=(NamedRule(name="a-*", capabilities=("submit-job",)),)),
        ),
        (
            'namespace "a" { policy = "deny" }',
            PolicyRules(namespaces=(NamedRule(name="a", policy="deny", capabilities=("deny",)),)),
        ),
        (
            'namespace "a" { variables { path "x/*" { capabilities = ["read"] } } }',
            PolicyRules(
                namespaces=(
                    NamedRule(
                        name="a",
                        variables=(VariableRule(path="x/*", capabilities=("read", "list")),),
                    ),
                )
            ),
        ),
        (
            'node_pool "p" { policy = "write" }',
            PolicyRules(
                node_pools=(
                    NamedRule(name="p", policy="write", capabilities=("delete", "read", "write")),
                )
            ),
        ),
        (
            'path "/a/+" { policy = "read" capabilities = ["sudo", "read"] }',
            PolicyRules(paths=(PathRule(path="a/+", capabilities=("read", "list", "sudo")),)),
        ),
        (
            'path "a" { capabilities = ["read", "deny"] }',
            PolicyRules(paths=(PathRule(path="a", capabilities=("deny",)),)),
        ),
        (
            'path "a" { capabilities = ["update"] allowed_parameters = { "B" = ["c"] "*" = [] } '
            'required_parameters = ["d"] min_wrapping_ttl = "1m" max_wrapping_ttl = 90 }',
            PolicyRules(
                paths=(
                    PathRule(
                        path="a",
                        capabilities=("update",),
                        allowed={"b": ("c",), "*": ()},
                        required=("d",),
                        min_wrap=60,
                        max_wrap=90,
                    ),
                )
            ),
        ),
    ],
)
def test_policy_text_is_parsed_into_rules(text: str, rules: PolicyRules) -> None:
    assert parse_policy(text) == rules


def test_read_and_write_of_a_namespace_expand_to_capabilities() -> None:
    read, write = parse_policy(
        'namespace "a" { policy = "read" } namespace "b" { policy = "write" }'
    ).namespaces
    assert "read-job" in read.capabilities
    assert set(read.capabilities) < set(write.capabilities)
    assert {"submit-job", "alloc-exec"} <= set(write.capabilities) - set(read.capabilities)
    assert "policy-override" not in write.capabilities


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'namespace "default" { policy = "bogus" }',
            'Invalid namespace policy: &acl.NamespacePolicy{Name:"default", Policy:"bogus", '
            "Capabilities:[]string(nil), Variables:(*acl.VariablesPolicy)(nil)}",
        ),
        (
            'namespace "default" { capabilities = ["fly"] }',
            'Invalid namespace capability \'fly\': &acl.NamespacePolicy{Name:"default", Policy:"", '
            'Capabilities:[]string{"fly"}, Variables:(*acl.VariablesPolicy)(nil)}',
        ),
        ('agent { policy = "x" }', 'Invalid agent policy: &acl.AgentPolicy{Policy:"x"}'),
        (
            'agent { capabilities = ["read"] }',
            '1 error occurred:\n\t* agent: invalid key "capabilities" on line 1\n\n',
        ),
        (
            'namespace "a" { capability = ["read-job"] }',
            '1 error occurred:\n\t* namespace "a": invalid key "capability" on line 1\n\n',
        ),
        (
            'node_pool "a" { variables { path "x" { capabilities = ["read"] } } }',
            '1 error occurred:\n\t* node_pool "a": invalid key "variables" on line 0\n\n',
        ),
        (
            'namespace "a" { variables { paths "x" { capabilities = ["read"] } } }',
            '1 error occurred:\n\t* namespace "a": variables: invalid key "paths" on line 0\n\n',
        ),
        (
            'namespace "a" { variables { path "x" { policy = "read" } } }',
            '1 error occurred:\n\t* namespace "a": path "x": invalid key "policy" on line 1\n\n',
        ),
        (
            'namespace "a" { variables { path "" { capabilities = ["read"] } } }',
            'namespace "a": variables: a path must not be empty',
        ),
        ("agent { policy = 1 }", "agent: policy must be a string"),
        ('path "x" { capabilities = ["fly"] }', 'path "x": invalid capability "fly"'),
        ('path "x" { policy = "fly" }', 'path "x": invalid policy "fly"'),
        (
            'path "x" { capability = ["read"] }',
            '1 error occurred:\n\t* path "x": invalid key "capability" on line 1\n\n',
        ),
        (
            'paths "x" { capabilities = ["read"] }',
            '1 error occurred:\n\t* invalid key "paths" on line 0\n\n',
        ),
        (
            'path "x/+*" { capabilities = ["read"] }',
            "path \"x/+*\": invalid use of wildcards ('+*' is forbidden)",
        ),
        (
            'path "x" { capabilities = [1] }',
            'path "x": capabilities must be a list of strings',
        ),
        (
            'path "x" { min_wrapping_ttl = "2m" max_wrapping_ttl = "1m" }',
            'path "x": max_wrapping_ttl cannot be less than min_wrapping_ttl',
        ),
        (
            'namespace "a" { variables { path "x" { capabilities = ["fly"] } } }',
            "Invalid variable capability 'fly' for path 'x'",
        ),
    ],
)
def test_unknown_keyword_is_refused(text: str, message: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_policy(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 129])
def test_a_namespace_that_cannot_exist_is_refused(name: str) -> None:
    with pytest.raises(Malformed, match="Invalid namespace name"):
        parse_policy(f'namespace "{name}" {{ policy = "read" }}')


def test_built_in_policy_is_readable() -> None:
    assert parse_policy(DEFAULT_RULES).paths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('namespace = "x"', "At 1:13: unknown slice type: *ast.LiteralType"),
        ('node_pool =\n  "x"', "At 1:3: unknown slice type: *ast.LiteralType"),
        ('namespace "x" = "read"', "namespace x: write a block in braces"),
        ('namespace = ["x"]', "namespace: write a block in braces"),
        ('{"namespace": {"x": "read"}}', "namespace: write a block in braces"),
        ('path "a" = "read"', "path a: write a block in braces"),
        ('node = "read"', "node: write a block in braces"),
    ],
)
def test_rule_without_braces_is_refused_on_write(text: str, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        check(text)
    parse_policy(text)  # an older version may have stored this text


@pytest.mark.parametrize(
    "text",
    [
        'namespace "x" { policy = "read" }',
        '{"namespace": {"x": {"policy": "read"}}}',
        '{"namespace": [{"x": [{"policy": "read"}]}], "node": null}',
        'node { policy = "read" }',
        "",
    ],
)
def test_rules_in_braces_are_accepted(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Policy(name="no spaces"), "invalid name 'no spaces'"),
        (Policy(name="default"), "it is built in"),
        (Policy(name="p", rules="namespace {"), "failed to parse rules"),
        (Policy(name="p", description="x" * 257), "description"),
    ],
)
def test_policy_to_store_is_refused_with_each_error(policy: Policy, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        check_policy(policy)


def test_policy_to_store_gets_the_hash_of_its_content() -> None:
    first = check_policy(Policy(name="p", rules='agent { policy = "read" }'))
    second = check_policy(Policy(name="p", rules='agent { policy = "write" }'))
    assert first.hash
    assert first.hash != second.hash


@pytest.mark.parametrize(
    "text",
    [
        '{"path": {"a": {"policy": "deny"}}, "path": {"b": {"policy": "read"}}}',
        '{"path": {"a": {"policy": "deny"}, "b": {"policy": "read"}}}',
    ],
)
def test_rule_under_a_repeated_key_of_json_is_kept(text: str) -> None:
    assert [rule.path for rule in parse_policy(text).paths] == ["a", "b"]


def test_policy_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'namespace "parsed-once" { policy = "read" }'
    found = parse_policy(text)
    monkeypatch.setattr(policy_rules, "parse_policy_text", None)
    assert parse_policy(text) is found


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (
            'path "a" { capabilities = ["read"] capabilities = ["deny"] }',
            PolicyRules(paths=(PathRule(path="a", capabilities=("deny",)),)),
        ),
        (
            '{"path": {"a": {"capabilities": ["read"], "capabilities": ["list"]}}}',
            PolicyRules(paths=(PathRule(path="a", capabilities=("read", "list")),)),
        ),
        (
            'namespace "a" { capabilities = ["submit-job"] capabilities = ["read-job"] }',
            PolicyRules(namespaces=(NamedRule(name="a", capabilities=("submit-job", "read-job")),)),
        ),
        (
            'namespace "a" { variables { path "x" { capabilities = ["list"] capabilities = ["deny"] } } }',
            PolicyRules(
                namespaces=(
                    NamedRule(
                        name="a",
                        variables=(VariableRule(path="x", capabilities=("list", "deny")),),
                    ),
                )
            ),
        ),
        (
            'path "a" { allowed_parameters = { k = ["1"] K = ["2"] } '
            'allowed_parameters = { n = [] } required_parameters = ["k"] required_parameters = ["n"] }',
            PolicyRules(
                paths=(
                    PathRule(
                        path="a",
                        capabilities=(),
                        allowed={"k": ("1", "2"), "n": ()},
                        required=("k", "n"),
                    ),
                )
            ),
        ),
        (
            'path "a" { denied_parameters = {} }',
            PolicyRules(paths=(PathRule(path="a", capabilities=()),)),
        ),
    ],
)
def test_repeated_lists_of_a_block_are_joined(text: str, rules: PolicyRules) -> None:
    check(text)
    assert parse_policy(text) == rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'namespace "a" { policy = "write" policy = "deny" }',
            'namespace "a": policy is given 2 times, as "write", "deny": give it once',
        ),
        (
            '{"namespace": {"a": {"policy": "write", "policy": "deny"}}}',
            'policy is given 2 times, as "write", "deny": give it once',
        ),
        (
            'path "policy" { max_wrapping_ttl = 60 max_wrapping_ttl = "2m" }',
            'path "policy": max_wrapping_ttl is given 2 times, as "60", "2m": give it once',
        ),
        (
            'agent { policy = "write" } agent { policy = "deny" }',
            'agent is given 2 times, as "write", "deny": give it once',
        ),
    ],
)
def test_repeated_value_is_refused_on_write(text: str, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        check(text)
    parse_policy(text)  # an older version may have stored this text


def test_paths_named_like_values_may_be_repeated() -> None:
    check('{"path": {"policy": {"policy": "read"}, "agent": {"policy": "read"}}}')
    check('path "policy" { policy = "read" } path "policy" { policy = "deny" }')


@pytest.mark.parametrize(
    "template",
    [
        "{{identity.entity.id}}",
        "{{ identity.entity.metadata.team-name }}",
        "{{identity.entity.aliases.auth_cloudid_1.name}}",
        "{{identity.groups.ids.g-1.metadata.a.b}}",
        "{{identity.groups.names.my group.id}}",
    ],
)
def test_known_template_is_accepted(template: str) -> None:
    check(f'path "x/{template}/*" {{ capabilities = ["read"] }}')


@pytest.mark.parametrize(
    "template",
    [
        "{{identity.entity.aliases.auth_cloudid_1.metadata.vm_name}}",
        "{{identity.entity.identifier}}",
        "{{entity.id}}",
        "{{identity.entity.id",
        "{{time.now}}",
    ],
)
def test_template_without_a_value_is_refused(template: str) -> None:
    text = f'path "x/{template}/*" {{ capabilities = ["deny"] }}'
    with pytest.raises(Malformed, match="unknown template"):
        check(text)
    assert parse_policy(text).paths  # a stored policy stays readable
