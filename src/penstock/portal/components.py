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
    names = [hidden("form_token", visit.form_token), hidden("back", back or _here(visit))]
    return el(
        "form", *names, *fields, method="post", action=action, class_=f"form {class_}".strip()
    )


def _here(visit: PageRequest) -> str:
    """Without the host: a Referer that somebody else wrote leads to a page of ours at worst."""
    url = visit.request.url
    return url.path + (f"?{url.query}" if url.query else "")


def hidden(name: str, value: object) -> Html:
    return el("input", type="hidden", name=name, value=value)


def field(
    visit: PageRequest,
    label: str,
    name: str,
    value: object = "",
    *,
    type_: str = "text",
    help_: str = "",
    **attributes: object,
) -> Html:
    shown = visit.form_value(name, value)
    control = el("input", id=f"f-{name}", name=name, type=type_, value=shown, **attributes)
    return _labeled(label, name, control, help_)


def number(
    visit: PageRequest,
    label: str,
    name: str,
    value: object = "",
    *,
    least: int,
    most: int | None = None,
    **attributes: Any,
) -> Html:
    return field(visit, label, name, value, type_="number", min=least, max=most, **attributes)


def name_field(visit: PageRequest, **attributes: Any) -> Html:
    """The name of an entity that the form creates."""
    return field(visit, "Name", "name", required=True, autocomplete="off", **attributes)


def area(
    visit: PageRequest, label: str, name: str, value: str = "", *, help_: str = "", rows: int = 4
) -> Html:
    # A newline after the tag is not part of the value: one is given, or the text loses its own.
    text = "\n" + visit.form_value(name, value)
    control = el("textarea", text, id=f"f-{name}", name=name, rows=rows, spellcheck="false")
    return _labeled(label, name, control, help_, wide=True)


def select(
    visit: PageRequest,
    label: str,
    name: str,
    options: Mapping[str, str],
    value: str = "",
    *,
    wide: bool = False,
) -> Html:
    shown = visit.form_value(name, value)
    choices = [
        el("option", text, value=key, selected=key == shown) for key, text in options.items()
    ]
    return _labeled(label, name, el("select", *choices, id=f"f-{name}", name=name), wide=wide)


def _labeled(label: str, name: str, control: Html, help_: str = "", *, wide: bool = False) -> Html:
    return el(
        "div",
        el("label", label, for_=f"f-{name}"),
        control,
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
    label = f"Type {name} to confirm"
    attributes: dict[str, Any] = {"autocomplete": "off", "required": True, "data_confirm": name}
    typed = field(visit, label, "confirm", **attributes)
    return el(
        "details",
        el("summary", f"Delete this {kind}…"),
        form(
            visit,
            action,
            el("p", loss),
            typed,
            submit(f"Delete {kind}", "danger"),
            class_="danger-form",
        ),
        class_="danger-box",
    )


# --- charts ---------------------------------------------------------------------------------------


def ranges(visit: PageRequest, *segments: str) -> Html:
    """Links to the same page for each range of time."""
    same = {
        name: value for name, value in visit.query.items() if name not in ("range", "namespace")
    }
    links = [
        el(
            "a",
            key,
            href=visit.link(*segments, **{**same, "range": key}),
            title=f"The last {text}",
            aria_current="true" if key == chosen_range(visit) else None,
        )
        for key, (text, _) in RANGES.items()
    ]
    return el("nav", *links, class_="ranges", aria_label="Range of time")


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
