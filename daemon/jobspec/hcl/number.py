"""Numbers: integers and binary fractions of 512 bits, with Nomad's precision.

A number is an `int` if it is integral and a `Fraction` otherwise, so `1.0` and `1` are equal.
"""

from fractions import Fraction

Number = int | Fraction

PRECISION = 512  # bits
MAX_EXPONENT = 1024  # decimal exponent of a literal: far beyond the range of JSON


def read_number(text: str) -> Number:
    """Parse a decimal literal. Raises `ValueError`."""
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > MAX_EXPONENT or (exponent and abs(int(exponent[:8])) > MAX_EXPONENT):
        raise ValueError("a number has at most 1024 digits and an exponent of at most 1024")
    return rounded(int(text) if text.isdigit() else Fraction(text))


def rounded(value: Number) -> Number:
    """Round a number to 512 bits."""
    if isinstance(value, int):
        return value if value.bit_length() <= PRECISION else _nearest(Fraction(value))
    if value.denominator == 1:
        return rounded(value.numerator)
    if _is_binary(value.denominator) and value.numerator.bit_length() <= PRECISION:
        return value
    return _nearest(value)


def _is_binary(denominator: int) -> bool:
    return denominator & (denominator - 1) == 0


def _nearest(value: Fraction) -> Number:
    """Return the nearest number with a 512-bit mantissa; ties round to even."""
    shift = _shift(value)
    above, below = abs(value.numerator) << max(0, shift), value.denominator << max(0, -shift)
    scaled, rest = divmod(above, below)
    if 2 * rest > below or (2 * rest == below and scaled % 2):
        scaled += 1
    if value < 0:
        scaled = -scaled
    if shift <= 0:
        return scaled << -shift
    nearest = Fraction(scaled, 1 << shift)
    return nearest.numerator if nearest.denominator == 1 else nearest


def _shift(value: Fraction) -> int:
    """Return how many bits to shift a number left, so that its integer part has 512 bits.

    The result is negative if the number must be shifted right.
    """
    above, below = abs(value.numerator), value.denominator
    shift = PRECISION - (above.bit_length() - below.bit_length())
    if above << max(0, shift) >= below << max(0, -shift) + PRECISION:
        shift -= 1
    return shift


def number_text(value: Number) -> str:
    """Return the shortest decimal that identifies this number."""
    if isinstance(value, int):
        if value.bit_length() <= PRECISION:
            return str(value)
        value = Fraction(value)
    sign = "-" if value < 0 else ""
    digits, point = shortest_digits(abs(value))
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def shortest_digits(value: Fraction) -> tuple[str, int]:
    """Return the digits of a positive number, and how many precede the decimal point."""
    half = Fraction(2) ** -(_shift(value) + 1)
    point = len(str(value.numerator)) - len(str(value.denominator))
    if value >= Fraction(10) ** point:
        point += 1
    scale = Fraction(10) ** -point  # value * scale is in [0.1, 1)

    def digits(length: int) -> int:
        scaled: Fraction = value * scale * 10**length
        return round(scaled)

    def is_enough(length: int) -> bool:
        return abs(Fraction(digits(length), 10**length) / scale - value) <= half

    least, most = 1, PRECISION
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if is_enough(middle) else (middle + 1, most)
    text = str(digits(least))
    return text.rstrip("0"), point + len(text) - least


def number_size(value: Number) -> int:
    """Return the cost of computing with a number: 1, plus 1 for each 16 bits."""
    return 1 + (value.numerator.bit_length() + value.denominator.bit_length()) // 16


def divide(left: Number, right: Number) -> Number:
    """Return a quotient. Raises `ZeroDivisionError`."""
    return rounded(Fraction(left) / right)


def remainder(left: Number, right: Number) -> Number:
    """Return the remainder, which has the sign of `left`. If `right` is 0, return `left`."""
    if right == 0:
        return left
    quotient = Fraction(left) / right
    truncated = abs(quotient.numerator) // quotient.denominator
    return rounded(left - right * (truncated if quotient >= 0 else -truncated))


def from_float(value: float) -> Number:
    """Convert a float to a number. Raises `ValueError` if it is not finite."""
    try:
        return rounded(Fraction(value))
    except (OverflowError, ValueError) as error:
        raise ValueError("the result is not a finite number") from error


def to_json(value: Number) -> int | float:
    """Convert a number to a type that can be encoded as JSON. Raises `OverflowError`.

    Integers beyond 64 bits become floats, as in Nomad.
    """
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return float(value)
