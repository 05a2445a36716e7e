"""Output of tasks for callers without `read-raw-logs`: no visible secret, and correct offsets."""

import base64
import random
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from daemon.api.cluster.masked_log import MaskedLog
from daemon.runner.core.task_log import TaskLog
from daemon.runner.setup.given_secrets import GivenSecrets
from daemon.text.masking import Matcher
from daemon.variables import task_secrets
from daemon.variables.task_secrets import OutputMatchers, TaskSecretStore
from storage.errors import Refused
from storage.queries import secrets
from storage.records.codec import encode
from storage.records.task import LogConfig
from storage.store import Store
from tests.parts.api.requests import SEAL
from tests.task_logs import add, log_in

ALLOC = "3f0c8a52-7b51-4a53-8d7e-111111111111"
SMALL = LogConfig(max_files=3, max_file_size_mb=1)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=%&? "


class Known:
    """Secrets that are given to the test's reader directly."""

    def __init__(self, *secrets: bytes) -> None:
        self.found: Matcher | None = Matcher(secrets)

    async def matcher(self, alloc_id: str) -> Matcher | None:
        assert alloc_id == ALLOC
        return self.found


@pytest.fixture
def log(tmp_path: Path) -> TaskLog:
    (tmp_path / ALLOC / "alloc/logs").mkdir(parents=True)
    return log_in(tmp_path / ALLOC, config=SMALL)


def masked(log: TaskLog, masks: Known | OutputMatchers) -> MaskedLog:
    return MaskedLog(log._logs, log.place, SMALL, masks)


async def everything(log: MaskedLog, rng: random.Random, most: int) -> bytes:
    """Return the whole log, read in pieces of random sizes.

    Both ways to read a piece must have the same result.
    """
    stream, found = await log.current(), b""
    position, end = stream.span()
    while position < end:
        size = rng.randint(1, most)
        chunk = await stream.fetch(position, size)
        assert chunk == stream.read(position, size)
        assert chunk is not None
        found += chunk.data
        position = chunk.end
    return found


def secret_of(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(8, 40))).strip().ljust(8, "x")


def forms_of(secret: str) -> list[bytes]:
    """Return a secret in the forms in which programs print it.

    The forms are: unchanged, as part of a URL, and in base64 after other bytes.
    """
    plain = secret.encode()
    return [
        plain,
        quote(secret, safe="").encode(),
        *(base64.b64encode(b"-" * before + plain + b"-" * (3 - before)) for before in range(3)),
    ]


async def test_secret_is_masked_at_every_chunk_boundary(log: TaskLog) -> None:
    """10,000 secrets, in every encoding, read in pieces from one byte to 4 KiB."""
    chance = random.Random(34)
    for number in range(100):
        secrets = [secret_of(chance) for _ in range(100)]
        forms = [form for secret in secrets for form in forms_of(secret)]
        text = b"".join(
            form + "".join(chance.choices(LETTERS, k=chance.randint(0, 9))).encode() + b"\n"
            for form in chance.sample(forms, 100)
        )
        begin = (await log.current()).span()[1]
        add(log, text)
        masks = Known(*(secret.encode() for secret in secrets))
        stream, found, position = await masked(log, masks).current(), b"", begin
        most = 3 if number == 0 else chance.choice((80, 500, 4096))
        while (chunk := await stream.fetch(position, chance.randint(1, most))) is not None:
            found += chunk.data
            position = chunk.end
        assert len(found) == len(text), number
        assert not [secret for secret in secrets if secret.encode() in found], number
        assert not [form for form in forms if form[4:-4] in found and len(form) > 20], number


async def test_chunked_reads_are_equal_to_one_read(log: TaskLog) -> None:
    chance = random.Random(1)
    secrets = [secret_of(chance).encode() for _ in range(5)]
    text = b"".join(
        b"line %d %s\n" % (number, chance.choice([*secrets, b"-", b"other"]))
        for number in range(400)
    )
    add(log, text)
    assert await everything(masked(log, Known(*secrets)), chance, 40) == Matcher(secrets).mask(text)


