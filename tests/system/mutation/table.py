"""Every mutation: which safety is taken out, and the tests that notice it.

Only protections against a lost or doubled occurrence after a crash are here. Ordinary behaviour has ordinary tests.
"""

from __future__ import annotations

from tests.system.mutation.edits import Edit, Mutation

_CHAIN = "tests/kernel/chain/test_"
_LIMITS = "tests/features/limits/test_api.py::"
_TARGETS = "tests/features/limits/test_api_targets.py::"
_RATES = "tests/features/limits/test_api_rates.py::"
_FREEZE = "tests/features/freeze/test_namespaces.py::test_"
_PROCESSES = "tests/run/test_"
_ACCEPTANCE = "tests/system/acceptance/test_"
_STORE = "tests/kernel/store/test_"
_BULK = "tests/features/bulk/test_api.py::test_"
_RUNS = "tests/features/bulk/test_runs.py::test_"
_OWN = "tests/api/test_caller_transaction.py::test_"
_COMING = "tests/importers/test_"
_EXCLUSION = "tests/when/test_exclusion.py::"
_MOVED = "tests/kernel/decide/test_moved.py::"
_CRASH = "tests/system/crash/test_every_step.py::test_a_flow_that_ends_at_any_step_loses_and_doubles_nothing[sqlite-{}]"
_ALONE = "tests/system/crash/test_every_step.py::test_a_flow_that_nobody_disturbs_goes_on_without_a_reconcile_pass[{}]"
_SIMULATED = (
    "tests/system/worlds/test_simulated.py::test_a_simulation_of_{}_says_what_the_real_store_has_afterwards[{}]"
)
_WORLDS = "tests/system/worlds/test_worlds.py::test_every_invariant_holds_in_a_shuffled_world[seeds-{}]"


def _edit(name: str, path: str, before: str, after: str, *noticed_by: str) -> Mutation:
    return Mutation(name, (Edit(f"rqsched/{path}", before, after),), noticed_by)


FENCES = (
    _edit(
        "a fire does not compare n",
        "kernel/decide/fire_decision.py",
        "not schedule.is_active or schedule.n != n or schedule.due_at is None",
        "not schedule.is_active or schedule.due_at is None",
        _CHAIN + "fire.py::test_a_link_of_another_position_writes_nothing[older]",
        _CHAIN + "fire.py::test_a_link_of_another_position_writes_nothing[never armed]",
        _WORLDS.format(50),
    ),
    _edit(
        "a fire does not look at the status",
        "kernel/decide/fire_decision.py",
        "not schedule.is_active or schedule.n != n or schedule.due_at is None",
        "schedule.n != n",
        _CHAIN + "fire.py::test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing[paused]",
        _CHAIN + "fire.py::test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing[deleted]",
    ),
    _edit(
        "a fire does not wait until it is due",
        "kernel/chain/fire.py",
        "elif schedule.due_at is not None and schedule.due_at > now:",
        "elif False:",
        _CHAIN + "fire.py::test_an_early_link_waits_for_its_time[sqlite]",
        _WORLDS.format(0),
    ),
    _edit(
        "time is the host's, not the database's",
        "clock.py",
        "Measurement(wall + offset, wall, monotonic)",
        "Measurement(wall, wall, monotonic)",
        "tests/contract/test_clock.py::test_a_wall_clock_that_is_set_changes_no_time_and_asks_for_a_measurement[0:00:10]",
        _CHAIN + "clock_steps.py::test_time_is_the_databases_before_and_after_the_wall_clock_is_set[0:00:30]",
    ),
    _edit(
        "the scheduler of RQ outlives its worker",
        "run/rq_worker.py",
        "    if worker.pid is not None and parent is not None and parent.pid == worker.pid:\n"
        "        die_with_parent(worker.pid)\n",
        "    return\n",
        "tests/system/acceptance/test_worker_supervisor.py::test_the_rq_scheduler_of_a_killed_rq_worker_ends_with_it",
    ),
    Mutation(
        "the schedule is not locked",
        (
            Edit(
                "rqsched/kernel/store/changes.py", "_LOCK = _FIND.with_for_update(key_share=True)\n", "_LOCK = _FIND\n"
            ),
            Edit(
                "rqsched/kernel/store/changes.py",
                "    return statement.with_for_update(key_share=True, skip_locked=skip_locked, of=schedules)\n",
                "    return statement\n",
            ),
        ),
        (
            _STORE + "transactions.py::test_two_processes_that_add_one_under_the_lock_lose_no_update[postgres]",
            "tests/system/concurrency/test_starters.py::test_of_many_who_trigger_under_skip_one_starts_a_run[postgres]",
        ),
    ),
    _edit(
        "open runs that another transaction has locked are not read",
        "kernel/store/changes.py",
        "(IS_OPEN_UNFINISHED if with_backfill else IS_OPEN_LIVE)\n",
        "(IS_OPEN_UNFINISHED if with_backfill else IS_OPEN_LIVE).with_for_update(skip_locked=True)\n",
        _STORE + "locks.py::test_open_runs_that_another_transaction_holds_are_read_without_waiting",
        _CHAIN + "locked.py::test_schedule_whose_run_is_being_claimed_skips_and_starts_no_second_run",
    ),
    _edit(
        "a run that another transaction has locked is not ended, and its successor starts all the same",
        "kernel/store/changes.py",
        "        if all(run in locked for run in unfinished[uid])\n",
        "",
        _STORE + "locks.py::test_schedule_is_left_out_where_one_of_the_runs_to_lock_is_held",
        _CHAIN + "locked.py::test_schedule_that_would_replace_a_held_run_is_left_for_the_next_turn[cancel_other]",
    ),
    _edit(
        "a thaw does not lock the runs that it replaces",
        "features/freeze/chain.py",
        "changes.open_runs_for_start(connection, due) if is_locked else changes.open_runs(connection, due)",
        "changes.open_runs(connection, due)",
        _CHAIN + "locked.py::test_thaw_that_replaces_a_run_locks_it_before_it_writes[cancel_other]",
        _CHAIN + "locked.py::test_thaw_that_replaces_a_run_locks_it_before_it_writes[terminate_other]",
    ),
    _edit(
        "a claim does not compare attempt and job number",
        "kernel/store/claims.py",
        '        runs.c.attempt == sa.bindparam("b_attempt"),\n'
        '        runs.c.delivery == sa.bindparam("b_delivery"),\n',
        "",
        _CHAIN + "runs.py::test_a_delivery_of_another_number_gets_nothing[delivery]",
        _CHAIN + "runs.py::test_a_delivery_of_another_number_gets_nothing[attempt]",
    ),
    _edit(
        "a fence may be below that of the attempt before",
        "kernel/store/claims.py",
        '    began = dialect.after(runs.c.started_at, given["started_at"], runs.c.granted_at)\n',
        '    began = dialect.after(runs.c.granted_at, given["started_at"])\n',
        _CHAIN
        + "retries.py::test_the_fence_of_an_attempt_is_larger_than_the_one_before_whatever_the_clock_says[sqlite]",
        _CHAIN
        + "retries.py::test_the_fence_of_an_attempt_is_larger_than_the_one_before_whatever_the_clock_says[postgres]",
    ),
    _edit(
        "a claim does not compare the status",
        "kernel/store/claims.py",
        ".where(*is_asked, is_free_for(runs, _TOKEN, *may_start))",
        ".where(*is_asked, *may_start)",
        _CHAIN + "runs.py::test_only_one_of_two_deliveries_gets_the_run[sqlite]",
        _CHAIN + "drain.py::test_a_replaced_pending_run_never_starts[sqlite-cancel]",
        _WORLDS.format(0),
    ),
    _edit(
        "a claim does not look whether everything is frozen",
        "kernel/store/claims.py",
        "    may_start = (~is_frozen(namespace), ~is_late(now), MAY_START)\n",
        "    may_start = (~is_late(now), MAY_START)\n",
        "tests/features/freeze/test_everything.py::test_a_claim_sees_a_freeze_of_sql_that_its_process_does_not_know[sqlite]",
        "tests/features/freeze/test_everything.py::test_a_claim_sees_a_freeze_of_sql_that_its_process_does_not_know[postgres]",
    ),
    _edit(
        "a lease does not look whether everything is frozen",
        "kernel/transport/lua.py",
        "if redis.call('HEXISTS', KEYS[4], '*') == 1 then return false end\n",
        "",
        "tests/features/freeze/test_everything.py::test_a_dispatcher_that_does_not_know_of_a_freeze_in_redis_leases_nothing[sqlite]",
    ),
    _edit(
        "a fire does not look whether everything is frozen",
        "kernel/chain/fire.py",
        "    if runtime.freezes.is_all_frozen:\n",
        "    if False:\n",
        "tests/features/freeze/test_everything.py::test_while_frozen_no_link_fires_and_then_the_policy_decides[sqlite-SQL]",
    ),
    _edit(
        "a pass copies back a freeze that was thawed since it read it",
        "kernel/store/metadata.py",
        "    if freeze.uid not in _lock_thawed(connection, freeze.namespace):\n",
        "    if True:\n",
        "tests/features/freeze/test_everything.py::test_a_thawed_freeze_is_not_copied_back_by_a_pass_that_had_read_it[sqlite]",
    ),
    _edit(
        "a claim does not look whether its namespace is frozen",
        "kernel/store/metadata.py",
        "    return sa.exists(sa.select(1).where(everything)) | is_namespace_frozen(namespace)\n",
        "    return sa.exists(sa.select(1).where(everything))\n",
        _FREEZE + "fires_and_claims_see_a_freeze_that_redis_and_their_process_do_not_know[sqlite]",
        _FREEZE + "fires_and_claims_see_a_freeze_that_redis_and_their_process_do_not_know[postgres]",
        _FREEZE + "no_external_worker_is_handed_a_run_of_a_frozen_namespace[postgres]",
    ),
    _edit(
        "a runner takes its connection out of the pool for each claim and end",
        "run/worker.py",
        "    runtime = open_runtime()\n    runtime.database.keep_connection()\n",
        "    runtime = open_runtime()\n",
        _ACCEPTANCE + "runners.py::test_runner_keeps_its_connection_from_the_end_of_a_run_to_the_claim_of_the_next",
    ),
    _edit(
        "on SQLite a claim looks whether any namespace is frozen, not its own",
        "kernel/store/tables.py",
        ".correlate(table).scalar_subquery()",
        ".scalar_subquery()",
        _FREEZE + "a_freeze_keeps_the_queued_runs_of_its_namespace_and_no_other[sqlite-default]",
        _FREEZE + "a_freeze_keeps_the_queued_runs_of_its_namespace_and_no_other[sqlite-tenant]",
    ),
    _edit(
        "a fire does not look whether its namespace is frozen",
        "kernel/chain/fire.py",
        "        elif link.uid in frozen:\n",
        "        elif False:\n",
        _FREEZE + "fires_and_claims_see_a_freeze_that_redis_and_their_process_do_not_know[sqlite]",
        _FREEZE + "nothing_of_a_frozen_namespace_fires_and_others_do[postgres]",
    ),
    _edit(
        "a retry does not look whether its namespace is frozen",
        "kernel/chain/fire.py",
        "    if is_frozen:\n",
        "    if False:\n",
        _FREEZE + "a_retry_waits_and_an_attempt_that_has_begun_goes_on[sqlite]",
    ),
    _edit(
        "a pass begins what waits in a frozen namespace, and tells that it is overdue",
        "kernel/chain/reconcile/repair.py",
        "frozen=[*parts.freezes.frozen]",
        "frozen=[]",
        _FREEZE + "nothing_of_a_frozen_namespace_fires_and_others_do[sqlite]",
        _FREEZE + "a_popped_job_of_a_frozen_namespace_begins_nothing_and_comes_back_after_the_thaw[sqlite]",
        _FREEZE + "nobody_is_told_that_something_of_a_frozen_namespace_is_overdue_or_takes_long[sqlite]",
    ),
    _edit(
        "a process that Redis tells of another freeze does not ask SQL",
        "kernel/chain/freeze_gate.py",
        "        if self._told != self._told_before:\n",
        "        if False:\n",
        _FREEZE + "another_process_refuses_a_trigger_once_redis_has_told_it_and_no_longer_after_the_thaw[sqlite]",
        _FREEZE + "a_process_that_is_cut_off_from_redis_asks_sql",
    ),
    _edit(
        "a thaw ends another freeze than it has read",
        "kernel/store/metadata.py",
        "    is_it = sa.true() if text is None else table.c.value == text\n",
        "    is_it = sa.true()\n",
        _FREEZE + "a_thaw_ends_only_the_freeze_that_it_has_read[sqlite]",
    ),
    _edit(
        "a chunk of a bulk operation begins where the one before began",
        "features/bulk/api.py",
        "_replace(done=done, after=after)",
        "_replace(done=done)",
        _BULK + "the_count_comes_first_and_the_chunks_do_each_schedule_exactly_once[sqlite]",
    ),
    _edit(
        "a bulk operation takes what is created after its count",
        "features/bulk/api.py",
        "    return replace(filters, created_until=min(end_at, filters.created_until or end_at))\n",
        "    return filters\n",
        _BULK + "schedules_that_change_between_two_chunks_move_no_other_one_out_of_them[sqlite]",
    ),
    _edit(
        "the triggers of a bulk operation have no key",
        "features/bulk/api.py",
        'idempotency_key=f"bulk-{place.uid}"',
        "idempotency_key=None",
        _BULK + "a_chunk_that_is_sent_again_does_nothing_twice[sqlite-trigger]",
    ),
    _edit(
        "a bulk operation on runs takes runs that are created after its count",
        "kernel/queries/run_pages.py",
        "    return found + _are_of_set(filters)\n",
        "    return found\n",
        _RUNS + "runs_that_are_created_after_the_count_are_never_in_the_set[sqlite-schedule_id]",
    ),
    _edit(
        "a bulk operation on runs does not look again under the lock of the schedule",
        "features/bulk/runs.py",
        "settle_run(runtime, run.uid, end, fence=is_meant)",
        "settle_run(runtime, run.uid, end, fence=lambda run: run.status in OPEN)",
        _RUNS + "a_run_that_starts_before_its_turn_in_a_chunk_is_named_with_its_status[sqlite]",
    ),
    _edit(
        "waiting runs start while all runs are cancelled",
        "features/bulk/runs.py",
        '"-created" if self.operation == "cancel"',
        '"created" if self.operation == "cancel"',
        _RUNS + "a_run_that_waits_behind_another_never_starts_while_all_are_cancelled[sqlite]",
    ),
    _edit(
        "an end does not compare the token",
        "kernel/chain/settle.py",
        "fence=lambda run: run.is_held_by(claim.token)",
        "fence=lambda run: True",
        _CHAIN + "run_ends.py::test_the_result_of_a_cancelled_run_is_not_recorded[sqlite-returns]",
        _CHAIN + "run_ends.py::test_the_result_of_a_cancelled_run_is_not_recorded[sqlite-fails]",
        _CHAIN + "run_ends.py::test_the_late_end_of_a_lost_attempt_is_not_that_of_the_attempt_in_its_place[sqlite]",
    ),
    _edit(
        "an end in one statement does not compare the token",
        "kernel/store/changes.py",
        '            is_held_by(runs, sa.bindparam("b_token")),\n',
        "",
        _STORE + "end_alone.py::test_nothing_is_written_under_another_token",
        _STORE + "end_alone.py::test_nothing_is_written_after_waiting_for_a_transaction_that_changed_either_row"
        "[cancel_run_alone]",
    ),
    _edit(
        "an end in one statement does not notice that the schedule has changed",
        "kernel/store/changes.py",
        '.where(schedules.c.uid == sa.bindparam("b_schedule"), is_as_read)',
        '.where(schedules.c.uid == sa.bindparam("b_schedule"))',
        _STORE + "end_alone.py::test_nothing_is_written_when_the_schedule_has_changed_since_the_claim",
        _CHAIN + "ends_alone.py::test_what_happens_to_the_schedule_during_a_run_is_kept_and_the_end_counted"
        "[postgres-trigger]",
    ),
    _edit(
        "a trigger in one statement does not notice that the schedule has changed",
        "kernel/store/changes.py",
        ".where(is_this, is_version)",
        ".where(is_this)",
        _STORE + "one_change.py::test_nothing_is_written_when_the_row_is_no_more_that_version",
        _CHAIN + "triggers_alone.py::test_schedule_that_has_got_a_run_meanwhile_starts_no_other",
        _CHAIN + "triggers_alone.py::test_schedule_that_was_paused_meanwhile_is_not_triggered",
    ),
    _edit(
        "a trigger in one statement starts a run beside one that is unfinished",
        "kernel/store/changes.py",
        "    ~sa.exists().where(",
        "    ~sa.false() | sa.exists().where(",
        _STORE + "one_change.py::test_schedule_with_an_unfinished_run_is_not_idle[running]",
        _CHAIN + "triggers_alone.py::test_schedule_that_runs_takes_a_transaction_and_its_policy_decides",
    ),
    _edit(
        "an end in one statement is not recognised when its answer was lost",
        "kernel/chain/commit.py",
        "if self.tried is not None or any(",
        "if any(",
        _CHAIN + "ends_alone.py::test_end_whose_answer_was_lost_is_found_again_and_told_once",
    ),
    Mutation(
        "a trigger in one statement is not recognised when its answer was lost",
        (
            Edit("rqsched/kernel/chain/commit.py", "if self.tried is not None or any(", "if any("),
            Edit("rqsched/kernel/chain/change.py", "if attempts.tried is not None or (found :=", "if (found :="),
        ),
        (_CHAIN + "triggers_alone.py::test_trigger_whose_answer_was_lost_starts_one_run[that has ended]",),
    ),
    _edit(
        "a trigger in one statement records no notification",
        "kernel/chain/commit.py",
        " or any(one.writes_more(change) for one in involved for change in decided.changes)",
        "",
        _CHAIN + "triggers_alone.py::test_trigger_that_somebody_is_told_of_records_the_notification",
    ),
    _edit(
        "a trigger in one statement ignores its idempotency key",
        "kernel/chain/trigger.py",
        "alone=one.decide_alone if idempotency_key is None else None",
        "alone=one.decide_alone",
        _CHAIN + "triggers_alone.py::test_trigger_with_the_key_of_a_run_that_has_ended_returns_that_run",
    ),
    _edit(
        "a horse's death is settled although its run has ended",
        "kernel/chain/settle.py",
        "return is_same and run.status is RunStatus.RUNNING",
        "return True",
        _PROCESSES + "fork.py::test_a_horses_death_is_not_settled_twice[sqlite]",
    ),
    _edit(
        "a dead runner's run is settled although another process has claimed it",
        "kernel/chain/settle.py",
        " and token in {None, run.token}",
        "",
        _PROCESSES + "fork.py::test_the_death_of_a_process_that_had_claimed_nothing_leaves_the_run_of_another_alone"
        "[sqlite-died]",
    ),
    _edit(
        "a runner is killed although it executes another job by then",
        "run/runner_slot.py",
        "if job is None or job.id != job_id or job.pid != pid:",
        "if job is None:",
        _PROCESSES + "runner_watch.py::test_a_runner_that_has_left_the_stopped_job_lives_and_is_not_held[the next job]",
    ),
    _edit(
        "a runner has no time limit",
        "run/runner_slot.py",
        "time.monotonic() > self.kill_at",
        "False",
        _PROCESSES + "runner_watch.py::test_a_runner_whose_job_takes_far_too_long_is_killed",
    ),
    _edit(
        "a runner is killed although its code has ended",
        "run/runner_slot.py",
        "if only_overrun and not job.is_overrun:",
        "if False:",
        _PROCESSES + "runner_watch.py::test_a_runner_whose_code_has_ended_before_it_is_held_lives_on",
    ),
    _edit(
        "code in a horse may go on beyond its timeout",
        "run/work_horse.py",
        "return 0.0 < at < time.monotonic()",
        "return False",
        _ACCEPTANCE + "overrun.py::test_code_beyond_its_timeout_is_killed_by_who_watches_it_and_its_run_is_lost"
        "[fork-in C]",
    ),
    _edit(
        "the end of an attempt has no longer than its code",
        "run/work_horse.py",
        "            if os.getpid() == pid:\n                self.clear()",
        "            pass",
        _ACCEPTANCE + "overrun.py::test_silence_of_sql_while_the_end_is_written_is_no_overrun[fork]",
    ),
    _edit(
        "a half-written note of a runner is read",
        "run/runner_slot.py",
        "if number % 2 == 0 and",
        "if",
        _PROCESSES + "runner_slot.py::test_a_note_whose_writer_died_halfway_says_nothing_and_the_next_one_is_whole",
    ),
    _edit(
        "a heartbeat does not compare the token",
        "kernel/store/claims.py",
        '.where(runs.c.uid == sa.bindparam("b_uid"), is_held_by(runs, _TOKEN))',
        '.where(runs.c.uid == sa.bindparam("b_uid"), runs.c.status == constant(RunStatus.RUNNING))',
        _STORE + "claims.py::test_a_heartbeat_with_another_token_does_not_count[sqlite]",
    ),
    _edit(
        "a run is given back without a comparison of the token",
        "kernel/chain/blocked.py",
        "fence=lambda current: current.is_held_by(run.token)",
        "fence=lambda current: True",
        _CHAIN + "blocked.py::test_a_worker_that_wakes_up_after_its_run_was_lost_gives_nothing_back[sqlite]",
    ),
    _edit(
        "a run that is given back has used up an attempt",
        "kernel/decide/blocked.py",
        "        delivery=run.delivery + 1,\n",
        "        attempt=run.attempt + 1,\n",
        _CHAIN + "blocked.py::test_a_blocked_run_starts_at_once_where_a_worker_has_its_workflow[sqlite]",
        "tests/kernel/decide/test_blocked.py::test_a_run_that_is_given_back_is_pending_under_the_next_delivery_and_no_attempt_counts",
    ),
    _edit(
        "an error that a module raises counts as a missing workflow",
        "workflows.py",
        "kind = WorkflowNotFoundError if _is_missing(error, name) else UnknownWorkflowError",
        "kind = WorkflowNotFoundError",
        _CHAIN + "blocked.py::test_a_module_that_breaks_at_import_is_a_failed_attempt",
    ),
    _edit(
        "a retry link makes an attempt of any run that ended badly",
        "kernel/chain/fire.py",
        "run is None or run.status is not RunStatus.RETRYING or run.attempt != link.attempt",
        "run is None or run.error is None",
        _CHAIN + "retries.py::test_a_retry_link_delivered_twice_makes_one_attempt[sqlite]",
        _CHAIN + "retries.py::test_the_retry_link_of_an_earlier_attempt_is_stale",
    ),
    _edit(
        "a retry link does not compare its attempt",
        "kernel/chain/fire.py",
        "run.status is not RunStatus.RETRYING or run.attempt != link.attempt",
        "run.status is not RunStatus.RETRYING",
        _CHAIN + "retries.py::test_the_retry_link_of_an_earlier_attempt_is_stale",
    ),
    Mutation(
        "an incarnation is not unique",
        (
            Edit(
                "rqsched/kernel/store/tables.py",
                "schedules.c.namespace, schedules.c.schedule_id, unique=True,",
                "schedules.c.namespace, schedules.c.schedule_id, unique=False,",
            ),
            Edit(
                "rqsched/kernel/store/migrations/versions/0005_initial.py",
                '        ["namespace", "schedule_id"],\n        unique=True,',
                '        ["namespace", "schedule_id"],\n        unique=False,',
            ),
        ),
        (
            _STORE + "write.py::test_only_one_schedule_of_an_identity_is_not_deleted[sqlite]",
            _STORE + "write.py::test_only_one_schedule_of_an_identity_is_not_deleted[postgres]",
        ),
    ),
    Mutation(
        "an occurrence may have two runs",
        (
            Edit(
                "rqsched/kernel/store/tables.py",
                "runs.c.schedule_uid, runs.c.occurrence_at, unique=True,",
                "runs.c.schedule_uid, runs.c.occurrence_at, unique=False,",
            ),
            Edit(
                "rqsched/kernel/store/migrations/versions/0005_initial.py",
                '        ["schedule_uid", "occurrence_at"],\n        unique=True,',
                '        ["schedule_uid", "occurrence_at"],\n        unique=False,',
            ),
        ),
        (_STORE + "write.py::test_one_occurrence_has_one_run_live_and_backfill_together[sqlite]",),
    ),
)
"""The checks that tell an old, early or second delivery from the due one."""

