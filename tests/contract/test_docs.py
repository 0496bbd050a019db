"""The documentation as a site: it builds without a warning, needs no other host, and its pictures fit the code."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from rqsched import errors
from rqsched.api import health
from rqsched.http import errors as http_errors
from rqsched.kernel.decide.model import RunStatus, ScheduleStatus, TargetStatus
from rqsched.kernel.decide.options import OPTIONS
from rqsched.kernel.decide.results import Answer
from rqsched.kernel.store.tables import metadata
from tests.contract.sources import PACKAGE
from tests.contract.test_layers import LAYERS
from tests.http.conftest import make_web, web
from tests.http.test_every_route import NEEDED, PUBLIC, SHARED
from tests.support.narrow import present
from tests.support.population import documented_operations, populate, request
from tests.support.processes import REPOSITORY
from tests.support.web import Web

__all__ = ["make_web", "web"]

DOCS = REPOSITORY / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text()
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
NODE = shutil.which("node")
LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']((?:https?:)?//[^"']+)""")


def script(name: str) -> ModuleType:
    """A script of docs/."""
    spec = present(importlib.util.spec_from_file_location(name, DOCS / f"{name}.py"))
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    return script("diagrams")


def test_the_page_of_options_is_that_of_their_table() -> None:
    assert (DOCS / "options.md").read_text() == script("options").page(), "run python docs/options.py"


def test_each_field_of_the_form_belongs_to_one_option() -> None:
    labels = [label for name in OPTIONS for label in script("options").labels(name)]
    assert sorted(labels) == sorted(set(labels))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, which builds without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    assert {url for page in site.rglob("*.html") for url in LOADED.findall(page.read_text())} == set()


def test_llms_txt_lists_every_page_with_its_markdown(site: Path) -> None:
    listed = set(re.findall(r"\]\((\S+\.md)\)", (site / "llms.txt").read_text()))
    made_by_sphinx = {"genindex", "search", "py-modindex", "index"}
    pages = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}

    assert {name.removesuffix(".md") for name in listed} == pages - made_by_sphinx
    assert [name for name in listed if not (site / name).read_text().strip()] == []


def test_the_reference_has_the_metrics_that_the_page_on_http_explains() -> None:
    metrics = script("reference").observed().partition("## Audit events")[0]
    explained = (DOCS / "http.md").read_text()

    named = set(re.findall(r"`(rqsched_[a-z_]+)`", metrics))
    assert named == set(re.findall(r"`(rqsched_[a-z_]+)`", explained))


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """The pages that are made from the code, by name."""
    pages: dict[str, str] = script("reference").pages()
    return pages


def test_no_cell_of_the_reference_is_empty(reference: dict[str, str]) -> None:
    rows = [(page, row) for page, text in reference.items() for row in text.splitlines() if row.startswith("| ")]
    assert len(rows) > 300
    assert [(page, row) for page, row in rows if re.search(r"\|\s*\|", row)] == []


def test_every_definition_of_the_reference_has_a_meaning(reference: dict[str, str]) -> None:
    for page in ("http-operations", "observed"):
        said = re.findall(r"^:(.*)$", reference[page], re.MULTILINE)
        assert len(said) > 100
        assert all(one.strip() for one in said)
        assert re.findall(r"^`[\w.-]+`(?:: .*)?\n(?!:)", reference[page], re.MULTILINE) == []
    settings = reference["settings"].split("\n## ")[1:]
    assert [one for one in settings if len(one.strip().split("\n\n")) < 3] == []


def test_the_reference_shows_each_operation_of_the_document(reference: dict[str, str]) -> None:
    page = reference["http-operations"]
    shown = re.findall(r"^### `([A-Z]+ /\S*)`$", page, re.MULTILINE)
    assert sorted(shown) == sorted({*NEEDED, *PUBLIC})

    for operation in re.split(r"^### ", page, flags=re.MULTILINE)[1 : len(shown) + 1]:
        name = operation.split("`")[1]
        role = f"`{NEEDED[name].name.lower()}`" if name in NEEDED and name not in SHARED else ""
        assert f"Needs the [role](/http.md#authentication-and-roles) {role}" in operation or not role, name
        assert "**Answers**" in operation


def test_the_examples_of_the_reference_are_accepted(web: Web) -> None:
    """404 and 409 are accepted: the object may be missing or in another state."""
    web.env.register("invoice-sync", print)
    known = populate(web)
    bodies = {name: one["requestBody"] for name, one in documented_operations(web).items() if "requestBody" in one}
    for name, body in bodies.items():
        answer = request(web, name, known, body["content"]["application/json"]["example"])
        assert answer.status_code < 300 or answer.status_code in {404, 409}, f"{name}: {answer.text}"


def test_each_error_has_a_cause_and_a_remedy_of_its_own(reference: dict[str, str]) -> None:
    for kind in [one for module in (errors, http_errors) for one in script("reference").errors_of(module)]:
        assert vars(kind).get("remedy"), f"{kind.__name__} names no remedy"
        assert vars(kind).get("__doc__"), f"{kind.__name__} names no cause"
        assert f"### {kind.__name__}\n" in reference["errors"]


MAINTAINERS = {"security"}
"""Pages that users need not read."""


