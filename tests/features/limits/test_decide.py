"""The pure decision about the places of a group, for every line, every grant and every number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqsched.errors import InvalidPolicyError
from rqsched.features.limits.decide import (
    GRANT_LIFE,
    Grants,
    Waiting,
    decide_grants,
    most_given,
    quiet_queues,
    wants_grants,
)
from rqsched.kernel.decide.limit_options import key_of, name_of, split_key

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def place(waiting: Waiting) -> tuple[datetime, int, str]:
    return waiting.limit_at, waiting.number, waiting.uid


def waiting(uid: str, since: int, granted: int | None = None) -> Waiting:
    granted_at = None if granted is None else NOW - granted * SECOND
    return Waiting(uid, NOW - since * SECOND, 1, granted_at)


AGES = st.integers(0, 60)
UNCLAIMED = st.lists(st.tuples(AGES, AGES), max_size=6).map(
    lambda ages: [waiting(f"g{at}", *pair) for at, pair in enumerate(ages)]
)
LINES = st.lists(AGES, max_size=8).map(lambda ages: [waiting(f"w{at}", age) for at, age in enumerate(ages)])
ASKED = st.none() | AGES.map(lambda age: waiting("asked", age))


@given(st.integers(1, 6), st.integers(0, 8), UNCLAIMED, LINES, ASKED)
def test_never_more_than_the_number_and_the_first_in_line_come_first(
    number: int, running: int, unclaimed: list[Waiting], line: list[Waiting], asked: Waiting | None
) -> None:
    grants = decide_grants(number, running=running, unclaimed=unclaimed, line=line, asked=asked, now=NOW)

    kept = [one for one in unclaimed if one.uid not in grants.passed]
    taken = running + len(kept) + len(grants.given)
    assert taken <= max(number, running), "only what runs may be more: the number was lowered"
    assert set(grants.passed) <= {one.uid for one in unclaimed}
    candidates = sorted([*line, *([] if asked is None else [asked])], key=place)
    assert set(grants.given) <= {one.uid for one in candidates}
    by_uid = {one.uid: one for one in candidates}
    given = [by_uid[uid] for uid in grants.given]
    left = [one for one in candidates if one.uid not in grants.given]
    if taken < number:
        assert not left, "a place is free and somebody waits"
    others = [one for one in given if one is not asked]
    ahead = [one for one in left if one is not asked]
    assert all(place(one) < place(other) for one in others for other in ahead), "a newcomer has passed the line"
    if asked is not None and asked in left:
        assert all(place(one) < place(asked) for one in kept), "a later run keeps a grant that it does not use"
    for one in unclaimed:
        is_old = one.granted_at is not None and NOW - one.granted_at >= GRANT_LIFE
        if is_old and one in kept:
            assert not [other for other in left if other is not asked], "an old grant keeps somebody waiting"
        if one.uid in grants.passed and not is_old and running + len(unclaimed) <= number:
            assert asked is not None, "a young grant was taken back, and nobody asked"


@given(st.integers(1, 6), st.lists(st.sampled_from("abxy"), max_size=8), st.lists(st.sampled_from("abxy"), max_size=6))
def test_quiet_queues_go_behind_all_others_and_have_one_place_at_a_time(
    number: int, line: list[str], granted: list[str]
) -> None:
    quiet = {"x", "y"}
    unclaimed = [waiting(f"g{at}", 60 - at, 1)._replace(queue=queue) for at, queue in enumerate(granted[:number])]
    ordered = [waiting(f"w{at}", 50 - at)._replace(queue=queue) for at, queue in enumerate(line)]

    grants = decide_grants(number, running=0, unclaimed=unclaimed, line=ordered, quiet=quiet, now=NOW)

    given = [one for one in ordered if one.uid in grants.given]
    others = [one for one in ordered if one.queue not in quiet]
    free = number - len(unclaimed)
    assert [one for one in given if one in others] == others[:free]
    probes = [one.queue for one in given if one.queue in quiet]
    assert len(probes) == len({*probes}) <= max(free - len(others), 0)
    assert not {*probes} & {one.queue for one in unclaimed}
    may_be = {one.queue for one in ordered if one.queue in quiet} - {one.queue for one in unclaimed}
    assert len(given) == min(free, len(others) + len(may_be)), "a place is free, and somebody may have it"


def test_queue_is_quiet_where_one_was_passed_over_or_is_about_to_be() -> None:
    young, old = (waiting(queue, 60, age)._replace(queue=queue) for queue, age in (("young", 29), ("old", 30)))
    assert quiet_queues(["passed"], [young, old], NOW) == {"passed", "old"}


@given(st.integers(1, 6), st.integers(0, 8), UNCLAIMED, LINES, ASKED)
def test_more_of_the_line_than_can_be_given_changes_nothing(
    number: int, running: int, unclaimed: list[Waiting], line: list[Waiting], asked: Waiting | None
) -> None:
    ordered = sorted([*line, *([] if asked is None else [asked])], key=place)
    first = ordered[: most_given(number, running, unclaimed, NOW) + 1]
    of_first, of_all = (
        decide_grants(number, running=running, unclaimed=unclaimed, line=some, asked=asked, now=NOW)
        for some in (first, ordered)
    )
    assert of_first == of_all


def test_grant_that_is_not_claimed_goes_to_the_next_after_its_time() -> None:
    first, second = waiting("a", 50, granted=29), waiting("b", 40)
    assert decide_grants(1, running=0, unclaimed=[first], line=[second], now=NOW) == Grants()
    first = waiting("a", 50, granted=30)
    assert decide_grants(1, running=0, unclaimed=[first], line=[second], now=NOW) == Grants(("b",), ("a",))
    assert decide_grants(1, running=0, unclaimed=[first], line=[], now=NOW) == Grants()


@pytest.mark.parametrize("comes_after", [20, 45, 100, 1_000, 20_000])
def test_run_of_a_busy_queue_whose_group_is_always_full_is_claimed_in_the_end(comes_after: int) -> None:
    slow, now, rounds = waiting("slow", 5), NOW, 0
    while True:  # one place, and always somebody who takes what it is passed over for, at once and for long
        granted = slow._replace(granted_at=now)
        others = [waiting("other", 3)]
        now += comes_after * SECOND
        grants = decide_grants(1, running=0, unclaimed=[granted], line=others, now=now)
        if not grants.passed:
            break  # its worker has come, and claims it
        assert grants.given == ("other",)
        came = decide_grants(1, running=1, unclaimed=[], line=others, asked=slow, now=now)
        assert came == Grants()
        slow, rounds = slow._replace(passed_count=(slow.passed_count or 0) + 1), rounds + 1
    assert 30 * 2**rounds > comes_after
    assert rounds <= 10


def test_grant_of_a_run_that_was_passed_over_is_never_kept_for_more_than_a_day() -> None:
    often = waiting("often", 5)._replace(granted_at=NOW - timedelta(hours=9), passed_count=1_000)
    grants = decide_grants(1, running=0, unclaimed=[often], line=[waiting("other", 3)], now=NOW)
    assert grants == Grants(("other",), ("often",))


def test_run_that_a_worker_holds_goes_before_a_later_one_that_nobody_has_claimed() -> None:
    later, asked = waiting("b", 40, granted=1), waiting("a", 50)
    assert decide_grants(1, running=0, unclaimed=[later], line=[], now=NOW, asked=asked) == Grants(("a",), ("b",))
    assert decide_grants(1, running=1, unclaimed=[], line=[], now=NOW, asked=asked) == Grants()
    earlier = waiting("c", 60, granted=1)
    assert decide_grants(1, running=0, unclaimed=[earlier], line=[], now=NOW, asked=asked) == Grants()


def test_lowered_number_takes_back_what_is_not_claimed_and_leaves_what_runs() -> None:
    unclaimed = [waiting("a", 50, granted=1), waiting("b", 40, granted=1)]
    assert decide_grants(2, running=1, unclaimed=unclaimed, line=[], now=NOW) == Grants((), ("b",))
    assert decide_grants(1, running=5, unclaimed=[], line=[waiting("c", 1)], now=NOW) == Grants()


@pytest.mark.parametrize(
    ("number", "running", "unclaimed", "wanted"),
    [
        (1, 0, 0, True), (1, 1, 0, False), (100, 99, 0, True), (100, 75, 1, False), (100, 74, 1, True), (4, 1, 2, True),
        (100, 60, 15, True), (100, 59, 16, False), (100, 35, 16, False), (100, 34, 16, True),
    ],
)  # fmt: skip
def test_an_end_looks_at_the_line_when_a_quarter_is_free_half_while_many_or_at_once_while_none_are_about_to_start(
    number: int, running: int, unclaimed: int, wanted: bool
) -> None:
    assert wants_grants(number, running, unclaimed) is wanted


def test_name_is_made_of_labels_and_namespace() -> None:
    assert name_of("{namespace}:{labels.a}:{labels.b c}", "ns", '{"a":"1","b c":"2"}') == "ns:1:2"
    assert split_key(key_of("ns", "a/b")) == ("ns", "a/b")


@pytest.mark.parametrize("text", ["", ".", "a b", "x" * 256, "\u202e"])
def test_label_that_makes_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidPolicyError, match="limit"):
        name_of("{labels.a}", "ns", f'{{"a":"{text}"}}')