ORDER = (
    Mutation(
        "a fire is published before it is committed",
        (
            Edit(
                "rqsched/kernel/chain/fire.py",
                "    involved = write(runtime, connection, [",
                "    publish(runtime, [result.change for result in fired if result.change is not None])\n"
                "    involved = write(runtime, connection, [",
            ),
            Edit(
                "rqsched/kernel/chain/fire.py",
                "        publish(runtime, committed, must=must_follow, involved=involved, skip_locked=skip_locked)\n",
                "",
            ),
        ),
        (_CRASH.format("fire under a plain rq worker"), _CRASH.format("retry")),
    ),
    Mutation(
        "the end of a run is published before it is committed",
        (
            Edit(
                "rqsched/kernel/chain/commit.py",
                "        write(self._parts, connection, sorted(",
                "        publish(self._parts, decided.changes)\n        write(self._parts, connection, sorted(",
            ),
            Edit("rqsched/kernel/chain/settle.py", "    publish(runtime, end.changes, seen=end.seen)\n", ""),
        ),
        (_CRASH.format("a run fails and is retried"), _CRASH.format("a run ends and the next is drained")),
    ),
    _edit(
        "an owner's operation is published before it is committed",
        "kernel/chain/commit.py",
        "        write(self._parts, connection, sorted(",
        "        publish(self._parts, decided.changes)\n        write(self._parts, connection, sorted(",
        _CRASH.format("resume"),
        _CRASH.format("restart a done one"),
    ),
    _edit(
        "what is written in the caller's transaction is published before its COMMIT, and not after it",
        "kernel/store/caller_transaction.py",
        '("begin", _at_begin), ("rollback", _at_rollback)',
        '("commit", _at_begin), ("rollback", _at_rollback)',
        _OWN + "schedule_of_a_connections_transaction_is_written_and_published_with_its_commit[sqlite]",
        _OWN + "schedule_of_a_sessions_transaction_is_published_when_commit_returns[sqlite]",
        _ALONE.format("create, update and trigger in a caller's transaction"),
    ),
    _edit(
        "after the caller's commit the decision is published, not the rows",
        "kernel/chain/after_commit.py",
        "found = _as_they_are(runtime.database, touched)",
        "found = list(touched)",
        _OWN + "what_was_undone_by_a_savepoint_is_not_published[sqlite]",
        _OWN + "what_was_undone_by_a_sessions_savepoint_is_not_published[sqlite]",
        _CRASH.format("create, update and trigger in a session, after a savepoint"),
    ),
    _edit(
        "an operation in the caller's transaction on SQLite begins without a write",
        "kernel/store/caller_transaction.py",
        "        if is_writing and dialect_of(connection).has_one_writer:",
        "        if False:",
        _OWN + "connection_that_is_rolled_back_after_its_commit_publishes_what_it_committed[sqlite]",
        _OWN + "connection_in_autocommit_is_refused[sqlite]",
    ),
    _edit(
        "an operation is written on a connection to another database",
        "kernel/store/caller_transaction.py",
        "        if found != database_id:\n",
        "        if False:\n",
        _OWN + "connection_to_another_database_is_refused_before_anything_is_written[sqlite]",
    ),
    _edit(
        "after the caller's commit a row is taken for as it was decided whoever wrote it",
        "kernel/chain/after_commit.py",
        '        if row[0].operation == (alone[uid].after.operation or "none")  # no row has this operation\n',
        "",
        _OWN + "events_are_told_after_the_commit_and_only_those_committed[sqlite]",
    ),
    _edit(
        "an operation that fails leaves rows in the caller's transaction",
        "kernel/store/caller_transaction.py",
        "    with connection.begin_nested():\n",
        "    if True:\n",
        _OWN + "operation_that_fails_half_way_leaves_nothing_in_the_transaction[sqlite]",
    ),
)
"""SQL first, Redis second: the other order doubles a chain when its process dies in between."""