async def test_masking_preserves_offsets_across_numbered_files(log: TaskLog) -> None:
    secret = b"correct horse battery"
    text = b"x" * (1024 * 1024 - 10) + secret + b"!\n"
    add(log, text)
    stream = await masked(log, Known(secret)).current()
    chunk = await stream.fetch(1024 * 1024 - 16, 100)
    assert chunk is not None
    assert (chunk.file, chunk.offset, chunk.end) == ("alloc/logs/main.stdout.0", 1 << 20, 1 << 20)
    rest = await stream.fetch(chunk.end, 100)
    assert rest is not None
    assert (chunk.data + rest.data).decode() == "xxxxxx‹masked*********›!\n"


async def test_rest_of_a_secret_truncated_by_rotation_is_masked(log: TaskLog) -> None:
    secret = b"correct horse battery"
    add(log, b"x" * (1024 * 1024 - 10) + secret + b"!" + b"y" * (3 * 1024 * 1024 - 100))
    stream = await masked(log, Known(secret)).current()
    assert stream.span()[0] == 1024 * 1024
    chunk = await stream.fetch(0, 20)
    assert chunk is not None
    assert chunk.data.endswith(b"!" + b"y" * 8)
    assert b"battery" not in chunk.data


async def test_half_written_secret_and_its_rest_are_masked(log: TaskLog) -> None:
    secret = b"correct horse battery"
    add(log, b"> correct ho")
    reader = masked(log, Known(secret))
    first = await (await reader.current()).fetch(0)
    add(log, b"rse battery\n")
    second = await (await reader.current()).fetch(12)
    assert first is not None
    assert second is not None
    assert (first.data + second.data).decode() == "> ‹masked*********›\n"


async def test_follower_masks_secrets_that_are_added_later(log: TaskLog, store: Store) -> None:
    keeper, matchers = TaskSecretStore(store, SEAL), OutputMatchers(store, SEAL)
    ended, seen = trio.Event(), []
    add(log, b"first\n")
    async for chunk in masked(log, matchers).follow(0, ended.is_set):
        if chunk is None:
            continue
        seen.append(chunk.data.decode())
        if len(seen) == 1:
            await keeper.store(ALLOC, ["tr0ub4dor and 3"])
            add(log, b"second tr0ub4dor and 3\n")
            ended.set()
    assert "".join(seen) == "first\nsecond ‹masked***›\n"


async def test_stored_masks_are_deleted_with_their_logs(store: Store) -> None:
    keeper = TaskSecretStore(store, SEAL)
    other = ALLOC.replace("1", "2")
    await keeper.store(ALLOC, ["value one"])
    await keeper.store(ALLOC, ["value two", "value one"])
    await keeper.store(other, ["value three"])

    async def has_logs(alloc_id: str) -> bool:
        return alloc_id == other

    assert await keeper.recall(ALLOC) == ["value one", "value two"]
    await keeper.tidy(has_logs)
    assert await keeper.recall(ALLOC) == []
    assert await keeper.recall(other) == ["value three"]
    assert await OutputMatchers(store, SEAL).matcher(ALLOC) is None


async def test_cached_matchers_are_limited_in_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, matchers = TaskSecretStore(store, SEAL), OutputMatchers(store, SEAL)
    ids = [ALLOC.replace("1", str(number)) for number in (2, 3, 4)]
    for alloc_id in ids:
        await keeper.store(alloc_id, [f"value {number} of {alloc_id}" for number in range(10)])
    first, second = [await matchers.matcher(alloc_id) for alloc_id in ids[:2]]
    most = sum(known.weight for known in matchers._made.values())
    monkeypatch.setattr(task_secrets, "_MOST_FORMS", most)
    await matchers.matcher(ids[2])
    assert await matchers.matcher(ids[1]) is second
    assert await matchers.matcher(ids[0]) is not first
    assert await matchers.matcher(ids[1]) is second
    assert sum(known.weight for known in matchers._made.values()) <= most


