"""The environment of the templates.

Everything that a page shows may come from an attacker (an event's body, a key, a hub's metadata).
Jinja2 escapes every value. `_show` refuses values that are not text or numbers and makes invisible
characters visible. `TemplateRules` refuses templates in which a value could become code or lead to
another site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined, pass_context
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.runtime import Context
from markupsafe import Markup

from penstock import __version__
from penstock.formats import quantities
from penstock.formats.body_view import escape_invisible
from penstock.management.permissions import AdminRole
from penstock.portal.assets import asset
from penstock.portal.charts import spark_path
from penstock.portal.urls import harmless_url, path

TEMPLATES = Path(__file__).parent / "templates"
_LIVE = "live_"  # begins the names of the blocks that a script updates
_ADDRESS = r"(?:href|src|action|formaction|poster|data)"
_RULES = (
    (
        rf'\s{_ADDRESS}=(?!"(?:[^"{{]*|\{{\{{(?:(?!\}}\}}).)*\|\s*url\s*\}}\}})")',
        "an address needs the filter `url`",
    ),
    (r"\s(?:on[a-z]+|style|srcdoc)\s*=\s*[\"']", "scripts and styles belong into files"),
    (r"<script(?![^>]*\ssrc=)|<style", "scripts and styles belong into files"),
    (r"\|\s*safe\b|\bautoescape\b|\|\s*tojson\b", "a value would not be escaped"),
    (r"[a-z-]=\{[{%]", "the value of an attribute is not quoted"),
    (r"='[^']*\{\{", "the value of an attribute has the wrong quotes"),
)


class TemplateRules(Extension):
    """Refuses a template that breaks a rule, and replaces `{% live NAME %}` ... `{% endlive %}` by
    a block with an element that a script updates."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        markup = re.sub(r"\{#.*?#\}", lambda text: "\n" * text[0].count("\n"), source, flags=re.S)
        for pattern, reason in _RULES:
            if found := re.search(pattern, markup):
                line = markup.count("\n", 0, found.start()) + 1
                raise TemplateSyntaxError(f"{reason}: {found[0].strip()}", line, name, filename)
        live = rf'{{% block {_LIVE}\1 %}}<div id="live-\1" data-live>'
        markup = re.sub(r"\{% live (\w+) %\}", live, markup)
        return markup.replace("{% endlive %}", "</div>{% endblock %}")


def _show(value: object) -> object:
    """Called with every value that a template shows, before it is escaped."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return escape_invisible(value)
    if isinstance(value, Undefined):
        str(value)  # raises an error with its name
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} cannot be shown: {value!r:.80}")
    return value


@pass_context
def _live_blocks(context: Context) -> list[str]:
    """The blocks of the page that a script updates."""
    return [name for name in context.blocks if name.startswith(_LIVE)]


def _hours(hours: int) -> str:
    """
    >>> _hours(24), _hours(168), _hours(30)
    ('24 h', '7 d', '30 h')
    """
    return f"{hours // 24} d" if hours > 24 and hours % 24 == 0 else f"{hours} h"


def _row_id(*words: object) -> str:
    """An id of an element for any words: names may have characters that an id must not have."""
    return "r" + sha256("\0".join(map(str, words)).encode("utf-8", "replace")).hexdigest()[:12]


def _iso(time_ms: int) -> str:
    return quantities.format_time(time_ms)


FILTERS = {
    "url": harmless_url,
    "number": quantities.format_number,
    "integer": quantities.format_integer,
    "bytes": quantities.format_size,
    "duration": quantities.format_duration,
    "hours": _hours,
    "iso": _iso,
    "moment": quantities.format_moment,
    "json": lambda value: json.dumps(value, separators=(",", ":")),
}


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        extensions=[TemplateRules],
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters |= FILTERS
    made.globals |= {
        "VERSION": __version__,
        "VIEWER": AdminRole.VIEWER,
        "OPERATOR": AdminRole.OPERATOR,
        "ADMIN": AdminRole.ADMIN,
        "live_blocks": _live_blocks,
        "plural": quantities.format_plural,
        "age": quantities.format_age,
        "row_id": _row_id,
        "asset": asset,
        "path": path,
        "spark_path": spark_path,
    }
    return made


def render(template: str, values: Mapping[str, Any]) -> bytes:
    """The page as it is sent."""
    text = environment().get_template(template).render(values)
    return text.encode("utf-8", "replace")