FOLLOWING = (
    _edit(
        "no retry link is armed",
        "kernel/transport/transport.py",
        "                    arms.append(retry_of(run))\n",
        "                    pass\n",
        _CHAIN + "retries.py::test_a_failed_attempt_waits_for_its_retry_link[sqlite]",
        _ALONE.format("a run fails and is retried"),
    ),
    _edit(
        "a fire does not arm its successor",
        "kernel/transport/transport.py",
        "                arms += link_of(after)\n",
        "                pass\n",
        _CHAIN + "fire.py::test_a_due_link_starts_a_run_and_arms_its_successor[sqlite]",
        _ALONE.format("fire under a plain rq worker"),
        _ALONE.format("create"),
    ),
    _edit(
        "no run job is enqueued",
        "kernel/transport/transport.py",
        "                    ready.append(run)\n",
        "                    pass\n",
        _ALONE.format("trigger"),
        _ALONE.format("a run ends and the next is drained"),
    ),
    _edit(
        "the end of a run drains nothing",
        "kernel/decide/overlap.py",
        "    run = _next_waiting(builder) if has_waiting",
        "    run = None if has_waiting",
        _CHAIN + "drain.py::test_a_waiting_run_starts_when_the_run_ahead_ends[sqlite]",
        _ALONE.format("a run ends and the next is drained"),
    ),
    _edit(
        "a stale link does not repair Redis",
        "kernel/chain/fire.py",
        "change=change if change.changed_runs or link_of(schedule) else None)",
        "change=None)",
        _CHAIN + "fire.py::test_a_stale_link_arms_the_current_one_where_it_is_missing[sqlite]",
        _CHAIN + "lost_answers.py::test_a_fire_whose_answer_was_lost_fires_once_and_redis_follows",
    ),
    _edit(
        "a leased link is removed from Redis",
        "kernel/transport/lua.py",
        "for _, id in ipairs(taken) do redis.call('ZADD', KEYS[1], ARGV[2], id) end",
        "for _, id in ipairs(taken) do redis.call('ZREM', KEYS[1], id) end",
        _CHAIN + "dispatcher.py::test_the_links_of_a_dispatcher_that_died_return_by_themselves[sqlite]",
    ),
    _edit(
        "what is due when a schedule stops gets no outcome",
        "kernel/decide/occurrences.py",
        "if first is not None and first <= builder.now:",
        "if False:",
        "tests/system/crash/test_every_step.py::test_a_flow_that_ends_at_any_step_loses_and_doubles_nothing[sqlite-pause]",
        _WORLDS.format(0),
    ),
    _edit(
        "what is skipped on request gets no outcome",
        "kernel/decide/fire_decision.py",
        "    if schedule.skips is not None:\n",
        "    if False:\n",
        "tests/api/test_skip_next.py::test_next_occurrences_are_skipped_and_what_follows_fires[sqlite]",
        _CRASH.format("fire over what is skipped"),
    ),
    _edit(
        "a fire does not know what is skipped on request",
        "kernel/decide/model.py",
        "        if self.skips is None:  # nearly all schedules\n",
        "        if True:\n",
        "tests/api/test_skip_next.py::test_what_is_due_already_is_not_the_next_one",
        _WORLDS.format(200),
    ),
    _edit(
        "max_retries is ignored",
        "kernel/decide/delays.py",
        "    if attempt > retry.max_retries:\n",
        "    if False:\n",
        _CHAIN + "retries.py::test_without_retries_user_code_runs_at_most_once[sqlite]",
    ),
)
"""The steps that continue a chain without faults."""

ANSWERS = (
    _edit(
        "a repeated claim does not recognise its own token",
        "kernel/store/tables.py",
        "*may_start) | is_held_by(table, token)",
        "*may_start)",
        _CHAIN + "lost_answers.py::test_a_claim_whose_answer_was_lost_is_recognised_when_repeated",
    ),
    _edit(
        "a repeated end does not recognise its own commit",
        "kernel/chain/settle.py",
        "        return tried\n    return Decided([_standing",
        "        return Decided([], None)\n    return Decided([_standing",
        _CHAIN + "lost_answers.py::test_a_failure_whose_answer_was_lost_is_recorded_once_and_its_retry_armed",
        _CHAIN + "lost_answers.py::test_a_success_whose_answer_was_lost_starts_the_waiting_run",
    ),
    _edit(
        "an end that is fenced out leaves Redis as it is",
        "kernel/chain/settle.py",
        "    return Decided([_standing(connection, schedule, run)], None)\n",
        "    return Decided([], None)\n",
        _CHAIN + "lost_answers.py::test_a_failure_whose_answer_was_lost_lets_redis_follow_later_changes",
    ),
    _edit(
        "an end that a worker recorded is not recognised when its answer was lost",
        "kernel/chain/execution.py",
        "            is_repeated = True\n",
        "",
        _PROCESSES
        + "horse_sql.py::test_end_that_a_worker_recorded_before_it_died_is_recognised_and_told_once[postgres]",
        _PROCESSES + "horse_sql.py::test_end_that_a_worker_recorded_before_it_died_is_recognised_and_told_once[sqlite]",
    ),
    _edit(
        "a horse takes an end for recorded that its worker did not confirm",
        "kernel/chain/execution.py",
        "            is_repeated = True\n",
        "            return None\n",
        _PROCESSES + "horse_sql.py::test_end_of_a_run_is_recorded_by_its_horse_when_the_worker_has_died_since_the_claim"
        "[sqlite-skip]",
        _CRASH.format("a run succeeds for whose horse its worker writes"),
    ),
    _edit(
        "a horse asks its worker again after a missing answer",
        "run/horse_sql.py",
        "        self._is_over = True  # set it first: a timeout of the job may interrupt this call halfway\n",
        "",
        _PROCESSES + "horse_sql.py::test_late_answer_of_a_worker_is_not_taken_for_that_of_the_next_question[sqlite]",
    ),
    _edit(
        "a horse draws a new token after it has asked its worker",
        "kernel/chain/execution.py",
        "            claim = write_claim(runtime, job, token, worker)",
        "            claim = write_claim(runtime, job, new_uid(runtime.now()), worker)",
        _PROCESSES + "horse_sql.py::test_run_with_long_arguments_is_executed_once[sqlite-too long]",
    ),
    _edit(
        "a worker's alarm stays on while it writes for its horse",
        "run/work_horse.py",
        "    left = signal.alarm(0)\n",
        "    left = 0\n",
        _PROCESSES + "horse_sql.py::test_alarm_of_a_worker_is_off_while_it_writes_and_set_again_afterwards[sqlite]",
    ),
    _edit(
        "a horse keeps the connection of its worker open",
        "run/horse_sql.py",
        "        self._runtime.database.leave_to_parent()\n",
        "",
        _PROCESSES + "horse_sql.py::test_connection_of_a_worker_ends_with_the_worker_though_its_horse_lives",
    ),
    _edit(
        "a repeated operation does not recognise its own commit",
        "kernel/chain/commit.py",
        "        if row is None:\n            return False\n",
        "        return False\n",
        _CRASH.format("pause"),
        _CRASH.format("restart a done one"),
        _CHAIN + "lost_answers_of_operations.py::test_operation_is_recorded_and_told_once[pause]",
        _CHAIN + "lost_answers_of_operations.py::test_retry_of_a_blocked_run_is_recorded_once",
    ),
    _edit(
        "a repeated create does not recognise its schedule once another operation has changed it",
        "kernel/chain/create.py",
        "    if known is not None and known.uid == uid:",
        "    if False:",
        _CHAIN
        + "lost_answers_of_operations.py"
        + "::test_schedule_that_was_paused_before_its_create_is_repeated_is_that_of_the_create[None]",
    ),
    _edit(
        "a repeated retry on request does not recognise its attempt once that has ended",
        "features/retry_on_request/chain.py",
        " or (tried is not None and _has_begun(run, tried.result))",
        "",
        _CHAIN
        + "lost_answers_of_operations.py"
        + "::test_retry_whose_attempt_has_ended_before_it_is_repeated_is_not_made_twice",
    ),
)
"""The checks that prevent repeating a transaction whose answer was lost."""

