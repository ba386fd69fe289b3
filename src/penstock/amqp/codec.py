"""AMQP values to bytes and back: the codec's public face.

`encode` writes the smallest encoding; `decode` accepts every one, within `DecodeLimits`; `skip`
finds where a value ends. The work is in `encoder` and `decoder`.
"""

from __future__ import annotations

from penstock.amqp.decoder import DEFAULT, DecodeLimits, decode, skip
from penstock.amqp.encoder import encode, encode_into

__all__ = ["DEFAULT", "DecodeLimits", "decode", "encode", "encode_into", "skip"]
