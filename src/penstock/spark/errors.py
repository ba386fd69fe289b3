"""What a query ends with. Spark carries an exception's text, so the text says everything."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.client.errors import ClientError, plain_text
from penstock.model.errors import PenstockError

_log = logging.getLogger("penstock.spark")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the client's errors again with one plain sentence, without what the protocol puts
    around it. With debug logging (of this logger, or PENSTOCK_LOG_LEVEL=debug in the environment of
    Spark's Python workers) they keep the protocol's text."""
    try:
        yield
    except ClientError as error:
        text = plain_text(str(error))
        is_debug = os.environ.get("PENSTOCK_LOG_LEVEL", "").lower() == "debug"
        if text == str(error) or is_debug or _log.isEnabledFor(logging.DEBUG):
            raise
        raise type(error)(text, error.error) from None


class DataLoss(PenstockError):
    """Events that the query should have read are not there any more (`failOnDataLoss`)."""

    condition = "com.microsoft:argument-out-of-range"
    http_status = 410


def events_gone(hub: str, partition_id: str, first: int, end: int, begins: int | None) -> DataLoss:
    """Events `first` to `end - 1` were not there when they were to be read."""
    now = "it holds none now" if begins is None else f"it begins with event {begins} now"
    return DataLoss(
        f"Events {first} to {end - 1} of partition {partition_id} of hub {hub!r} are gone: {now} "
        "(retention was quicker than this query, or the hub was made anew). Set "
        "failOnDataLoss=false to go on without them."
    )


def position_beyond_end(hub: str, partition_id: str, wanted: int, end: int) -> DataLoss:
    return DataLoss(
        f"Event {wanted} of partition {partition_id} of hub {hub!r} does not exist: the next one "
        f"will have the number {end}. The position is wrong, or the hub was deleted and made anew "
        "since it was noted. Set failOnDataLoss=false to go on with what is there."
    )


def hub_recreated(hub: str) -> DataLoss:
    return DataLoss(
        f"The hub {hub!r} was deleted and made anew since the query read it: its events begin with "
        "0 again, and what was not read before is lost. Start with a new checkpointLocation, or "
        "set failOnDataLoss=false to read the new hub from its beginning."
    )
