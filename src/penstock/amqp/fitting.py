"""A performative as a frame that the peer takes: errors are shortened where they must be."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.amqp.frames import encode_frame
from penstock.amqp.performatives import (
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Performative,
    Rejected,
    encode_performative,
)


def encode_fitting_frame(
    channel: int, performative: Performative, *, frame_bytes_max: int
) -> bytes:
    """One frame of at most `frame_bytes_max` (512 or more) bytes.

    Only the text of an error is cut. Nothing else that we send can be as long as 512 bytes but an
    attach, which its link looks after, and an open, which comes before anything was agreed.
    """
    frame = encode_frame(channel, encode_performative(performative))
    surplus = len(frame) - frame_bytes_max
    if surplus > 0:
        frame = encode_frame(channel, encode_performative(_shorten_error(performative, surplus)))
    return frame


def _shorten_error(performative: Performative, surplus: int) -> Performative:
    if isinstance(performative, Detach | End | Close):
        return replace(performative, error=_truncate_description(performative.error, surplus))
    if isinstance(performative, Disposition) and isinstance(performative.state, Rejected):
        return replace(
            performative,
            state=Rejected(error=_truncate_description(performative.state.error, surplus)),
        )
    return performative


def _truncate_description(error: Error | None, surplus: int) -> Error | None:
    if error is None or error.description is None:
        return error
    text = error.description.encode()
    kept = text[: max(0, len(text) - surplus)]
    return replace(error, description=kept.decode(errors="ignore"))