RECONCILE = (
    _edit(
        "reconcile arms no links",
        "kernel/chain/reconcile/passes.py",
        "        schedules.arm_links(runtime, everything=everything),\n",
        "",
        _CHAIN + "reconcile.py::test_a_late_schedule_without_a_link_is_armed_after_the_grace[sqlite]",
        _CRASH.format("create"),
        _WORLDS.format(0),
    ),
    _edit(
        "reconcile leaves late rows alone",
        "kernel/chain/reconcile/schedules.py",
        "if everything or due_at > now or due_at <= fired_soon]",
        "if everything or due_at > now]",
        _CHAIN + "reconcile.py::test_a_late_schedule_without_a_link_is_armed_after_the_grace[sqlite]",
    ),
    _edit(
        "reconcile arms no retries",
        "kernel/chain/reconcile/passes.py",
        "        lost_attempts.arm_retries(runtime, everything=everything),\n",
        "",
        _CHAIN + "reconcile.py::test_a_retry_whose_link_is_gone_is_armed_again[sqlite]",
        _CRASH.format("a run fails and is retried"),
    ),
    _edit(
        "reconcile enqueues no run jobs",
        "kernel/chain/reconcile/passes.py",
        "        unless_all_frozen(runtime, lost_attempts.redeliver_runs(runtime, everything=everything)),\n",
        "",
        _CHAIN + "reconcile.py::test_a_pending_run_whose_job_is_gone_is_delivered_again_under_a_new_id[sqlite]",
        _CRASH.format("trigger"),
        _WORLDS.format(0),
    ),
    _edit(
        "reconcile enqueues a run job under the same job number",
        "kernel/store/changes.py",
        """        replace(run, delivery=run.delivery + 1)
        for run in locked
""",
        """        run
        for run in locked
""",
        _CHAIN + "reconcile.py::test_a_pending_run_whose_job_is_gone_is_delivered_again_under_a_new_id[sqlite]",
    ),
    _edit(
        "reconcile records no run as lost",
        "kernel/chain/reconcile/passes.py",
        "        lost_attempts.settle_lost(runtime),\n",
        "",
        _CHAIN + "lost.py::test_a_run_without_heartbeats_is_lost_after_three_sightings[sqlite]",
        _CRASH.format("a run succeeds"),
        _WORLDS.format(0),
    ),
    _edit(
        "reconcile records a run as lost at the first comparison of heartbeats",
        "kernel/chain/reconcile/lost_attempts.py",
        "SIGHTINGS = 3\n",
        "SIGHTINGS = 0\n",
        _CHAIN + "lost.py::test_a_run_without_heartbeats_is_lost_after_three_sightings[sqlite]",
        _CHAIN + "lost.py::test_a_jump_of_the_clock_loses_no_run[forward]",
    ),
    _edit(
        "reconcile records a run as lost although its heartbeats continue",
        "kernel/chain/reconcile/lost_attempts.py",
        "claims.read_heartbeat(connection, run.uid)) != heartbeat:\n",
        "claims.read_heartbeat(connection, run.uid)) == -1:\n",
        _CHAIN + "lost.py::test_a_run_with_a_new_heartbeat_during_the_pass_is_not_lost",
    ),
    _edit(
        "reconcile records a run as lost although it has ended",
        "kernel/chain/reconcile/lost_attempts.py",
        "return is_silent and current.attempt == run.attempt and current.is_held_by(run.token)",
        "return True",
        _CHAIN + "lost.py::test_a_run_that_ends_during_the_pass_keeps_its_end",
    ),
    _edit(
        "a link that nobody promotes counts as live",
        "kernel/transport/lua.py",
        "score >= oldest_live and ",
        "",
        _CHAIN + "arming.py::test_a_dead_link_under_the_same_id_is_replaced[late_beyond_the_grace]",
        _CHAIN + "reconcile.py::test_a_link_that_nobody_promotes_is_brought_to_the_list_after_the_grace[sqlite]",
    ),
    _edit(
        "a link that stands later than SQL knows counts as live",
        "kernel/transport/lua.py",
        " and score <= latest then",
        " then",
        _CHAIN + "arming.py::test_a_dead_link_under_the_same_id_is_replaced[armed_before_sql_went_back]",
        "tests/system/crash/test_going_back.py"
        "::test_every_link_fires_in_time_when_sql_goes_back_to_an_earlier_commit[update to yearly]",
        _CHAIN + "reconcile.py::test_a_link_that_was_armed_for_a_time_that_sql_has_lost_fires_after_a_pass[sqlite]",
    ),
    _edit(
        "a link counts as live only until it is due",
        "kernel/transport/lua.py",
        "math.max(tonumber(due) or 0, latest_put_off)",
        "tonumber(due) or 0",
        _CHAIN + "arming.py::test_a_link_that_is_due_and_put_off_is_left_alone",
    ),
    _edit(
        "a full pass that dies after SQL went back is not made again",
        "kernel/chain/rollback_marks.py",
        "asking = [one for one in told(found, now) if not one.is_compared]",
        "asking = list[Told]()",
        _CHAIN
        + "rollback_marks.py::test_a_pass_that_dies_before_everything_is_compared_is_followed_by_another_full_one",
    ),
    _edit(
        "SQL gets a mark although Redis lacks the one before",
        "kernel/chain/rollback_marks.py",
        "return _Sides(mark, mark) if runtime.transport.push_mark(owner, str(mark), follows=str(newest)) else None",
        "return _Sides(mark, mark)",
        _CHAIN + "rollback_marks.py::test_marks_that_do_not_reach_redis_tell_nothing[4]",
    ),
    _edit(
        "what marks tell is recorded although SQL has another one by then",
        "kernel/store/metadata.py",
        "row, database_metadata.c.value == known)",
        "row)",
        _CHAIN + "rollback_marks.py::test_passes_at_any_step_of_another_tell_nothing[as Redis has it, step 1-goes on]",
    ),
    _edit(
        "a pass that pauses puts its mark in front of later ones",
        "kernel/transport/lua.py",
        "if newest and newest ~= ARGV[2] then return 0 end\n",
        "",
        _CHAIN + "rollback_marks.py::test_passes_at_any_step_of_another_tell_nothing[as Redis has it, step 3-goes on]",
    ),
    _edit(
        "a dispatcher of another server takes links",
        "kernel/transport/lua.py",
        "if is_foreign(KEYS[3], ARGV[4]) then return redis.error_reply(foreign) end\n",
        "",
        _CHAIN + "server_identity.py::test_an_old_primary_that_comes_back_is_refused_for_ever",
        _CHAIN + "server_identity.py::test_a_copy_is_refused_while_processes_of_the_original_live[another database]",
    ),
    _edit(
        "a process of another server puts jobs on queues",
        "kernel/transport/lua.py",
        "if is_foreign(server, identity) then return redis.error_reply(foreign) end\n",
        "",
        _CHAIN + "server_identity.py::test_what_a_copy_has_written_reaches_no_queue",
    ),
    _edit(
        "a worker of another server claims runs",
        "jobs.py",
        "current_runtime().ownership.require_server(server)",
        "pass",
        _CHAIN + "server_identity.py::test_a_run_of_the_original_is_refused_by_a_worker_of_the_copy",
    ),
    _edit(
        "the tenth timeline comes before the second",
        "kernel/transport/lua.py",
        "tonumber(mine[3]) > tonumber(known[3])",
        "mine[3] > known[3]",
        _CHAIN + "server_identity.py::test_a_failover_never_waits[promoted often]",
    ),
    _edit(
        "a copy takes over from an original that was only silent",
        "kernel/transport/lua.py",
        "if not since or now - since < tonumber(ARGV[7]) then return answer('waits') end\n",
        "",
        _CHAIN + "server_identity.py::test_an_original_that_was_only_silent_keeps_its_queue",
    ),
    _edit(
        "a refused copy comes first after a flush",
        "kernel/transport/lua.py",
        "if ARGV[8] == '1' then return answer('flushed') end\n",
        "",
        _CHAIN + "server_identity.py::test_a_flush_does_not_let_a_refused_copy_come_first",
    ),
    _edit(
        "a fork does not wait for threads that use a SQLite file",
        "kernel/store/sqlite_file.py",
        " and not {*gate.uses.values()} - {*gate.forking}",
        "",
        _STORE + "fork.py::test_a_fork_waits_for_the_transactions_of_other_threads[write]",
    ),
    _edit(
        "threads begin to use a SQLite file while the process forks",
        "kernel/store/sqlite_file.py",
        "        while gate.forking and not is_nested",
        "        while False and not is_nested",
        _STORE + "fork.py::test_no_thread_uses_a_file_while_the_process_forks[transaction]",
    ),
    _edit(
        "a connection to SQLite is closed in the midst of a fork",
        "kernel/store/sqlite_file.py",
        "        with _in_use():\n            if self._path",
        "        if True:\n            if self._path",
        _STORE + "fork.py::test_no_thread_uses_a_file_while_the_process_forks[close]",
    ),
    _edit(
        "a child uses a SQLite file that it has inherited open",
        "kernel/store/sqlite_file.py",
        "            _inherited.add(self._path)",
        "            pass",
        _STORE + "fork.py::test_a_child_refuses_a_file_that_a_thread_of_its_parent_did_not_leave",
    ),
    _edit(
        "a child whose fork called no function of Python goes on as its parent",
        "kernel/store/sqlite_file.py",
        "    if _gate.pid != os.getpid():\n        with",
        "    if False:\n        with",
        _STORE + "fork.py::test_a_child_of_a_server_that_forks_without_hooks_refuses_a_file_that_is_open[]",
    ),
    _edit(
        "connections to a server that was left are used",
        "kernel/store/database.py",
        "            raise sa.exc.InvalidatePoolError",
        "            pass",
        _CHAIN + "server_identity.py::test_connections_to_another_server_than_the_newest_are_given_up",
    ),
    _edit(
        "a connection to Redis has no timeout",
        "kernel/transport/client.py",
        '"socket_timeout": ANSWER_SECONDS, ',
        '"socket_timeout": None, ',
        _ACCEPTANCE
        + "silent_redis.py::test_an_idle_worker_whose_connections_swallow_everything_executes_again_soon[rqsched]",
    ),
    _edit(
        "a worker does not check its subscription",
        "kernel/transport/client.py",
        "        if message is None and monotonic() - self._heard_at >= QUIET_SECONDS:\n            self._ask()\n",
        "",
        _ACCEPTANCE + "silent_redis.py::test_a_terminated_run_is_killed_although_its_worker_heard_no_command[fork]",
    ),
    _edit(
        "a horse whose run was terminated is not stopped again",
        "kernel/chain/execution.py",
        "if status == RunStatus.TERMINATED:",
        "if False:",
        _ACCEPTANCE + "silent_redis.py::test_a_terminated_run_is_killed_although_its_worker_heard_no_command[fork]",
    ),
    _edit(
        "a child that stands still is left alone",
        "run/supervisor.py",
        '            self._signal(partial(self.role.watch.kill, why="it stood still and was killed"))\n',
        "            pass\n",
        _ACCEPTANCE + "worker_supervisor.py::test_a_dispatcher_that_stands_still_is_replaced_and_fires_go_on",
    ),
    _edit(
        "a dispatcher does not notice the death of its keeper",
        "run/keeper.py",
        "        if os.getppid() != keeper:\n",
        "        if False:\n",
        _ACCEPTANCE + "preload.py::test_schedules_fire_beside_a_long_job_whoever_dies[rqsched-keeper-simple]",
    ),
    _edit(
        "a dispatcher and its keeper are not started again",
        "rq.py",
        "            self._kept.keep()\n",
        "            pass\n",
        _ACCEPTANCE + "rq_workers.py::test_a_dispatcher_and_its_keeper_that_die_at_once_come_back[simple]",
    ),
    _edit(
        "a keeper that found no place does not wait for one",
        "run/waiting_keeper.py",
        "        if ending.poll(_LOOK_MILLISECONDS):\n",
        "        if True:\n",
        _ACCEPTANCE + "preload.py::"
        "test_of_many_workers_two_have_a_dispatcher_and_another_takes_the_place_of_one_that_dies[preload]",
    ),
    _edit(
        "a keeper that waits takes the second place at once",
        "run/waiting_keeper.py",
        "        if looks >= _LOOKS:\n",
        "        if free is not None:\n",
        _ACCEPTANCE + "preload.py::"
        "test_of_many_workers_two_have_a_dispatcher_and_another_takes_the_place_of_one_that_dies[preload]",
    ),
    _edit(
        "every worker of a machine has a dispatcher",
        "run/waiting_keeper.py",
        "        except BlockingIOError:\n            continue\n",
        "        except BlockingIOError:\n            pass\n",
        _ACCEPTANCE + "preload.py::"
        "test_of_many_workers_two_have_a_dispatcher_and_another_takes_the_place_of_one_that_dies[preload]",
    ),
    _edit(
        "reconcile drains nothing",
        "kernel/chain/reconcile/passes.py",
        "        unless_all_frozen(runtime, schedules.drain(runtime)),\n",
        "",
        _CHAIN + "reconcile.py::test_a_waiting_run_with_nothing_ahead_is_drained[sqlite]",
    ),
    _edit(
        "reconcile gives no next time",
        "kernel/chain/reconcile/passes.py",
        "        schedules.set_next_times(runtime),\n",
        "",
        _CHAIN + "reconcile.py::test_a_schedule_without_a_next_time_is_planned_again[sqlite]",
    ),
    _edit(
        "reconcile does not notice a flush",
        "kernel/chain/reconcile/passes.py",
        "_unless_redis_fails(runtime.ownership.leave_flush_marker, None, ",
        "_unless_redis_fails(lambda: None, None, ",
        _CHAIN + "reconcile.py::test_after_a_flush_everything_is_armed_again_at_once[sqlite]",
    ),
    _edit(
        "reconcile does not notice a flush within its pass",
        "kernel/transport/lua.py",
        "if redis.call('DEL', KEYS[2]) == 0 then return 0 end\n",
        "",
        _CHAIN + "reconcile.py::test_a_flush_within_a_full_pass_starts_another",
    ),
)
"""The reconcile passes that repair the rest."""

_PRUNING = "tests/features/pruning/test_api.py::test_"
PRUNING = (
    _edit(
        "pruning does not record what it deleted",
        "features/pruning/store.py",
        "    connection.execute(moved.values(pruned_to=pruned_to))\n",
        "    del moved\n",
        _PRUNING + "a_backfill_after_a_pruning_runs_nothing_twice[sqlite]",
    ),
    _edit(
        "a backfill ignores what was pruned",
        "features/backfill/chain.py",
        "return None if rerun == Rerun.ALL else changes.read_pruned_to(connection, schedule.uid)",
        "return None",
        _PRUNING + "a_backfill_after_a_pruning_runs_nothing_twice[sqlite]",
    ),
    _edit(
        "pruning deletes a task whose run was retried",
        "features/pruning/store.py",
        "    gone = sorted({*held} - {*connection.execute(of_open).scalars()})\n",
        "    gone = sorted(held)\n",
        _CHAIN + "tasks.py::test_task_that_has_not_ended_stays[sqlite]",
        _CHAIN + "tasks.py::test_task_that_has_not_ended_stays[postgres]",
    ),
    _edit(
        "pruning deletes the run of an occurrence that may still fire",
        "features/pruning/decide.py",
        "        and (run.kind is RunKind.MANUAL or run.occurrence_at <= schedule.evaluated_to)\n",
        "",
        "tests/features/pruning/test_decide.py::test_what_somebody_may_still_need_stays[one of an occurrence to come]",
    ),
    _edit(
        "pruning does not wait for a backfill",
        "features/pruning/chain.py",
        "if pruning.is_backfilling(connection, schedule.uid):",
        "if False:",
        _PRUNING + "nothing_is_pruned_of_a_schedule_while_its_backfill_fires[sqlite]",
    ),
)
"""Pruned occurrences do not run again."""

_HOURS = "tests/features/hours/test_store.py::test_"
HOURS = (
    _edit(
        "counting forgets the open runs it passes over",
        "features/hours/store.py",
        "if row.ended_at is None and row.number <= number]",
        "if False]",
        _HOURS + "counting_goes_on_behind_any_number_of_open_runs_a_batch_at_a_time[sqlite-7]",
        _HOURS + "every_run_that_has_ended_is_counted_once_whatever_happens[sqlite-0]",
    ),
    _edit(
        "counting waits behind a batch of open runs",
        "features/hours/store.py",
        "following[-1].number if is_full else before",
        "before",
        _HOURS + "counting_goes_on_behind_any_number_of_open_runs_a_batch_at_a_time[postgres-1003]",
        "tests/features/hours/test_chain.py::test_many_open_runs_keep_no_run_from_being_pruned[sqlite-501]",
    ),
    _edit(
        "a run that was passed over is counted twice",
        "features/hours/store.py",
        "connection.execute(sa.delete(uncounted).where(*mine))",
        "del mine",
        _HOURS + "every_run_that_has_ended_is_counted_once_whatever_happens[sqlite-0]",
    ),
    _edit(
        "a run that is run again stays in its hour",
        "features/hours/store.py",
        "        again = [run for run in found if run.number <= number and run.number not in known]\n",
        "        again = list[Run]()\n",
        _HOURS + "every_run_that_has_ended_is_counted_once_whatever_happens[sqlite-1]",
        "tests/features/hours/test_chain.py::test_a_run_that_is_retried_is_counted_where_it_ends_anew[sqlite]",
    ),
    _edit(
        "runs are pruned that are not counted",
        "features/pruning/chain.py",
        "        chosen = _counted(connection, schedule.uid, chosen)\n",
        "        pass\n",
        "tests/features/hours/test_chain.py::test_hours_of_pruned_runs_stay_for_more_than_a_year[sqlite]",
    ),
)
"""A run that has ended is in one hour, once, also when it is not there any more."""

