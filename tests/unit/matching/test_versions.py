"""Version constraints, compared with Nomad's recorded results."""

import itertools
import json
import time
from pathlib import Path

import pytest

from daemon.matching.versions import VersionDialect, constraint_error, satisfies
from storage.errors import Invalid

GOLDEN = Path(__file__).parents[2] / "wire" / "golden" / "hcl" / "version-constraints.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
OUT_OF_RANGE = (
    'error parsing version: strconv.ParseInt: parsing "9223372036854775808": value out of range'
)

# ---- recorded Nomad results ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "match" in case],
    ids=lambda case: f"{case['constraint']} {case['version']}",
)
def test_version_meets_a_constraint_like_in_nomad(case: dict[str, object]) -> None:
    constraint = str(case["constraint"])
    assert satisfies(str(case["version"]), constraint, VersionDialect.VERSION) is case["match"]
    assert constraint_error(constraint, VersionDialect.VERSION) is None


@pytest.mark.parametrize(
    "case", [case for case in CASES if "error" in case], ids=lambda case: case["error"]
)
def test_invalid_version_gets_the_error_text_of_nomad(case: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refusal:
        satisfies(case["version"], case["constraint"], VersionDialect.VERSION)
    assert str(refusal.value) == case["error"]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "constraint" in case.get("error", "")],
    ids=lambda case: case["error"],
)
def test_invalid_constraint_is_found_without_a_version(case: dict[str, str]) -> None:
    assert constraint_error(case["constraint"], VersionDialect.VERSION) == case["error"]


# ---- dialects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "version", "meets"),
    [
        (">= 5.15", "5.15.1-rc1", True),  # a pre-release is compared only by its order
        (">= 5.15", "5.15.0-91-generic", False),
        ("> 1.0", "1.0.1-beta", True),
        (">= 1.0.0", "1.0.0-rc1", False),
        ("< 2.0, >= 1.2", "1.5.0-alpha", True),
        ("!= 1.0.0", "1.0.0", False),
        ("1.0.0", "1.0.0", True),
        ("= 1.0.0", "1.0.0+build7", True),
        ("> 1.0", "1.0.1beta", True),  # only the constraint is strict
    ],
)
def test_semver_orders_pre_releases(constraint: str, version: str, *, meets: bool) -> None:
    assert satisfies(version, constraint, VersionDialect.SEMVER) is meets


@pytest.mark.parametrize(
    ("constraint", "version", "semver"),
    [
        ("1", None, None),
        ("v1.2.3", None, None),
        (">=1.2,<2", None, None),
        (" > 1 , != 1.5 ", None, None),
        ("1.2.3-beta.1+build", None, None),
        ("1.2.3+meta", None, None),
        ("~> 1.2", None, "Malformed constraint: ~> 1.2"),
        ("1.0beta", None, "Malformed constraint: 1.0beta"),
        ("abc", "malformed constraint: abc", "Malformed constraint: abc"),
        ("=> 1", "malformed constraint: => 1", "Malformed constraint: => 1"),
        ("", "malformed constraint: ", "Malformed constraint: "),
        ("1,", "malformed constraint: ", "Malformed constraint: "),
        ("1.2.x", "malformed constraint: 1.2.x", "Malformed constraint: 1.2.x"),
        ("1.2?", "malformed constraint: 1.2?", "Malformed constraint: 1.2?"),
        ("1\v", "malformed constraint: 1\v", "Malformed constraint: 1\v"),
        ("\u0661", "malformed constraint: \u0661", "Malformed constraint: \u0661"),
        (str(2**63 - 1), None, None),
        ("0" * 5000 + "1", None, None),
        (str(2**63), OUT_OF_RANGE, OUT_OF_RANGE),
    ],
)
def test_each_dialect_reports_unreadable_versions(
    constraint: str, version: str | None, semver: str | None
) -> None:
    assert constraint_error(constraint, VersionDialect.VERSION) == version
    assert constraint_error(constraint, VersionDialect.SEMVER) == semver


# ---- order ----------------------------------------------------------------------------------------

ORDER = ["0.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0-rc.2", "1.0.0-rc.10", "1.0"]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        *itertools.pairwise(ORDER),
        ("1.9", "1.10"),
        ("1.0", "1.0.0.1"),
        ("1.0-1", "1.0-a"),
        ("1.0-2", "1.0-10"),
        ("1.0-a.-5", "1.0-a.3"),
        ("1.0-a.b", "1.0-a"),  # more identifiers make it lower, unless they are numbers
        (f"1.0-{2**63 - 1}", f"1.0-{2**63}"),  # the second one is compared as text
    ],
)
def test_versions_are_ordered_by_numbers_then_by_pre_release(lower: str, higher: str) -> None:
    assert satisfies(lower, f"< {higher}", VersionDialect.SEMVER)
    assert satisfies(higher, f"> {lower}", VersionDialect.SEMVER)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "1.0.0"),
        ("v1.2", "1.2.0"),
        ("1.2.3+a", "1.2.3+b"),
        ("1.2", "1.2.0.0"),
        ("1.2", "1.2.0.0-a"),
    ],
)
def test_equivalent_versions_are_equal(left: str, right: str) -> None:
    assert satisfies(left, right, VersionDialect.SEMVER)
    assert satisfies(right, left, VersionDialect.SEMVER)


@pytest.mark.parametrize(
    ("constraint", "version", "meets"),
    [
        ("~> 1.2.3.4", "1.2.3.9", True),
        ("~> 1.2.3.4", "1.2.3", False),
        ("~> 1.2.0.0", "1.2.3", False),
        ("~> 1.2-beta", "1.2.0", False),
        ("~> 1.2-beta", "1.2.0-rc", True),
    ],
)
def test_pessimistic_operator_fixes_all_numbers_except_the_last(
    constraint: str, version: str, *, meets: bool
) -> None:
    assert satisfies(version, constraint, VersionDialect.VERSION) is meets


# ---- input of any size ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["1" * 100_000, "1." * 50_000 + "x", " " * 100_000 + "x", "1-" + "-" * 100_000 + "!"],
    ids=["digits", "numbers", "spaces", "dashes"],
)
def test_oversized_text_is_refused_quickly(text: str) -> None:
    start = time.process_time()
    assert constraint_error(text, VersionDialect.VERSION) is not None
    with pytest.raises(Invalid):
        satisfies(text, "> 1", VersionDialect.VERSION)
    assert time.process_time() - start < 1
