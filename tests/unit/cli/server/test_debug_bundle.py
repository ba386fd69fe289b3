"""What leaves the machine in a debug bundle holds no secret."""

from __future__ import annotations

import pytest

from penstock.cli.server.debug_bundle import SecretRedactor

KEY = "pW3dJ5nXg0q2Yk1m+/abcdefghijklmnopqrstuvwx4="


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://x/;SharedAccessKeyName=p;SharedAccessKey={KEY}",
        f'{{"connection_string": "Endpoint=sb://x/;SharedAccessKey={KEY};EntityPath=e"}}',
        f"SharedAccessSignature sr=sb%3A%2F%2Fx&sig={KEY}&se=1&skn=p",
        f"Authorization: Bearer {KEY}",
        f'"admin_token": "{KEY}"',
        f'"primary_key": "{KEY}"',
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    said = SecretRedactor(iter(()))(text)
    assert KEY not in said
    assert "***" in said


def test_token_is_known_by_its_form() -> None:
    said = SecretRedactor(iter(()))("token eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl of admin")
    assert said == "token eyJ*** of admin"


def test_secret_that_is_known_is_taken_out_wherever_it_stands() -> None:
    redact = SecretRedactor(iter([KEY, KEY[:20], "short"]))
    assert redact(f"a short word and {KEY} and {KEY[:20]}") == "a short word and *** and ***"
