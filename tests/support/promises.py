"""Map each promise of docs/promises.md to the tests of `make test` that prove it where it is made.

The page has this map as a table. Every test of a crash, a world and concurrency ends in the checks of I1 to I8, too.
"""

from __future__ import annotations

_CHAIN = "tests/kernel/chain/test_"
_CRASH = "tests/system/crash/test_every_step.py::test_a_flow_that_ends_at_any_step_loses_and_doubles_nothing[{}]"
_CROWD = "tests/system/concurrency/test_crowd.py::test_eight_processes_at_once_leave_every_invariant_whole[postgres]"
_WORLD = "tests/system/worlds/test_worlds.py::test_every_invariant_holds_in_a_shuffled_world[seeds-0]"
_WALK = "tests/kernel/decide/test_invariants_property.py::test_the_invariants_hold_on_every_walk[0-on a grid]"
_BACK = (
    "tests/system/crash/test_going_back.py::test_every_link_fires_in_time_when_sql_goes_back_to_an_earlier_commit[{}]"
)
_FROZEN = "tests/system/concurrency/test_frozen_transactions.py::test_"
_ACCEPTANCE = "tests/system/acceptance/test_"


def _on_both(test: str) -> tuple[str, str]:
    return f"{test}[sqlite]", f"{test}[postgres]"


