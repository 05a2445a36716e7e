"""The event stream of pages: the time of a write comes from the objects in its events."""

import msgspec

from daemon.ui import live_updates
from daemon.ui.live_updates import EventLine, shown_line


def line(*payloads: object) -> bytes:
    event = {"Topic": "T", "Type": "X", "Key": "k", "Namespace": "default", "FilterKeys": None}
    events = [{**event, "Payload": payload} for payload in payloads]
    return msgspec.json.encode({"Index": 7, "Events": events})


def shown(*payloads: object) -> dict[str, object]:
    found = shown_line(msgspec.json.decode(line(*payloads), type=EventLine))
    document: dict[str, object] = msgspec.json.decode(msgspec.json.encode(found))
    return document


def test_all_events_of_a_write_have_the_time_of_its_allocation() -> None:
    found = shown({"Job": {"ID": "web"}}, {"Allocation": {"ModifyTime": 1_700_000_000_123_456_789}})
    assert found["Time"] == 1_700_000_000_123
    assert found["Index"] == 7


def test_write_without_timed_objects_has_no_time() -> None:
    assert shown({"Job": {"ID": "web"}}, {"Evaluation": {"ID": "e"}}, None)["Time"] == 0


def test_frame_of_a_line_is_one_message_and_a_heartbeat_a_comment() -> None:
    sent = live_updates.frame(line({"Job": {"ID": "web"}}))
    assert sent.startswith(b'data: {"Index":7,')
    assert sent.endswith(b"\n\n")
    assert live_updates.frame(b"{}").startswith(b": ")


def test_payload_is_not_sent_to_pages() -> None:
    (event,) = shown({"Evaluation": {"ModifyTime": 5_000_000}})["Events"]
    assert event == {
        "Topic": "T",
        "Type": "X",
        "Key": "k",
        "Namespace": "default",
        "FilterKeys": None,
    }
