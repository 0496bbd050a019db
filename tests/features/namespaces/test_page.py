"""The page that deletes a namespace."""

from __future__ import annotations

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