PROMISES: dict[str, tuple[str, ...]] = {
    "I1": (
        *_on_both(_CHAIN + "fire.py::test_a_due_link_starts_a_run_and_arms_its_successor"),
        _CRASH.format("sqlite-fire all of three, of which max_runs allows two"),
        _CRASH.format("sqlite-a run succeeds and one comes after it"),
        _WALK,
        _WORLD,
    ),
    "I2": (
        *_on_both(_CHAIN + "fire.py::test_a_link_delivered_twice_fires_once"),
        *_on_both("tests/kernel/store/test_write.py::test_one_occurrence_has_one_run_live_and_backfill_together"),
        "tests/features/backfill/test_api_rerun.py::test_failed_occurrences_are_retried_and_missing_ones_fired[sqlite]",
        "tests/system/concurrency/test_backlog.py::test_a_backlog_is_fired_once_however_many_fire_and_recover_it[postgres]",
        _CROWD,
        _WORLD,
    ),
    "I3": (
        *_on_both(_CHAIN + "reconcile.py::test_a_late_schedule_without_a_link_is_armed_after_the_grace"),
        *_on_both(_CHAIN + "reconcile.py::test_after_a_flush_everything_is_armed_again_at_once"),
        _BACK.format("update to yearly"),
        _WORLD,
    ),
    "I4": (
        *_on_both(_CHAIN + "fire.py::test_an_early_link_waits_for_its_time"),
        _CHAIN + "fire.py::test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing[paused]",
        _CHAIN + "fire.py::test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing[deleted]",
        _CHAIN + "fire.py::test_a_link_of_another_position_writes_nothing[older]",
        _CHAIN + "clock_steps.py::test_time_is_the_databases_before_and_after_the_wall_clock_is_set[0:00:30]",
        _WORLD,
    ),
    "I5": (
        "tests/system/concurrency/test_starters.py::test_of_many_who_trigger_under_skip_one_starts_a_run[postgres]",
        _CRASH.format("sqlite-a run ends and the next is drained"),
        _CROWD,
        _WALK,
    ),
    "I6": (
        *_on_both("tests/kernel/store/test_write.py::test_sequences_of_audit_events_have_no_gap_over_many_changes"),
        _CRASH.format("sqlite-pause"),
        _CROWD,
        _WORLD,
    ),
    "I7": (
        _CRASH.format("sqlite-create"),
        *(_CRASH.format(f"{kind}-retry") for kind in ("sqlite", "postgres")),
        *(_CRASH.format(f"{kind}-a run succeeds") for kind in ("sqlite", "postgres")),
        _CHAIN + "lost_answers.py::test_a_fire_whose_answer_was_lost_fires_once_and_redis_follows",
        _ACCEPTANCE + "kill_and_restart.py::test_chains_go_on_after_each_of_many_kills_at_random_moments[sqlite]",
        *_on_both(_CHAIN + "reconcile.py::test_a_pending_run_whose_job_is_gone_is_delivered_again_under_a_new_id"),
    ),
    "I8": (
        _CRASH.format("sqlite-a run fails and is retried"),
        _CRASH.format("sqlite-a run that must not be repeated succeeds"),
        *_on_both(_CHAIN + "lost.py::test_a_lost_run_with_attempts_left_is_retried"),
        _CROWD,
    ),
    "no more of a limit's group run than its number": (
        *_on_both("tests/features/limits/test_api.py::test_only_so_many_run_and_the_next_in_line_follows_each_end"),
        "tests/system/concurrency/test_limits.py::test_grants_at_once_never_give_more_places_than_there_are",
    ),
    "no more of them start in a window than its rate": (
        "tests/features/limits/test_api_rates.py::"
        "test_only_so_many_start_in_any_window_and_the_next_follow_when_a_start_leaves_it[sqlite]",
        "tests/features/limits/test_api_rates.py::test_what_starts_between_two_looks_of_a_grant_is_counted",
    ),
    "whoever waits for a place of a limit gets one": (
        "tests/features/limits/test_api.py::"
        "test_run_of_a_busy_queue_is_not_passed_over_for_ever_by_a_group_that_is_always_full[sqlite]",
        "tests/features/limits/test_api_rates.py::"
        "test_link_does_not_come_again_where_only_a_queue_without_workers_waits[postgres]",
    ),
    "SQL or Redis that went back is noticed": (
        *_on_both(_CHAIN + "rollback_marks.py::test_a_redis_that_went_back_is_noticed_with_its_time"),
        _CHAIN + "rollback_marks.py::test_a_sql_without_any_mark_beside_a_redis_with_some_went_back",
    ),
    "a copy and an old primary execute nothing": (
        _CHAIN + "server_identity.py::test_an_old_primary_that_comes_back_is_refused_for_ever",
        _CHAIN + "server_identity.py::test_a_run_of_the_original_is_refused_by_a_worker_of_the_copy",
    ),
    "a fan-out handles each target at most once": (
        "tests/system/crash/test_fan_out.py::"
        "test_a_fan_out_that_ends_at_any_step_handles_each_target_once[sqlite-a target is handled]",
    ),
    "the fence of an attempt is larger than that of the one before": _on_both(
        _CHAIN + "retries.py::test_the_fence_of_an_attempt_is_larger_than_the_one_before_whatever_the_clock_says"
    ),
    "a silent Redis holds up one call of a web process": (
        _CHAIN + "breaker.py::test_while_redis_hangs_only_the_first_call_waits",
    ),
    "a silent backend does not hold up a probe": (
        "tests/http/test_outage.py::test_readiness_is_answered_while_postgresql_still_keeps_silent",
    ),
    "silent connections to Redis are given up": (
        _ACCEPTANCE
        + "silent_redis.py::test_an_idle_worker_whose_connections_swallow_everything_executes_again_soon[rqsched]",
    ),
    "silent connections to PostgreSQL are given up": (
        _ACCEPTANCE + "silent_postgres.py::"
        "test_quiet_connection_that_does_not_answer_is_given_up_before_it_has_a_statement",
    ),
    "a database that cannot go on is waited out": (
        _CHAIN + "database_limits.py::test_a_fire_that_meets_an_outage_is_waited_out_and_fires_once[disk full]",
        _CHAIN + "database_limits.py::test_a_batch_that_asks_too_much_of_the_database_is_split_and_fired[cancelled]",
    ),
    "nothing waits for a process that froze in a transaction": (
        _FROZEN + "nothing_waits_for_what_a_frozen_process_holds_but_the_schedules_it_holds[a fire]",
        _FROZEN + "what_a_frozen_process_has_locked_is_free_again_while_it_is_frozen[between two statements]",
    ),
    "a dispatcher that stands still is replaced": (
        _ACCEPTANCE + "worker_supervisor.py::test_a_dispatcher_that_stands_still_is_replaced_and_fires_go_on",
    ),
    "code beyond its timeout is killed": (
        _ACCEPTANCE
        + "overrun.py::test_code_beyond_its_timeout_is_killed_by_who_watches_it_and_its_run_is_lost[fork-in C]",
        "tests/run/test_runner_watch.py::test_a_runner_whose_job_takes_far_too_long_is_killed",
    ),
    "a receiver without an end holds up no other": (
        "tests/features/notifications/test_endless_answers.py::test_an_answer_that_drips_is_no_answer_after_the_time_limit[tls-drip-body]",
    ),
    "a process that user code forks ends with its call": (
        "tests/kernel/test_fork_guard.py::test_child_that_leaves_the_call_ends_with_its_exit_status[raises]",
    ),
    "a worker that lacks the code of a run leaves it to another": _on_both(
        _CHAIN + "blocked.py::test_a_blocked_run_starts_at_once_where_a_worker_has_its_workflow"
    ),
    "a worker with another database takes no run": (
        _CHAIN + "wrong_database.py::"
        "test_a_worker_with_another_database_puts_a_run_back_once_and_then_fails_it_with_what_to_set",
        _CHAIN + "wrong_database.py::"
        "test_what_starts_something_is_refused_where_redis_belongs_to_another_database[trigger]",
    ),
    "an older process leaves what a newer release has written": _on_both(
        _CHAIN + "newer_release.py::test_a_pass_arms_it_and_changes_nothing"
    ),
}
"""The tests of each promise, by node id."""


def as_markdown() -> str:
    """Write the table of docs/proofs/guarantees.md."""
    rows = ["| promise | tests that prove it |", "|---|---|"]
    for promise, tests in PROMISES.items():
        names = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in tests)
        rows.append(f"| {promise} | {names} |")
    return "\n".join(rows)
