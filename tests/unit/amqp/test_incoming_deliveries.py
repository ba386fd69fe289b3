"""Deliveries of several frames: what is kept, what is counted, what is refused."""

from __future__ import annotations

import pytest

from penstock.amqp.errors import RemoteLinkError
from penstock.amqp.incoming_deliveries import IncomingDelivery
from penstock.amqp.performatives import Transfer


def build_transfer(delivery_id: int | None = None, *, settled: bool | None = None) -> Transfer:
    return Transfer(handle=0, delivery_id=delivery_id, settled=settled)


def add_frame(delivery: IncomingDelivery, payload: bytes, size_max: int = 10) -> int:
    delivery.count_frame(build_transfer(), payload, size_max=size_max, link_name="n")
    return delivery.keep(payload)


def test_frames_are_joined_in_order() -> None:
    delivery = IncomingDelivery(build_transfer(7), "n")
    assert [add_frame(delivery, b"ab"), add_frame(delivery, b"cd")] == [2, 2]
    assert delivery.kept_bytes == 4
    assert delivery.join(b"e") == b"abcde"


def test_single_frame_is_not_copied() -> None:
    payload = b"only one frame"
    assert IncomingDelivery(build_transfer(7), "n").join(payload) is payload


def test_oversized_delivery_keeps_its_size_and_no_bytes() -> None:
    delivery = IncomingDelivery(build_transfer(7), "n")
    assert add_frame(delivery, b"12345678") == 8
    assert add_frame(delivery, b"901") == -8
    assert add_frame(delivery, b"x" * 100) == 0
    assert delivery.is_oversized
    assert (delivery.size, delivery.kept_bytes) == (111, 0)


def test_any_frame_may_settle_the_delivery() -> None:
    delivery = IncomingDelivery(build_transfer(7), "n")
    for settled in (None, True, False):
        transfer = build_transfer(7, settled=settled)
        delivery.count_frame(transfer, b"", size_max=10, link_name="n")
    assert delivery.settled


def test_delivery_id_is_needed_at_first_and_may_not_change() -> None:
    with pytest.raises(RemoteLinkError, match="'n' has no delivery-id"):
        IncomingDelivery(build_transfer(), "n")
    delivery = IncomingDelivery(build_transfer(7), "n")
    with pytest.raises(RemoteLinkError, match=r"Delivery 8 arrived .* before delivery 7"):
        delivery.count_frame(build_transfer(8), b"", size_max=10, link_name="n")
