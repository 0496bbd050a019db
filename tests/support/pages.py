"""The dashboard's pages as a browser sees them, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import httpx

from tests.support.env import Env
from tests.support.web import Web

_CSRF = re.compile(r'name="csrf" value="([^"]*)"')

TOKENS = json.dumps(
    [
        {"name": "reader", "role": "read", "token": "reader-secret-0123456789"},
        {"name": "operator", "role": "operate", "token": "operator-secret-0123456789"},
        {"name": "tenant", "role": "admin", "namespaces": ["tenant"], "token": "tenant-secret-0123456789"},
    ]
)
"""The value of RQSCHED_TOKENS for tests that use `Pages.log_in`."""


class _Form(HTMLParser):
    """Collects the fields of the form that is sent to a path, as a browser would send them."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.fields = path, dict[str, str]()
        self._is_inside, self._is_chosen, self._name = False, False, ""
        self._value: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_inside = given["action"].partition("?")[0] == self.path
        if not self._is_inside:
            return
        if tag == "input" and (given.get("type") not in {"checkbox", "radio"} or "checked" in given):
            self.fields[given["name"]] = given.get("value", "")
        elif tag in {"select", "textarea"}:
            self._name, self.fields[given["name"]], self._is_chosen = given["name"], "", False
        elif tag == "option":
            self._is_chosen = "selected" in given
        self._value = given.get("value")

    def handle_data(self, data: str) -> None:
        if self._is_inside and self._name and (self.lasttag == "textarea" or self._is_chosen):
            self.fields[self._name] = data if self._value is None else self._value
            self._is_chosen = False

    def handle_endtag(self, tag: str) -> None:
        if tag in {"select", "textarea"}:
            self._name = ""
        self._is_inside = self._is_inside and tag != "form"


def fields_of(page: str, path: str) -> dict[str, str]:
    """Return the fields of a page's form that is sent to a path."""
    form = _Form(path)
    form.feed(page.replace("\r\n", "\n"))  # as HTML says
    return form.fields


@dataclass
class Pages:
    """Reads pages and sends their forms, keeping cookies as a browser does."""

    web: Web
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: set[str] = field(default_factory=set)
    """The CSRF tokens in the forms of the last page; at most one value."""

    @property
    def env(self) -> Env:
        return self.web.env

    def _sent(self, answer: httpx.Response) -> httpx.Response:
        for name, value in answer.cookies.items():
            self.cookies[name] = value
        return answer

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**({"cookie": cookie} if cookie else {}), **(more or {})}

    def get(self, path: str, *, status: int = 200) -> str:
        """Read a page; asserts its status."""
        answer = self._sent(self.web.get(path, headers=self._headers()))
        assert answer.status_code == status, answer.text
        self.csrf = {found[1] for found in _CSRF.finditer(answer.text)} or self.csrf
        return answer.text

    def led_to(self, path: str) -> str:
        """Where an address leads; asserts that it does."""
        answer = self._sent(self.web.get(path, headers=self._headers()))
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def send(self, path: str, *, csrf: str | None = None, **fields: Any) -> httpx.Response:
        """Send a form with the CSRF value of the last page, and return the answer."""
        if not self.csrf:
            self.get("/schedules")
        (value,) = self.csrf
        token = value if csrf is None else csrf
        headers = self._headers({"content-type": "application/x-www-form-urlencoded"})
        body = urlencode({"csrf": token, **fields}, doseq=True)
        return self._sent(self.web.post(path, content=body, headers=headers))

    def do(self, path: str, **fields: Any) -> str:
        """Send a form and read the page it leads to."""
        answer = self.send(path, **fields)
        assert answer.status_code == 303, answer.text
        return self.get(answer.headers["location"])

    def log_in(self, name: str) -> Pages:
        """Log in with the token of this name of TOKENS, as a browser does."""
        self.get("/login")
        answer = self.send("/login", token=f"{name}-secret-0123456789", to="/schedules")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/schedules"
        return self
