"""Capture switched on in the portal: its first file is seen there, and lies where it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

if TYPE_CHECKING:
    from tests.system.portal.conftest import OpenPage, Service

pytestmark = [
    pytest.mark.timeout(300),  # Spark takes its time to start
    pytest.mark.usefixtures("hung"),  # and a portal that hangs is found out meanwhile
]


def test_capture_is_switched_on_and_the_first_file_is_seen(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("kept-as-files")
    page = open_page(f"/hubs/{hub}/capture")
    preview = page.locator("[data-name]")
    page.get_by_label("Encoding").select_option("Parquet")
    expect(preview).to_have_text(re.compile(r"\.parquet$"))
    page.get_by_label("Encoding").select_option("Avro")
    expect(preview).to_have_text(re.compile(r"\.avro$"))
    page.get_by_label("Capture is on").check()
    page.get_by_label("Time window (s)").fill("60")
    page.get_by_label("Size window (MB)").fill("10")
    page.get_by_label("Container or folder").fill("box")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Capture is on")
    service.flood(hub, 12_000_000)  # more than a window of the smallest size
    file = page.locator("#last-file")
    expect(file).to_contain_text(".avro", timeout=200_000)
    shown = (file.text_content() or "").rpartition("box/")[2]
    found = list((service.folder / "captured" / "box").rglob("*.avro"))
    assert any(str(each).endswith(shown) for each in found)
    row = page.get_by_role("row").filter(has_text=shown)
    expect(row).to_be_visible()  # among the last files
    expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))  # written
    page.goto(f"{service.url}/jobs")
    expect(page.locator("#live-jobs")).to_contain_text("apture")
    page.goto(f"{service.url}/hubs/{hub}/capture")
    page.get_by_label("Capture is on").uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Capture is off")
