"""Long JSON documents that are decoded in pieces."""

import msgspec
import pytest

from storage import json_pieces
from storage.loop_share import AT_ONCE
from storage.queries import jobs
from storage.read_pool import ReadSnapshot
from storage.records.job import Job
from storage.store import Store
from tests.samples import group, job

LONG = "x" * AT_ONCE


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "x",
        LONG,
        [LONG, None, {"a": LONG}],
        {"a": [{"b": [1, 2.5, True, LONG]}, LONG], "": LONG},
        [[[[[LONG]]]]],
    ],
)
def test_document_decoded_in_chunks_has_the_same_value(value: object) -> None:
    text = msgspec.json.encode(value)
    assert json_pieces.decode(text) == msgspec.json.decode(text)


@pytest.mark.parametrize("end", [b"", b"]]", b",]", b'"'])
def test_an_invalid_document_is_refused(end: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        json_pieces.decode(msgspec.json.encode([LONG, LONG])[:-1] + end)


def test_decoder_gets_at_most_one_chunk_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    whole = msgspec.json.decode

    def noting(text: bytes) -> object:
        lengths.append(len(text))
        return whole(text)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    json_pieces.decode(msgspec.json.encode({"a": [{"b": "x" * 1000}] * 2000}))
    assert len(lengths) == 2000
    assert max(lengths) < AT_ONCE


@pytest.mark.parametrize("number", [0, 1, 400])
async def test_definition_decoded_in_chunks_is_the_same_job(store: Store, number: int) -> None:
    made = job("long", *(group(f"g{at}") for at in range(number)), meta={"a": LONG * 2})
    if not number:
        made = msgspec.structs.replace(made, task_groups=None)
    await store.write(lambda tx: jobs.append_version(tx, made))

    def read(db: ReadSnapshot) -> tuple[Job, Job]:
        found = jobs.current_wire(db, "default", "long")
        one = jobs.current(db, "default", "long")
        assert found is not None
        assert one is not None
        return one, msgspec.json.decode(found[0], type=Job)

    one, whole = store.read(read)
    assert one == whole
    assert len(one.task_groups or ()) == number