NOTIFICATIONS = (
    _edit(
        "a notification is attempted without a comparison of its row",
        "features/notifications/store.py",
        "deliveries.c.attempt == job.attempt, is_free_for(deliveries, token))",
        "sa.true())",
        "tests/features/notifications/test_chain.py::test_a_delivery_is_attempted_once_however_often_its_job_is_delivered[sqlite]",
    ),
    _edit(
        "the end of a notification does not compare the token",
        "features/notifications/store.py",
        "where(deliveries.c.uid == uid, is_held_by(deliveries, token))",
        "where(deliveries.c.uid == uid)",
        "tests/features/notifications/test_chain.py::test_a_process_that_lost_its_delivery_says_nothing_about_it_any_more[sqlite]",
    ),
    _edit(
        "reconcile enqueues no notification",
        "features/notifications/chain.py",
        "[*reports, redeliver_notifications(parts)]",
        "reports",
        "tests/features/notifications/test_chain.py::test_an_attempt_whose_process_vanished_is_repeated[sqlite]",
        _CRASH.format("a run fails and somebody is told"),
    ),
    _edit(
        "an overdue schedule is reported in each pass",
        "kernel/decide/schedule_repair.py",
        "    builder.set(overdue_at=None, overdue_since=schedule.overdue_at)\n",
        "    builder.set(overdue_since=schedule.overdue_at)\n",
        "tests/features/notifications/test_chain.py::test_a_schedule_without_a_success_in_time_is_overdue_once[sqlite]",
    ),
    _edit(
        "a claim does not look whether the run is late",
        "kernel/store/claims.py",
        "    may_start = (~is_frozen(namespace), ~is_late(now), MAY_START)\n",
        "    may_start = (~is_frozen(namespace), MAY_START)\n",
        "tests/api/test_start_within.py::test_late_worker_never_starts_it_and_ends_it_itself[sqlite]",
        "tests/api/test_start_within.py::test_late_worker_never_starts_it_and_ends_it_itself[postgres]",
    ),
    _edit(
        "an external worker is handed a late run",
        "kernel/store/claims.py",
        "~is_frozen(sa.literal(namespace)), ~is_late(now))",
        "~is_frozen(sa.literal(namespace)))",
        "tests/api/test_start_within.py::test_external_worker_gets_none_that_is_late[sqlite]",
    ),
    _edit(
        "the end of a late run does not look whether it is late still",
        "kernel/chain/settle.py",
        "return current.attempt == run.attempt and current.is_late(runtime.now())",
        "return True",
        "tests/api/test_start_within.py::test_run_that_was_taken_meanwhile_is_not_ended[sqlite]",
    ),
    _edit(
        "a claim does not look whether the run has a place in its group",
        "kernel/store/claims.py",
        "    may_start = (~is_frozen(namespace), ~is_late(now), MAY_START)\n",
        "    may_start = (~is_frozen(namespace), ~is_late(now))\n",
        _LIMITS + "test_only_so_many_run_and_the_next_in_line_follows_each_end[sqlite]",
        _LIMITS + "test_only_so_many_run_and_the_next_in_line_follows_each_end[postgres]",
    ),
    _edit(
        "an external worker is handed a run without a place",
        "features/external/chain.py",
        "            uids = [uid for uid, group in waiting if group is None]\n",
        "            uids = [uid for uid, _ in waiting]\n",
        _LIMITS + "test_external_worker_gets_only_so_many[sqlite]",
    ),
    _edit(
        "a grant does not lock its group",
        "features/limits/store.py",
        "    locked = _find(connection, groups).with_for_update(key_share=True, skip_locked=skip_locked)\n",
        "    locked = _find(connection, groups)\n",
        "tests/system/concurrency/test_limits.py::test_grants_at_once_never_give_more_places_than_there_are",
    ),
    _edit(
        "a rate does not count what is granted and has not started",
        "features/limits/store.py",
        "        free = bounds.most_unclaimed(running[group], starts[group])\n",
        "        free = bounds.most_unclaimed(running[group], starts[group]) + len(unclaimed[group])\n",
        _RATES + "test_places_that_nobody_has_claimed_count[sqlite]",
    ),
    _edit(
        "a rate does not count what has started",
        "features/limits/decide.py",
        "min(self.rate.number - starts, MAX_NUMBER)",
        "min(self.rate.number, MAX_NUMBER)",
        "tests/features/limits/test_rate.py::test_no_window_holds_more_starts_than_the_rate_says",
    ),
    _edit(
        "a claim does not write its start",
        "features/limits/chain.py",
        "        count_starts(connection, [(run, run.started_at) for run, _ in started])\n",
        "",
        _RATES + "test_only_so_many_start_in_any_window_and_the_next_follow_when_a_start_leaves_it[sqlite]",
        _RATES + "test_external_workers_get_only_so_many[sqlite]",
    ),
    _edit(
        "a grant reads what has started before who is granted",
        "features/limits/store.py",
        "    unclaimed, running, silent = _taken(connection, locked)\n    starts = _starts(connection, locked, now)\n",
        "    starts = _starts(connection, locked, now)\n    unclaimed, running, silent = _taken(connection, locked)\n",
        _RATES + "test_what_starts_between_two_looks_of_a_grant_is_counted",
    ),
    _edit(
        "each end looks at the line of a rate, of which it frees nothing",
        "features/limits/store.py",
        "sa.case((_NOTHING_FREED, 0), else_=limits.c.number)",
        "limits.c.number",
        _RATES + "test_end_frees_nothing_of_a_rate_and_looks_at_no_line[2/min-False]",
    ),
    _edit(
        "no end looks at the line of a rate that gives fewer places at once",
        "features/limits/store.py",
        "limits.c.number.is_(None) & (limits.c.rate_number <= MAX_NUMBER)",
        "limits.c.number.is_(None)",
        _RATES + "test_end_frees_nothing_of_a_rate_and_looks_at_no_line[10001/min-True]",
    ),
    _edit(
        "a claim that is one statement takes what counts its start",
        "features/limits/chain.py",
        "    claims_alone = store.STARTS_UNCOUNTED\n",
        "",
        _RATES + "test_process_that_dies_in_a_claim_leaves_a_start_with_its_row_or_neither",
    ),
    _edit(
        "the claim of a target does not write its start",
        "features/fan_out/store.py",
        "    if target.is_rated:\n        count_starts(connection, [(target, begun)])\n",
        "",
        _RATES + "test_targets_are_starts_too[sqlite]",
    ),
    _edit(
        "a run starts before it was granted",
        "kernel/store/claims.py",
        '    began = dialect.after(runs.c.started_at, given["started_at"], runs.c.granted_at)\n',
        '    began = dialect.after(runs.c.started_at, given["started_at"])\n',
        _RATES + "test_claim_of_a_process_whose_clock_is_behind_starts_no_earlier_than_its_place[sqlite]",
    ),
    _edit(
        "nobody looks again at a line that waits for its rate",
        "features/limits/chain.py",
        "    for link, at in granted.looks:\n",
        "    for link, at in granted.looks[:0]:\n",
        _RATES + "test_only_so_many_start_in_any_window_and_the_next_follow_when_a_start_leaves_it[sqlite]",
    ),
    _edit(
        "a link of a run that left the line looks at nobody behind it",
        "kernel/chain/fire.py",
        'return Fired(str(link), "stale", run=run)',
        'return Fired(str(link), "stale")',
        _RATES + "test_first_in_line_that_is_cancelled_lets_the_next_follow_in_time[sqlite]",
    ),
    _edit(
        "each link that brought somebody in line looks at each start that leaves the window",
        "features/limits/store.py",
        "    return at if is_its else None\n",
        "    return at\n",
        _RATES + "test_one_link_looks_for_all_who_wait_in_line[sqlite]",
    ),
    _edit(
        "a link forgets a line whose rate became free after its grant",
        "features/limits/store.py",
        "    if later < 0:\n        return now\n",
        "    if later < 0:\n        return None\n",
        _RATES + "test_start_that_leaves_the_window_between_a_links_grant_and_its_look_ahead_is_not_forgotten[sqlite]",
    ),
    _edit(
        "a run that is given back keeps its start",
        "features/limits/chain.py",
        "if (before.status, after.status) == (RunStatus.RUNNING, RunStatus.PENDING)\n",
        "if False\n",
        _RATES + "test_run_that_a_worker_without_its_code_gives_back_has_not_started[sqlite]",
    ),
    _edit(
        "a pass waits for a group that another holds",
        "features/limits/chain.py",
        "grant(parts, groups, skip_locked=True)",
        "grant(parts, groups)",
        "tests/features/limits/test_locks.py::test_pass_waits_for_no_group_that_another_process_holds",
    ),
    _edit(
        "each end waits for who gives places just now",
        "features/limits/chain.py",
        "if count), skip_locked=True)",
        "if count))",
        "tests/features/limits/test_locks.py::test_end_leaves_the_line_to_who_gives_places_just_now_while_others_have_one_to_claim",
    ),
    _edit(
        "no end waits for who gives places just now",
        "features/limits/chain.py",
        "if count == 0})\n",
        "if count == 0}, skip_locked=True)\n",
        "tests/features/limits/test_locks.py::test_end_waits_for_who_gives_places_just_now_when_nobody_has_one_to_claim",
    ),
    _edit(
        "each end looks at its line, also while others will",
        "features/limits/decide.py",
        "    return unclaimed * 4 >= number and not (is_turn and wants_grants(number, running, unclaimed))\n",
        "    return False\n",
        "tests/features/limits/test_locks.py::test_end_looks_at_no_line_while_others_have_most_places_to_claim",
    ),
    _edit(
        "half of the places are given at once only where half of them wait for a claim",
        "features/limits/decide.py",
        "unclaimed >= _MANY else",
        "unclaimed * 2 >= number else",
        "tests/features/limits/test_decide.py::"
        "test_an_end_looks_at_the_line_when_a_quarter_is_free_half_while_many_or_at_once_while_none_are_about_to_start"
        "[100-59-16-False]",
    ),
    _edit(
        "an end takes itself for one that still runs",
        "features/limits/store.py",
        "others_look(number, running - 1, unclaimed)",
        "others_look(number, running, unclaimed)",
        "tests/features/limits/test_locks.py::test_end_looks_at_no_line_while_others_have_most_places_to_claim",
    ),
    _edit(
        "an end leaves its line to others who are not there",
        "features/limits/decide.py",
        "    return unclaimed * 4 >= number and not (is_turn and wants_grants(number, running, unclaimed))\n",
        "    return True\n",
        _LIMITS + "test_only_so_many_run_and_the_next_in_line_follows_each_end[postgres]",
    ),
    _edit(
        "an end that saw nobody in line takes that for what is so afterwards",
        "features/limits/store.py",
        "    return {group: unclaimed} if is_line and wants_grants(number, running - 1, unclaimed) else {}\n",
        "    return {group: unclaimed if is_line and wants_grants(number, running - 1, unclaimed) else None}\n",
        "tests/features/limits/test_locks.py::test_end_that_saw_nobody_in_line_lets_who_joined_meanwhile_follow",
    ),
    _edit(
        "an end that saw nobody in line looks, also in a group that is less than half full",
        "features/limits/store.py",
        "    is_wide = not is_line and (running + unclaimed) * 2 < number\n",
        "    is_wide = False\n",
        "tests/features/limits/test_locks.py::test_end_looks_at_no_line_where_it_saw_none_and_less_than_half_of_the_places_taken",
    ),
    _edit(
        "an end that saw nobody in line leaves it to others where a place was free beside its own",
        "features/limits/store.py",
        "    is_wide = not is_line and (running + unclaimed) * 2 < number\n",
        "    is_wide = not is_line and running + unclaimed < number\n",
        "tests/features/limits/test_locks.py::test_end_looks_at_no_line_where_it_saw_none_and_less_than_half_of_the_places_taken",
    ),
    _edit(
        "a schedule that is created locks its group as a grant does",
        "features/limits/store.py",
        ".with_for_update(read=True, key_share=True)",
        ".with_for_update(key_share=True)",
        "tests/features/limits/test_locks.py::test_schedule_of_a_callers_long_transaction_keeps_no_place_from_others",
    ),
    _edit(
        "who leaves the line lets nobody follow",
        "features/limits/chain.py",
        "(before.takes_place or before.is_in_line)",
        "before.takes_place",
        "tests/features/limits/test_locks.py::test_next_in_line_follows_when_the_first_was_held_and_leaves_the_line",
    ),
    _edit(
        "a group that is removed meanwhile is not made again",
        "features/limits/chain.py",
        "for _ in range(2):",
        "for _ in range(1):",
        "tests/features/limits/test_locks.py::test_group_that_is_removed_while_a_schedule_joins_it_is_made_again",
    ),
    _edit(
        "a retry keeps the place of its attempt before",
        "kernel/decide/change_builder.py",
        '"granted_at": None, "passed_at": None}',
        '"passed_at": None}',
        _LIMITS + "test_retrying_run_holds_no_place_and_comes_back_where_it_was_in_line[sqlite]",
    ),
    _edit(
        "a retry goes to the end of the line",
        "kernel/decide/change_builder.py",
        '"limit_at": run.limit_at or self.now, ',
        '"limit_at": self.now, ',
        _LIMITS + "test_retrying_run_holds_no_place_and_comes_back_where_it_was_in_line[sqlite]",
    ),
    _edit(
        "a blocked run keeps its place",
        "kernel/decide/blocked.py",
        "        granted_at=None,\n",
        "",
        _LIMITS + "test_blocked_run_holds_no_place[sqlite]",
    ),
    _edit(
        "a run of a busy queue may be passed over for ever",
        "features/limits/store.py",
        "passed_at=None, passed_count=passed, delivery",
        "passed_at=None, delivery",
        _LIMITS + "test_run_of_a_busy_queue_is_not_passed_over_for_ever_by_a_group_that_is_always_full[sqlite]",
    ),
    _edit(
        "who waits for a queue without workers goes before others",
        "features/limits/store.py",
        "        quiet = quiet_queues(silent[group], unclaimed[group], now)\n",
        "        quiet = set[str]()\n",
        _LIMITS + "test_queue_without_workers_keeps_its_group_waiting_once_however_many_wait_for_it[sqlite]",
        _LIMITS + "test_queue_without_workers_keeps_its_group_waiting_once_however_many_wait_for_it[postgres]",
    ),
    _edit(
        "a link looks without end at a line of which a place is tried already",
        "features/limits/store.py",
        "    if is_its and at <= now and _is_for_quiet(connection, run.limit_group, now, is_frozen=is_frozen):\n"
        "        return None\n",
        "",
        _RATES + "test_link_does_not_come_again_where_only_a_queue_without_workers_waits[sqlite]",
        _RATES + "test_link_does_not_come_again_where_only_a_queue_without_workers_waits[postgres]",
    ),
    _edit(
        "a simulation looks at a line where no grant is old",
        "simulate/decide.py",
        " and self._groups[one].has_old(now)",
        "",
        _SIMULATED.format("a_crowd", 1),
    ),
    _edit(
        "a simulation looks at a grant that is old earlier than another one with that one",
        "simulate/lines.py",
        "(self.look_at is not None and self.look_at <= at)",
        "self.look_at is not None",
        "tests/simulate/test_lines.py::test_a_grant_that_grows_old_before_the_planned_look_brings_the_look_forward",
    ),
    _edit(
        "in a simulation a link of a run that has ended looks at nobody behind it",
        "simulate/decide.py",
        "(run is None or run.status is not RunStatus.PENDING or run.is_in_line)",
        "run is not None and (run.status is not RunStatus.PENDING or run.is_in_line)",
        _SIMULATED.format("a_line_that_few_join", 0),
    ),
    _edit(
        "a queue without workers takes all places that are free",
        "features/limits/decide.py",
        "            probed.add(one.queue)\n",
        "",
        "tests/features/limits/test_decide.py::test_quiet_queues_go_behind_all_others_and_have_one_place_at_a_time",
    ),
    _edit(
        "no pass gives places",
        "features/limits/chain.py",
        "for found, given in repaired)",
        "for found, given in ())",
        _LIMITS + "test_grant_that_nobody_claims_goes_to_the_next_and_the_run_keeps_its_place[sqlite]",
    ),
    _edit(
        "the place of a target that runs is not counted",
        "kernel/store/tables.py",
        "_had_place(targets)",
        "_had_place(targets, sa.false())",
        _TARGETS + "test_run_gives_its_place_to_its_targets_and_they_follow_one_another[sqlite]",
        _TARGETS + "test_run_gives_its_place_to_its_targets_and_they_follow_one_another[postgres]",
    ),
    _edit(
        "a run that waits for its targets keeps its place",
        "kernel/store/tables.py",
        "_had_place(runs, runs.c.dispatched_at.is_(None))",
        "_had_place(runs)",
        _TARGETS + "test_all_targets_run_one_after_the_other_with_a_worker[sqlite]",
    ),
    _edit(
        "a run that gives its place to its targets lets nobody follow",
        "kernel/decide/model.py",
        "(self.status is RunStatus.RUNNING and self.dispatched_at is None)",
        "self.status is RunStatus.RUNNING",
        _TARGETS + "test_run_gives_its_place_to_its_targets_and_they_follow_one_another[sqlite]",
    ),
    _edit(
        "a claim of a target does not look whether it has a place in its group",
        "features/fan_out/store.py",
        "    .where(targets.c.limit_group.is_(None) | targets.c.granted_at.is_not(None))\n",
        "",
        _TARGETS + "test_target_that_nobody_claims_is_passed_over_and_keeps_its_job[sqlite]",
        _TARGETS + "test_target_that_nobody_claims_is_passed_over_and_keeps_its_job[postgres]",
    ),
    _edit(
        "a target of a group that ends lets nobody follow",
        "features/fan_out/execution.py",
        "        limits.give(runtime, (), {target.limit_group})\n",
        "        pass\n",
        _TARGETS + "test_run_gives_its_place_to_its_targets_and_they_follow_one_another[sqlite]",
    ),
    _edit(
        "a target that is tried again keeps its grant",
        "features/fan_out/store.py",
        "            granted_at=None,\n            passed_at=None,\n            retry_at=None,\n",
        "            retry_at=None,\n",
        _TARGETS + "test_retrying_target_holds_no_place_and_comes_back_where_it_was_in_line[sqlite]",
    ),
    _edit(
        "in a freeze runs get places beside targets",
        "features/limits/store.py",
        "        statement = _FIRST_TARGETS if is_frozen else _FIRST_IN_LINE\n",
        "        statement = _FIRST_IN_LINE\n",
        _TARGETS + "test_targets_go_on_where_nothing_may_begin[sqlite-False]",
    ),
    _edit(
        "targets of a run that is stopped keep their places until a pass",
        "features/limits/chain.py",
        "                    stopped.add(after.uid)\n",
        "",
        _TARGETS + "test_run_that_is_stopped_frees_the_places_of_its_targets[sqlite-cancel]",
    ),
    _edit(
        "a target that has a place is put on its queue by nobody else",
        "features/limits/store.py",
        "given = grants.values(granted_at=now, passed_at=None, queued_at=queued_at, is_rated=is_rated)",
        "given = grants.values(granted_at=now, passed_at=None, is_rated=is_rated)",
        _TARGETS + "test_grant_of_a_target_whose_process_died_before_its_job_was_put_on_its_queue_is_delivered[sqlite]",
    ),
    _edit(
        "a pass delivers nothing that was passed over",
        "kernel/store/tables.py",
        "HAS_JOB = runs.c.limit_group.is_(None) | runs.c.granted_at.is_not(None) | runs.c.passed_at.is_not(None)\n",
        "HAS_JOB = runs.c.limit_group.is_(None) | runs.c.granted_at.is_not(None)\n",
        _LIMITS + "test_run_that_was_passed_over_is_delivered_again_when_its_job_is_lost",
    ),
    _edit(
        "no pass ends what nobody started in time",
        "kernel/chain/reconcile/passes.py",
        "        lost_attempts.expire(runtime),\n",
        "",
        "tests/api/test_start_within.py::test_run_that_nobody_takes_in_time_ends_as_expired_by_a_pass[sqlite]",
    ),
    _edit(
        "a long run is reported in each pass",
        "kernel/decide/settle_decision.py",
        "    if span is None or run.long_at is not None or run.kind is RunKind.BACKFILL:\n",
        "    if span is None or run.kind is RunKind.BACKFILL:\n",
        "tests/features/notifications/test_chain.py::test_a_run_that_takes_longer_than_expected_is_told_once_and_its_success_too[sqlite]",
    ),
)
"""Notifications of failures: sent once, even if a process dies."""

