"""A document as one HTML file that needs nothing else: style, script and figures are inside."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import jinja2
from markupsafe import Markup

from reports.document import Document
from reports.plots.style import inline_svg

__all__ = ["to_html"]


def to_html(document: Document) -> str:
    """Render; every name is escaped. The page's policy forbids it to load anything."""
    script = _part("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    template = environment.from_string(_part("report.html.jinja"))
    return template.render(
        document=document,
        # Our own text, and figures in which matplotlib has escaped every name.
        style=Markup(_part("report.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        inline=lambda svg: Markup(inline_svg(svg)),
    )


def _part(name: str) -> str:
    return files("reports").joinpath("templates", name).read_text(encoding="utf-8")
