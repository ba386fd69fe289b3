"""Cookies that cannot be forged, forms that cannot be sent for others, guesses that wait."""

from __future__ import annotations

import pytest

from penstock.management.permissions import AdminRole
from penstock.portal.revocations import Revocations
from penstock.portal.sessions import (
    BACKOFF_AFTER,
    BACKOFF_MS,
    IDLE_MS,
    FailedSignIns,
    PortalSession,
    SessionCookies,
)
from penstock.portal.signing import Signer

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def with_secret(secret: str, *, hours: int = 1) -> SessionCookies:
    kept = Revocations(None, now_ms=NOW_MS)
    return SessionCookies(Signer(secret), kept, lifetime_ms=hours * HOUR_MS)


def begun(user: str = "alice") -> PortalSession:
    return PortalSession(user=user, role=AdminRole.VIEWER, began_ms=NOW_MS, seen_ms=NOW_MS)


def made() -> tuple[SessionCookies, str]:
    sessions = with_secret("secret", hours=12)
    return sessions, sessions.cookie(begun())


def test_cookie_is_read_back() -> None:
    sessions, cookie = made()
    session = sessions.read(cookie, now_ms=NOW_MS + 1)
    assert session is not None
    assert (session.user, session.role) == ("alice", AdminRole.VIEWER)


def test_cookie_with_one_bit_changed_is_none() -> None:
    sessions, cookie = made()
    for at in range(0, len(cookie), 7):
        changed = cookie[:at] + ("A" if cookie[at] != "A" else "B") + cookie[at + 1 :]
        assert sessions.read(changed, now_ms=NOW_MS) is None


@pytest.mark.parametrize("cookie", ["", ".", "a.b", "é.x", "x" * 5000, "e30."])
def test_cookie_of_somebody_elses_making_is_none(cookie: str) -> None:
    sessions, _ = made()
    assert sessions.read(cookie, now_ms=NOW_MS) is None


def test_cookie_of_another_service_is_none() -> None:
    _, cookie = made()
    assert with_secret("other").read(cookie, now_ms=NOW_MS) is None


def test_session_ends_by_idleness_by_age_and_by_signing_out() -> None:
    sessions, cookie = made()
    assert sessions.read(cookie, now_ms=NOW_MS + IDLE_MS) is None
    session = sessions.read(cookie, now_ms=NOW_MS)
    assert session is not None
    sessions.end(session, now_ms=NOW_MS)
    assert sessions.read(cookie, now_ms=NOW_MS) is None
    short = with_secret("secret")
    cookie = short.cookie(begun("bob"))
    assert short.read(cookie, now_ms=NOW_MS + HOUR_MS) is None


def test_ids_are_new_each_time_and_form_tokens_belong_to_one_session() -> None:
    sessions, _ = made()
    one, two = begun(), begun()
    assert one.id != two.id
    assert sessions.is_form_token(one, sessions.form_token(one))
    assert not sessions.is_form_token(one, sessions.form_token(two))
    assert not sessions.is_form_token(one, "")
    assert not sessions.is_form_token(one, "é")


def test_guess_is_counted_before_it_is_known_to_be_wrong() -> None:
    guesses = FailedSignIns()
    begun = [guesses.begin("here", now_ms=NOW_MS) for _ in range(150)]
    assert begun.count(0) == BACKOFF_AFTER + 1


def test_wrong_guesses_wait_longer_each_time_and_a_right_one_clears() -> None:
    guesses = FailedSignIns()
    for _ in range(BACKOFF_AFTER):
        assert guesses.begin("here", now_ms=NOW_MS) == 0
    assert guesses.wait_ms("here", now_ms=NOW_MS) == 0
    waits, now_ms = [], NOW_MS
    for _ in range(12):
        assert guesses.begin("here", now_ms=now_ms) == 0
        waits.append(guesses.wait_ms("here", now_ms=now_ms))
        # Not counted, and no shorter for it.
        assert guesses.begin("elsewhere", "here", now_ms=now_ms) == waits[-1]
        now_ms += waits[-1]
    assert waits[:4] == [1000, 2000, 4000, 8000]
    assert waits[-1] == BACKOFF_MS[1]
    assert guesses.wait_ms("elsewhere", now_ms=NOW_MS) == 0
    guesses.right("here")
    assert guesses.wait_ms("here", now_ms=NOW_MS) == 0
