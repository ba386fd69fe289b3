"""Shared access signatures: parse, sign and verify them, and the grants they give. No clock.

Gateways use `verify_sas_token` (CBS, `security_token`, HTTP), `grant_from_key` (SASL PLAIN),
`revalidate_grant` (a policy changed while links are open) and `Grant.allows` (each attach and
request).
"""
