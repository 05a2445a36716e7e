"""The animated picture of the README shows what a terminal would show."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    path = ROOT / "packaging/docs/recording.py"
    spec = importlib.util.spec_from_file_location("recording", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recording"] = module
    spec.loader.exec_module(module)
    return module


def shown(recording: ModuleType, text: str) -> list[str]:
    screen = recording.Screen()
    screen.write(text)
    return [re.sub(r"<[^>]*>", "", row) for row in screen.visible()]


def test_rewritten_lines_replace_the_old_lines(recording: ModuleType) -> None:
    progress = "one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\r\nfour"
    assert shown(recording, progress) == ["three", "four"]


def test_long_lines_are_wrapped_and_spaces_at_the_end_removed(recording: ModuleType) -> None:
    assert shown(recording, "x" * (recording.COLUMNS + 2) + "   ") == [
        "x" * recording.COLUMNS,
        "xx",
    ]


def test_colors_become_classes_and_markup_is_escaped(recording: ModuleType) -> None:
    screen = recording.Screen()
    screen.write("\x1b[32m<b>\x1b[0m&")
    (row,) = screen.visible()
    assert 'class="c32">&lt;b&gt;</tspan>' in row
    assert row.endswith(">&amp;</tspan>")


def test_rows_are_visible_from_their_frame_to_the_next_change(recording: ModuleType) -> None:
    frames = [
        recording.Frame(0.0, ["a"]),
        recording.Frame(1.0, ["a", "b"]),
        recording.Frame(3.0, []),
    ]
    picture = recording.picture(frames, 4.0)
    assert "0.0%{visibility:visible}75.0%{visibility:hidden}" in picture
    assert "25.0%{visibility:visible}75.0%{visibility:hidden}" in picture
    assert picture.count("<text ") == picture.count("</text>") == 2
