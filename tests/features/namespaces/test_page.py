"""The page that deletes a namespace."""

from __future__ import annotations

import pytest

from tests.support.crowd import copy_run, copy_schedule
from tests.support.narrow import present
from tests.support.pages import Pages


def test_a_page_deletes_the_namespace_whose_name_is_typed(pages: Pages) -> None:
    env = pages.env
    env.create()
    assert "It is not frozen" in pages.get("/namespace/delete")
    env.scheduler.freeze()
    assert 'href="/namespace/delete"' in pages.get("/system")
    page = pages.get("/namespace/delete")
    assert "schedules: 1" in page
    assert "Not done: type default" in pages.do("/namespace/delete", confirm="defaul")
    assert len(env.scheduler.list().items) == 1
    told = pages.do("/namespace/delete", confirm="default", reason="it leaves")
    assert "The namespace default is deleted: " in told
    assert "it leaves" in told
    assert env.scheduler.list().items == []


@pytest.mark.every_database
def test_the_page_counts_what_a_namespace_has_up_to_a_thousand(any_pages: Pages) -> None:
    env = any_pages.env
    handle = env.create()
    run = present(handle.trigger().run)
    copy_schedule(env.runtime, handle, 999)
    copy_run(env.runtime, run, 1_200)
    env.create("elsewhere", namespace="other")
    shown = any_pages.get("/namespace/delete")
    assert "schedules: 1000+" in shown
    assert "runs: 1000+" in shown
    rows = env.scheduler.namespaces.preview_delete("default").rows
    assert (rows["schedules"], rows["runs"]) == (1_000, 1_201)
