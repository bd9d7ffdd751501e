"""Sphinx: `make docs` builds the site from these pages into .docs/html; warnings are errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import celery_rabbit_delay

logger = logging.getLogger(__name__)

DOCS = Path(__file__).parent.resolve()
REPOSITORY = "https://github.com/celery-rabbit-delay/celery-rabbit-delay"

project = "celery-rabbit-delay"
project_copyright = "the celery-rabbit-delay developers"
version = release = celery_rabbit_delay.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "celery-rabbit-delay"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
# Read the Docs names the address of the version that it builds.
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"show-inheritance": True}
# Docstrings name what they speak of in `backticks`: a link where it is something of ours.
default_role = "any"
# Types of the standard library, Celery and Kombu: their documentation is not asked while this one is built.
nitpick_ignore_regex = [("py:.*", r"(?!celery_rabbit_delay).*")]

linkcheck_ignore = [r"http://(localhost|guest:guest@|user:password@).*", rf"{REPOSITORY}.*"]
linkcheck_anchors = False


def _links_out_of_the_docs(app: Sphinx, page: str, source: list[str]) -> None:
    """Let relative links to other files of the repository, which GitHub follows, lead to GitHub."""
    directory = (DOCS / page).parent

    def absolute(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        path = (directory / target).resolve()
        if not path.exists():
            logger.warning("a link leads nowhere: %s", match[1], location=page)
        if path.is_relative_to(DOCS) or not path.is_relative_to(DOCS.parent):
            return match[0]
        return f"]({REPOSITORY}/blob/main/{path.relative_to(DOCS.parent)}{f'#{anchor}' if anchor else ''})"

    source[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", absolute, source[0])


def _plain_if_unknown(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Show a name in backticks as code where it is nothing of ours."""
    return text if node["reftype"] == "any" else None


def setup(app: Sphinx) -> None:
    app.connect("source-read", _links_out_of_the_docs)
    app.connect("missing-reference", _plain_if_unknown)
