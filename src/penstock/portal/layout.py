"""The frame of every page: header, navigation, tabs of a hub, error pages."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import HTMLResponse, Response

from penstock import __version__
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.portal.components import badge, error_box, hidden, submit
from penstock.portal.html import Html, document, el
from penstock.portal.page_request import PageRequest

# (word in the address, label, key that follows g)
NAVIGATION = (
    ("", "Overview", "o"),
    ("hubs", "Event hubs", "h"),
    ("policies", "Access policies", "p"),
    ("scale", "Scale", "s"),
    ("capture", "Capture", "c"),
    ("jobs", "Spark jobs", "j"),
    ("connections", "Connections", "n"),
    ("namespaces", "Namespaces", "m"),
    ("audit", "Audit log", "a"),
    ("health", "Health", "e"),
)
HUB_TABS = (
    ("", "Overview"),
    ("events", "Events"),
    ("send", "Send"),
    ("groups", "Consumer groups"),
    ("policies", "Access policies"),
    ("capture", "Capture"),
)
LOGO = el("span", class_="logo", aria_hidden="true")
_ALARMING = ("prod", "live")  # names of environments in which a slip costs


async def page(
    visit: PageRequest, *content: object, title: str = "", aside: object = None
) -> Response:
    """A page with its title in the navigation, or in the tabs of the hub, unless one is given."""
    word, _, tab, *_ = [*visit.route.pattern.strip("/").split("/"), "", ""]
    hub = visit.words.get("hub")
    if hub is None:
        title = next(label for each, label, _ in NAVIGATION if each == word)
        return await _page_in_frame(
            visit, word, title, _head(title, aside), _flash(visit), *content
        )
    title = title or dict(HUB_TABS)[tab]
    parts = (_crumbs(visit, hub), _head(hub, aside), _hub_tabs(visit, tab), _flash(visit))
    return await _page_in_frame(visit, word, f"{hub} · {title}", *parts, *content)


def _head(title: str, aside: object) -> Html:
    return el("div", el("h1", title), aside, class_="page-head")


async def _page_in_frame(
    visit: PageRequest, active: str, title: str, *content: object, status: int = 200
) -> Response:
    names = [each.name for each in await visit.backend.read(ManagementClient.namespaces)]
    main = el("main", *content, id="main", tabindex="-1")
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", class_="skip"),
        _top(visit, names),
        el("div", _side(visit, active), main, class_="frame"),
        _help(),
        data_stopped="The service does not answer; what you see is old.",
    )
    return bare_page(visit, title, body, status=status)


async def error_page(visit: PageRequest, status: int, text: str) -> Response:
    """An error in the page frame, or bare when the service does not answer."""
    content = el("section", el("p", text, class_="error-text"), class_="card")
    title = {403: "Not allowed", 404: "Not found"}.get(status, "That did not work")
    parts = (_head(title, None), _flash(visit), content)
    try:
        return await _page_in_frame(visit, "?", title, *parts, status=status)
    except Exception:  # noqa: BLE001  # whatever it is, the visitor is told
        body = el("body", el("main", el("h1", title), content, class_="bare"))
        return bare_page(visit, title, body, status=status)


def bare_page(visit: PageRequest, title: str, body: Html, *, status: int = 200) -> Response:
    theme = visit.request.cookies.get("penstock_theme")
    environment = visit.portal.settings.environment
    scripts = [
        el("script", src=f"/static/{name}.js?v={__version__}", defer=True)
        for name in ("chart", "portal", "events")
    ]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · Penstock" + (f" · {environment}" if environment else "")),
        el("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        el("link", rel="stylesheet", href=f"/static/portal.css?v={__version__}"),
        *scripts,
    )
    data_theme = theme if theme in ("dark", "light") else None
    root = el("html", head, body, lang="en", data_theme=data_theme)
    return HTMLResponse(document(root), status)


def retry_page() -> Response:
    """A page that requests the same address again."""
    head = el("head", el("meta", charset="utf-8"), el("meta", http_equiv="refresh", content="0"))
    return HTMLResponse(document(el("html", head, el("body"))))


def _top(visit: PageRequest, names: Sequence[str]) -> Html:
    settings, session = visit.portal.settings, visit.session
    environment = settings.environment or "development"
    is_alarming = any(word in environment.casefold() for word in _ALARMING)
    class_ = "environment alarming" if is_alarming else "environment"
    options = [el("option", name, selected=name == visit.namespace) for name in names]
    sign_out = (hidden("form_token", visit.form_token), submit("Sign out", "small quiet"))
    return el(
        "header",
        el("a", LOGO, "Penstock", href="/", class_="brand"),
        el("span", environment, class_=class_, title="The environment that you are in"),
        badge("read-only", "warn") if settings.read_only else None,
        el(
            "form",
            el("label", "Change scope", for_="namespace", class_="visually-hidden"),
            el("select", *options, id="namespace", name="namespace", data_submits=True),
            el("noscript", submit("Go", None)),
            method="get",
            action="/",
            class_="namespace",
        ),
        el(
            "div",
            el("button", "Theme", type="button", class_="small quiet", data_theme_switch=True),
            el("span", session.user, el("small", session.role.name.lower()), class_="who"),
            el("form", *sign_out, method="post", action="/signout"),
            class_="account",
        ),
        class_="top",
    )


def _side(visit: PageRequest, active: str) -> Html:
    links = [
        el("a", label, href=visit.link(word), aria_current=word == active and "page", data_key=key)
        for word, label, key in NAVIGATION
        if word != "audit" or visit.session.role >= AdminRole.OPERATOR
    ]
    pages = el("nav", *links, aria_label="Pages")
    return el("details", el("summary", "Menu"), pages, class_="side", open=True)


def _crumbs(visit: PageRequest, hub: str) -> Html:
    slash = el("span", "/", aria_hidden="true")
    namespace = el("a", visit.namespace, href=visit.link(""))
    hubs = el("a", "Event hubs", href=visit.link("hubs"))
    parts = (namespace, slash, hubs, slash, el("span", hub))
    return el("nav", *parts, class_="crumbs", aria_label="Where you are")


def _hub_tabs(visit: PageRequest, tab: str) -> Html:
    links = [
        el("a", label, href=visit.hub_link(word), aria_current=word == tab and "page")
        for word, label in HUB_TABS
        if word != "send" or visit.may(AdminRole.OPERATOR)
    ]
    return el("nav", *links, class_="tabs", aria_label="Of this event hub")


def _flash(visit: PageRequest) -> Html | None:
    if visit.flash is None:
        return None
    if visit.flash.is_error:
        return error_box(visit.flash.text)
    return el("div", visit.flash.text, class_="flash", role="status")


def _help() -> Html:
    rows = [("g then " + key, label) for _, label, key in NAVIGATION]
    rows += [("/", "to the first field"), ("t", "the other theme"), ("?", "this help")]
    return el(
        "dialog",
        el("h2", "Keys"),
        el("dl", *((el("dt", el("kbd", keys)), el("dd", what)) for keys, what in rows)),
        el("form", submit("Close", None), method="dialog"),
        id="keys",
    )