_AGAIN = "tests/features/retry_on_request/test_chain.py::test_"
RETRIES_ON_REQUEST = (
    _edit(
        "a failed job whose time differs counts as requeued",
        "kernel/transport/redelivery.py",
        "return mark is not None and mark != _enqueued_at(job)",
        "return mark != _enqueued_at(job)",
        _AGAIN + "failed_job_without_the_mark_runs_nothing_when_its_time_differs[sqlite]",
    ),
    _edit(
        "a failed job counts as requeued whenever it is delivered",
        "kernel/transport/redelivery.py",
        "return mark is not None and mark != _enqueued_at(job)",
        "return mark is not None",
        _AGAIN + "second_delivery_of_a_failed_run_job_runs_nothing[sqlite]",
    ),
    _edit(
        "the requeued job of an earlier attempt asks for a retry",
        "features/retry_on_request/chain.py",
        "return run.attempt == job.attempt and run.status in FAILURES",
        "return run.status in FAILURES",
        _AGAIN + "requeue_of_a_job_that_is_not_of_the_last_attempt_is_refused",
    ),
    _edit(
        "an attempt on request is retried by itself",
        "kernel/decide/settle_decision.py",
        "is_retry or policies.is_final",
        "policies.is_final",
        _AGAIN + "retry_is_the_last_attempt_whatever_the_policy_says[sqlite]",
    ),
    _edit(
        "a retry on request does not wait for the unfinished run",
        "kernel/decide/runs_on_request.py",
        "blocking = [] if policy is OverlapPolicy.ALLOW_ALL else builder.unfinished(run.kind)",
        "blocking: list[Run] = []",
        _AGAIN + "retry_waits_for_the_unfinished_run[sqlite-skip]",
    ),
    _edit(
        "the failure of a copy is a failure of its schedule",
        "kernel/decide/settle_decision.py",
        "    if not is_copy:\n",
        "    if True:\n",
        "tests/api/test_run_again.py::test_the_failure_of_a_copy_does_not_say_that_its_schedule_fails[sqlite]",
    ),
)
"""A run that ended is run again only when somebody asks, and then once."""

_SWEEP = "tests/machines/test_fan_out_ends.py::test_"
_EACH = "tests/machines/test_target_policies.py::test_"
FAN_OUT = (
    _edit(
        "a run ends although targets are open",
        "features/fan_out/run_end.py",
        " or fan_out_targets.has_open(connection, run_uid)",
        "",
        _SWEEP + "a_run_goes_on_until_its_last_target_has_ended[sqlite]",
    ),
    _edit(
        "a run is left to reconcile when its last target ends before its workflow returns",
        "features/fan_out/chain.py",
        "            if is_dispatched(after) and (before.dispatched_at is None or before is after):\n",
        "            if False:\n",
        "tests/features/fan_out/test_targets_of_workflows.py"
        "::test_a_run_whose_last_target_ends_before_its_workflow_returns_ends_without_a_pass[sqlite]",
    ),
    _edit(
        "a retry link does not let the targets of its run be tried again",
        "features/fan_out/chain.py",
        "        promote(self._runtime, run.uid)\n",
        "",
        _EACH + "a_target_that_failed_is_tried_again_after_its_backoff_and_the_run_waits_for_it[sqlite]",
    ),
    _edit(
        "reconcile does not end a run whose targets have ended",
        "features/fan_out/chain.py",
        "pages(runtime, reconcile_queries.dispatched):\n",
        "():\n",
        _SWEEP + "reconcile_ends_a_run_whose_last_process_died_before_it_could[sqlite]",
    ),
    _edit(
        "a dispatched run is lost with its horse",
        "kernel/chain/settle.py",
        " and run.status is RunStatus.RUNNING and run.dispatched_at is None",
        " and run.status is RunStatus.RUNNING",
        _SWEEP + "a_dispatched_run_needs_no_heartbeats_and_no_horse[sqlite]",
    ),
    _edit(
        "a job with an earlier number claims a target",
        "features/fan_out/store.py",
        'sa.bindparam("of"), targets.c.delivery == sa.bindparam("delivered"))',
        'sa.bindparam("of"))',
        _EACH + "a_job_of_an_earlier_attempt_handles_nothing[sqlite]",
    ),
    _edit(
        "a claim of a target does not compare the status",
        "features/fan_out/store.py",
        "    .where(is_free_for(targets, _TOKEN))\n",
        "",
        "tests/features/fan_out/test_store.py::test_a_target_is_claimed_once_and_ended_by_its_holder_alone[sqlite]",
        "tests/features/fan_out/test_store.py::test_a_target_is_claimed_once_and_ended_by_its_holder_alone[postgres]",
    ),
    _edit(
        "the end of a target does not compare the token",
        "features/fan_out/store.py",
        '    .where(targets.c.uid == sa.bindparam("of"), is_held_by(targets, _TOKEN))\n',
        '    .where(targets.c.uid == sa.bindparam("of"))\n',
        "tests/features/fan_out/test_store.py::test_a_target_is_claimed_once_and_ended_by_its_holder_alone[sqlite]",
        "tests/features/fan_out/test_store.py::test_a_target_is_claimed_once_and_ended_by_its_holder_alone[postgres]",
    ),
    _edit(
        "places that are taken count as free",
        "features/fan_out/store.py",
        "free = min(most - connection.execute(taken).scalar_one(), limit)",
        "free = min(most, limit)",
        _EACH + "a_place_that_a_crash_left_empty_is_filled_once[sqlite]",
    ),
    _edit(
        "a target whose process died frees its place twice",
        "features/fan_out/store.py",
        "is_limited = target.max_parallel is not None and has_place",
        "is_limited = target.max_parallel is not None",
        _EACH + "a_report_of_a_dead_horse_that_comes_twice_takes_one_place[sqlite]",
    ),
    _edit(
        "a target without code is a failed attempt",
        "features/fan_out/decide.py",
        "return TargetEnd(TargetStatus.BLOCKED, cut_error(reason), now + offer_delay(now - since), since)",
        "return TargetEnd(TargetStatus.FAILED, cut_error(reason))",
        _EACH + "a_target_whose_code_a_worker_lacks_is_blocked_and_offered_to_the_others[sqlite]",
    ),
)
"""A run with targets ends once, with the last of them."""

COMING_OVER = (
    _edit(
        "what is imported fires before its source is disabled",
        "importers/handing_over.py",
        "self.waits if source.enabled else self._rests, True, self._context)",
        "self.waits if source.enabled else self._rests, False, self._context)",
        _COMING + "handing_over.py::test_ours_wait_until_their_source_is_disabled",
    ),
    _edit(
        "what a source owes is fired by each import",
        "importers/handing_over.py",
        'force=True, idempotency_key=f"import:{iso_utc(next_at)}", context',
        "force=True, context",
        "tests/system/crash/test_handing_over.py::"
        "test_an_import_that_dies_after_a_commit_is_completed_by_another_one[sqlite]",
    ),
    _edit(
        "what comes while it is handed over is left out",
        "importers/handing_over.py",
        "if next_at is not None and not is_owed:",
        "if False:",
        _COMING + "handing_over.py::test_a_time_that_comes_while_it_is_handed_over_is_fired_once",
    ),
    _edit(
        "an import resumes what somebody has paused",
        "importers/handing_over.py",
        " and schedule.paused_at == schedule.created_at",
        "",
        _COMING + "handing_over.py::test_one_that_was_resumed_and_paused_again_without_a_word_stays_paused",
    ),
    _edit(
        "an import fires here what somebody has disabled at the source",
        "importers/handing_over.py",
        " and self._waits(schedule) and schedule.note == self._moves",
        " and self._waits(schedule)",
        _COMING + "other_sources.py::test_what_somebody_disables_there_while_ours_waits_is_not_fired_here[django]",
    ),
    _edit(
        "jobs are taken while rqscheduler enqueues",
        "importers/rq_scheduler.py",
        "        self._take_lock(token)\n",
        "        self._redis.set(LOCK, token)\n",
        _COMING + "rq_scheduler.py::test_nothing_is_moved_while_an_rqscheduler_enqueues",
    ),
    _edit(
        "pickles of a source that nobody trusts are loaded",
        "importers/unpickle.py",
        "    if left and not is_trusted:\n",
        "    if not left:\n",
        _COMING + "unpickle.py::test_nothing_is_loaded_of_a_source_that_is_not_trusted",
    ),
    _edit(
        "an answer about one pickle is taken for that about another",
        "importers/unpickle.py",
        "    if answered != number:\n",
        "    if not isinstance(answered, int):\n",
        _COMING + "unpickle.py::test_pickle_that_cannot_be_loaded_refuses_itself_only[an answer to another]",
    ),
    _edit(
        "a beat is not told which tasks an import has disabled",
        "importers/foreign_tables.py",
        "            self._tell_beat(connection, now)\n",
        "",
        _COMING + "celery_beat.py::test_running_beat_sends_no_more_what_was_disabled[sqlite]",
    ),
    _edit(
        "an import does not look whether its source writes back what was disabled",
        "importers/source.py",
        "        count = disable()\n",
        "        count = 0\n",
        _COMING + "apscheduler.py::test_job_that_a_scheduler_writes_back_is_paused_again[2-True]",
    ),
    _edit(
        "what beat may just have run is owed",
        "importers/celery_tasks.py",
        "None if is_open else next_at",
        "next_at",
        _COMING + "other_sources.py::test_what_beat_may_have_run_a_moment_ago_is_not_fired_again[django]",
        _COMING + "other_sources.py::test_what_beat_may_have_run_a_moment_ago_is_not_fired_again[redbeat]",
    ),
)
"""A schedule of another scheduler fires there or here, never in both."""

