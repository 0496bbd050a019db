"""How Sphinx builds the site: `make docs`. Nothing is loaded from another host, when it is built or when it is read."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any, get_args

from docutils import nodes
from sphinx.addnodes import pending_xref, toctree
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import stringify_annotation

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import reference  # noqa: E402 - beside this file

from rqsched.api.shown import Shown  # noqa: E402 - as the page before it

project = "rqsched"
author = "rqsched contributors"
release = version = importlib.metadata.version("rqsched")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon"]
exclude_patterns = ["adr", "proofs"]  # kept for maintainers: decisions and proofs
suppress_warnings = ["ref.python"]  # a name that two of our modules export

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "inventories/python.txt"),
    "sqlalchemy": ("https://docs.sqlalchemy.org/en/20/", "inventories/sqlalchemy.txt"),
}
"""The inventories stand in the repository, cut to what our pages name: a build asks no other host."""
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(rq|httpx|starlette|fastapi|uvicorn|statemachine|pytest|_pytest)\..*"),  # they publish no inventory
    ("py:class", r"rqsched\..*\.(_Self|[A-Z])"),  # type variables
    (
        "py:class",
        r"FastAPI|WSGIApplication|Authenticate|Operator|Runtime|Rate",
    ),  # aliases and names that only type checkers import, as a signature writes them
    (
        "py:class",
        r"rqsched\.(features\.declarations\.declarations\.Declarations|kernel\.chain\.create\.(Named|ScheduleRequest))",
    ),
    ("py:class", r"rqsched\.(kernel\.chain\.runtime\.Runtime|client\.requests\.Request|kernel\.decide\.audit\.Event)"),
    (
        "py:class",
        r"rqsched\.(kernel\.decide\.model\.(Change|Run|Schedule)|http\.auth\.Authenticator|machines\.machine\.InState)",
    ),
    ("py:class", r"rqsched\.kernel\.decide\.(model\.(Definition|Moves|Skips)|policy\.Policies|limit_options\.Rate)"),
    ("py:class", r"rqsched\.http\.ended_sessions\.EndedSessions"),
    ("py:class", r"rqsched\.(run\.vital_signs\.Systemd|when\.(timeline\.Source|exclusion\.Exclusion))"),
]
"""What has no page: foreign names, and the types of ours that no application names itself."""

html_theme = "furo"
html_title = "rqsched"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "static" / "scorer.js")
default_role = "literal"  # a name in a docstring's backticks is code
smartquotes = False  # descriptions hold JSON


PUBLIC = reference.public_paths()
_MODULES = {"date": "datetime", "datetime": "datetime", "Path": "pathlib"}
"""The modules of Python's types that signatures and fields of tuples write without their module."""
ASIDE: dict[str, list[str]] = {}
SEARCHED = re.compile(r"\A<!-- search: (.+) -->\n")
"""The first line of a page: words by which its readers search for it."""


def setup(app: Sphinx) -> None:
    """Write the reference before it is read."""
    reference.write(DOCS / "reference")
    app.connect("source-read", _add_searched_words)
    app.connect("missing-reference", _public, priority=400)  # before intersphinx, which then finds what it renamed
    app.connect("build-finished", _tell_language_models)
    app.connect("autodoc-process-docstring", _set_aside, priority=400)
    app.connect("autodoc-process-docstring", _put_back, priority=600)


def _add_searched_words(_: Sphinx, __: str, source: list[str]) -> None:
    """Make the words of the first line main entries of the index, which search puts first, and keywords of the page."""
    if found := SEARCHED.match(source[0]):
        keywords = f"---\nmyst: {{html_meta: {{keywords: '{found[1]}'}}}}\n---\n"
        entries = ", ".join(f"!{word}" for word in found[1].split(", "))
        source[0] = f"{keywords}```{{index}} {entries}\n```\n\n{source[0][found.end() :]}"


def _public(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """Resolve a type of ours by its public name: signatures name it bare, or by the module that defines it."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if module := _MODULES.get(target):
        node["reftarget"] = f"{module}.{target}"
    if target != name and not target.startswith("rqsched."):
        return None
    python = env.domains.python_domain
    found = [public for public in PUBLIC.get(name, []) if public in python.objects]
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, content) if found else None


def _tell_language_models(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt, a list of all pages with what each is about, and the pages themselves as Markdown."""
    if error is not None or app.builder.format != "html":
        return
    env, site = app.env, Path(app.outdir)
    home = env.get_doctree("index")
    about = next(iter(home.findall(nodes.paragraph))).astext()
    lines = ["# rqsched", "", f"> {' '.join(about.split())}"]
    for part in home.findall(toctree):
        lines += ["", f"## {part['caption']}", ""]
        for page in part["includefiles"]:
            first = next(iter(env.get_doctree(page).findall(nodes.paragraph)), None)
            says = f": {' '.join(first.astext().split())}" if first is not None else ""
            lines.append(f"- [{env.titles[page].astext()}]({page}.md){says}")
            (site / f"{page}.md").write_text(Path(env.doc2path(page)).read_text())
    (site / "llms.txt").write_text("\n".join([*lines, ""]))


def _set_aside(_: Sphinx, what: str, name: str, *event: Any) -> None:
    """Keep an attribute's text from napoleon, which takes the words before a colon for its type."""
    lines = event[-1]
    if what in {"attribute", "data", "property"}:
        ASIDE[name], lines[:] = list(lines), ["-"]


def _put_back(_: Sphinx, __: str, name: str, shown: object, *event: Any) -> None:
    """Put it back; a field of a handle also says its type, which no annotation has."""
    lines = event[-1]
    lines[:] = ASIDE.pop(name, lines)
    if isinstance(shown, Shown):
        (kind,) = get_args(shown.__orig_class__)  # type: ignore[attr-defined] # typing sets it on what Shown[...] makes
        lines[:] = [*lines, "", f":type: {stringify_annotation(kind, 'smart')}", ""]
