"""For random policies and requests, the decision is that of evaluators too simple to be wrong."""

import re

from hypothesis import given
from hypothesis import strategies as st

from daemon.acl.grant import CapabilitySet
from daemon.acl.policy_rules import parse_policy

SEGMENTS = st.sampled_from(["a", "b", "ab", ""])
PATHS = (
    st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join).filter(lambda item: item[:1] != "/")
)
PATTERN_SEGMENTS = st.sampled_from(["a", "b", "ab", "+", "a+", "*"])
PATTERNS = st.tuples(
    st.lists(PATTERN_SEGMENTS, min_size=1, max_size=4).map("/".join), st.sampled_from(["", "*"])
).map("".join)
WORDS = ("read", "update", "list", "deny")
RULES = st.dictionaries(
    PATTERNS.filter(lambda item: "+*" not in item), st.sets(st.sampled_from(WORDS), min_size=1)
)
POLICIES = st.lists(RULES, max_size=3)

NAMES = st.text("ab*", min_size=1, max_size=4)
NAMESPACE_WORDS = ("read-job", "submit-job", "deny")
NAMESPACE_RULES = st.dictionaries(NAMES, st.sets(st.sampled_from(NAMESPACE_WORDS), min_size=1))


def text(kind: str, rules: dict[str, set[str]]) -> str:
    blocks = []
    for label, words in rules.items():
        listed = ", ".join(f'"{word}"' for word in sorted(words))
        blocks.append(f'{kind} "{label}" {{ capabilities = [{listed}] }}')
    return "\n".join(blocks)


def reference(policies: list[dict[str, set[str]]], path: str) -> set[str]:
    """Return the permissions at a path, by the documented rules."""

    def key(rule: str) -> tuple[object, ...]:
        wild = [m.start() for m in re.finditer(r"(?:(?<=/)|^)\+(?=/|$)|\*$", rule)]
        plus = [part for part in rule.split("/") if part == "+"]
        return (
            not wild,
            wild[0] if wild else 0,
            not rule.endswith("*"),
            -len(plus),
            len(rule),
            rule,
        )

    def fits(rule: str) -> bool:
        body = "/".join(
            "[^/]*" if part == "+" else re.escape(part)
            for part in rule.removesuffix("*").split("/")
        )
        return (
            re.fullmatch(body + (".*" if rule.endswith("*") else ""), path, re.DOTALL) is not None
        )

    rules = {rule for policy in policies for rule in policy if fits(rule)}
    words = (
        set().union(*(policy.get(max(rules, key=key), set()) for policy in policies))
        if rules
        else set()
    )
    return set() if "deny" in words else words


@given(POLICIES, PATHS)
def test_path_decisions_match_the_reference_model(
    policies: list[dict[str, set[str]]], path: str
) -> None:
    grant = CapabilitySet(
        [(str(n), parse_policy(text("path", one))) for n, one in enumerate(policies)]
    )
    path_permission = grant.permission(path)
    assert (set(path_permission.capabilities) if path_permission else set()) == reference(
        policies, path
    )


def namespace_reference(policies: list[dict[str, set[str]]], name: str) -> set[str]:
    """Return the permissions in a namespace, by the documented rules."""

    def fits(rule: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, rule.split("*"))), name) is not None

    rules = {rule for policy in policies for rule in policy if fits(rule)}
    open_characters = {rule: len(name) - len(rule.replace("*", "")) for rule in rules}
    closest = (
        name
        if name in rules
        else min(rules, key=lambda rule: (open_characters[rule], rule), default="")
    )
    words = set().union(*(policy.get(closest, set()) for policy in policies), set())
    return set() if "deny" in words else words


@given(st.lists(NAMESPACE_RULES, max_size=3), st.text("ab", min_size=1, max_size=4))
def test_namespace_decisions_match_the_reference_model(
    policies: list[dict[str, set[str]]], name: str
) -> None:
    grant = CapabilitySet(
        [(str(n), parse_policy(text("namespace", one))) for n, one in enumerate(policies)]
    )
    allowed = {word for word in NAMESPACE_WORDS if grant.may(name, word)}
    assert allowed == namespace_reference(policies, name)


@given(POLICIES, PATHS)
def test_additional_policy_with_a_denial_never_allows_more(
    policies: list[dict[str, set[str]]], path: str
) -> None:
    denial = {path: {"deny"}}
    grant = CapabilitySet(
        [(str(n), parse_policy(text("path", one))) for n, one in enumerate([*policies, denial])]
    )
    assert grant.capabilities(path) == ["deny"]