EXCLUSIONS = (
    _edit(
        "what begins with the end of a stretch is excluded, too",
        "when/exclusion.py",
        "found = walk(stretch.end - _TICK)",
        "found = walk(stretch.end)",
        _EXCLUSION + "test_a_year_of_minutes_is_jumped_over_and_counted_without_a_step",
    ),
    _edit(
        "a stretch does not end with the offset of the clock",
        "when/exclusion.py",
        "max(found.start, span.local_start), min(found.end, span.local_end)",
        "max(found.start, span.local_start), found.end",
        _EXCLUSION + "test_what_is_left_is_every_instant_whose_local_time_is_not_excluded[Pacific/Apia-2011-12-30]",
    ),
    _edit(
        "what is excluded counts as missed",
        "when/timeline.py",
        "kept = sources if self.exclusion is None or self.is_moving else self._cut(sources, takes=False)",
        "kept = sources",
        "tests/kernel/decide/test_excluded.py::test_what_was_missed_around_a_stretch_counts_without_what_is_excluded",
    ),
    _edit(
        "jitter carries into a stretch",
        "kernel/decide/occurrences.py",
        "nominal, answered(schedule.spec.free_after, nominal, otherwise=timedelta(0)))",
        "nominal, None)",
        "tests/kernel/decide/test_excluded.py::test_jitter_does_not_delay_into_a_stretch",
        "tests/kernel/decide/test_spread.py::test_a_spread_does_not_delay_into_a_stretch",
    ),
    _edit(
        "a question about times has no bound in a fire",
        "when/steps.py",
        "    steps = Steps()\n",
        "    steps = Steps(None)\n",
        "tests/when/test_steps.py::test_a_question_has_another_answer_where_it_takes_too_many_steps",
        "tests/kernel/decide/test_excluded.py::test_what_passed_in_ten_years_is_counted_as_far_as_the_steps_reach",
    ),
    _edit(
        "a batch has no bound of steps",
        "kernel/chain/fire.py",
        "if open_runs is None or steps.taken > MOST_STEPS:",
        "if open_runs is None:",
        "tests/kernel/chain/test_bounded_work.py::"
        "test_a_batch_whose_schedules_take_too_many_steps_is_continued_in_the_next_one",
    ),
    _edit(
        "each look for a next time begins at the last fire",
        "kernel/decide/schedule_repair.py",
        "while span >= LOOK_FURTHER_EVERY:",
        "while span < timedelta(0):",
        "tests/kernel/decide/test_excluded.py::test_a_schedule_of_which_nothing_is_left_later_stays_active_until_an_occurrence_is",
    ),
    _edit(
        "a look that takes too many steps is repeated as it is",
        "kernel/decide/schedule_repair.py",
        "span /= 8  #",
        "return  #",
        "tests/kernel/decide/test_excluded.py::"
        "test_looks_that_reach_less_far_than_a_stretch_find_what_comes_after_it[after an outage of years]",
    ),
    _edit(
        "an end that a pause missed is owed to nobody",
        "features/after/chain.py",
        '("followed_at", "upstream_id", "missed_run_uid")',
        '("followed_at", "upstream_id")',
        "tests/features/after/test_chain.py::"
        "test_what_a_pause_missed_fires_where_the_schedule_comes_after_no_other_any_more",
    ),
    _edit(
        "a schedule ends when ten years of it are excluded",
        "kernel/decide/schedule_endings.py",
        "return not has_more and not schedule.spec.is_all_excluded_after(now)",
        "return not has_more",
        "tests/kernel/decide/test_excluded.py::test_a_schedule_of_which_nothing_is_left_later_stays_active_until_an_occurrence_is",
    ),
    _edit(
        "a run does not record what it was moved from",
        "kernel/decide/overlap.py",
        "nominals=dump_instants(request.nominals) if request.nominals else None,",
        "nominals=None,",
        _MOVED + "test_a_run_records_what_it_was_moved_from_and_others_record_nothing",
        "tests/api/test_moved.py::test_what_was_moved_is_recorded_by_its_run_and_its_day_never_runs_again[sqlite]",
    ),
    _edit(
        "what was moved ahead of its day and ran, runs on its day, too",
        "kernel/decide/moves.py",
        "    settled = again | {one for one in had if one > schedule.evaluated_to} | past.keys()\n",
        "    settled = again | past.keys()\n",
        _MOVED + "test_payroll_that_ran_the_day_before_does_not_run_again_when_its_day_is_free_again",
        "tests/api/test_moved.py::test_it_does_not_run_again_after_its_run_was_pruned[sqlite]",
    ),
    _edit(
        "what ran on its day runs again on the day it would move to",
        "kernel/decide/moves.py",
        "    again = {one for one in delayed if one in had | ran or (one not in to_come and had_passed(one))}\n",
        "    again = {one for one in delayed if one in had}\n",
        _MOVED + "test_what_ran_on_its_own_day_does_not_run_again_on_the_day_it_would_be_moved_to[next]",
        "tests/api/test_moved.py::test_what_a_backfill_ran_is_not_moved_ahead_by_an_edit[sqlite]",
    ),
    _edit(
        "what an edit moves to before now is lost",
        "kernel/decide/moves.py",
        "    if due or not past:\n",
        "    if True:\n",
        _MOVED + "test_what_was_moved_ahead_and_is_freed_after_its_day_is_due_at_once_and_once",
        _MOVED + "test_what_an_edit_moves_to_a_day_that_has_passed_is_due_at_once_and_once",
    ),
    _edit(
        "what is missed beside a kept occurrence happens again on its day",
        "kernel/decide/moves.py",
        "        had |= old.early(at)\n",
        "        had |= set()\n",
        _MOVED + "test_what_was_missed_beside_what_is_kept_has_its_outcome_too",
    ),
    _edit(
        "a backfill runs what ran on another day",
        "kernel/decide/runs_on_request.py",
        "if nominal in ran or (stood_for and all(at in stood_for for at in spec.nominals_of(nominal) or (nominal,))):",
        "if nominal in ran:",
        _MOVED + "test_a_backfill_takes_what_was_moved_and_not_what_ran_under_another_exclusion",
        "tests/api/test_moved.py::test_what_was_moved_is_recorded_by_its_run_and_its_day_never_runs_again[sqlite]",
    ),
    _edit(
        "an occurrence is moved as far as it takes",
        "when/moved.py",
        "        if abs(local.date() - nominal.astimezone(self.zone).date()) > FURTHEST:\n",
        "        if False:\n",
        "tests/when/test_moved.py::test_no_occurrence_is_moved_further_than_31_days_and_those_that_are_not_are_told",
    ),
    _edit(
        "what was moved over an instant is not looked for behind it",
        "when/moved.py",
        "self._units(after if self.is_back else self._begin_behind(after)):",
        "self._units(after):",
        _MOVED + "test_a_schedule_that_is_created_between_its_day_and_the_one_it_is_moved_to_fires_there",
    ),
)
"""Excluded occurrences never fire, and no other occurrence is lost with them."""

_CALENDARS = "tests/features/calendars/test_api.py::test_"

CALENDARS = (
    _edit(
        "a fire does not compare the calendars",
        "kernel/decide/lifecycle.py",
        "    if not schedule.has_old_plan:\n        return decide(schedule)\n",
        "    if True:\n        return decide(schedule)\n",
        _CALENDARS + "fire_notices_a_change_after_which_nothing_was_planned[sqlite]",
        _CALENDARS + "operation_on_a_schedule_plans_it_first",
    ),
    _edit(
        "a pass leaves what a changed calendar left",
        "features/calendars/chain.py",
        "[Section(Stage.TIMES, apply_changed_calendars(self._runtime))]",
        "[]",
        _CALENDARS + "pass_ends_what_a_process_that_died_left[sqlite]",
    ),
    _edit(
        "a spec without the contents of its calendars is evaluated",
        "when/spec.py",
        "        self.require_known()\n        self.require_calendars()\n",
        "        self.require_known()\n",
        "tests/when/test_calendars.py::test_spec_without_the_contents_is_never_evaluated_as_if_nothing_was_excluded",
    ),
    _edit(
        "a shared calendar is created beside one of a namespace",
        "features/calendars/chain.py",
        "            calendars.lock_calendars(connection)\n",
        "",
        _CALENDARS + "of_a_shared_calendar_and_one_of_a_namespace_created_at_once_one_is_refused[True]",
    ),
    _edit(
        "a calendar is not kept while a schedule that names it is created",
        "kernel/store/named_calendars.py",
        "    if locks:\n",
        "    if False:\n",
        _CALENDARS + "calendar_is_not_deleted_beside_a_creation_that_names_it",
    ),
    _edit(
        "a change holds from the last one on that nothing was planned with",
        "features/calendars/store.py",
        '({"since": now} if known.is_planned else {})',
        '{"since": now}',
        _CALENDARS + "two_changes_of_which_none_was_planned_count_from_the_first",
    ),
    _edit(
        "a change counts as planned though a schedule could not be",
        "features/calendars/chain.py",
        "    if is_whole and not _left(runtime, calendar):\n",
        "    if True:\n",
        _CALENDARS + "one_that_cannot_be_planned_stops_no_other_and_is_tried_again",
    ),
    _edit(
        "what was due before the change of a calendar is planned again",
        "kernel/decide/lifecycle.py",
        "at = min(now, max(since, schedule.evaluated_to, schedule.timing_changed_at))",
        "at = max(schedule.evaluated_to, schedule.timing_changed_at)",
        _CALENDARS + "what_was_due_before_the_change_keeps_its_fire[sqlite]",
    ),
    _edit(
        "a clock that is behind plans what a change of timing by one ahead counted",
        "kernel/decide/occurrences.py",
        "*([schedule.timing_changed_at] if schedule.is_active else [])",
        "",
        "tests/kernel/decide/test_missed.py::"
        "test_clock_that_is_behind_gives_no_second_outcome_to_what_a_change_of_timing_by_one_ahead_counted",
    ),
    _edit(
        "a resume by a clock that is behind leaves out what is before a change of timing in the pause",
        "kernel/decide/occurrences.py",
        "[schedule.timing_changed_at] if schedule.is_active else []",
        "[schedule.timing_changed_at]",
        "tests/kernel/decide/test_missed.py::"
        "test_what_a_clock_ahead_changed_in_a_pause_hides_nothing_from_a_resume_by_one_behind",
    ),
)
"""No occurrence that a calendar excludes fires, and its changes reach all schedules that name it."""

_CLOCKS = "clock_changes.py::test_"

CLOCKS = (
    _edit(
        "a declaration changes what is stored about changes of the clocks",
        "kernel/decide/lifecycle.py",
        '("shift", None) if stored is None or stored.after is not None else (stored.dst_gap, stored.dst_fold)',
        '("shift", None)',
        f"tests/kernel/decide/test_{_CLOCKS}a_declaration_that_does_not_say_it_never_changes_what_is_stored"
        "[30 2 * * *]",
    ),
    _edit(
        "what is shifted to an instant that fires anyway counts twice",
        "when/cron.py",
        "sum(not self._count_readings(reading, reading + _SECOND) for reading in moved)",
        "sum(1 for _ in moved)",
        f"tests/when/test_{_CLOCKS}a_reading_that_is_left_out_fires_by_the_offset_before"
        "[0 2,3 * * *-America/New_York-2026-03-08T05-07:00 06:00]",
    ),
    _edit(
        "the edge of a year ends what is shifted",
        "when/zones.py",
        "if start + offset - before > max(start, first) else ()",
        "if start + offset - before > start >= first else ()",
        f"tests/when/test_{_CLOCKS}a_reading_that_is_left_out_fires_by_the_offset_before"
        "[0 20 31 12 *-Pacific/Kiritimati-1994-12-31T22-06:00]",
    ),
)
"""A change of the clocks leaves nothing out that shall fire, and doubles nothing."""

_NEWER = "test_newer_release.py::test_"

NEWER_RELEASE = (
    _edit(
        "a process fires a timing that it does not know all of",
        "when/spec.py",
        "return replace(cls.from_json(known), newer=newer)",
        "return cls.from_json(known)",
        f"tests/kernel/chain/{_NEWER}its_link_comes_again_until_a_process_of_that_release_takes_it[sqlite]",
        f"tests/kernel/decide/{_NEWER}it_is_neither_changed_nor_planned_and_keeps_what_it_says",
    ),
    _edit(
        "the link of a timing that is not known is dropped",
        "kernel/chain/fire.py",
        'Fired(str(link), "newer", now + offer_delay(late))',
        'Fired(str(link), "newer")',
        f"tests/kernel/chain/{_NEWER}its_link_comes_again_until_a_process_of_that_release_takes_it[sqlite]",
    ),
    Mutation(
        "an update writes a timing without what is not known of it",
        (
            Edit("rqsched/kernel/decide/lifecycle.py", "    schedule.spec.require_known()\n", ""),
            Edit(
                "rqsched/when/spec.py", "        self.require_known()\n        if self.after", "        if self.after"
            ),
        ),
        (f"tests/kernel/decide/{_NEWER}it_is_neither_changed_nor_planned_and_keeps_what_it_says",),
    ),
    _edit(
        "new timezone rules count as applied to what is left alone",
        "kernel/chain/reconcile/schedules.py",
        "if not left:",
        "if True:",
        f"tests/kernel/chain/{_NEWER}new_timezone_rules_are_applied_to_it_by_a_process_that_knows_it",
    ),
)
"""Processes leave a timing that they do not fully know to processes that know it."""

