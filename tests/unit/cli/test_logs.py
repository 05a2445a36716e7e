import base64
from collections.abc import Sequence

import pytest

from daemon.cli.commands.logs import frames, last_lines, position
from daemon.cli.core.responses import LogFrame


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"10%\r20%\r30%\ndone\n", 2, b"10%\r20%\r30%\ndone\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
    ],
)
def test_last_lines_of_a_text_are_counted_by_newlines_only(
    text: bytes, count: int, lines: bytes
) -> None:
    assert last_lines(text, count) == lines


def wire(data: bytes, file: str, offset: int) -> bytes:
    coded = base64.b64encode(data).decode()
    return f'{{"Data": "{coded}", "File": "{file}", "Offset": {offset}}}'.encode()


STREAM = wire(b"one", "alloc/logs/Ü{.stdout.0", 3) + b"{}" + wire(b"two", "x.stdout.1", 6)


@pytest.mark.parametrize(
    "pieces",
    [
        [STREAM],
        [STREAM[:10], STREAM[10:]],
        [bytes([byte]) for byte in STREAM],
        [STREAM.replace(b"}{", b"}\n{")],
    ],
    ids=["whole", "cut", "bytes", "lines"],
)
def test_frames_are_found_at_any_split_of_the_stream(pieces: Sequence[bytes]) -> None:
    found = list(frames(iter(pieces)))
    assert found == [
        LogFrame(data=b"one", file="alloc/logs/Ü{.stdout.0", offset=3),
        LogFrame(data=b"two", file="x.stdout.1", offset=6),
    ]


def test_log_positions_are_ordered_by_file_and_offset() -> None:
    places = [("m.stdout.10", 1), ("m.stdout.9", 500), ("m.stdout.9", 20)]
    ordered = sorted(position(LogFrame(file=file, offset=offset)) for file, offset in places)
    assert ordered == [(9, 20), (9, 500), (10, 1)]
