"""Shared access signatures: parse, sign and verify them, and the grants they give. No clock.

Gateways use `verify_sas_token` (CBS, `security_token`, HTTP), `grant_from_key` (SASL PLAIN),
`revalidate_grant` (a policy changed while links are open) and `Grant.allows` (each attach and
request).
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
