"""Units, auto-inflate, grants and prices of a configuration, and what a start makes of them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from penstock.catalog.api import Catalog
from penstock.model.entities import Namespace
from penstock.model.errors import ConfigurationError, QuotaExceeded
from penstock.model.names import NamespaceName
from penstock.model.usage import PriceList, Usage
from penstock.service import initial_entities
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import GrantSettings, NamespaceSettings, Settings

NS = NamespaceName("telemetry")
NAMESPACE = '[[namespaces]]\nname = "telemetry"\n'
GRANT = NAMESPACE + '[[namespaces.grants]]\nby = "Ada"\n'

Load = Callable[[str], Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(text: str) -> Settings:
        file = tmp_path / "penstock.toml"
        file.write_text(text)
        return load_settings(flags={"config": file}, environ={})

    return loaded


# --- the file -----------------------------------------------------------------------------------


def test_grants_are_read_one_by_one_or_together(load: Load) -> None:
    text = GRANT + 'throughput_units = 60\nnote = "why"\n'
    text += '[[namespaces.grants]]\nby = "Bo"\nthroughput_units = 100\npartitions = 64\n'
    assert load(text).namespaces[0].grants == (
        GrantSettings(throughput_units=60, by="Ada", note="why"),
        GrantSettings(throughput_units=100, partitions=64, by="Bo"),
    )


def test_units_and_partitions_beyond_the_common_limits_can_be_written(load: Load) -> None:
    text = NAMESPACE + "throughput_units = 300\nmaximum_throughput_units = 400\n"
    text += '[[namespaces.hubs]]\nname = "wide"\npartition_count = 1024\n'
    (namespace,) = load(text).namespaces
    assert (namespace.throughput_units, namespace.maximum_throughput_units) == (300, 400)
    assert namespace.hubs[0].partition_count == 1024


@pytest.mark.parametrize(
    ("line", "most"),
    [("", None), ("maximum_throughput_units = 0", 0), ("throughput_units = 2", None)],
)
def test_auto_inflate_is_off_not_said_or_up_to_a_number(
    load: Load, line: str, most: int | None
) -> None:
    assert load(NAMESPACE + line).namespaces[0].maximum_throughput_units == most


def test_prices_are_exact_to_their_last_digit(load: Load) -> None:
    text = '[prices]\ncurrency = "EUR"\nthroughput_unit_hour = 0.1\negress_gb = "0.123456789"\n'
    assert load(text).prices == PriceList(
        currency="EUR", throughput_unit_hour=Decimal("0.1"), egress_gb=Decimal("0.123456789")
    )
    assert load("").prices is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GRANT, "namespaces[0].grants[0] grants nothing: throughput_units or partitions is needed"),
        (
            NAMESPACE + "[[namespaces.grants]]\npartitions = 64",
            "namespaces[0].grants[0] has no 'by', which it needs",
        ),
        (GRANT + "throughput_units = 20", "is 20: 40, 60, 80, 100 or a multiple of 100 is allowed"),
        (GRANT + "throughput_units = 50", "is 50: 40, 60, 80, 100 or a multiple of 100 is allowed"),
        (GRANT + "partitions = 32", "partitions is 32: a whole number from 33 to 1024 is allowed"),
        (GRANT + "units = 40", "'units' is not a setting"),
        (GRANT + "partitions = 64\nnote = ''", "note is '': a text of 1 to 1024 printable"),
        (NAMESPACE + "maximum_throughput_units = 30", "or 0 for no auto-inflate, is allowed"),
        (
            NAMESPACE + "throughput_units = 20\nmaximum_throughput_units = 10",
            "maximum_throughput_units is 10: at least the 20 of throughput_units, or 0, is allowed",
        ),
        (NAMESPACE + "maximum_throughput_units = false", "is false: a whole number from 1 to 20"),
        (
            NAMESPACE + "tier = 'dedicated'\nmaximum_throughput_units = 3",
            "a dedicated namespace has no throughput units",
        ),
        ("[prices]\nunit = 1", "line 2: 'unit' is not a setting"),
        ("[prices]\negress_gb = -1", "prices.egress_gb is -1: a number from 0 to below 1000000"),
        ("[prices]\negress_gb = nan", "prices.egress_gb is nan: a number from 0"),
        ("[prices]\negress_gb = 'much'", "prices.egress_gb is 'much': a number from 0"),
        ("[prices]\negress_gb = true", "prices.egress_gb is true: a number from 0"),
        ("[prices]\ncurrency = 5", "prices.currency is 5: a text of 1 to 16 printable"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(load: Load, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(text)
    assert sentence in str(refusal.value)


def test_price_of_an_hour_is_the_sum_of_its_parts() -> None:
    prices = PriceList(
        throughput_unit_hour=Decimal("0.03"),
        million_ingress_events=Decimal("0.028"),
        ingress_gb=Decimal(1),
        egress_gb=Decimal(2),
        capture_hour=Decimal("0.1"),
    )
    hour = Usage(
        namespace=NS,
        hour_ms=0,
        units=4,
        ingress_events=500_000,
        ingress_bytes=1 << 30,
        egress_bytes=1 << 29,
        capture_hours=3,
    )
    assert prices.cost(hour) == Decimal("0.12") + Decimal("0.014") + 1 + 1 + Decimal("0.3")
    assert PriceList().cost(hour) == 0


# --- the start ----------------------------------------------------------------------------------


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


def seeded(
    catalog: Catalog, units: int | None, most: int | None = None, now_ms: int = 5
) -> Namespace:
    stated = NamespaceSettings(
        name=NS, throughput_units=units or "unlimited", maximum_throughput_units=most
    )
    return initial_entities.seed_namespace(catalog, stated, now_ms=now_ms)


def granted(catalog: Catalog, value: int, now_ms: int = 1) -> None:
    grant = GrantSettings(throughput_units=value, by="Ada")
    initial_entities.seed_grant(catalog, NS, grant, now_ms=now_ms)


def test_units_without_their_grant_end_the_start(catalog: Catalog) -> None:
    with pytest.raises(QuotaExceeded, match=r"penstock grant telemetry --throughput-units 40"):
        seeded(catalog, 40)
    seeded(catalog, None)
    granted(catalog, 40)
    assert seeded(catalog, 40).throughput_units == 40


def test_grant_that_is_there_is_not_given_again(catalog: Catalog) -> None:
    seeded(catalog, None)
    for now_ms in (1, 2, 3):
        granted(catalog, 40, now_ms)
    assert [entry.at_ms for entry in catalog.audit()] == [1]
    granted(catalog, 60, 4)
    assert [entry.at_ms for entry in catalog.audit()] == [4, 1]


def test_units_changed_by_the_configuration_are_recorded(catalog: Catalog) -> None:
    seeded(catalog, 2)
    seeded(catalog, 3, now_ms=6)
    seeded(catalog, None, now_ms=7)
    assert [(entry.at_ms, entry.who, entry.detail) for entry in catalog.audit()] == [
        (7, "configuration", "'telemetry' holds unlimited throughput units, after 3"),
        (6, "configuration", "'telemetry' holds 3 throughput units, after 2"),
    ]


def test_inflated_units_stay_over_a_restart(catalog: Catalog) -> None:
    seeded(catalog, 2, 10)
    seeded(catalog, 7)  # as auto-inflate did
    assert seeded(catalog, 2, 10).throughput_units == 7
    assert seeded(catalog, 2).throughput_units == 7  # the maximum is remembered
    assert seeded(catalog, 2, 5).throughput_units == 5
    assert seeded(catalog, 2, 0).throughput_units == 2


def test_auto_inflate_stays_as_it_was_when_nobody_speaks_of_it(catalog: Catalog) -> None:
    seeded(catalog, 2, 10)
    assert seeded(catalog, 2).maximum_throughput_units == 10
    assert seeded(catalog, 2, 0).maximum_throughput_units is None
