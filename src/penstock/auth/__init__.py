"""Shared access signatures: parse, sign, verify, and the grants they give. Pure; no clock.

Names a door needs: `verify` (CBS, `security_token`, HTTP), `grant_from_key` (SASL PLAIN),
`renewed` (a policy changed while links are open), `Grant.allows` (each attach and request).
"""

from __future__ import annotations

from penstock.auth.grant import Grant, missing_claim_text
from penstock.auth.resource import Resource, parse_resource, path_covers
from penstock.auth.sas import (
    Authority,
    SasToken,
    grant_from_key,
    parse_token,
    revalidate_grant,
    sign,
    verify_sas_token,
)

__all__ = [
    "Authority",
    "Grant",
    "Resource",
    "SasToken",
    "grant_from_key",
    "missing_claim_text",
    "parse_resource",
    "parse_token",
    "path_covers",
    "revalidate_grant",
    "sign",
    "verify_sas_token",
]
