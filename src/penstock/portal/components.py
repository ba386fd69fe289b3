"""Components of pages: tiles, tables, forms, charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.formats.quantities import format_duration, format_integer
from penstock.model import metrics
from penstock.portal.html import Html, el
from penstock.portal.page_request import PageRequest

RANGES = {
    "1h": ("1 hour", 3_600_000),
    "24h": ("24 hours", 86_400_000),
    "7d": ("7 days", 604_800_000),
}
Bounds = tuple[int, int | None]  # of a number
_NOTED_AFTER_MS = 1_500  # a sample is written a moment after its step


def card(title: str, *children: object, id_: str | None = None, aside: object = None) -> Html:
    head = el("header", el("h2", title), aside) if title or aside is not None else None
    return el("section", head, *children, class_="card", id=id_)


def tile(label: str, value: object, note: object = "", *, tone: str = "") -> Html:
    return el(
        "div",
        el("div", label, class_="tile-label"),
        el("div", "–" if value is None else value, class_="tile-value"),
        el("div", note, class_="tile-note") if note else None,
        class_=f"tile {tone}".strip(),
    )


def tiles(*each: Html) -> Html:
    return el("div", *each, class_="tiles")


def live_element(name: str, *children: object, tag: str = "div") -> Html:
    """An element that a script updates while the page is open."""
    return el(tag, *children, data_live=name, id=f"live-{name}")


def table(rows: Sequence[Mapping[str, object]], *, empty: str, numbers: Sequence[str] = ()) -> Html:
    """Each row has its cells by the heads of their columns; `numbers` are the heads of those with
    numbers. On a narrow screen each row is shown as a card, with the heads before the cells."""
    if not rows:
        return el("p", empty, class_="empty")
    classes = {head: "number" if head in numbers else None for head in rows[0]}
    heads = [el("th", head, scope="col", class_=class_) for head, class_ in classes.items()]
    body = []
    for row in rows:
        cells = [
            el("td", "–" if cell in (None, "") else cell, data_label=head, class_=classes[head])
            for head, cell in row.items()
        ]
        body.append(el("tr", *cells))
    parts = (el("thead", el("tr", *heads)), el("tbody", *body))
    return el("div", el("table", *parts), class_="table-box")


def sequence_number(number: int) -> int | None:
    """None for -1: there is no event."""
    return number if number >= 0 else None


def facts(*pairs: tuple[str, object]) -> Html:
    rows = [(el("dt", name), el("dd", "–" if value == "" else value)) for name, value in pairs]
    return el("dl", *rows, class_="facts")


def badge(text: str, tone: str = "") -> Html:
    return el("span", text, class_=f"badge {tone}".strip())


def mono(text: str, **attributes: object) -> Html:
    return el("span", text, class_="mono", **attributes)


def error_box(text: str) -> Html:
    return el("div", text, class_="flash error", role="alert")


def code(text: str) -> Html:
    """Text with a button that copies it."""
    button = el("button", "Copy", type="button", class_="copy small", data_copy=True)
    return el("div", el("pre", el("code", text)), button, class_="code")


# --- forms ----------------------------------------------------------------------------------------
# A field shows the value of a refused form again, or else the value that is passed.


def form(
    visit: PageRequest, action: str, *fields: object, class_: str = "", back: str = ""
) -> Html:
    """A form of the portal. If it is refused, the visitor returns to `back`: this page, unless it
    is given."""
    names = (hidden("form_token", visit.form_token), hidden("back", back or visit.address_path))
    class_ = f"form {class_}".strip()
    return el("form", *names, *fields, method="post", action=action, class_=class_)


def hidden(name: str, value: object) -> Html:
    return el("input", type="hidden", name=name, value=value)


def field(
    visit: PageRequest, label: str, name: str, value: object = "", help_: str = "", **options: Any
) -> Html:
    """`options` are attributes of the input; it has text unless they have another `type`."""
    options = {"type": "text", "value": visit.form_value(name, value)} | options
    return labeled(label, name, el("input", id=f"f-{name}", name=name, **options), help_)


def number(
    visit: PageRequest, label: str, name: str, value: object, bounds: Bounds, **options: Any
) -> Html:
    low, high = bounds
    return field(visit, label, name, value, type="number", min=low, max=high, **options)


def name_field(visit: PageRequest, **options: Any) -> Html:
    """The name of an entity that the form creates."""
    return field(visit, "Name", "name", required=True, autocomplete="off", **options)


def area(
    visit: PageRequest, label: str, name: str, value: str = "", *, help_: str = "", rows: int = 4
) -> Html:
    # A newline after the tag is not part of the value: one is given, or the text loses its own.
    text = "\n" + visit.form_value(name, value)
    control = el("textarea", text, id=f"f-{name}", name=name, rows=rows, spellcheck="false")
    return labeled(label, name, control, help_, wide=True)


def select(
    visit: PageRequest,
    label: str,
    name: str,
    options: Mapping[str, str],
    value: str = "",
    *,
    wide: bool = False,
) -> Html:
    chosen = visit.form_value(name, value)
    choices = [el("option", text, value=k, selected=k == chosen) for k, text in options.items()]
    return labeled(label, name, el("select", *choices, id=f"f-{name}", name=name), wide=wide)


def labeled(
    label: object, name: str, control: Html, help_: str = "", *, wide: bool = False
) -> Html:
    return el(
        "div",
        el("label", label, for_=f"f-{name}"),
        control,
        el("small", help_) if help_ else None,
        class_="field wide" if wide else "field",
    )


def partition_select(visit: PageRequest, count: int, none: str, value: str = "") -> Html:
    """`none` is the text of the choice without a partition."""
    options = {"": none} | {str(index): f"partition {index}" for index in range(count)}
    return select(visit, "Partition", "partition", options, value)


def checkbox(name: str, checked: bool) -> Html:
    return el("input", type="checkbox", name=name, value="yes", checked=checked)


def check(label: str, name: str, checked: bool, *, help_: str = "") -> Html:
    return el(
        "div",
        el("label", checkbox(name, checked), label),
        el("small", help_) if help_ else None,
        class_="field check",
    )


def submit(text: str, class_: str | None = "primary", **attributes: object) -> Html:
    return el("button", text, type="submit", class_=class_, **attributes)


def action_button(
    visit: PageRequest, action: str, text: str, *fields: object, back: str = ""
) -> Html:
    """A form that is only a button, for an action that takes something away."""
    return form(visit, action, *fields, submit(text, "danger small"), class_="inline", back=back)


def find_form(visit: PageRequest, action: str) -> Html:
    namespace = visit.query.get("namespace")
    value = visit.query.get("find", "")
    return el(
        "form",
        hidden("namespace", namespace) if namespace else None,
        el("label", "Find", for_="f-find", class_="visually-hidden"),
        el("input", id="f-find", name="find", value=value, placeholder="Find"),
        submit("Find"),
        method="get",
        action=action,
        class_="inline",
    )


def delete_box(visit: PageRequest, action: str, kind: str, name: str, loss: str) -> Html:
    """A form that deletes after the user has typed the name."""
    options: dict[str, Any] = {"autocomplete": "off", "required": True, "data_confirm": name}
    fields = (
        el("p", loss),
        field(visit, f"Type {name} to confirm", "confirm", **options),
        submit(f"Delete {kind}", "danger"),
    )
    content = form(visit, action, *fields, class_="danger-form")
    return el("details", el("summary", f"Delete this {kind}…"), content, class_="danger-box")


# --- charts ---------------------------------------------------------------------------------------


def ranges(visit: PageRequest) -> Html:
    """Links to the same page for each range of time."""
    same = {k: v for k, v in visit.query.items() if k not in ("range", "namespace")}
    links = []
    for key, (text, _) in RANGES.items():
        to, is_current = visit.page_link(**same, range=key), key == chosen_range(visit)
        title = f"The last {text}"
        links.append(el("a", key, href=to, title=title, aria_current=is_current and "true"))
    return el("nav", *links, class_="ranges", aria_label="Range of time")


def chosen_range(visit: PageRequest) -> str:
    wanted = visit.query.get("range", "1h")
    return wanted if wanted in RANGES else "1h"


async def history(visit: PageRequest, hub: str | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Metric history of the namespace or a hub over the chosen range."""
    span_ms = RANGES[chosen_range(visit)][1]
    series = await visit.backend.history(visit.namespace, hub, names, span_ms)
    now_ms = visit.portal.clock.now_ms()
    return {**series, "last_ms": _lasted_ms(series["at_ms"], series["step_ms"], now_ms)}


