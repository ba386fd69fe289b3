"""What a captureDescription may say (protocol.md 7.3, 9)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.capture import description as capture
from penstock.model.errors import ArgumentError, ArgumentOutOfRange

FORMAT = "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"
DESTINATION = {
    "name": "EventHubArchive.AzureBlockBlob",
    "properties": {"storageAccountResourceId": "store", "blobContainer": "events"},
}


def description(**changes: Any) -> dict[str, Any]:
    return {"enabled": True, "destination": DESTINATION} | changes


def test_defaults_are_filled_in() -> None:
    assert capture.check_description(description()) == {
        "enabled": True,
        "encoding": "Avro",
        "intervalInSeconds": 300,
        "sizeLimitInBytes": 314_572_800,
        "skipEmptyArchives": False,
        "destination": {
            "name": "EventHubArchive.AzureBlockBlob",
            "properties": {
                "storageAccountResourceId": "store",
                "blobContainer": "events",
                "archiveNameFormat": FORMAT,
            },
        },
    }


def test_what_is_checked_once_stays_as_it_is() -> None:
    once = capture.check_description(description(encoding="AvroDeflate", skipEmptyArchives=True))
    assert capture.check_description(once) == once


def test_capture_that_is_off_needs_no_destination() -> None:
    assert "destination" not in capture.check_description({"enabled": False})


@pytest.mark.parametrize(("field", "least", "most"), [
    ("intervalInSeconds", 60, 900),
    ("sizeLimitInBytes", 10_485_760, 524_288_000),
])  # fmt: skip
def test_numbers_have_their_range(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert capture.check_description(description(**{field: value}))[field] == value
    for value in (least - 1, most + 1, -1):
        with pytest.raises(ArgumentOutOfRange, match=f"{least} to {most}"):
            capture.check_description(description(**{field: value}))
    for wrong in ("300", 300.5, True, [300]):
        with pytest.raises(ArgumentError):
            capture.check_description(description(**{field: wrong}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": True},
        description(enabled="yes"),
        description(encoding="Json"),
        description(skipEmptyArchives=1),
        description(destination=[]),
        description(destination={"name": "Elsewhere"}),
        description(destination={"properties": {"blobContainer": "c"}}),
        description(destination={"properties": {"storageAccountResourceId": "s"}}),
        description(destination={"properties": 5}),
        description(destination=DESTINATION | {"identity": "x"}),
        description(
            destination={"properties": {"storageAccountResourceId": "s\n", "blobContainer": "c"}}
        ),
    ],
    ids=lambda wrong: str(wrong)[-60:],
)
def test_descriptions_that_say_nothing_useful_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        capture.check_description(wrong)


@pytest.mark.parametrize("token", capture.TOKENS)
def test_name_format_needs_each_token(token: str) -> None:
    with pytest.raises(ArgumentError, match=token):
        capture.check_name_format(FORMAT.replace(f"{{{token}}}", "x"))


@pytest.mark.parametrize(
    "text",
    [
        f"raw/{FORMAT}",
        "{Year}-{Month}-{Day}/{Hour}={Minute}.{Second}/{Namespace} {EventHub}_{PartitionId}",
    ],
)
def test_name_format_takes_any_order(text: str) -> None:
    assert capture.check_name_format(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"/{FORMAT}",
        f"../{FORMAT}",
        f"a/../{FORMAT}",
        f"./{FORMAT}",
        f"a//{FORMAT}",
        f"{FORMAT}/",
        f"{FORMAT}{{Unknown}}",
        f"{FORMAT}{{",
        f"{FORMAT}\\x",
        f"{FORMAT}\x00",
        f"{FORMAT}:x",
        f"{FORMAT}é",
        FORMAT + "x" * 512,
    ],
)
def test_name_format_does_not_lead_out_of_the_container(text: str) -> None:
    with pytest.raises(ArgumentError):
        capture.check_name_format(text)


def test_a_data_lake_is_an_account_and_a_folder() -> None:
    properties = {"dataLakeAccountName": "lake", "dataLakeFolderPath": "/raw/hubs/"}
    destination = {"name": "EventHubArchive.AzureDataLake", "properties": properties}
    found = capture.parse_description({"enabled": True, "destination": destination})
    assert (found.account, found.container) == ("lake", "raw/hubs")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (description(encoding="CSV"), "captureDescription.encoding is 'CSV': "),
        (
            description(destination=DESTINATION | {"name": "Foo.Bar"}),
            "captureDescription.destination.name is 'Foo.Bar': ",
        ),
    ],
)
def test_error_names_the_field_once(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        capture.check_description(given)
    assert str(raised.value).startswith(text)
