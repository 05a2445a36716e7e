"""Functions beyond the corpus (tests/wire/test_job_files.py): their results and their errors."""

import pytest

from daemon.jobspec.hcl.functions.table import FUNCTIONS
from tests.unit.jobspec.hcl.build import job, refused, value

OFFERED = """abs base64decode base64encode bcrypt can ceil chomp chunklist cidrhost cidrnetmask cidrsubnet
cidrsubnets coalesce coalescelist compact concat contains convert csvdecode distinct element flatten floor format
formatdate formatlist indent index join jsondecode jsonencode keys length log lookup lower max md5 merge min parseint
pow range regex_replace replace reverse rsadecrypt setintersection setproduct setunion sha1 sha256 sha512 signum slice
sort split strlen strrev substr timeadd title trim trimprefix trimspace trimsuffix try upper urlencode uuidv4 uuidv5
values yamldecode yamlencode zipmap abspath basename dirname file filebase64 fileexists fileset pathexpand"""


def test_exactly_the_functions_of_nomad_are_available() -> None:
    assert set(FUNCTIONS) == set(OFFERED.split())


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        # text
        ('upper("straße")', "STRAßE"),
        ('lower("ÀÉ")', "àé"),
        ('title("o\'neil und 2nd")', "O'Neil Und 2nd"),
        ('trimspace("\\u00a0a\\u3000")', "a"),
        ('chomp("a\\r\\n\\n")', "a"),
        ('indent(0, "a\\nb")', "a\nb"),
        ('substr("hello", 1, 0)', ""),
        ('substr("hello", 9, 2)', ""),
        ('substr("hello", -9, 2)', "he"),
        ('strrev("e\\u0301a")', "aé"),
        ('replace("añb", "", "-")', "-a-ñ-b-"),
        ('regex_replace("a-b", "(\\\\w)-(\\\\w)", "$2$$$1")', "b$a"),
        ('regex_replace("abc", "(?P<first>a)", "$${first}$${none}!")', "a!bc"),
        ('regex_replace("ab", "a", "$1x")', "b"),
        ('regex_replace("ab", "(a)", "$${1}x")', "axb"),
        ('regex_replace("äö", "", ".")', ".ä.ö."),
        ('join("-", ["a"], [], ["b", 1])', "a-b-1"),
        ('split("--", "a--b--")', ["a", "b", ""]),
        # numbers
        ("floor(-0.5)", -1),
        ("ceil(1e30)", 1e30),
        ("log(8, 2)", 3),
        ("pow(2, 70)", 2**70),
        ("max(1, 1.5, 0.1)", 1.5),
        ('parseint("+7", 8)', 7),
        ('parseint("FF", 16)', 255),
        ("signum(2)", 1),
        # collections
        ("length(convert({ a = 1 }, map(number)))", 1),
        ('length(setunion(["a"], ["a"]))', 1),
        ("keys(convert({ b = 1, a = 2 }, map(number)))", ["a", "b"]),
        ("merge()", {}),
        ("merge(null, { a = 1 }, null)", {"a": 1}),
        ('lookup(merge(convert({ a = 1 }, map(number)), null), "b", "7")', 7),
        ("merge({ a = { b = 1 } }, { a = { c = 2 } })", {"a": {"c": 2}}),
        ("concat([], [null])", [None]),
        ("contains([[1]], [1])", True),
        ("contains([1], null)", False),
        ('distinct(["b", "a", "b"])', ["b", "a"]),
        ('element(["a", "b", "c"], -4)', "c"),
        ("flatten([[[1], []], convert([2], set(number))])", [1, 2]),
        ('index(convert({ a = 5 }, map(number)), "a")', 5),
        ('lookup({ a = 1 }, "b", null)', None),
        ('lookup(convert({ a = 1 }, map(number)), "b", "7")', 7),
        ("range(1, 2, 0.25)", [1, 1.25, 1.5, 1.75]),
        ("range(-3)", [0, -1, -2]),
        ("range(5, 5)", []),
        ("slice([1, 2, 3], 1, 1)", []),
        ('sort(["b", "B", "ä", "a"])', ["B", "a", "b", "ä"]),
        ('compact(["", null, "a"])', ["a"]),
        ('chunklist(["a", "b", "c"], 2)', [["a", "b"], ["c"]]),
        ('coalesce(null, "", "a")', ""),
        ("coalescelist([], [1])", [1]),
        ("setunion([3, 1], [10, 2])", [1, 2, 3, 10]),
        ("setintersection([1, 2, 3], [2, 3, 4], [3])", [3]),
        ('setproduct([1], ["a", "b"], [true])', [[1, "a", True], [1, "b", True]]),
        ('zipmap(["a", "b"], [1, "x"])', {"a": 1, "b": "x"}),
        # notations
        ('jsonencode({ b = null, a = "é<" })', '{"a":"é\\u003c","b":null}'),
        ("jsonencode(convert([2, 1], set(number)))", "[1,2]"),
        ("jsonencode([{}, []])", "[{},[]]"),
        ('jsonencode("\\r\\u007f")', '"\\r\\u007f"'),
        ('jsondecode("\\"\\\\ud83d\\\\ude00\\"")', "😀"),
        ('jsondecode("  [1e2, -0.5]  ")', [100, -0.5]),
        ('csvdecode("a,b\\n\\"x,y\\",2\\n")', [{"a": "x,y", "b": "2"}]),
        ('csvdecode("a\\n")', []),
        ('urlencode("a~b*c/d e+f")', "a~b%2Ac%2Fd+e%2Bf"),
        ('base64decode("aGV5\\n")', "hey"),
        ("yamlencode([[1, 2], { a = [], b = {} }])", '- - 1\n  - 2\n- "a": []\n  "b": {}\n'),
        ('yamlencode({ a = "x\\n", b = [true, null] })', '"a": |\n  x\n"b":\n- true\n- null\n'),
        (
            'yamldecode("a: &x {b: 1}\\nc:\\n  <<: *x\\n  d: 2\\n")',
            {"a": {"b": 1}, "c": {"b": 1, "d": 2}},
        ),
        (
            'yamldecode("[yes, \\"yes\\", 0b11, -0x1, .5, 1_0, 12:30]")',
            [True, "yes", 3, -1, 0.5, "1_0", "12:30"],
        ),
        ('yamldecode("2001-12-14T21:59:43Z")', "2001-12-14T21:59:43Z"),
        ('yamldecode("|\\n  a\\n  b\\n")', "a\nb\n"),
        ('yamldecode("1: a\\ntrue: b\\n")', {"1": "a", "true": "b"}),
        # format verbs
        ('format("%v %v %v", 1.5, 1000000, 1234567)', "1.5 1e+06 1.234567e+06"),
        ('format("%d %d", 1000000, 123456789012345678901)', "1000000 123456789012345678901"),
        ('format("%s", 1000000)', "1000000"),
        ('format("%5.1f|%-8.2e|%G", 3.14159, 12345, 1e21)', "  3.1|1.23e+04|1E+21"),
        ('format("%.0f %.1f", 2.5, 0.25)', "2 0.2"),
        ('format("%08.3f|%+05d|% d", -3.14159, 42, 7)', "-003.142|+0042| 7"),
        ('format("%#x %#o %#b", 255, 8, 5)', "0xff 010 0b101"),
        ('format("%x %X %o %b", -255, 255, 8, 5)', "-ff FF 10 101"),
        ('format("%t%%", "true")', "true%"),
        ('format("%-5s|%5s|%.2s", "ab", "añ", "e\\u0301xy")', "ab   |   añ|éx"),
        ('format("%q", "a\\tb")', '"a\\tb"'),
        ('format("%v %#v", { a = 1 }, "x")', '{"a":1} "x"'),
        ('format("%[2]s %s %[1]s", "a", "b", "c")', "b c a"),
        ('format("%g %g %g", 100000, 0.0001, 0.00001)', "100000 0.0001 1e-05"),
        ('format("%.3g", 1234.5)', "1.23e+03"),
        ('formatlist("%s", "alone")', ["alone"]),
        ('formatlist("%s-%d", ["a", "b"], 7)', ["a-7", "b-7"]),
        ('formatlist("%s", [])', []),
        # time
        ('timeadd("2024-02-29T23:59:59.999Z", "1.5s")', "2024-03-01T00:00:00Z"),
        ('timeadd("0999-01-01T00:00:00Z", "0")', "0999-01-01T00:00:00Z"),
        ('timeadd("2024-01-01T00:00:00-03:30", "1h")', "2024-01-01T01:00:00-03:30"),
        ('formatdate("h:mm aa ZZZ", "2024-01-01T00:05:00Z")', "0:05 am UTC"),
        ('formatdate("HH EEEE", "2024-01-01T12:00:00-03:30")', "12 Monday"),
        # addresses
        ('cidrhost("10.0.0.0/30", -1)', "10.0.0.3"),
        ('cidrhost("::/0", 1)', "::1"),
        ('cidrsubnet("10.1.2.3/16", 8, 255)', "10.1.255.0/24"),
        ('cidrsubnets("10.0.0.0/16", 8, 4)', ["10.0.0.0/24", "10.0.16.0/20"]),
        # other functions
        ('uuidv5("url", "http://example.org/")', "715d503b-5f95-5532-9100-00663eb45ade"),
        ("try(local.none.a, null, 3)", None),
        ("can(1 / 0)", False),
        ("convert({ a = 1, b = 2 }, object({ a = string }))", {"a": "1"}),
        ("convert(null, string)", None),
        ('convert(["1", 2], tuple([number, string]))', [1, "2"]),
    ],
)
def test_function_returns_a_value(expression: str, result: object) -> None:
    assert value(expression) == result


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ('indent(-1, "a")', "must not be negative"),
        ("signum(0.5)", "must be a whole number"),
        ("pow(10, 400)", "not a finite number"),
        ("log(0, 10)", "not a finite number"),
        ('parseint("", 10)', 'cannot parse "" as a base 10 integer'),
        ("length({ a = 1 })", "must be a list, a map or a tuple"),
        ('keys("a")', "must have map or object type"),
        ("merge([1])", "arguments must be maps or objects"),
        ("range(0, 5, -1)", "end must be less than start"),
        ("range(1, 0, 1)", "end must be greater than start"),
        ("range(0, 2000)", "more than 1024 values"),
        ("slice([1], 0, 2)", "must not be greater than the length"),
        ('join(",", [null])', "element 0 of list 0 is null"),
        ('sort([["a"]])', "element 0: string required, but have tuple"),
        ("chunklist([1], -1)", "must be positive"),
        ("setproduct([1], 2)", "a set or a list is required"),
        ('jsondecode("")', "unexpected end of JSON input"),
        (f'jsondecode("{" " * 1_000_001}")', "the document has more than 1000000 characters"),
        ('jsondecode("[1")', "unexpected end of JSON input"),
        ('jsondecode("NaN")', "invalid character 'N'"),
        ('jsondecode("nul")', "invalid character"),
        ('csvdecode("a\\n\\"x")', "CSV parse error on line 2"),
        ('yamldecode("a: *none")', "alias"),
        (
            f'yamldecode("a: &a [{"x," * 300}]\\nb: [{"*a," * 300}]")',
            "the document has too many values",
        ),
        ('yamldecode("!!int x")', 'cannot parse "x" as int'),
        ('yamldecode("!custom x")', 'cannot parse "x" as !custom'),
        ('yamldecode("? [a]\\n: b")', "key of a mapping"),
        ('format("%")', "unterminated format verb"),
        ('format("%y", 1)', "unsupported format verb 'y'"),
        ('format("x", 1)', "too many arguments; no verbs"),
        ('format("%s", 1, 2)', "only 1 used"),
        ('format("%s", null)', "null value cannot be formatted"),
        ('format("%d", [1])', "number required, but have tuple"),
        ('formatlist("%s%s", [1], [1, 2])', "argument 2 has length 2"),
        ('formatdate("YYYY \'x", "2024-01-01T00:00:00Z")', "unterminated literal"),
        ('formatdate("YYYY", "2024-13-01T00:00:00Z")', "month must be in 1..12"),
        ('timeadd("9990-01-01T00:00:00Z", "99999h")', "out of range"),
        ('cidrhost("10.0.0.0", 1)', "invalid CIDR address: 10.0.0.0"),
        ('cidrsubnets("10.0.0.0/24", 1, 1, 1)', "not enough remaining address space"),
        ('bcrypt("x", 13)', "at most 12"),
        ('bcrypt("x", 4, 5)', "no more than two"),
        (f'bcrypt("{"x" * 73}", 4)', "exceeds 72 bytes"),
        ('uuidv5("nowhere", "a")', "doesn't support namespace"),
        ('rsadecrypt("AAAA", "no key")', "failed to parse key"),
        ('rsadecrypt("A*", "no key")', 'failed to decode input "A*": cipher text must be base64'),
        ('file("a")', "filesystem function disabled"),
        ("convert(1)", "a value and a type are required"),
        ("convert([1], list)", "list type constructor requires one argument"),
        (
            "convert({ a = 1 }, object({ b = string, c = string }))",
            'attributes "b", "c" are required',
        ),
        ("can()", "exactly one argument"),
        ("nosuch::upper()", 'no function named "nosuch::upper"'),
        ("uper()", 'Did you mean "upper"?'),
        ("upperxx()", 'Did you mean "upper"?'),
        ("max([1]..., 2)", "must be immediately followed by closing parentheses"),
        ("max(5...)", "must be a list, a tuple or a set"),
        ("max(null...)", "must be a list, a tuple or a set"),
    ],
)
def test_function_reports_an_error(expression: str, complaint: str) -> None:
    assert complaint in refused(job(f"r = {expression}"))


def test_text_encrypted_for_a_key_is_decrypted_with_the_same_key() -> None:
    import base64

    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    cipher = base64.b64encode(key.public_key().encrypt(b"hidden", padding.PKCS1v15())).decode()
    written = f'rsadecrypt("{cipher}", <<EOT\n{pem.decode()}EOT\n)'
    assert value(written) == "hidden"


def test_salted_hash_can_be_verified() -> None:
    import bcrypt

    hashed = str(value('bcrypt("secret", 4)'))
    assert bcrypt.checkpw(b"secret", hashed.encode())


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("pow(2, 63) - 1", int),
        ("pow(2, 63)", float),
        ("-pow(2, 63)", int),
        ("-pow(2, 63) - 1", float),
    ],
)
def test_integers_beyond_64_bits_become_floats(expression: str, kind: type) -> None:
    assert type(value(expression)) is kind
