"""Hash, decryption and identifier functions. The caller supplies the randomness."""

import base64
import binascii
import hashlib
from itertools import pairwise

from daemon.jobspec.hcl.functions.registry import function, text, whole_number
from daemon.jobspec.hcl.scope import FunctionEnvironment, FunctionFault, HclFunction, Parameter
from daemon.jobspec.hcl.values import NUMBER, Value

# The cost of a bcrypt hash: it doubles with each step of the cost factor.
_LEAST_FACTOR, _MOST_FACTOR, _DEFAULT_FACTOR = 4, 12, 10
_STEPS_PER_ROUND = 40  # budget units, measured
_SALT = 16  # bytes
_MAX_PASSWORD = 72  # bytes: bcrypt ignores the rest

_NAMESPACES = {
    "dns": "6ba7b8109dad11d180b400c04fd430c8",
    "url": "6ba7b8119dad11d180b400c04fd430c8",
    "oid": "6ba7b8129dad11d180b400c04fd430c8",
    "x500": "6ba7b8149dad11d180b400c04fd430c8",
}
_STANDARD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_OF_BCRYPT = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _hash(name: str) -> HclFunction:
    def run(value: str) -> Value:
        return hashlib.new(name, value.encode(), usedforsecurity=False).hexdigest()

    return function(run, text("str"))


def _factor(values: tuple[Value, ...]) -> int:
    """Return the cost factor of a call; values below the minimum select the default."""
    factor = whole_number(values[1], "the cost") if len(values) > 1 else _DEFAULT_FACTOR
    return factor if factor >= _LEAST_FACTOR else _DEFAULT_FACTOR


def _bcrypt(values: tuple[Value, ...], outside: FunctionEnvironment) -> Value:
    import bcrypt  # a native library that few job files need

    password, factor = str(values[0]).encode(), _factor(values)
    if len(values) > 2:
        raise FunctionFault("bcrypt() takes no more than two arguments")
    if factor > _MOST_FACTOR:
        raise FunctionFault(f"the cost may be at most {_MOST_FACTOR}")
    if len(password) > _MAX_PASSWORD:
        raise FunctionFault(f"password length exceeds {_MAX_PASSWORD} bytes")
    digits = base64.b64encode(outside.random(_SALT)).decode().rstrip("=")
    salt = digits.translate(str.maketrans(_STANDARD, _OF_BCRYPT))
    return bcrypt.hashpw(password, f"$2a${factor:02}${salt}".encode()).decode()


def _bcrypt_cost(values: tuple[Value, ...]) -> int:
    return (1 << min(_factor(values), _MOST_FACTOR)) * _STEPS_PER_ROUND


def _rsadecrypt(cipher: str, key: str) -> Value:
    try:
        data = base64.b64decode(cipher, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FunctionFault(
            f'failed to decode input "{cipher[:50]}": cipher text must be base64-encoded'
        ) from error
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise FunctionFault("failed to parse key: no PEM data, or not a private key") from error
    if not isinstance(loaded, rsa.RSAPrivateKey):
        raise FunctionFault("failed to parse key: it is not an RSA key")
    try:
        return loaded.decrypt(data, padding.PKCS1v15()).decode()
    except ValueError as error:
        raise FunctionFault("failed to decrypt: the text was encrypted for another key") from error


def _uuid(raw: bytes, version: int) -> str:
    bits = int.from_bytes(raw[:16], "big")
    bits = bits & ~(0xF << 76) | version << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    digits = f"{bits:032x}"
    cuts = (0, 8, 12, 16, 20, 32)
    return "-".join([digits[a:b] for a, b in pairwise(cuts)])


def _uuidv5(namespace: str, name: str) -> Value:
    digits = _NAMESPACES.get(namespace, namespace.replace("-", "").lower())
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise FunctionFault(
            f"uuidv5() doesn't support namespace {namespace[:50]}: use dns, url, oid, x500 or a "
            "UUID"
        )
    return _uuid(hashlib.sha1(raw + name.encode(), usedforsecurity=False).digest(), 5)


FUNCTIONS: dict[str, HclFunction] = {
    **{name: _hash(name) for name in ("md5", "sha1", "sha256", "sha512")},
    "bcrypt": HclFunction(
        parameters=(text("str"),), rest=Parameter("cost", NUMBER), run=_bcrypt, cost=_bcrypt_cost
    ),
    "rsadecrypt": function(_rsadecrypt, text("ciphertext"), text("privatekey")),
    "uuidv4": HclFunction(run=lambda _, outside: _uuid(outside.random(16), 4)),
    "uuidv5": function(_uuidv5, text("namespace"), text("name")),
}