@pytest.mark.parametrize("page", sorted({path.stem for path in DOCS.glob("*.md")} - MAINTAINERS))
def test_a_page_begins_with_what_one_gets_and_shows_code_first(page: str) -> None:
    head = re.split(r"^## ", (DOCS / f"{page}.md").read_text(), flags=re.MULTILINE)[0]
    _, said, *_ = head.split("\n\n")
    assert re.match(r"[\w*`\[]", said), "it begins with a sentence"
    assert re.search(r"^(```\w|    \w)", head, re.MULTILINE), "it shows code before its first section"


def test_each_symptom_ends_with_what_doctor_and_why_say_of_it() -> None:
    checks = {check.name for check in health._CHECKS} | {"imports"}
    answers = {answer.value for answer in Answer}
    _, *symptoms = re.split(r"^## ", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    assert len(symptoms) > 5

    for symptom in symptoms:
        doctor, _, why = symptom.strip().rpartition("\n\n")[2].partition("Why ")
        assert doctor.startswith("Doctor says"), symptom
        assert why.startswith(("says", "has nothing to say")), symptom
        assert set(re.findall(r"`([a-z_ ]+)`", doctor)) <= checks
        assert set(re.findall(r"`([a-z_ ]+)`", why)) <= answers


def test_the_pictures_are_those_that_the_scripts_draw(diagrams: ModuleType) -> None:
    lanes = script("lanes")
    drawn = {name: diagrams.draw(diagram) for name, diagram in diagrams.DIAGRAMS.items()}
    drawn |= {name: lanes.draw(picture) for name, picture in lanes.PICTURES.items()}

    assert {path.stem: path.read_text() for path in (DOCS / "img").glob("*.svg")} == drawn, "run make docs"


@pytest.mark.parametrize(
    ("name", "statuses"), [("schedule", ScheduleStatus), ("run", RunStatus), ("target", TargetStatus)]
)
def test_a_picture_has_exactly_the_statuses_of_the_code(
    name: str, statuses: Iterable[str], diagrams: ModuleType
) -> None:
    assert set(diagrams.DIAGRAMS[name].states) - {"start"} == set(statuses)


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=["architecture.md", "CONTRIBUTING.md"])
def test_the_table_of_layers_names_every_part_of_the_package_once(page: str) -> None:
    table = present(re.search(r"^\| layer \|.*?\n\n", page, re.DOTALL | re.MULTILINE))
    cells = [row.split("|")[1] for row in table[0].strip().splitlines()[2:]]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert sorted(named) == sorted(there - {"__init__"})
    order = [next(level for level, parts in enumerate(LAYERS) if name in parts) for name in named]
    assert order == sorted(order, reverse=True)


def test_the_architecture_names_every_table() -> None:
    assert [name for name in metadata.tables if f"`{name}`" not in ARCHITECTURE] == []


def test_the_architecture_names_every_key_in_redis() -> None:
    source = (PACKAGE / "kernel" / "transport" / "redis_keys.py").read_text()
    keys = set(re.findall(r'f"(rqsched:[\w-]+:)\{', source))
    assert keys
    assert [key for key in sorted(keys) if f"`{key}{{" not in ARCHITECTURE] == []


FIRST = {
    "retry": "retries",
    "weekend": "holidays",
    "holiday": "holidays",
    "alert": "alerts",
    "why did not run": "troubleshooting",
    "pause": "pausing",
    "freeze tenant": "pausing",
    "concurrency limit": "limits",
    "rate limit": "limits",
    "backfill": "backfill",
    "daylight saving": "times",
    "cron syntax": "times",
    "timezone": "times",
    "django": "django",
    "celery beat": "coming-from-celery-beat",
    "overlap": "retries",
    "test without redis": "testing",
    "kubernetes": "containers",
    "worker concurrency": "workers",
    "backup": "backup",
    "webhook": "alerts",
    "network errors": "retries",
    "run again": "retries",
    "rerun": "retries",
    "public holidays": "holidays",
    "missed run": "alerts",
    "alert when missed": "alerts",
    "delete a tenant": "pausing",
    "02:30": "times",
    "summer time": "times",
    "limit per tenant": "limits",
    "upgrade": "upgrading",
    "flask test": "testing",
    "fastapi testclient": "testing",
    "short runs": "rq",
}
"""What people search for, and the page that they want to see first."""


SEARCH = """
const fs = require("fs"), vm = require("vm"), [site, ...queries] = process.argv.slice(1), found = {};
const page = vm.createContext({URLSearchParams, SPHINX_HIGHLIGHT_ENABLED: false, _: String, _ready() {},
                               document: {getElementById() {}}, location: {}});
page.window = page;
for (const name of ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${site}/${name}`, "utf8"), page);
for (const query of queries) {
  page.location.search = "?q=" + encodeURIComponent(query);
  page.query = query;
  const results = vm.runInContext("Search._performSearch(...Search._parseQuery(query))", page);
  found[query] = (results.pop() ?? [null])[0]; // shown from the last one on
}
console.log(JSON.stringify(found));
"""
"""What the page of the search does with a query, by Sphinx's own scripts, up to where it draws the results."""


@pytest.mark.skipif(NODE is None, reason="needs Node, which runs the scripts of the search (Debian: nodejs)")
def test_a_search_finds_the_page_first_that_is_about_it(site: Path) -> None:
    command = [present(NODE), "-e", SEARCH, str(site), *FIRST]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert json.loads(said) == FIRST
