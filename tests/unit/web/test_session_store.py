"""Sessions of browsers: their maximum number, and the sessions that a new one evicts."""

from itertools import count

import pytest

from daemon.web.session_store import IDLE, MOST, MOST_OF_OWNER, SessionStore


@pytest.fixture
def sessions() -> SessionStore:
    names = map(str, count())
    return SessionStore(lambda: next(names))


def test_many_sessions_of_one_token_do_not_evict_those_of_others(sessions: SessionStore) -> None:
    other, _ = sessions.begin("other", 0)
    mine = [sessions.begin("mine", 1)[0] for _ in range(MOST)]
    assert sessions.has(other, 1)
    assert [item for item in mine if sessions.has(item, 1)] == mine[-MOST_OF_OWNER:]


def test_tokens_of_one_owner_are_counted_together(sessions: SessionStore) -> None:
    other, _ = sessions.begin("other", 0)
    for number in range(MOST):
        sessions.begin(f"token {number}", 1, owner="entity")
    assert sessions.has(other, 1)
    assert len(sessions.all(1)) == MOST_OF_OWNER + 1


def test_most_recently_used_session_of_an_owner_remains(sessions: SessionStore) -> None:
    first, second = (sessions.begin("mine", 0)[0] for _ in range(2))
    for _ in range(MOST_OF_OWNER - 2):
        sessions.begin("mine", 0)
    sessions.find(first.name, 1)
    _, evicted = sessions.begin("mine", 1)
    assert evicted == [second]
    assert sessions.has(first, 1)


def test_new_session_returns_each_evicted_session_once(sessions: SessionStore) -> None:
    made = [sessions.begin(f"token {number}", number)[0] for number in range(MOST)]
    assert sessions.begin("one more", MOST)[1] == made[:1]
    assert sessions.begin("late", IDLE + 10)[1] == made[1:10]
    assert not any(sessions.has(item, IDLE + 10) for item in made[:10])


def test_idle_session_is_evicted_despite_a_later_use_of_its_cookie(
    sessions: SessionStore,
) -> None:
    idle, _ = sessions.begin("mine", 0, is_own=True)
    assert sessions.find(idle.name, IDLE + 1) is None
    assert sessions.begin("other", IDLE + 2)[1] == [idle]


def test_session_is_valid_until_its_idle_time_is_over(sessions: SessionStore) -> None:
    session, _ = sessions.begin("mine", 5)
    assert sessions.has(session, 5 + IDLE)
    assert not sessions.has(session, 5 + IDLE + 1)


def test_use_of_a_session_resets_its_idle_time(sessions: SessionStore) -> None:
    session, _ = sessions.begin("mine", 0)
    assert sessions.find(session.name, IDLE) is session
    assert sessions.has(session, 2 * IDLE)
    assert sessions.find("unknown", 0) is None


def test_most_recently_used_session_is_listed_first(sessions: SessionStore) -> None:
    first, second, third = (sessions.begin(name, 0)[0] for name in "abc")
    sessions.find(first.name, 1)
    assert sessions.all(1) == [first, third, second]
    sessions.end(third.name)
    assert sessions.all(1) == [first, second]
    assert sessions.all(IDLE + 1) == [first]


def test_sessions_have_different_secrets_and_public_identifiers(sessions: SessionStore) -> None:
    first, second = (sessions.begin("mine", 0)[0] for _ in range(2))
    assert len({first.name, first.proof, second.name, second.proof}) == 4
    assert first.id != second.id
    assert len(first.id) == 16
    assert first.name != first.id
