"""Components of pages: tiles, tables, forms, charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.formats.quantities import format_duration, format_integer
from penstock.model import metrics
from penstock.portal.html import Html, el, group
from penstock.portal.page_request import PageRequest

RANGES = {
    "1h": ("1 hour", 3_600_000),
    "24h": ("24 hours", 86_400_000),
    "7d": ("7 days", 604_800_000),
}
_POINTS = 180
_NOTED_AFTER_MS = 1_500  # a sample is written a moment after its step


def card(title: str, *children: object, id_: str | None = None, aside: object = None) -> Html:
    head = el("header", el("h2", title), aside) if title or aside is not None else None
    return el("section", head, *children, class_="card", id=id_)


def tile(label: str, value: object, note: object = "", *, tone: str = "") -> Html:
    return el(
        "div",
        el("div", label, class_="tile-label"),
        el("div", value, class_="tile-value"),
        el("div", note, class_="tile-note") if note else None,
        class_=f"tile {tone}".strip(),
    )


def tiles(*each: Html) -> Html:
    return el("div", *each, class_="tiles")


def live_element(name: str, *children: object, tag: str = "div") -> Html:
    """An element that a script updates while the page is open."""
    return el(tag, *children, data_live=name, id=f"live-{name}")


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    numbers: Iterable[int] = (),
) -> Html:
    """On a narrow screen each row is shown as a card, with the heads before the cells."""
    right = set(numbers)
    body = [
        el(
            "tr",
            *(
                el(
                    "td",
                    cell if cell not in (None, "") else "–",
                    data_label=heads[index],
                    class_="number" if index in right else None,
                )
                for index, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    if not body:
        return el("p", empty, class_="empty")
    head = el(
        "tr",
        *(
            el("th", text, scope="col", class_="number" if index in right else None)
            for index, text in enumerate(heads)
        ),
    )
    return el("div", el("table", el("thead", head), el("tbody", *body)), class_="table-box")


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    return el(
        "dl",
        *(group(el("dt", name), el("dd", value if value != "" else "–")) for name, value in pairs),
        class_="facts",
    )


def badge(text: str, tone: str = "") -> Html:
    return el("span", text, class_=f"badge {tone}".strip())


def code(text: str, *, copy: bool = True) -> Html:
    """Text with a button that copies it."""
    button = el("button", "Copy", type="button", class_="copy small", data_copy=True)
    return el("div", el("pre", el("code", text)), button if copy else None, class_="code")


# --- forms ----------------------------------------------------------------------------------------


def form(
    visit: PageRequest, action: str, *fields: object, class_: str = "", back: str = ""
) -> Html:
    hidden = [
        el("input", type="hidden", name="form_token", value=visit.form_token),
        el("input", type="hidden", name="back", value=back or _here(visit)),
    ]
    return el(
        "form", *hidden, *fields, method="post", action=action, class_=f"form {class_}".strip()
    )


def _here(visit: PageRequest) -> str:
    """Without the host: a Referer that somebody else wrote leads to a page of ours at worst."""
    url = visit.request.url
    return url.path + (f"?{url.query}" if url.query else "")


def field(
    label: str,
    name: str,
    value: object = "",
    *,
    type_: str = "text",
    help_: str = "",
    **attributes: object,
) -> Html:
    ident = f"f-{name}"
    return el(
        "div",
        el("label", label, for_=ident),
        el("input", id=ident, name=name, type=type_, value=value, **attributes),
        el("small", help_) if help_ else None,
        class_="field",
    )


def area(label: str, name: str, value: str = "", *, help_: str = "", rows: int = 4) -> Html:
    ident = f"f-{name}"
    return el(
        "div",
        el("label", label, for_=ident),
        # A newline after the tag is not part of the value: one is given, or the text loses its own.
        el("textarea", "\n" + value, id=ident, name=name, rows=rows, spellcheck="false"),
        el("small", help_) if help_ else None,
        class_="field wide",
    )


def select(
    label: str,
    name: str,
    options: Mapping[str, str],
    value: str = "",
    *,
    help_: str = "",
    wide: bool = False,
) -> Html:
    ident = f"f-{name}"
    choices = [
        el("option", text, value=key, selected=key == value) for key, text in options.items()
    ]
    return el(
        "div",
        el("label", label, for_=ident),
        el("select", *choices, id=ident, name=name),
        el("small", help_) if help_ else None,
        class_="field wide" if wide else "field",
    )


def check(label: str, name: str, checked: bool, *, help_: str = "") -> Html:
    return el(
        "div",
        el("label", el("input", type="checkbox", name=name, value="yes", checked=checked), label),
        el("small", help_) if help_ else None,
        class_="field check",
    )


def submit(text: str, *, danger: bool = False, name: str | None = None, value: str = "") -> Html:
    tone = "danger" if danger else "primary"
    return el("button", text, type="submit", class_=tone, name=name, value=value if name else None)


def delete_box(visit: PageRequest, action: str, kind: str, name: str, loss: str) -> Html:
    """A form that deletes after the user has typed the name."""
    return el(
        "details",
        el("summary", f"Delete this {kind}…"),
        form(
            visit,
            action,
            el("p", loss),
            field(
                f"Type {name} to confirm",
                "confirm",
                autocomplete="off",
                required=True,
                data_confirm=name,
            ),
            submit(f"Delete {kind}", danger=True),
            class_="danger-form",
        ),
        class_="danger-box",
    )


# --- charts ---------------------------------------------------------------------------------------


def ranges(visit: PageRequest, *segments: str) -> Html:
    chosen = chosen_range(visit)
    kept = {
        name: value for name, value in visit.query.items() if name not in ("range", "namespace")
    }
    return el(
        "nav",
        *(
            el(
                "a",
                key,
                href=visit.link(*segments, **{**kept, "range": key}),
                title=f"The last {text}",
                aria_current="true" if key == chosen else None,
            )
            for key, (text, _) in RANGES.items()
        ),
        class_="ranges",
        aria_label="Range of time",
    )


def chosen_range(visit: PageRequest) -> str:
    wanted = visit.query.get("range", "1h")
    return wanted if wanted in RANGES else "1h"


async def history(visit: PageRequest, hub: str | None, names: Sequence[str]) -> dict[str, Any]:
    """Metric history of the namespace or a hub over the chosen range."""
    key = chosen_range(visit)
    span_ms, namespace = RANGES[key][1], visit.namespace
    now_ms = visit.portal.clock.now_ms()
    found = await visit.backend.get_shared(
        ("history", namespace, hub, tuple(names), key),
        lambda client: client.metric_history(
            namespace, hub, names=names, since_ms=now_ms - span_ms, until_ms=now_ms, points=_POINTS
        ),
        ttl_ms=8_000,
    )
    return {**found, "last_ms": _lasted_ms(found["at_ms"], found["step_ms"], now_ms)}


def _lasted_ms(at_ms: Sequence[int], step_ms: int, now_ms: int) -> int:
    """How much of the newest step is in the numbers: they are noted when ten seconds are over."""
    if not at_ms:
        return step_ms
    noted_ms = (now_ms - _NOTED_AFTER_MS) // metrics.STEP_MS * metrics.STEP_MS
    return min(max(noted_ms - at_ms[-1], metrics.STEP_MS), step_ms)


def chart(
    title: str,
    at_ms: Sequence[int],
    series: Mapping[str, Sequence[float | None]],
    *,
    unit: str = "",
    step_ms: int = 0,
    empty: str = "Nothing was recorded in this time.",
    bytes_: bool = False,
) -> Html:
    """Drawn by chart.js from data that is text; people without a script get the last numbers."""
    data = {"at": list(at_ms), "series": {k: list(v) for k, v in series.items()}, "unit": unit}
    latest = ", ".join(
        f"{name}: {format_integer(round(last)) if (last := _last(values)) is not None else '–'}"
        for name, values in series.items()
    )
    note = f"every point is {format_duration(step_ms / 1000)}" if step_ms else ""
    return el(
        "figure",
        el("figcaption", el("strong", title), el("small", unit)),
        el(
            "div",
            data_chart=json.dumps(data | {"bytes": bytes_}, separators=(",", ":")),
            data_empty=empty,
            class_="chart",
            role="img",
            aria_label=f"{title}. Latest {latest}.",
            title=note,
        ),
        class_="chart-box",
    )


def per_second(series: Mapping[str, Any], name: str) -> list[float | None]:
    """Of a counter; the newest step is shorter while it lasts, or every curve would end in a fall.

    >>> series = {"values": {"x": [40, None, 10]}, "step_ms": 20_000, "last_ms": 10_000}
    >>> per_second(series, "x")
    [2.0, None, 1.0]
    """
    values: Sequence[int | None] = series["values"].get(name, [])
    lasted = [series["step_ms"]] * (len(values) - 1) + [series["last_ms"]]
    return [
        None if value is None else round(value * 1000 / max(1, ms), 3)
        for value, ms in zip(values, lasted[-len(values) :] if values else [], strict=True)
    ]


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)