async def test_masks_in_use_survive_any_number_of_rotations(store: Store) -> None:
    keeper = TaskSecretStore(store, SEAL)
    static, token = GivenSecrets(keeper, ALLOC, "web"), GivenSecrets(keeper, ALLOC, "side")
    static.add("variable db", "password of db")
    await static.store()
    for number in range(0, 1300, 5):
        token.add("token", *(f"token {number + item:04d}" for item in range(5)))
        await token.store()
    rows = await store.read_any(lambda db: secrets.below(db, f"output/{ALLOC}/"))
    known = await keeper.recall(ALLOC)
    assert len(rows) <= 200
    assert (len(known), known[-1]) == (1000, "token 1299")
    assert "password of db" in known
    assert "token 0300" not in known
    matcher = await OutputMatchers(store, SEAL).matcher(ALLOC)
    assert matcher is not None
    assert matcher.mask_text("password of db") == "‹masked**›"


async def test_mask_of_a_value_used_again_is_stored_again(store: Store) -> None:
    keeper = TaskSecretStore(store, SEAL)
    given = GivenSecrets(keeper, ALLOC, "web")
    for value in ("first value", "other value", "first value"):
        given.add("variable db", value)
        await given.store()
    assert len(await store.read_any(lambda db: secrets.below(db, f"output/{ALLOC}/"))) == 3
    await given.store()
    again = GivenSecrets(keeper, ALLOC, "web")
    await again.recall()
    again.add("variable db", "first value")
    await again.store()
    assert len(await store.read_any(lambda db: secrets.below(db, f"output/{ALLOC}/"))) == 3


async def test_secrets_of_an_earlier_daemon_stay_masked_without_a_stored_start(
    store: Store,
) -> None:
    # the earlier daemon ended after the start of the process, and before it stored the start
    keeper = TaskSecretStore(store, SEAL)
    earlier = GivenSecrets(keeper, ALLOC, "web")
    earlier.add("variable db", "first value")
    await earlier.store()
    later = GivenSecrets(TaskSecretStore(store, SEAL), ALLOC, "web")
    later.add("variable db", "other value")
    await later.store()
    assert [*later] == [b"first value", b"other value"]
    assert await keeper.recall(ALLOC) == ["first value", "other value"]
    again = GivenSecrets(TaskSecretStore(store, SEAL), ALLOC, "web")
    again.add("variable db", "other value")
    await again.store()
    assert len(await store.read_any(lambda db: secrets.below(db, f"output/{ALLOC}/"))) == 2


async def test_two_hundred_deliveries_become_one_row(store: Store) -> None:
    keeper = TaskSecretStore(store, SEAL)
    for number in range(201):
        await keeper.store(ALLOC, [f"value {number}"])
    assert len(await store.read_any(lambda db: secrets.below(db, f"output/{ALLOC}/"))) == 1
    known = await keeper.recall(ALLOC)
    assert (len(known), known[0], known[-1]) == (201, "value 0", "value 200")


async def test_damaged_row_fails_the_delivery(store: Store) -> None:
    await store.write(lambda tx: secrets.put(tx, f"output/{ALLOC}/000000000", b"damaged"))
    with pytest.raises(Refused, match="cannot be recorded"):
        await TaskSecretStore(store, SEAL).store(ALLOC, ["value"])


async def test_matcher_of_many_rows_is_bounded(store: Store) -> None:
    chance = random.Random(3)
    for number in range(20):
        value = "\n".join("".join(chance.choices(LETTERS[:40], k=20)) for _ in range(2000))
        place = f"output/{ALLOC}/{number:09d}"
        sealed = SEAL.seal(encode([value, f"password {number}"]), place)
        await store.write(partial(secrets.put, path=place, sealed=sealed))
    matcher = await OutputMatchers(store, SEAL).matcher(ALLOC)
    assert matcher is not None
    assert len(matcher._forms) == 20_000
    assert matcher.mask_text("password 0") == "‹****›"