SPREADING = (
    _edit(
        "a spread reaches past the next occurrence",
        "kernel/decide/delays.py",
        "width = length if gap is None else min(length, max(gap, timedelta(0)))",
        "width = length",
        "tests/kernel/decide/test_spread.py::test_a_fire_is_due_before_the_next_occurrence_the_end_and_a_stretch",
        "tests/kernel/decide/test_jitter.py::test_a_jitter_wider_than_the_gap_is_scaled_not_cut",
    ),
    _edit(
        "a spread reaches past the end",
        "when/spec.py",
        "(following, stretch and stretch.start, self.end_at)",
        "(following, stretch and stretch.start)",
        "tests/kernel/decide/test_spread.py::test_a_fire_is_due_before_the_next_occurrence_the_end_and_a_stretch",
    ),
    _edit(
        "another spread moves nothing",
        "kernel/decide/lifecycle.py",
        " or policies.spread != stored.spread",
        "",
        "tests/kernel/decide/test_spread.py::test_another_spread_moves_the_due_time_and_not_the_occurrence",
    ),
    _edit(
        "a declared herd is spread as its first one",
        "kernel/decide/lifecycle.py",
        "definition.jitter or definition.parsed_policies.spread or",
        "definition.jitter or",
        "tests/kernel/decide/test_spread.py::test_schedules_that_are_created_at_one_instant_have_an_offset_each",
    ),
    _edit(
        "schedules of one H have the place of the first one",
        "kernel/decide/lifecycle.py",
        " or definition.parsed_spec.has_places)",
        ")",
        "tests/api/test_places.py::test_a_declaration_that_says_h_again_is_no_change_and_another_option_moves_nothing",
    ),
)
"""A fire has its own offset or place, and never takes the next one's."""

TRACES = (
    _edit(
        "a work horse waits for the collector as long as that takes",
        "features/tracing/chain.py",
        "thread.join(FLUSH_SECONDS)",
        "thread.join()",
        _ACCEPTANCE + "traces.py::test_a_collector_that_does_not_answer_holds_up_neither_fires_nor_runs[forking-hangs]",
    ),
    _edit(
        "a work horse ends without its spans",
        "features/tracing/chain.py",
        'if os.environ.get("RQ_JOB_ID") == job_id:',
        "if False:",
        _ACCEPTANCE + "traces.py::test_fires_and_attempts_of_every_kind_of_worker_are_exported[forking]",
        _ACCEPTANCE + "traces.py::test_fires_and_attempts_of_every_kind_of_worker_are_exported[plain]",
    ),
)

_AFTER = "tests/features/after/test_chain.py::test_"
_PURE_AFTER = "tests/features/after/test_decide.py::test_"
AFTER = (
    _edit(
        "the end of a run is written without what it owes to the schedules after it",
        "features/after/chain.py",
        "            upstream_ends.record(connection, changes)\n",
        "            pass\n",
        _AFTER + "a_success_starts_one_run_of_the_schedule_after_it[sqlite]",
        _AFTER + "the_process_that_dies_after_the_end_leaves_the_rest_to_a_pass[postgres]",
    ),
    _edit(
        "a success that others come after is written by the statement that owes nothing",
        "kernel/decide/settle_decision.py",
        " and schedule.followed_at is None",
        "",
        _AFTER + "a_success_starts_one_run_of_the_schedule_after_it[postgres]",
    ),
    _edit(
        "what is owed is not written off with the run that it starts",
        "features/after/chain.py",
        "                upstream_ends.write_outcomes(connection, one.uid, outcomes, now)\n",
        "",
        _AFTER + "a_success_starts_one_run_of_the_schedule_after_it[sqlite]",
    ),
    _edit(
        "a pass leaves what is owed",
        "features/after/chain.py",
        "[Section(Stage.RUNS, unless_all_frozen(self._parts, start_owed(self._parts)))]",
        "[]",
        _AFTER + "the_process_that_dies_after_the_end_leaves_the_rest_to_a_pass[sqlite]",
        _CRASH.format("a run succeeds and one comes after it"),
    ),
    _edit(
        "a schedule that only a newer release can read is owed nothing",
        "features/after/store.py",
        "        if spec.after is not None or not spec.newer:\n",
        "        if True:\n",
        _AFTER + "what_a_newer_release_says_of_what_comes_after_is_owed_and_left_to_it[sqlite-False]",
    ),
    _edit(
        "what cannot be followed is given up",
        "features/after/store.py",
        "values(tries=end.tries + 1, error=error, due_at=due_at)",
        "values(tries=end.tries + 1, error=error, due_at=None)",
        _AFTER + "what_cannot_be_decided_is_tried_for_ever[sqlite]",
    ),
    _edit(
        "a backfilled run is come after",
        "features/after/decide.py",
        "run.kind is not RunKind.BACKFILL and run.trigger_number",
        "run.trigger_number",
        _PURE_AFTER + "a_backfilled_run_and_one_that_never_began_are_not_come_after[True-backfill]",
        _AFTER + "a_manual_run_and_a_retry_count_and_a_backfilled_run_does_not[sqlite]",
    ),
    _edit(
        "what never began is come after",
        "features/after/decide.py",
        " and run.trigger_number is not None",
        "",
        _AFTER + "what_waited_behind_another_run_and_never_began_is_no_end",
    ),
    _edit(
        "the retries that a delete ends are come after by nothing",
        "features/after/store.py",
        "        if change.drops_retries:\n",
        "        if False:\n",
        _AFTER + "a_deleted_schedule_ends_its_retries_and_each_is_a_failure[sqlite]",
    ),
    _edit(
        "two change at once what comes after what",
        "kernel/chain/operations.py",
        '        metadata.lock_of(connection, "upstreams", namespace)\n',
        "        pass\n",
        _AFTER + "circle_is_not_closed_by_two_changes_at_once_that_name_no_schedule_in_common",
    ),
    _edit(
        "a circle that leads over three is not seen",
        "features/after/decide.py",
        "            at = upstreams.get(at)\n",
        "            at = None\n",
        _AFTER + "a_circle_is_refused_and_named[sqlite]",
        _PURE_AFTER + "a_circle_is_found_wherever_there_is_one",
    ),
    _edit(
        "a schedule that is created again is come after by nobody",
        "kernel/store/changes.py",
        'connection.execute(note_followed(dialect), {"among": dialect.listed(one.uid for one in new)})',
        "pass",
        _AFTER + "a_schedule_that_is_created_again_is_still_come_after[sqlite]",
        _AFTER + "a_schedule_that_is_created_again_is_still_come_after[postgres]",
        _AFTER + "a_sync_that_creates_many_again_notes_which_of_them_is_come_after[sqlite]",
        _AFTER + "a_sync_that_creates_many_again_notes_which_of_them_is_come_after[postgres]",
    ),
    _edit(
        "what a resume fires of a pause is owed to nobody",
        "features/after/decide.py",
        " or change.owed_again is not None",
        "",
        _AFTER + "what_a_resume_fires_in_a_frozen_namespace_waits_for_the_thaw[sqlite-None-1]",
        _AFTER + "a_resume_in_a_transaction_of_the_caller_fires_what_was_missed_after_its_commit",
    ),
    _edit(
        "one that is held keeps all that come after the same run",
        "features/after/chain.py",
        "_follow_some(parts, uids, skip_locked=True)",
        "_follow_some(parts, uids, skip_locked=False)",
        _AFTER + "one_that_a_long_transaction_holds_keeps_no_other_that_comes_after_the_same",
    ),
    _edit(
        "what is owed to a purged schedule stays",
        "features/after/chain.py",
        "                upstream_ends.forget(connection, uid)\n",
        "                pass\n",
        _AFTER + "what_is_owed_to_a_purged_schedule_is_removed[sqlite]",
    ),
    _edit(
        "what comes after starts in a frozen namespace",
        "features/after/chain.py",
        "(is_frozen or uid not in frozen)",
        "True",
        _AFTER + "what_came_during_a_freeze_is_one_at_the_thaw[sqlite-None-1]",
        _WORLDS.format(200),
    ),
    _edit(
        "a thaw leaves what was owed in the freeze to a pass",
        "features/freeze/chain.py",
        "    settled += _settle_owed(runtime, context, wanted)\n",
        "",
        _AFTER + "what_came_during_a_freeze_is_one_at_the_thaw[sqlite-all-3]",
        _WORLDS.format(200),
    ),
    _edit(
        "of what was owed in a freeze the newest is followed where the oldest is to be",
        "features/after/decide.py",
        "ends[-1:] if missed is MissedPolicy.SKIP else ends[:1]",
        "ends[-1:]",
        _PURE_AFTER + "a_thaw_follows_the_ends_that_its_policy_names[fire_once-followed0]",
        _WORLDS.format(200),
    ),
    _edit(
        "a clock that is behind changes the timing of a paused schedule, and forgets the end that it missed",
        "kernel/decide/lifecycle.py",
        "(missed <= at or keep_next or schedule.missed_run_uid is not None)",
        "(missed <= at or keep_next)",
        _AFTER + "what_a_pause_missed_fires_after_a_process_whose_clock_is_behind_changed_the_timing",
        _WORLDS.format(200),
    ),
    _edit(
        "each end of a pause fires at the resume",
        "features/after/decide.py",
        "    if schedule.status is ScheduleStatus.PAUSED:\n",
        "    if False:\n",
        _PURE_AFTER + "a_pause_leaves_at_most_one_run_whatever_came_meanwhile",
    ),
    _edit(
        "a schedule that comes after another is over when it has run",
        "kernel/decide/schedule_endings.py",
        "    if schedule.upstream_id is not None:\n        return\n",
        "",
        _AFTER + "a_success_starts_one_run_of_the_schedule_after_it[sqlite]",
    ),
    _edit(
        "a horse whose worker has written its end starts nothing after it",
        "kernel/chain/settle.py",
        "    if mine is None and schedule.followed_at is None:\n",
        "    if mine is None:\n",
        _CRASH.format("a run succeeds for whose horse its worker writes and one comes after it"),
    ),
)

_ONE = _AFTER + "ends_of_a_freeze_are_one_also_where_they_are_more_than_a_transaction_follows_else"
_TIMES = _CHAIN + "time_under_locks.py::test_"
TIMES = (
    _edit(
        "ends of a freeze are one only as far as one transaction follows them else",
        "features/after/chain.py",
        "MOST_OF_A_FREEZE = 10_000\n",
        "MOST_OF_A_FREEZE = MOST_AT_ONCE\n",
        _ONE + "[a namespace]",
        _ONE + "[everything]",
    ),
    _edit(
        "a claim reads the time before it waits for its run",
        "kernel/chain/execution.py",
        "        claims.lock_run(connection, job.uid)\n",
        "        pass\n",
        _TIMES + "claim_starts_when_its_run_is_locked",
        _TIMES + "run_that_may_not_start_any_more_after_a_wait_is_not_claimed",
    ),
    _edit(
        "a claim that is one statement waits, with the time of before",
        "kernel/store/claims.py",
        "_RETURNING.where(_IS_UNLOCKED, *conditions)",
        "_RETURNING.where(*conditions)",
        _TIMES + "claim_starts_when_its_run_is_locked",
    ),
    Mutation(
        "a run after another has the time of before its schedule was locked",
        (
            Edit(
                "rqsched/features/after/chain.py",
                "    tried = dict[str, Change]()\n",
                "    tried, now = dict[str, Change](), parts.now()\n",
            ),
            Edit("rqsched/features/after/chain.py", "        now = parts.now()  # read after the wait", "        #"),
        ),
        (_TIMES + "run_after_another_starts_when_its_schedule_is_locked",),
    ),
    Mutation(
        "a fire that waited for a run decides with the time of before",
        (
            Edit(
                "rqsched/kernel/chain/fire.py",
                "    others = [one for one in due if one.uid not in free]\n",
                "    others = [one for one in due if one.uid not in free]\n    now = runtime.now()\n",
            ),
            Edit("rqsched/kernel/chain/fire.py", "    now = runtime.now()  # again", "    # again"),
        ),
        (_TIMES + "run_that_started_while_a_fire_waited_for_it_does_not_end_before_it_started",),
    ),
    _edit(
        "a target starts with the time of before it was locked",
        "features/fan_out/execution.py",
        "# one autocommitted statement skips a locked row\n            fan_out_targets.lock(connection, job.uid)\n",
        "\n            pass\n",
        _TIMES + "target_starts_when_it_is_locked",
    ),
    _edit(
        "a target ends with the time of before it was locked",
        "features/fan_out/execution.py",
        "            fan_out_targets.lock(connection, target.uid)\n",
        "            pass\n",
        _TIMES + "target_ends_and_the_next_one_follows_when_it_is_locked[one statement]",
        _TIMES + "target_ends_and_the_next_one_follows_when_it_is_locked[one at a time]",
        _TIMES + "target_that_failed_is_tried_again_a_backoff_after_it_is_locked",
    ),
)

MUTATIONS = (
    *AFTER,
    *FENCES,
    *ORDER,
    *FOLLOWING,
    *ANSWERS,
    *RECONCILE,
    *PRUNING,
    *HOURS,
    *NOTIFICATIONS,
    *RETRIES_ON_REQUEST,
    *FAN_OUT,
    *COMING_OVER,
    *EXCLUSIONS,
    *CALENDARS,
    *CLOCKS,
    *NEWER_RELEASE,
    *SPREADING,
    *TRACES,
    *TIMES,
)