def _lasted_ms(at_ms: Sequence[int], step_ms: int, now_ms: int) -> int:
    """How much of the newest step is in the numbers: they are noted when ten seconds are over."""
    if not at_ms:
        return step_ms
    noted_ms = (now_ms - _NOTED_AFTER_MS) // metrics.STEP_MS * metrics.STEP_MS
    return min(max(noted_ms - at_ms[-1], metrics.STEP_MS), step_ms)


def chart(
    history: Mapping[str, Any],
    title: str,
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    *,
    empty: str = "Nothing was recorded in this time.",
    bytes_: bool = False,
) -> Html:
    """Drawn by chart.js from data that is text; people without a script get the last numbers."""
    lines = {name: list(values) for name, values in series.items()}
    data = {"at": list(history["at_ms"]), "series": lines, "unit": unit, "bytes": bytes_}
    latest = ", ".join(f"{name}: {_format_latest(values)}" for name, values in lines.items())
    return el(
        "figure",
        el("figcaption", el("strong", title), el("small", unit)),
        el(
            "div",
            data_chart=json.dumps(data, separators=(",", ":")),
            data_empty=empty,
            class_="chart",
            role="img",
            aria_label=f"{title}. Latest {latest}.",
            title=f"every point is {format_duration(history['step_ms'] / 1000)}",
        ),
        class_="chart-box",
    )


def _format_latest(values: Sequence[float | None]) -> str:
    latest = next((value for value in reversed(values) if value is not None), None)
    return format_integer(None if latest is None else round(latest))


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
