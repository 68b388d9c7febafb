"""The guards of the program, each with what stands there when it is switched off, and a test that fails then.

A row whose text does not stand in its file exactly once fails by itself: so the table can't go stale unseen.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """`file` below kairos_mcp/, the guard's exact text there, what replaces it, the test below tests/ that then fails.
    `quick`: in the default run."""

    file: str
    text: str
    without: str
    test: str
    quick: bool = False


AGENTS = "agents/"
LOST_COMMITS = "postgres/test_lost_commits.py::test_"
SESSION_LOCKS = "postgres/test_session_locks.py::test_"
MIGRATED = "postgres/test_migrations.py::test_"
ANY_TEXT = "core/test_any_text.py::test_"
RECOVERY = "core/test_app_recovery.py::test_"
OWNERS = "core/test_owner_guards.py::test_"
TEAM_RUNS = "teams/test_team_runs.py::test_"
WIDE_TEAMS = "teams/test_shares_of_tasks.py::test_"
BRANCHES = "budgets/test_branches.py::test_"
BRANCHING = "budgets/test_branching.py::test_"
OUTAGE_BESIDE = "providers/test_outage_beside.py::test_"
PREFIXES = "budgets/test_prefixes.py::test_"
TASKS_APART = "teams/test_tasks_apart.py::test_"
TEAMS = "flows/test_team.py::test_"
USUAL = "core/test_usual_commits.py::test_"
RUNS = "core/test_app_runs.py::test_"
BUDGET = "core/test_budget.py::test_"
DECISIONS = "approvals/test_decisions.py::test_"
RIGHTS = "approvals/test_rights.py::test_"
APPROVED_EDITS = "approvals/test_approved_edits.py::test_"
GATE = "approvals/test_gate.py::test_"
ENV = "secrets/test_env_files.py::test_"
EVERY_FIELD = "secrets/test_every_field.py::test_a_secret_in_any_field_of_"
FOREIGN_FOLDERS = "commands/test_foreign_folders.py::test_"
ASIDE = "secrets/test_redacting_aside.py::test_"
ASKED = "secrets/test_asked_edits.py::test_"
SPELLED = "tools/test_names_of_files.py::test_"
HIDING = "approvals/test_hidden_characters.py::test_"
TOUCHED = "approvals/test_touched_paths.py::test_"
ROUNDS = "sampling/test_rounds.py::test_"
WEB = "http/test_guard.py::test_"
EGRESS = "net/test_egress.py::test_"
COMMAND = "tools/test_command.py::test_"
RELEASED_EDITS = "tools/test_writing_released.py::test_"
KEPT = "tools/test_instructions_protected.py::test_"
VIEW = "tools/test_small_view.py::test_"
UNASKED = "tools/test_unasked_reads.py::test_"
SANDBOXED_SERVERS = "downstream/test_server_lifecycle.py::test_"
PAUSED = "downstream/test_paused_servers.py::test_"
HIDDEN_WRITES = "tools/test_hidden_writes.py::test_"
REPOSITORIES = "tools/test_new_repositories.py::test_"
ENDED = "tools/test_ended_server_leaves_nothing.py::test_"
EDITED = "secrets/test_edited_files.py::test_"
DECODING = "flows/test_decoding.py::test_"
INSTRUCTIONS = "core/test_instruction_files.py::test_"
NO_KEY_AWAY = "net/test_openapi.py::test_no_document_leads_a_key_away_from_the_server_that_a_person_named"
COSTS = "core/test_hostile_costs.py::test_"
SCHEMAS = "test_schemas.py::test_"
COMMAND_RULES = "approvals/test_command_rules.py::test_"
REMEMBERED = "approvals/test_remembered.py::test_"
WORKSPACE = "tools/test_workspace.py::test_"
QUOTED = "flows/ooda/test_quoted.py::test_"
RESERVE = "core/test_reserve.py::test_"
FAN_OUT = "server/test_fan_out.py::test_"
FORKS = "core/test_forks.py::test_"
STEP_FORKS = "core/test_forks_at_steps.py::test_"
ONLY_NEW = "server/test_only_new.py::test_"
STREAMS = "providers/test_streams.py::test_"
RESOURCES = "server/test_resources.py::test_"
SUBSCRIBED = "server/test_subscriptions.py::test_"
LOG_MESSAGES = "server/test_log_messages.py::test_"
PROMPTED = "server/test_prompts.py::test_"
IN_PLACE = "commands/test_asked_in_place.py::test_"
SHORT_NAMES = "commands/test_short_names.py::test_"
ASKED_ONCE = "http/test_asked_by_one_server.py::test_"
TAKEN = "postgres/test_taken_runs.py::test_"
PLACES = "core/test_places.py::test_"
STARTED = "ooda/test_started_by_workers.py::test_"
SPANS = "telemetry/test_spans.py::test_"
METRICS = "telemetry/test_metrics.py::test_"
MADE_UP = "telemetry/test_made_up_names.py::test_"
NOT_PLAIN = DECODING + "what_is_not_plainly_one_fitting_object_is_a_failure_with_a_short_reason"

OAUTH_TESTS = "http/test_oauth.py::test_"
JOINED = "core/test_joined_commit.py::test_"
SHORTCUTS = "core/test_shortcuts.py::test_"
AT_LIMIT = "core/test_usual_commits.py::test_answers_of_the_caller_that_reach_a_limit_leave_the_same_rows"
LINES = "providers/test_goal_lines.py::test_"
USAGE = "providers/test_deviating_usage.py::test_"
CALLS = "providers/test_deviating_calls.py::test_"
EVENTS = "providers/test_deviating_events.py::test_"
SERVERS = "providers/test_deviating_servers.py::test_"
WRITTEN = "providers/test_written_calls.py::test_"
PAGE = "page/test_refused_requests.py::test_"
COMMITS_BESIDE = "postgres/test_commits_side_by_side.py::test_"
ON_PAGE = "page/test_acts.py::test_"
HTTP_PLACES = "http/test_open_places.py::test_"
OWNER_TOKEN = "http/test_owner_token.py::test_"
INSTALLED_HTTP = "commands/test_install_http.py::test_"
LIVE = "page/test_live.py::test_"

OAUTH = (
    Guard(
        "app/dialogs.py",
        "return caller.decides and may_decide(",
        "return may_decide(",
        OAUTH_TESTS + "a_dialog_that_was_shown_is_not_answered_by_a_token_without_the_scope_approve",
    ),
    Guard(
        "server/oauth.py",
        "if not isinstance(key_id, str) or algorithm not in setting.algorithms:",
        "if not isinstance(key_id, str):",
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[signed by an algorithm that is not configured]",
    ),
    Guard(
        "server/oauth.py",
        "                issuer=setting.issuer,\n",
        "",
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[of another issuer]",
    ),
    Guard(
        "server/oauth.py",
        "                audience=setting.audience,\n                leeway=CLOCK_SKEW_S,\n                options={",
        '                leeway=CLOCK_SKEW_S,\n                options={"verify_aud": False, ',
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[for another server]",
    ),
    Guard(
        "server/oauth.py",
        '"require": REQUIRED_CLAIMS, ',
        '"require": ["sub"], ',
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[without an end]",
    ),
    Guard(
        "server/oauth.py",
        '"enforce_minimum_key_length": True',
        '"enforce_minimum_key_length": False',
        OAUTH_TESTS + "a_key_is_used_for_its_own_algorithm_alone_and_a_weak_one_not_at_all",
    ),
    Guard(
        "server/oauth.py",
        "if key is None or key.algorithm not in (None, algorithm):",
        "if key is None:",
        OAUTH_TESTS + "a_key_is_used_for_its_own_algorithm_alone_and_a_weak_one_not_at_all",
    ),
    Guard(
        "server/oauth.py",
        "len(subject) <= MAX_SUBJECT_CHARS and subject.isprintable()",
        "len(subject)",
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[of a subject with hidden characters]",
    ),
    Guard(
        "server/oauth.py",
        "if self._clock() - self._tried_s > COOLDOWN_S and (",
        "if (",
        OAUTH_TESTS + "keys_that_were_rotated_are_fetched_again_and_not_for_every_token_that_names_one",
    ),
    Guard(
        "server/oauth.py",
        "        if self._age_s > STALE_S:",
        "        if False:",
        OAUTH_TESTS + "an_outage_of_the_authorization_server_is_bridged_and_not_for_ever",
    ),
    Guard(
        "server/oauth.py",
        "                if len(body) > MAX_KEYS_BYTES:",
        "                if False:",
        OAUTH_TESTS + "a_set_of_keys_that_is_too_large_is_not_read",
    ),
    Guard(
        "server/auth.py",
        '        if "run" not in admission.scopes:',
        "        if False:",
        OAUTH_TESTS + "without_the_scope_run_nothing_is_served[approve admin]",
    ),
    Guard(
        "server/auth.py",
        'if scope.get(TOOL) in ADMIN_TOOLS and not has_scope("admin"):',
        "if False:",
        OAUTH_TESTS + "only_with_the_scope_admin_tools_are_proposed",
    ),
    Guard(
        "app/context.py",
        "        if not caller.decides:",
        "        if False:",
        OAUTH_TESTS + "an_argument_decides_where_the_host_is_trusted_and_the_token_has_the_scope_approve",
    ),
)

IN_THE_TERMINAL = (
    Guard(
        "core/redaction.py",
        "while at < len(text) and not self._begins_secret(text[at:]):",
        "while at < len(text):",
        STREAMS + "a_secret_that_comes_in_two_pieces_is_not_heard[7]",
    ),
    Guard(
        "core/redaction.py",
        "if end > at or end > len(text) - MAX_TAIL_CHARS:",
        "if end > at:",
        STREAMS + "each_form_of_a_secret_is_redacted_where_it_comes_letter_by_letter[abcdefgh1]",
    ),
    Guard(
        "models/model.py",
        "on_text=lambda piece: listener(stream.add(piece))",
        "on_text=listener",
        STREAMS + "a_run_is_heard_round_by_round_and_what_it_records_is_redacted",
    ),
    Guard(
        "models/replies/events.py",
        "if not (is_done or self._finish):",
        "if False:",
        STREAMS + "a_stream_that_breaks_off_is_no_answer[openai:small-events0]",
    ),
    Guard(
        "models/replies/events.py",
        "elif not _HEARTBEAT.fullmatch(text):",
        "else:",
        EVENTS + "events_are_read_whatever_stands_between_them[ping as data-3]",
    ),
    Guard(
        "models/replies/events.py",
        "if len(self._data) > MAX_EVENT_LINES:",
        "if False:",
        EVENTS + "the_lines_of_an_event_are_bounded",
    ),
    Guard(
        "models/replies/events.py",
        'return given_id != call.fields["id"] or (bool(name)',
        "return (bool(name)",
        CALLS + "calls_that_come_in_pieces_are_put_together[index 0 for both, in pieces-1]",
    ),
    Guard(
        "models/replies/usage.py",
        "return TokenReport(read, written + beside, cached, cache_written)",
        "return TokenReport(read, written, cached, cache_written)",
        USAGE + "usage_is_charged_as_it_was_meant[whole-reasoning beside]",
    ),
    Guard(
        "models/replies/usage.py",
        "return count if 0 <= count <= MAX_COUNT else None",
        "return count",
        USAGE + "usage_is_charged_as_it_was_meant[whole-too many]",
    ),
    Guard(
        "models/replies/usage.py",
        "if largest is None or report.total_tokens >= largest.total_tokens:",
        "if largest is None:",
        USAGE + "usage_in_every_chunk_is_charged_once[None-True]",
    ),
    Guard(
        "models/replies/chat.py",
        'if meaning == "broken":',
        "if False:",
        USAGE + "a_reply_that_says_it_broke_off_is_tried_again[error-whole]",
    ),
    Guard(
        "models/replies/chat.py",
        "if (error := error_of(choice) or error_of(reply)) is not None:",
        "if (error := None) is not None:",
        EVENTS + "an_error_in_a_200_is_that_error[429-whole]",
    ),
    Guard(
        "models/replies/events.py",
        "return ErrorInReply(error, has_begun=has_begun or exchange.reports_usage)",
        "return ErrorInReply(error, has_begun=has_begun)",
        EVENTS + "an_error_after_a_report_costs_what_is_reported[usage alone-error0]",
    ),
    Guard(
        "models/replies/events.py",
        "    if not is_covered:\n        exchange.usage = None",
        "    if False:\n        exchange.usage = None",
        EVENTS + "an_error_after_a_report_costs_what_is_reported[before its text-error0]",
    ),
    Guard(
        "models/replies/border.py",
        "if size > MAX_REPLY_BYTES:",
        "if False:",
        "providers/test_failures.py::test_a_reply_without_end_is_refused",
    ),
    Guard(
        "models/provider_messages.py",
        "while not wire_id or wire_id in self.taken_ids:",
        "while not wire_id:",
        SERVERS + "ids_that_are_missing_or_repeat_go_back_as_ours[ids0]",
    ),
    Guard(
        "models/provider_messages.py",
        "return failure if usage is None else replace(failure, usage=usage, unknown_end=False)",
        "return failure",
        SERVERS + "a_reply_that_broke_off_costs_what_it_reports[error]",
    ),
    Guard(
        "models/provider_errors.py",
        'words = redact_keys(said.words, environ).rstrip(".")',
        'words = said.words.rstrip(".")',
        SERVERS + "words_are_redacted_before_they_are_cut",
    ),
    Guard(
        "models/provider_errors.py",
        'exchange.note_repair("an error in a reply of status 200 was taken as that error")',
        "pass",
        SERVERS + "an_error_in_a_reply_of_status_200_is_noted_once",
    ),
    Guard(
        "execution/plan_commit.py",
        "None, _failure_notes(state, attempts)",
        "None, ()",
        SERVERS + "an_error_in_a_reply_of_status_200_is_noted_once",
    ),
    Guard(
        "models/provider_errors.py",
        "if any(name in exchange.refused_fields for name in LIMIT_FIELDS):",
        "if False:",
        SERVERS + "a_server_that_knows_neither_name_is_not_asked_for_ever",
    ),
    Guard(
        "models/written_calls.py",
        "or spec is None or _is_answer(reply.content, step):",
        "or spec is None:",
        WRITTEN + "what_the_schema_of_the_run_admits_is_its_answer[schema0-True-{}]",
    ),
    Guard(
        "models/written_calls.py",
        '    if has_more_values(",".join(coded.values()), MAX_VALUES):',
        "    if False:",
        WRITTEN + "a_tag_that_holds_too_many_values_is_asked_back",
    ),
    Guard(
        "models/written_calls.py",
        'return "; ".join(problems) or None',
        "return None",
        WRITTEN + "a_call_whose_arguments_do_not_fit_is_asked_back",
    ),
    Guard(
        "models/model.py",
        "note(redactor.redact_text(text).text)",
        "note(text)",
        SERVERS + "a_note_holds_no_secret",
    ),
    Guard(
        "flows/planner.py",
        "if was_too_long or usage.is_full(conversation):",
        "if usage.is_full(conversation):",
        SERVERS + "a_conversation_that_is_too_long_is_shortened_once_and_asked_again",
    ),
    Guard(
        "flows/structured_answer.py",
        '        case Failure(code="context_full", message=message):\n',
        '        case Failure(code="never", message=message):\n',
        SERVERS + "a_phase_that_is_too_long_ends_as_that_and_names_the_setting",
    ),
    Guard(
        "cli/respond.py",
        "return target.is_exact and key is not None and",
        "return key is not None and",
        SHORT_NAMES + "without_a_terminal_a_short_name_decides_only_with_the_digest[words2]",
    ),
    Guard(
        "cli/respond.py",
        "is_beginning = len(digest) >= DIGEST_CHARS and item",
        "is_beginning = item",
        SHORT_NAMES + "without_a_terminal_a_short_name_decides_only_with_the_digest[words0]",
    ),
    Guard(
        "cli/keyboard.py",
        "termios.tcsetattr(terminal, termios.TCSAFLUSH, before)",
        "termios.tcsetattr(terminal, termios.TCSADRAIN, before)",
        IN_PLACE + "what_is_no_choice_is_asked_again_and_what_was_typed_before_the_question_counts_for_nothing",
    ),
    Guard(
        "cli/keyboard.py",
        "            await anyio.sleep(SEEN_S)\n",
        "",
        IN_PLACE + "a_key_that_is_typed_as_the_question_appears_is_no_answer_to_it",
    ),
    Guard(
        "cli/terminal.py",
        "(*range(0x2588, 0x2591), *range(0x2758, 0x275B))",
        "()",
        IN_PLACE + "no_text_of_a_model_can_look_like_the_question",
    ),
    Guard(
        "cli/ask.py",
        "    for line in approval_lines(report, item):\n        print_note(Asked(line))\n",
        "    for line in approval_lines(report, item):\n        print_note(line)\n",
        IN_PLACE + "no_text_of_a_model_can_look_like_the_question",
    ),
    Guard(
        "cli/follow.py",
        "        if self._is_speaking:\n            self._after_speech",
        "        if False:\n            self._after_speech",
        "commands/test_conversation.py::test_what_was_done_is_not_printed_into_what_is_being_said",
    ),
    Guard(
        "app/inbox.py",
        "if not found or (principal is not None and found[0].principal != principal):",
        "if not found:",
        "approvals/test_commands.py::test_what_can_not_be_decided_is_said_and_stores_nothing",
    ),
)

ONE_OWNER = (
    Guard(
        "store/joined_commit.py",
        "where n = ? and fence = ? and route = ?",
        "where n = ? and fence >= ? and route = ?",
        JOINED + "nothing_is_written_where_another_process_has_changed_the_run[another server had it meanwhile]",
    ),
    Guard(
        "store/joined_commit.py",
        "and owner is null and paused is null and outcome is null\n",
        "and owner is null and outcome is null\n",
        JOINED + "nothing_is_written_where_another_process_has_changed_the_run[it was paused]",
        quick=True,
    ),
    Guard(
        "store/joined_commit.py",
        "from request where mark = ? and {client_requests.IS_UNCHARGED}",
        "from request where mark = -? and {client_requests.IS_UNCHARGED}",
        JOINED + "nothing_is_written_where_a_client_was_asked_about_the_step",
    ),
    Guard(
        "store/joined_commit.py",
        "where nonce = ? and consumed is not null)",
        "where nonce = ? and consumed is null)",
        JOINED + "nothing_is_written_where_the_ask_was_answered_before",
    ),
    Guard(
        "store/apply_commit.py",
        'f"{condition} and {_NOTHING_CAME}" if hands_out else condition',
        "condition",
        SHORTCUTS + "a_run_that_is_about_to_be_let_go_of_is_kept_for_what_came",
    ),
    Guard(
        "store/apply_commit.py",
        "limited = _TOKENS_AND_MONEY if exceeds_held(held, spent) else NOTHING",
        "limited = NOTHING",
        AT_LIMIT + "[above a limit of the day]",
    ),
    Guard(
        "store/apply_commit.py",
        "_LIMITS_HANDED_OUT if commit.hands_out else held)",
        "NOTHING if commit.hands_out else held)",
        AT_LIMIT + "[the last call of the day]",
    ),
    Guard(
        "execution/plan_commit.py",
        "if exceeds_held(held, spent) and _is_over_cap(account):",
        "if False:",
        AT_LIMIT + "[above a limit of the run]",
    ),
    Guard(
        "execution/worker.py",
        "        self.is_current = False\n",
        "",
        SHORTCUTS + "after_an_error_it_is_read_before_anything_more_is_begun",
    ),
    Guard(
        "execution/running_steps.py",
        "        state.has_notes_of_tools = True\n",
        "",
        SHORTCUTS + "what_a_tool_has_kept_goes_with_the_answer_of_its_call",
    ),
    Guard(
        "execution/run_state.py",
        "    has_notes_of_tools: bool = True\n",
        "    has_notes_of_tools: bool = False\n",
        SHORTCUTS + "what_a_server_that_ended_has_kept_goes_with_the_end_of_the_run",
    ),
    Guard(
        "store/apply_commit.py",
        "where n = ? and owner = ? and fence = ? and outcome is null)",
        "where n = ? and ? is not null and ? is not null and outcome is null)",
        RECOVERY + "an_owner_whose_run_was_taken_commits_nothing_more",
        quick=True,
    ),
    Guard(
        "store/apply_commit.py",
        "inbox_changed = is_idle and has_news(session, commit.run, commit.open_step_ids)",
        "inbox_changed = False",
        RECOVERY + "a_run_is_not_let_go_of_while_something_that_came_was_not_seen",
        quick=True,
    ),
    Guard(
        "store/apply_commit.py",
        "    if has_news(session, commit.run, commit.open_step_ids):\n        return False\n",
        "",
        RECOVERY + "a_run_is_not_let_go_of_while_something_that_came_was_not_seen",
    ),
    Guard(
        "store/runs.py",
        " and (owner is null or owner in ({placeholders(dead)})) returning fence",
        " and ({placeholders(dead)} or 1) returning fence",
        OWNERS + "a_run_that_somebody_living_owns_is_taken_by_nobody",
    ),
    Guard(
        "store/inbox.py",
        "if (now.owner, now.fence) != (owner, fence) or now.outcome is not None:",
        "if now.outcome is not None:",
        OWNERS + "control_requests_are_applied_by_the_owner_alone",
    ),
    Guard(
        "tools/tool.py",
        "        ctx.memory.check_owner()\n",
        "        pass\n",
        "core/test_released.py::test_a_tool_that_does_more_than_read_is_not_called_after_a_release",
    ),
    Guard(
        "tools/http/connection.py",
        "            recheck()\n",
        "",
        "crash/test_woken_late.py::test_an_order_that_a_person_had_made_elsewhere_is_not_sent_by_the_server_that_wakes",
    ),
    Guard(
        "tools/commands/runner.py",
        "    request.recheck()\n",
        "",
        "tools/test_command_released.py::test_a_program_is_not_started_where_its_run_is_anothers_by_then",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "                call.recheck()",
        "                pass",
        "downstream/test_server_lifecycle.py::test_a_call_is_not_sent_where_its_run_is_anothers_once_the_server_is_there",
    ),
    Guard(
        "tools/mcp_servers/bounded_http.py",
        "                    recheck()\n",
        "                    pass\n",
        "downstream/test_downstream_transports.py::"
        "test_over_http_a_call_is_not_sent_where_its_run_is_anothers_once_the_connection_stands",
    ),
    Guard(
        "tools/files/transaction.py",
        "            if done:\n                ctx.memory.check_owner()\n            _check_deadline(ctx)",
        "            _check_deadline(ctx)",
        RELEASED_EDITS + "no_further_file_is_changed_and_the_next_server_brings_it_to_its_end",
    ),
    Guard(
        "tools/files/transaction.py",
        "    _check_recovery(ctx)  # a staging file may",
        "    # a staging file may",
        RELEASED_EDITS + "a_recovery_removes_no_staging_file_once_the_run_is_anothers",
    ),
    Guard(
        "tools/files/transaction.py",
        "                    _check_recovery(ctx)\n                    _apply_change(",
        "                    _apply_change(",
        RELEASED_EDITS + "a_recovery_changes_no_file_once_the_run_is_anothers",
    ),
    Guard(
        "tools/files/transaction.py",
        "    if cause is not None:\n        _check_recovery(ctx)\n",
        "    if cause is not None:\n",
        RELEASED_EDITS + "a_recovery_takes_no_file_back_once_the_run_is_anothers",
    ),
    Guard(
        "tools/files/transaction.py",
        "    if time.monotonic() >= ctx.deadline:  # whoever waited",
        "    if False:  # whoever waited",
        "tools/test_writing_interrupted.py::test_a_look_whose_time_is_over_writes_nothing_more",
    ),
    Guard(
        "tools/tool.py",
        "    except FenceLost:\n        raise  #",
        "    except ZeroDivisionError:\n        raise  #",
        RELEASED_EDITS + "no_further_file_is_changed_and_the_next_server_brings_it_to_its_end",
    ),
    Guard(
        "app/run_factory.py",
        'if run.route == "provider" and self.settings.model is None:',
        "if False:",
        "providers/test_out_of_reach.py::test_a_server_without_a_provider_leaves_the_run_to_one_that_has_it",
    ),
    Guard(
        "server/dispatch.py",
        "    app.watcher.wake()\n",
        "",
        "crash/test_left_behind.py::test_any_tool_that_is_called_makes_the_server_go_on_with_it",
    ),
    Guard(
        "store/ownership.py",
        "if lock is None or lock not in living]",
        "]",
        OWNERS + "an_owner_that_lives_is_not_among_the_dead",
    ),
    Guard(
        "store/ownership.py",
        "set owner = ?, fence = fence + 1 where owner = ?",
        "set owner = ? where owner = ?",
        OWNERS + "a_release_raises_the_fence",
    ),
    Guard(
        "execution/worker.py",
        "        if self._inbox_changed:\n            return False  # something came during the commit",
        "        # something came during the commit",
        OWNERS + "a_step_that_a_cancel_forestalled_during_its_commit_is_never_begun",
        quick=True,
    ),
    Guard(
        "execution/worker.py",
        "no_new_steps = self._is_stopping or self.state.run.paused is not None",
        "no_new_steps = self._is_stopping",
        RUNS + "a_pause_lets_what_runs_finish_and_begins_nothing_more",
    ),
)

ONE_ANSWER = (
    Guard(
        "store/schema.py",
        "create table answer(mark integer primary key references mark,",
        "create table answer(mark integer references mark,",
        RECOVERY + "a_mark_takes_one_answer_whoever_brings_it",
        quick=True,
    ),
    Guard(
        "store/inbox.py",
        "if found is None or (found.body is None and (not found.is_open or run.outcome is not None)):",
        "if found is None:",
        OWNERS + "an_answer_is_taken_for_an_open_step_and_another_one_is_refused",
    ),
    Guard(
        "store/inbox.py",
        "    if found.body == encode_answer(submitted.answer):\n        return None\n",
        "    if found.body:\n        return None\n",
        OWNERS + "an_answer_is_taken_for_an_open_step_and_another_one_is_refused",
    ),
    Guard(
        "store/runs.py",
        "        if found[2] != new.start_digest:",
        "        if False:",
        RUNS + "a_key_gives_its_run_also_after_the_end",
    ),
    Guard(
        "store/apply_commit.py",
        "        if not _is_answered(session, dropped.step_id):",
        "        if dropped.step_id:",
        OWNERS + "what_was_answered_meanwhile_is_not_released_as_well",
    ),
    Guard(
        "core/replay.py",
        "if step is None or request != digest:",
        "if step is None:",
        "core/test_runner.py::test_a_row_that_asks_something_else_is_named_by_its_path",
        quick=True,
    ),
    Guard(
        "core/replay.py",
        "        if path in self._used_paths:",
        "        if False:",
        "core/test_runner.py::test_a_name_used_twice_is_refused",
    ),
    Guard(
        "execution/plan_commit.py",
        "if path not in pending and runner.take(path)]",
        "if path not in pending]",
        TEAM_RUNS + "a_task_that_is_alone_has_its_account_from_its_first_step_on",
    ),
    Guard(
        "execution/authorization.py",
        'return self.offered if self.by_agent is None else self.by_agent.get(self.agent_of(path) or "", NO_TOOLS)',
        "return self.offered",
        TEAM_RUNS + "a_tool_that_its_agent_does_not_have_is_not_called_though_another_agent_has_it",
        quick=True,
    ),
    Guard(
        "flows/team.py",
        "_answer_needs(given, tasks) if len(tasks) > 1 else UNLIMITED,",
        "UNLIMITED,",
        TEAM_RUNS + "the_limits_of_a_team_are_sums_and_what_is_left_pays_the_answer",
    ),
    Guard(
        "budget/reservation.py",
        "keeps_share = share.keeps_share and aside is None",
        "keeps_share = False",
        BRANCHING + "what_comes_after_them_keeps_a_part_in_the_units_that_are_not_named",
    ),
    Guard(
        "budget/reservation.py",
        "kept = (aside or 0) + sum(each[place] or 0 for each in promised)",
        "kept = aside or 0",
        BRANCHING + "whatever_runs_side_by_side_keeps_what_it_has_and_what_is_set_aside_stays",
        quick=True,
    ),
    Guard(
        "budget/reservation.py",
        "        if _buys_closing(share, caps, first):",
        "        if True:",
        BRANCHING + "fewer_run_where_a_part_for_each_would_buy_no_round_and_closing_and_one_alone_has_the_reserve",
    ),
    Guard(
        "budget/reservation.py",
        "return _affordable_tokens(remaining, step, closing_tokens)[0] >= min(",
        "return True or min(",
        BRANCHING + "fewer_run_where_a_part_for_each_would_buy_no_round_and_closing_and_one_alone_has_the_reserve",
    ),
    Guard(
        "budget/reservation.py",
        "(None if cap == most else cap for",
        "(cap for",
        BRANCHING + "what_was_asked_for_a_branch_itself_is_no_reason_to_wait",
    ),
    Guard(
        "core/limits.py",
        "most, fewest = beginning + (beginning < unbegun), 1 + (unbegun > 1)",
        "most, fewest = beginning, 1",
        BRANCHING + "as_many_divide_what_is_free_as_may_run_and_one_part_stays_for_those_to_come",
    ),
    Guard(
        "store/reservations.py",
        "            if siblings and not is_enough:",
        "            if False:",
        WIDE_TEAMS + "sixteen_tasks_buy_nine_tenths_of_what_a_small_budget_can_buy_and_the_answer[16]",
        quick=True,
    ),
    Guard(
        "budget/reservation.py",
        "    if share.unended > len(siblings) + 1:",
        "    if False:",
        BRANCHING + "those_that_run_get_more_once_all_have_begun_and_as_much_as_each_other",
    ),
    Guard(
        "budget/reservation.py",
        "    for count in range(share.unended, 0, -1):",
        "    for count in (1,):",
        BRANCHING + "those_that_run_get_more_once_all_have_begun_and_as_much_as_each_other",
    ),
    Guard(
        "budget/reservation.py",
        "max(0, asked - done)",
        "asked",
        BRANCHING + "a_branch_that_gets_more_takes_nothing_from_another_nor_of_what_is_set_aside",
    ),
    Guard(
        "store/apply_commit.py",
        "        batch.raise_branches(new.path, around, new.request)",
        "        pass",
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "store/apply_commit.py",
        "if may_wait and new.request.wanted_tokens and batch.may_get_more(around, reserved):",
        "if False:",
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "store/apply_commit.py",
        "    if not commit.others_move and all(step.is_kept_waiting for _, step, _ in started):",
        "    if all(step.is_kept_waiting for _, step, _ in started):",
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "store/reservations.py",
        "        if any(is_final(each.share, self.branch_account(each.path), refused.limit) for each in around):",
        "        if False:",
        BRANCHES + "what_was_asked_for_a_branch_itself_is_no_reason_to_wait_for_others",
    ),
    Guard(
        "flows/team.py",
        "read = min(most, given.synthesis_conversation(found).size + SHORT_RESULT * unended) + ANSWER_MARGIN",
        "read = most + ANSWER_MARGIN",
        WIDE_TEAMS + "sixteen_tasks_buy_nine_tenths_of_what_a_small_budget_can_buy_and_the_answer[16]",
        quick=True,
    ),
    Guard(
        "execution/plan_commit.py",
        "or state.runner.waiting.keys() - state.pending.keys() - state.kept_waiting",
        "or state.runner.waiting.keys() - state.pending.keys()",
        OUTAGE_BESIDE + "a_branch_that_waits_for_what_another_leaves_keeps_no_run_from_its_pause",
        quick=True,
    ),
    Guard(
        "execution/plan_commit.py",
        "key=lambda item: state.may_be_kept_waiting(item[0])",
        "key=lambda item: False",
        WIDE_TEAMS + "a_branch_that_waits_takes_no_line_of_a_script_from_one_that_runs",
    ),
    Guard(
        "execution/executor.py",
        "bound = bound if beside is None else min(bound, beside)",
        "pass",
        WIDE_TEAMS + "a_task_is_bounded_by_what_one_beside_it_cost_that_begins_alike",
    ),
    Guard(
        "execution/accounting.py",
        "added = conversation.size - prefix.size + MESSAGE_TOKENS * (len(conversation) - prefix.length)",
        "added = MESSAGE_TOKENS * (len(conversation) - prefix.length)",
        PREFIXES + "no_request_costs_more_than_its_bound",
    ),
    Guard(
        "execution/accounting.py",
        "return max(known) + added + reminder + TAIL_TOKENS",
        "return known[-1] + added + reminder + TAIL_TOKENS",
        PREFIXES + "the_most_that_was_reported_lately_counts_and_estimates_do_not",
    ),
    Guard(
        "execution/accounting.py",
        'digest_of(conversation.digest_at(1) or b"", step.tools.digest, schema)',
        'digest_of(conversation.digest_at(1) or b"", schema)',
        PREFIXES + "a_report_bounds_what_begins_alike_and_nothing_else",
    ),
    Guard(
        "flows/team.py",
        'if failed is not None and task.task.on_failed_dependency == "skip":',
        "if False:",
        TEAMS + "a_task_that_failed_twice_holds_back_what_depends_on_it_and_nothing_else",
    ),
    Guard(
        "flows/team.py",
        "or attempt.problem is not None",
        "",
        TEAMS + "an_agent_may_end_its_task_because_the_plan_is_wrong_and_no_other_tries_it",
    ),
    Guard(
        "flows/team_input.py",
        "self.agents[name].power if self.weighs_power else 0",
        "0",
        TEAMS + "a_failed_task_goes_to_the_least_powerful_agent_that_fits[read-needs0]",
    ),
    Guard(
        "core/plan.py",
        "known = {*ids, *(name for name, is_good in earlier.items() if is_good)}",
        "known = {*ids, *earlier}",
        TEAMS + "a_replacement_takes_no_id_again_and_waits_for_nothing_that_failed",
    ),
    Guard(
        "core/plan.py",
        "    except CycleError as error:",
        "    except ZeroDivisionError as error:",
        TEAMS + "a_plan_that_is_none_is_repaired_once_and_else_becomes_a_single_task_that_says_so",
    ),
    Guard(
        "core/replay.py",
        "return name in self.begun or len(self.begun) < self.gather.max_parallel",
        "return True",
        "core/test_runner.py::test_never_more_branches_run_than_the_limit_allows",
    ),
    Guard(
        "execution/plan_commit.py",
        'return not (repeatable or (step.probe_result is not None and step.probe_result.state == "not_done"))',
        "return False",
        "crash/test_settle.py::test_a_command_whose_end_is_unknown_is_never_repeated_by_itself[run_control-already_done-1]",
    ),
    Guard(
        "execution/plan_commit.py",
        'case ProbeResult(state="done", result=found):',
        'case ProbeResult(state="never", result=found):',
        "crash/test_settle.py::test_an_edit_that_was_made_before_the_crash_is_not_made_again",
    ),
)

SPENDING = (
    Guard(
        "execution/cancellation.py",
        "    if step.failed_result is None:",
        "    if True:",
        "providers/test_cut_off_between_tries.py::"
        "test_a_failed_attempt_is_charged_with_what_is_known_of_it_where_a_cancel_forestalls_the_next",
    ),
    *(
        Guard(
            "budget/reservation.py",
            f"and counts.{unit} > remaining.{unit}:",
            "and False:",
            RESERVE + "a_count_that_is_used_up_is_refused",
        )
        for unit in ("rounds", "model_calls", "tool_calls")
    ),
    *(
        Guard(
            "budget/reservation.py",
            f'        ("{unit}", {rest}),\n',
            "",
            RESERVE + test_name,
            quick=unit == "total_tokens",
        )
        for unit, rest, test_name in (
            ("input_tokens", "remaining.input_tokens, _READ", "a_completion_that_does_not_fit_is_refused"),
            ("output_tokens", "remaining.output_tokens, _WRITTEN", "a_completion_is_clamped_to_what_is_left"),
            ("total_tokens", "remaining.total_tokens, _EITHER", "a_completion_is_clamped_to_what_is_left"),
            ("nano_usd", "remaining.nano_usd, request.price or FREE", "a_completion_is_clamped_to_what_is_left"),
        )
    ),
    Guard(
        "budget/reservation.py",
        "return min(request.timeout_ms, share)",
        "return request.timeout_ms",
        RESERVE + "a_completion_is_clamped_to_what_is_left",
    ),
    Guard(
        "budget/reservation.py",
        "    for closing_tokens in _closings_to_keep(account, request):",
        "    for closing_tokens in (None,):",
        RESERVE + "after_a_round_a_closing_call_fits",
        quick=True,
    ),
    Guard(
        "budget/reservation.py",
        "if counts.rounds and remaining.model_calls == 1 and account.spent.rounds:",
        "if False:",
        BUDGET + "the_last_model_call_is_kept_for_the_closing",
    ),
    Guard(
        "budget/reservation.py",
        "share = remaining.milliseconds // max(1, request.time_shares)",
        "share = remaining.milliseconds",
        BUDGET + "the_steps_of_a_commit_share_the_time_that_is_left",
    ),
    Guard(
        "budget/reservation.py",
        "if getattr(remaining, unit) == 0:",
        "if False:",
        BUDGET + "a_completion_is_not_handed_out_where_a_token_limit_is_used_up",
    ),
    Guard(
        "budget/reservation.py",
        "if remaining.model_calls is not None and request.counts.model_calls > remaining.model_calls:",
        "if False:",
        RESERVE + "what_runs_share_is_never_passed_either",
    ),
    Guard(
        "budget/reservation.py",
        'nano_usd is not None:\n        return account.refuse("nano_usd")\n    keeps',
        "nano_usd is not None:\n        pass\n    keeps",
        "providers/test_money.py::test_money_that_nobody_can_count_is_not_spent_under_a_cap",
    ),
    Guard(
        "models/pricing.py",
        "case (None, None) if is_loopback(base_url):",
        "case (None, None) if False:",
        "providers/test_unpriced.py::test_a_model_on_this_machine_is_free_and_is_no_unknown",
    ),
    Guard(
        "execution/executor.py",
        "estimator = self._estimators[conversation, sent.route]",
        'estimator = self._estimators[conversation, "provider"]',
        "budgets/test_meter.py::test_what_a_caller_said_of_its_own_tokens_bounds_no_call_of_a_provider",
    ),
    Guard(
        "store/reservations.py",
        "getattr(account.spent, unit) + getattr(account.held, unit) > cap",
        "getattr(account.spent, unit) > cap",
        "budgets/test_branches.py::test_a_cap_that_an_honest_answer_crosses_after_one_beyond_its_hold_is_named",
    ),
    Guard(
        "app/store_watcher.py",
        "undriven, self._undriven = found.items() & self._undriven.items(), found",
        "undriven, self._undriven = dict[int, int]().items(), found",
        "core/test_abandoned_calls.py::test_a_run_moves_whose_start_was_given_up",
    ),
    Guard(
        "store/apply_commit.py",
        "f'{name} = ?' for name in unit_columns",
        "f'{name} is not ? + 0.5' for name in unit_columns",
        USUAL + "an_account_that_somebody_else_has_written_is_read_again",
        quick=True,
    ),
    Guard(
        "store/apply_commit.py",
        '_OWNED = "select 1 from run where n = ? and owner = ? and fence = ?',
        '_OWNED = "select 1 from run where n = ? and (owner = ? or 1) and (fence = ? or 1)',
        USUAL + "a_run_that_has_another_owner_is_written_no_more",
    ),
    Guard(
        "store/apply_commit.py",
        "elif not change.write_if_room(session, number, limited, spare=spare):",
        "elif change.write(session, number):",
        USUAL + "an_unusual_commit_goes_the_general_way",
    ),
    Guard(
        "store/apply_commit.py",
        "                done.undone().write(session, earlier)",
        "                pass",
        USUAL + "a_mandates_day_that_is_used_up_leaves_the_principals_day_as_it_was",
    ),
    Guard(
        "store/apply_commit.py",
        "        session.rows(UPDATE_AMOUNTS, (*known.held, *known.spent, known.id))",
        "        pass",
        USUAL + "an_unusual_commit_goes_the_general_way",
    ),
    Guard(
        "execution/run_state.py",
        "or (bool(self.runner.branches) and not self.runner.branches.keys() <= self.branches.keys())",
        "",
        TEAM_RUNS + "a_task_that_is_alone_has_its_account_from_its_first_step_on",
    ),
    Guard(
        "store/database.py",
        "            if session.changed_rows() != before:",
        "            if False:",
        "core/test_writer.py::test_a_job_that_refuses_after_a_write_leaves_nothing_and_takes_no_other_with_it",
        quick=True,
    ),
    Guard(
        "store/inbox.py",
        "                if waits_at_pause:",
        "                if False:",
        "crash/test_failed_commits.py::test_a_resume_lets_a_flow_go_on_though_the_server_ended_before_it_did",
    ),
    Guard(
        "execution/pending_step.py",
        "self.may_begin_again = self.is_open and self.sent",
        "self.may_begin_again = self.sent",
        "crash/test_settle_approved.py::test_a_command_that_a_rule_let_through_later_is_never_repeated_by_itself_either",
    ),
    Guard(
        "execution/plan_commit.py",
        "        if answered.result.text is not None or answered.result.notes:",
        "        if False:",
        USUAL + "an_unusual_commit_goes_the_general_way",
    ),
    Guard(
        "execution/plan_commit.py",
        "        if not access.allows_at_once(path, step, spec):",
        "        if False:",
        USUAL + "an_unusual_commit_goes_the_general_way",
    ),
    Guard(
        "store/apply_commit.py",
        "batch.settle(answered.path, answered.held, result.spent, answered.shared)",
        "batch.settle(answered.path, answered.held, NOTHING, answered.shared)",
        "approvals/test_approved_edits.py::test_an_edit_waits_for_approval_and_is_made_once",
    ),
    Guard(
        "store/apply_commit.py",
        "batch.settle(attempt.path, attempt.freed, lost, attempt.shared)",
        "batch.settle(attempt.path, attempt.freed, NOTHING, attempt.shared)",
        "providers/test_runs.py::test_an_attempt_whose_end_is_unknown_stays_charged",
    ),
    Guard(
        "execution/accounting.py",
        "if known is not None and await self._is_still_charged(run.principal, known[0], at):",
        "if known is not None:",
        "budgets/test_days_limits.py::test_budget_020_a_round_is_charged_to_the_day_on_which_it_was_reserved",
    ),
    Guard(
        "execution/accounting.py",
        "accounts.check_day_accounts_exist(session, principal, min(day.begins, at))",
        "None",
        "budgets/test_days_limits.py::test_a_damaged_day_refuses_instead_of_beginning_anew",
    ),
    Guard(
        "execution/worker.py",
        "integrity.check_run_account(session, run.n, run.account)",
        "None",
        OWNERS + "an_account_that_is_not_the_sum_of_its_rows_spends_nothing_more",
    ),
    Guard(
        "store/inbox.py",
        'if action == "extend" and _was_limit_reached(session, run.n):',
        "if False:",
        RUNS + "a_run_that_a_limit_has_refused_can_not_be_extended",
    ),
    Guard(
        "execution/authorization.py",
        "if len(recent) < CALLS_PER_MINUTE:",
        "if True:",
        RUNS + "the_thirty_first_call_of_a_changing_tool_in_a_minute_is_refused",
    ),
    Guard(
        "execution/authorization.py",
        "while recent and not 0 <= at - recent[0] < 60_000:",
        "while recent and not at - recent[0] < 60_000:",
        RUNS + "a_clock_that_is_set_back_does_not_stop_a_tool_for_long",
    ),
)

APPROVALS = (
    Guard(
        "store/approvals.py",
        "for _ in range(MAX_PER_WORKSPACE - count_pending(session, run, at)):",
        "for _ in range(MAX_PER_WORKSPACE):",
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "store/approvals.py",
        "(select count(*) from approval as other where other.run = approval.run and {_IS_PENDING}) < :places",
        ":at < :places << 60",
        DECISIONS + "a_fifth_of_a_run_waits_for_a_place_and_places_go_in_the_order_of_marks",
    ),
    Guard(
        "store/decisions.py",
        "        approvals.ask_queued(session, n, at)\n",
        "",
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "store/apply_commit.py",
        "        approvals.ask_queued(session, commit.run, commit.at)\n",
        "",
        DECISIONS + "a_run_that_ends_gives_its_places_up[cancelled]",
    ),
    Guard(
        "store/force_cancel.py",
        "    approvals.ask_queued(session, run.n, at)\n",
        "",
        DECISIONS + "a_run_that_ends_gives_its_places_up[broken off]",
    ),
    Guard(
        "store/decisions.py",
        "    if found.unasked and found.verdict is None:",
        "    if False:",
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "execution/run_state.py",
        "                step.has_lapsed, step.approval_expired = not row.is_renewable, row.is_renewable\n",
        "                step.has_lapsed, step.approval_expired = True, False\n",
        APPROVED_EDITS + "a_lapsed_approval_is_asked_again_once_by_a_server_that_died_after_the_resume",
    ),
    Guard(
        "execution/run_state.py",
        "not row.is_renewable, row.is_renewable\n",
        "False, True\n",
        TASKS_APART + "what_lapsed_while_no_server_lived_stays_held_in_the_next",
    ),
    Guard(
        "execution/plan_commit.py",
        "return Paused(LAPSED, None) if all(step.has_lapsed for step in steps) else outage_pause(steps, at)",
        "return Paused(LAPSED, None)",
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "store/decisions.py",
        "        session.rows(_PAUSE_IF_ALL_LAPSED, (LAPSED, n))\n",
        '        session.rows("update run set paused = ?, resume_at = null where n = ?", (LAPSED, n))\n',
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "store/approvals.py",
        " and later.id > lapse.id",
        "",
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "app/control.py",
        "return bool(waits.lapsed) or any(",
        "return any(",
        TASKS_APART + "a_command_asks_again_about_what_lapsed_in_one_task",
    ),
    Guard(
        "store/decisions.py",
        'if found.verdict == "expired" or (found.verdict is None and found.expires_at <= at):',
        'if found.verdict == "expired":',
        DECISIONS + "EDIT_032_a_decision_after_its_time_is_none_though_no_server_lived",
    ),
    Guard(
        "store/decisions.py",
        "if found is None or now.principal != decision.actor.principal:",
        "if found is None:",
        DECISIONS + "a_job_takes_a_decision_of_the_runs_own_principal_alone",
    ),
    Guard(
        "store/decisions.py",
        "    if found.digest != decision.digest:",
        "    if False:",
        DECISIONS + "a_decision_that_is_not_about_what_was_shown_stores_nothing",
        quick=True,
    ),
    Guard(
        "store/decisions.py",
        " where run = ? and key = ? and verdict is null returning mark",
        " where run = ? and key = ? returning mark",
        DECISIONS + "a_verdict_is_never_written_over",
    ),
    Guard(
        "gate.py",
        "request = [tool.name, tool_pin(tool), arguments, workspace, preview, dict(base)]",
        "request = [tool.name, tool_pin(tool), arguments, workspace, dict(base)]",
        GATE + "whatever_differs_in_what_was_shown_is_another_ask",
    ),
    Guard(
        "gate.py",
        "sha256(ToolSet([tool]).digest + tool.source.encode())",
        "sha256(ToolSet([tool]).digest)",
        GATE + "DOWNSTREAM_023_a_tool_from_another_place_is_another_tool",
    ),
    Guard(
        "gate.py",
        'if facts.effect != "read" and "L0" in facts.scopes:',
        "if False:",
        GATE + "no_rule_lets_a_run_write_what_is_the_servers_own",
        quick=True,
    ),
    Guard(
        "gate.py",
        "if facts.has_instructions:",
        "if False:",
        GATE + "instructions_to_agents_are_always_asked_about",
    ),
    Guard(
        "gate.py",
        'if rule.setting.verdict == "deny" and rule.matches(facts):',
        "if False:",
        GATE + "deny_wins_then_the_first_that_matches",
    ),
    Guard(
        "gate_rules.py",
        'if facts.effect == "irreversible" and rule.effect is None and rule.tools != facts.name and not rule.argv:',
        "if False:",
        GATE + "TENANCY_010_a_broad_allowance_does_not_cover_what_can_not_be_undone",
    ),
    Guard(
        "gate.py",
        "(*touched.inside, *call.preview_paths)",
        "touched.inside",
        GATE + "paths_that_a_preview_found_count_as_those_that_are_named",
    ),
    Guard(
        "gate.py",
        'return GateRuling("deny", "there is no tool of this name")',
        "pass",
        GATE + "no_rule_however_broad_lets_a_tool_through_that_nobody_knows",
    ),
    Guard(
        "gate.py",
        '(rule.tools, None if is_coming else names, "tool"),',
        '(rule.tools, names, "tool"),',
        "approvals/test_idle_rules.py::test_a_tool_that_was_not_met_yet_gives_no_false_alarm",
    ),
    Guard(
        "gate.py",
        'if {"L0", "L1"} & set(facts.scopes) or touched.unresolved or touched.outside:',
        "if False:",
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[instructions]",
        quick=True,
    ),
    Guard(
        "gate.py",
        "if facts.has_hidden_text or touched.has_instructions:",
        "if touched.has_instructions:",
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[invisible characters]",
    ),
    Guard(
        "execution/authorization.py",
        "if not (program and approval.has_sandbox):",
        "if not program:",
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[a program without a sandbox]",
    ),
    Guard(
        "execution/authorization.py",
        "shape=_shape_of(call, preview, approval) if verdict.may_remember else None,",
        "shape=_shape_of(call, preview, approval),",
        REMEMBERED + "what_is_denied_or_always_asked_about_later_is_not_let_through[instructions to agents]",
    ),
    Guard(
        "execution/authorization.py",
        "return replace(shape, path=paths.pop()) if len(paths) == 1 else None",
        "return replace(shape, path=paths.pop())",
        REMEMBERED + "a_plan_of_one_file_is_remembered_for_the_file_and_one_of_two_is_not",
    ),
    Guard(
        "gate_rules.py",
        'names = command.names.safe if rule.verdict == "allow" else command.names.all',
        "names = command.names.all",
        COMMAND_RULES + "a_program_is_allowed_by_a_safe_name_and_denied_by_any",
        quick=True,
    ),
    Guard(
        "core/command_patterns.py",
        'if not any(("/" in name) == ("/" in program) and',
        "if not any(",
        "core/test_command_patterns.py::test_a_bare_name_and_a_path_are_told_apart",
    ),
    Guard(
        "core/command_patterns.py",
        "return len(rest) == len(arguments) and all(",
        "return all(",
        "core/test_command_patterns.py::test_law_only_an_open_end_lets_further_arguments_in",
    ),
    Guard(
        "tools/commands/program_names.py",
        "if shutil.which(name, path=search_path) == located:",
        "if True:",
        "core/test_command_patterns.py::test_a_name_that_finds_another_program_is_no_name_of_this_one",
    ),
    Guard(
        "tools/commands/program_names.py",
        "elif _inner_path(real, root) is None:",
        "else:",
        "core/test_command_patterns.py::test_a_link_outside_that_leads_into_the_workspace_is_allowed_by_no_name",
    ),
    Guard(
        "tools/commands/program_names.py",
        "if located != os.path.normpath(located):",
        "if False:",
        "core/test_command_patterns.py::test_a_path_that_goes_up_is_allowed_by_no_name",
    ),
    Guard(
        "tools/touched_paths.py",
        'arguments.get("cwd" if is_program else "path")',
        'arguments.get("path")',
        COMMAND_RULES + "a_rule_on_paths_judges_a_command_by_its_folder",
    ),
    Guard(
        "settings/tables.py",
        'HttpToolTable.model_validate({"effect": "irreversible", **fields})',
        "HttpToolTable.model_validate(fields)",
        "registry/test_registering.py::test_a_GET_that_was_approved_when_it_was_shown_as_irreversible_stays_so",
    ),
    Guard(
        "store/rules.py",
        "if rule.folder == shape.folder and rule.covered.fits(shape)",
        "if rule.covered.fits(shape)",
        REMEMBERED + "another_folder_of_the_same_path_is_another_project",
    ),
    Guard(
        "store/rules.py",
        "where removed is null and rule.principal = ? and",
        "where rule.principal = ? and",
        REMEMBERED + "a_rule_that_was_removed_lets_nothing_through",
    ),
    Guard(
        "store/rules.py",
        "and (rule.run is null or rule.run = ?) order by rule.id",
        "and (rule.run is null or ? > 0) order by rule.id",
        REMEMBERED + "a_rule_for_a_run_ends_with_it[run]",
    ),
    Guard(
        "store/rules.py",
        "and tool = ? and pin = ?",
        "and (tool = ? or pin <> ?)",
        "registry/test_offers.py::test_a_remembered_approval_is_for_the_definition_that_was_approved",
    ),
    Guard(
        "app/answers.py",
        'self._context.check_may_decide("rule", caller, decision_command(run, decision.key), run_id=run.id)',
        "pass",
        REMEMBERED + "only_a_persons_command_makes_a_rule",
    ),
    Guard(
        "store/decisions.py",
        "if decision.rule is not None and rules.find_made_with(session, run, decision.key) is None:",
        "if False:",
        REMEMBERED + "a_denial_is_not_remembered_and_a_rule_comes_with_the_approval",
    ),
    Guard(
        "gate.py",
        "if not _shows_files(tool) and _reads_env_file(tool, facts):",
        "if False:",
        ENV + "reading_a_file_of_settings_is_asked_about_and_its_example_is_not",
    ),
    Guard(
        "gate.py",
        "return is_env_file if is_alike else None",
        "return (lambda _path: False) if is_alike else None",
        ENV + "reading_a_file_of_settings_is_asked_about_and_its_example_is_not",
    ),
    Guard(
        "gate.py",
        "            return is_env_file\n",
        "            return None\n",
        GATE + "files_of_secrets_are_hidden_where_the_rules_for_a_tool_are_for_others",
    ),
    Guard(
        "gate.py",
        "and not any(rule.applies_to(tool) or rule.applies_to(READ_SPEC) for rule in self._rules)\n",
        "\n",
        GATE + "law_a_call_that_is_let_through_by_its_paths_alone_is_one_that_the_table_allows",
    ),
    Guard(
        "tools/files/read_tools.py",
        "masked = redactor.mask_file(opened.path, head)",
        "masked = MaskedFile(head)",
        ENV + "where_a_rule_allows_it_no_value_is_shown_found_or_recorded",
    ),
    Guard(
        "tools/files/read_tools.py",
        "masked = redactor.mask_file(opened.path, content)",
        "masked = MaskedFile(content)",
        ASKED + "of_a_file_that_is_too_large_for_one_call_each_part_is_masked",
    ),
    Guard(
        "tools/files/read_tools.py",
        'return b"\\0" in content',
        'return b"\\0" in content[:8192]',
        "tools/test_files.py::test_a_part_in_another_encoding_behind_much_text_makes_a_file_binary[10000]",
    ),
    Guard(
        "tools/files/search_tool.py",
        "content = redactor.mask_file(path, content, search.is_over).cut(0, FILE_BYTES)",
        "content = content[:FILE_BYTES]",
        ENV + "where_a_rule_allows_it_no_value_is_shown_found_or_recorded",
    ),
    Guard(
        "tools/files/diff.py",
        'before.comparable_text([f"{n}" for n in range(len(before.spans))])',
        "before.content.decode()",
        ASKED + "an_unasked_plan_returns_no_secret_and_its_match_finds_none[.npmrc]",
    ),
    Guard(
        "tools/files/diff.py",
        """    old = "" if before is None else before.comparable_text([f"{n}" for n in range(len(before.spans))])
    return old, after.comparable_text([places.get(span, f"new {n}") for n, span in enumerate(after.spans)])
""",
        """    first, second = ([] if each is None else [f"{each.content[slice(*span)]!r}" for span in each.spans]
                     for each in (before, after))
    return "" if before is None else before.comparable_text(first), after.comparable_text(second)
""",
        ASKED + "law_a_plan_answers_a_right_guess_of_a_secret_as_a_wrong_one[the same line before]",
    ),
    Guard(
        "tools/files/diff.py",
        "    if hashes_last and not has_secrets:\n",
        "    if hashes_last:\n",
        ASKED + "law_a_plan_answers_a_right_guess_of_a_secret_as_a_wrong_one[the same line behind]",
    ),
    Guard(
        "tools/files/plans.py",
        '{"after": None} if rules.holds_secrets(change) else {}',
        "{}",
        ASKED + "a_plan_is_applied_and_its_files_edited_on_by_hashes_where_they_hold_secrets",
    ),
    Guard(
        "tools/tool.py",
        'self.redactor.mask_file(f"{path}/{part}" if part else path, text.encode()).shown.decode()\n',
        "text\n",
        "tools/test_instructions_protected.py::test_the_record_has_no_secret_of_what_is_moved_into_it",
    ),
    Guard(
        "tools/files/content_hash.py",
        'path.encode("utf-8", "surrogatepass") + b"\\0" + content',
        "content",
        ASKED + "the_hash_of_a_file_is_that_of_no_other_of_the_same_content",
    ),
    Guard(
        "tools/files/edit.py",
        "after == before.content and not before.spans:",
        "after == before.content:",
        ASKED + "a_whole_text_that_guesses_a_secret_is_answered_like_any_other",
    ),
    Guard(
        "tools/files/edit.py",
        "if STAND_IN not in touched:",
        "if True:",
        ASKED + "a_change_right_beside_a_secret_is_answered_like_one_of_what_is_not_there",
    ),
    Guard(
        "tools/files/edit_tools.py",
        "if not self.redactor.mask_file(path, content).covers(after.masked):",
        "if False:",
        ASKED + "an_unasked_plan_returns_no_secret_and_its_match_finds_none[a.ini]",
    ),
    Guard(
        "tools/mandate_tools.py",
        "chunk = read_masked(opened, offset, min(offset + WINDOW_BYTES, opened.size), redactor)",
        "chunk = opened.read(WINDOW_BYTES, offset)",
        ASKED + "a_check_of_a_mandate_does_not_find_out_what_a_file_hides",
    ),
    Guard(
        "app/run_factory.py",
        "            hash_content=keyed_hash(lambda: self._content_key),\n",
        "",
        ASKED + "the_hashes_that_a_model_sees_are_not_those_of_the_content_alone",
    ),
    Guard(
        "execution/authorization.py",
        "case _ if is_private:",
        "case _ if False:",
        ASKED + "answers_before_a_decision_are_equal_whatever_the_file_holds[an edit of a comment-by default]",
    ),
    Guard(
        "execution/authorization.py",
        "if preview.failure is not None and not is_private:",
        "if preview.failure is not None:",
        ASKED + "answers_before_a_decision_are_equal_whatever_the_file_holds[an edit of a value-by default]",
    ),
    Guard(
        "views/waiting.py",
        "row.person_preview if for_person else row.preview",
        "row.person_preview",
        ASKED + "the_person_sees_the_masked_diff_and_the_caller_its_own_arguments",
    ),
    Guard(
        "app/dialogs.py",
        "if row.expires_at > at and row.private_preview is None]",
        "if row.expires_at > at]",
        ASKED + "the_person_sees_the_masked_diff_and_the_caller_its_own_arguments",
    ),
    Guard(
        "tools/files/edit.py",
        "(described := describe_lookalike(text, edit.old)) is not None",
        "(described := None) is not None",
        SPELLED + "a_text_that_only_looks_the_same_is_named_with_what_differs",
    ),
    Guard(
        "tools/files/workspace.py",
        "if plain.isascii() or self._exists(plain):",
        "if True:",
        SPELLED + "a_file_is_found_however_its_accents_are_spelled",
    ),
    Guard(
        "core/paths.py",
        'return unicodedata.normalize("NFC", path.casefold())',
        "return path.casefold()",
        SPELLED + "a_rule_holds_for_a_path_however_its_accents_are_spelled",
    ),
    Guard(
        "tools/files/edit_tools.py",
        "        if others < 1:",
        "        if True:",
        SPELLED + "an_edit_of_a_file_with_another_name_says_that_this_one_keeps_the_old_text",
    ),
    Guard(
        "tools/files/edit_tools.py",
        "if before is None or not before.spans or after.count(mark) <= before.content.count(mark):",
        "if True:",
        ENV + "new_text_with_the_mark_where_a_value_stood_is_refused",
    ),
    Guard(
        "gate.py",
        "if facts.has_hidden_text:",
        "if False:",
        HIDING + "a_write_or_an_edit_that_brings_what_nobody_sees_asks_though_a_rule_allows_it",
    ),
    Guard(
        "gate.py",
        "        if _writes_files(tool) and self._paths.writes_repository(inside):\n",
        "        if False:\n",
        "approvals/test_touched_paths.py::test_"
        "a_write_that_makes_a_repository_of_any_name_or_goes_into_one_asks_though_a_rule_allows_it",
    ),
    Guard(
        "store/tool_memory.py",
        "other.principal = mine.principal",
        "other.principal is not null",
        HIDING + "a_plan_of_a_single_call_is_applied_by_another_single_call_and_by_nothing_else",
    ),
    Guard(
        "store/tool_memory.py",
        "    if own is not None or not name.startswith(_PLAN):",
        "    if own is not None:",
        HIDING + "a_single_call_finds_nothing_of_another_but_its_plans",
    ),
    Guard(
        "gate.py",
        "if touched.unresolved:",
        "if False:",
        TOUCHED + "a_writing_call_with_a_path_that_nobody_can_resolve_counts_as_one_on_instructions",
    ),
    Guard(
        "gate_rules.py",
        "if not rule.paths or facts.touched.unresolved:",
        "if not rule.paths:",
        TOUCHED + "what_can_not_be_resolved_matches_each_deny_and_ask_rule_with_paths",
    ),
    Guard(
        "gate.py",
        "if not all(allowed_by is not None and allowed_by.allows_outside(path) for path in touched.outside):",
        "if False:",
        TOUCHED + "a_writing_call_outside_the_workspace_asks_unless_a_rule_names_its_path",
    ),
    Guard(
        "gate.py",
        "if touched.has_instructions and not names_paths:",
        "if False:",
        TOUCHED + "a_folder_that_holds_what_is_guarded_is_asked_about",
    ),
    Guard(
        "gate.py",
        'if not names_paths and rule.setting.verdict != "allow" and rule.concerns_folders(touched.folders, facts):',
        "if False:",
        TOUCHED + "a_folder_that_holds_what_is_guarded_is_asked_about",
    ),
    Guard(
        "tools/touched_paths.py",
        "self.real_paths[self._map_to_root(real)] = None",
        "pass",
        TOUCHED + "a_link_is_what_it_leads_to_and_itself",
    ),
    Guard(
        "tools/tool.py",
        "            ctx.check_paths()",
        "            pass",
        TOUCHED + "a_call_whose_paths_lead_elsewhere_by_now_is_not_made",
    ),
    Guard(
        "tools/tool.py",
        "            self.check_paths()",
        "            pass",
        "downstream/test_server_tool_paths.py"
        "::test_a_path_that_leads_elsewhere_between_the_gate_and_the_call_is_not_followed",
    ),
    Guard(
        "core/paths.py",
        "max(risk, declared, key=RISKS.index)",
        "declared",
        GATE + "the_risk_is_a_fixed_table_that_a_model_can_only_raise",
    ),
    Guard(
        "server/elicitation.py",
        '        case "accept" | "decline", _ if took_s < instant_s:\n            return "too_soon"\n',
        "",
        "approvals/test_dialogs.py::test_what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "server/elicitation.py",
        "quoted, _ = make_visible(json.dumps(truncate(line, GOAL_CHARS), ensure_ascii=False))",
        "quoted = json.dumps(truncate(line, GOAL_CHARS), ensure_ascii=False)",
        "ooda/test_told_meanwhile.py::test_a_goal_in_a_dialog_stays_on_its_line_and_hides_nothing",
    ),
    Guard(
        "store/mandates.py",
        " and (last_due is null or last_due < :due)",
        "",
        "ooda/test_killed_and_commands.py::test_a_time_of_a_schedule_is_run_for_once_though_two_timers_found_it_due",
    ),
    Guard(
        "execution/authorization.py",
        "self.registry.resolve(spec)",
        "pass",
        "registry/test_offers.py::test_a_tool_of_another_pin_than_the_offered_one_is_not_called",
    ),
    Guard(
        "flows/ooda/act.py",
        "    if exceeds_risk_budget(context, risk):",
        "    if False:",
        "flows/ooda/test_mandate_runs.py"
        "::test_an_act_above_the_risk_budget_pauses_and_is_then_recorded_as_denied_and_never_made",
    ),
    Guard(
        "flows/ooda/cycles.py",
        ' data={"goal_hash": str(found)}) if found == context.mandate.goal_hash:',
        ' data={"goal_hash": str()}):',
        "flows/ooda/test_mandate_runs.py::test_a_changed_goal_pauses_before_anything_else_until_it_is_what_it_was",
    ),
)

FILES = (
    Guard(
        "store/apply_commit.py",
        "            tool_memory.forget_call(session, commit.run, answered.path)\n",
        "            pass\n",
        EDITED + "what_a_file_held_is_in_no_row_once_the_call_that_changed_it_has_its_answer",
    ),
    Guard(
        "store/connection.py",
        "== apsw.SQLITE_IOERR_SHMSIZE:",
        "== -1:",
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "store/connection.py",
        "folder is not None and has_no_room(folder)",
        "False",
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "cli/main.py",
        "if error.errno not in (errno.ENOSPC, errno.EDQUOT):",
        "if True:",
        "commands/test_runs.py::test_a_disk_that_is_full_is_an_error_of_one_line",
    ),
    Guard(
        "store/file_store.py",
        "raise as_folder_error(error) from error",
        "raise",
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "store/connection.py",
        "            if time.monotonic() >= deadline:\n                raise\n",
        "            raise\n",
        "core/test_store.py::test_a_new_file_that_another_server_is_writing_is_opened_once_that_has_ended",
    ),
    Guard(
        "store/schema.py",
        "    create index mark_run on mark(run);\n",
        "",
        "records/test_lengths.py::test_a_look_at_a_run_costs_the_same_at_any_length",
    ),
    Guard(
        "store/schema.py",
        "    create index mark_shared on mark(shared) where shared is not null;\n",
        "",
        "records/test_lengths.py::test_the_first_call_of_a_day_costs_the_same_however_many_there_were_before",
    ),
    Guard(
        "store/schema.py",
        "    create trigger answer_insert_seq after insert on answer begin\n"
        "        delete from waiting where run = {_RUN_OF_MARK} and mark = new.mark;\n",
        "    create trigger answer_insert_seq after insert on answer begin\n",
        "records/test_lengths.py::test_what_is_stored_beside_the_steps_and_differs_is_damage",
    ),
    Guard(
        "store/connection.py",
        "pragma secure_delete = on",
        "pragma secure_delete = off",
        EDITED + "what_a_file_held_is_in_no_row_once_the_call_that_changed_it_has_its_answer",
    ),
    Guard(
        "store/apply_commit.py",
        "        tool_memory.forget_calls(session, commit.run)\n",
        "",
        "crash/test_settle.py::"
        "test_what_a_file_held_goes_with_a_run_that_is_cancelled_while_its_edit_waits_to_be_settled",
    ),
    Guard(
        "store/apply_commit.py",
        "    if not attempt.request.counts_only:\n        tool_memory.forget_call(session, commit.run, attempt.path)\n",
        "",
        "crash/test_settle.py::test_an_edit_that_a_person_has_made_again_stands_on_what_the_file_holds_now",
    ),
    Guard(
        "store/tool_memory.py",
        "if name.startswith(_INTENT) and _is_answered(",
        "if False and _is_answered(",
        EDITED + "a_call_that_has_its_answer_keeps_nothing_more",
    ),
    Guard(
        "tools/files/safe_open.py",
        "_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08",
        "_RESOLVE = 0",
        "tools/test_workspace.py::test_a_folder_beyond_a_link_is_not_listed",
        quick=True,
    ),
    Guard(
        "tools/files/workspace.py",
        "raise _not_regular_error(plain, folder=stat.S_ISDIR(status.st_mode))\n            if at_once",
        "pass\n            if at_once",
        "tools/test_workspace.py::test_a_socket_and_a_device_are_no_files",
    ),
    Guard(
        "tools/files/atomic_write.py",
        "problem = self._find_problem(displaced, before, lease)\n",
        "problem = None\n",
        "tools/test_concurrent_writers.py::test_what_another_writes_stands_there_afterwards",
    ),
    Guard(
        "tools/files/atomic_write.py",
        "        if lease.was_refused:",
        "        if False:",
        "tools/test_writing.py::test_a_file_that_another_has_open_for_writing_is_left_to_it",
    ),
    Guard(
        "tools/files/atomic_write.py",
        "        if not self._is_in_place():\n            return self._moved_error()\n",
        "",
        "tools/test_concurrent_writers.py::test_nothing_stays_written_in_a_folder_that_was_moved_outside",
    ),
    Guard(
        "tools/files/atomic_write.py",
        "            if not self._name_holds(aside, content):",
        "            if False:",
        "tools/test_concurrent_writers.py"
        "::test_a_new_file_that_another_has_changed_already_is_not_taken_away_with_its_folder",
    ),
    Guard(
        "tools/files/edit_tools.py",
        '            _check_base(path, hashed, ctx.base_hashes, "shown")\n',
        "",
        APPROVED_EDITS + "a_file_that_changed_since_it_was_shown_is_not_touched",
    ),
    Guard(
        "tools/files/edit_tools.py",
        '            _check_base(path, hashed, read, "read")\n',
        "",
        "tools/test_writing.py::test_what_the_caller_read_must_still_be_there",
    ),
    Guard(
        "tools/files/edit_tools.py",
        '    if scopes.scope_of(path) == "L0":',
        "    if False:",
        "tools/test_scopes.py::test_no_run_writes_the_files_that_rule_the_server",
    ),
)

PROGRAMS = (
    Guard(
        "core/instruction_files.py",
        '(".zed", ".config/zed/*", "AppData/Roaming/Zed/*")',
        '(".config/zed/*", "AppData/Roaming/Zed/*")',
        INSTRUCTIONS + "all_that_install_writes_is_in_the_list",
    ),
    Guard(
        "core/instruction_files.py",
        "(*AGENTS, *EDITORS, *SHELLS, *GIT)",
        "(*AGENTS, *EDITORS)",
        INSTRUCTIONS + "what_a_host_an_editor_a_shell_or_git_reads_by_itself_is_an_instruction[mise.toml]",
        quick=True,
    ),
    Guard(
        "tools/commands/sandbox.py",
        ' if name in ("LANG", "TERM") or name.startswith("LC_")}',
        "}",
        COMMAND + "it_is_told_of_the_environment_what_it_needs",
    ),
    Guard(  # not by the test that sends signals: without the guard it would hit
        "tools/commands/sandbox.py",
        '"--unshare-pid", ',
        "",
        "tools/test_processes_apart.py::test_a_program_has_numbers_of_its_own_and_sees_no_process_outside",
    ),
    Guard(
        "tools/commands/sandbox.py",
        "[ $$ = 2 ] && kill -9 -1; ",
        "",
        COMMAND + "what_a_program_started_ends_with_the_leash_where_bubblewrap_died_while_it_set_itself_up",
    ),
    Guard(
        "tools/commands/sandbox.py",
        'arguments += [] if self.network else ["--unshare-net"]',
        "pass",
        COMMAND + "there_is_no_network",
    ),
    Guard(
        "tools/commands/sandbox.py",
        '["--seccomp", str(filter_fd)]',
        "[]",
        "tools/test_kernel_keys.py::test_the_kernel_s_keys_are_neither_read_nor_planted",
    ),
    Guard(
        "tools/mcp_servers/server_sandbox.py",
        "                    filter_fd=filter_fd,\n",
        "",
        SANDBOXED_SERVERS + "a_server_in_its_sandbox_reaches_no_keys_of_the_kernel",
    ),
    Guard(
        "tools/commands/sandbox.py",
        "*_kernel_setting_arguments(), ",
        "",
        "tools/test_sandbox_kernel.py::test_no_setting_of_the_kernel_can_be_written",
    ),
    Guard(
        "tools/commands/undo_repositories.py",
        "    if wanted == found:\n",
        "    if True:\n",
        REPOSITORIES + "one_below_a_build_folder_or_an_ignored_one_stays_without_what_starts_programs",
    ),
    Guard(
        "tools/commands/undo_repositories.py",
        "    if found == before:\n",
        "    if True:\n",
        REPOSITORIES + "a_bare_repository_that_was_there_takes_pushes_and_gets_its_hooks_and_settings_back",
    ),
    Guard(
        "tools/commands/undo_writes.py",
        "bool(old.fingerprint) and covered_inode == old.fingerprint[0]",
        "covered_inode == old.fingerprint[0]",
        ENDED + "what_a_killed_server_s_program_wrote_is_undone_by_the_next_server[True]",
    ),
    Guard(
        "tools/commands/undo_writes.py",
        "                disable_repository(folder_fd, aside)\n",
        "",
        REPOSITORIES + "a_new_repository_that_no_record_takes_is_put_aside_where_git_finds_none",
    ),
    Guard(
        "tools/commands/protected_paths.py",
        "is_repository({entry.name for entry in entries})",
        "False",
        REPOSITORIES + "a_folder_that_git_takes_for_a_repository_whatever_its_name_loses_what_starts_programs",
    ),
    Guard(
        "tools/commands/git_programs.py",
        "if section is None or found is None or found[1].lower() not in _SAFE_SETTINGS.get(section, ()):",
        "if section is None or found is None:",
        REPOSITORIES + "of_its_settings_only_what_starts_nothing_stays",
    ),
    Guard(
        "tools/commands/run_command.py",
        "                keep_survey(prepared.watch, ctx, deadline - time.monotonic() + RESULT_MARGIN_S)\n",
        "                pass\n",
        ENDED + "what_a_killed_server_s_program_wrote_is_undone_by_the_next_server",
    ),
    Guard(
        "tools/commands/interrupted_command.py",
        'kept["begun"] <= status.st_ctime_ns // 1_000_000 <= kept["until"]',
        "True",
        ENDED + "what_a_person_made_after_the_program_s_time_stays",
    ),
    Guard(
        "tools/commands/sandbox.py",
        '(SandboxMount(path, "readable") for path in list_system_settings())',
        '(SandboxMount(path, "readable") for path in [Path("/etc")])',
        VIEW + "of_the_machine_it_sees_what_programs_need_and_nothing_else",
    ),
    Guard(
        "tools/commands/sandbox.py",
        '            arguments += ["--ro-bind", os.devnull, str(self.workspace / path)]\n',
        "",
        VIEW + "files_that_may_not_be_read_unasked_are_covered_and_stay_as_they_are",
    ),
    Guard(
        "gate.py",
        "            return self.unreadable_file_test(call.agent, call.mandate)",
        "            return None",
        VIEW + "one_decision_covers_a_file_for_programs_and_for_read_file",
    ),
    Guard(
        "gate.py",
        'return GateRuling("deny" if "deny" in verdicts else "ask", reason) if paths else None',
        "return None",
        UNASKED + "what_may_not_be_read_unasked_is_shown_by_no_way[a folder is denied]",
    ),
    Guard(
        "gate.py",
        " or rule.applies_to(READ_SPEC) for rule in self._rules)\n        )",
        " for rule in self._rules)\n        )",
        UNASKED + "what_may_not_be_read_unasked_is_shown_by_no_way[a folder is denied]",
    ),
    Guard(
        "gate.py",
        "decision = max(decision, self.judge(_read_call(path, call.agent, call.mandate)).decision, key=_STRICT)",
        "pass",
        UNASKED + "a_search_that_a_person_is_asked_about_shows_no_file_that_read_file_is_denied",
    ),
    Guard(
        "gate.py",
        "return is_unreadable(path) and any(rule.matches(facts) for rule in rules)",
        "return False",
        UNASKED + "a_search_that_a_rule_allows_opens_files_like_env_and_none_that_read_file_is_denied",
    ),
    Guard(
        "gate.py",
        "return self if shows_some else by_paths",
        "return by_paths",
        UNASKED + "where_a_rule_allows_one_folder_all_others_are_kept",
    ),
    Guard(
        "gate.py",
        "return self if shows_some else by_paths",
        "return self",
        UNASKED + "where_no_file_is_read_unasked_others_keep_what_rules_name_and_files_like_env[rules0]",
    ),
    Guard(
        "gate.py",
        "            if facts.opens_more:\n                return GateRuling",
        "            if False:\n                return GateRuling",
        VIEW + "no_rule_allows_a_call_that_asks_to_read_more_and_no_answer_is_remembered",
    ),
    Guard(
        "tools/commands/toolchains.py",
        "    if is_wide(real, environ):\n",
        "    if False:\n",
        VIEW + "no_call_asks_for_a_whole_home_or_system_folder",
    ),
    Guard(
        "tools/commands/toolchains.py",
        " and not is_wide(Path(os.path.realpath(entry.path)), environ)",
        "",
        "tools/test_toolchains.py::test_a_toolchain_that_links_to_the_whole_home_folder_is_none",
    ),
    Guard(
        "tools/commands/run_command.py",
        "        return result if missed is None else ",
        "        return result if True else ",
        VIEW + "a_program_that_is_missed_inside_is_named_with_the_line_that_opens_it",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        'reason if missed is None else f"{reason}; {missed.describe()}"',
        "reason",
        SANDBOXED_SERVERS + "what_a_sandboxed_server_misses_at_its_start_is_named_with_the_line_that_opens_it",
    ),
    Guard(
        "tools/mcp_servers/server_sandbox.py",
        "reads=(*sandbox.reads, *_program_folders(argv[0], env, sandbox))",
        "reads=sandbox.reads",
        SANDBOXED_SERVERS + "a_server_whose_interpreter_lies_in_the_real_home_starts_where_home_names_another_folder",
    ),
    Guard(
        "tools/mcp_servers/server_sandbox.py",
        'yield SandboxMount(place, "writable", cache)',
        'yield SandboxMount(place, "writable")',
        SANDBOXED_SERVERS + "what_a_sandboxed_server_writes_into_a_cache_of_launchers_is_its_own_and_outlives_it",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "renewed = await self._close_if_unusable()",
        "renewed = None",
        SANDBOXED_SERVERS + "what_is_replaced_or_made_while_a_sandboxed_server_runs_is_covered_before_its_next_call",
    ),
    Guard(
        "tools/mcp_servers/server_sandbox.py",
        "unreadable=held.survey.unreadable,",
        "",
        SANDBOXED_SERVERS + "a_file_that_may_not_be_read_unasked_is_covered_for_a_sandboxed_server",
    ),
    Guard(
        "tools/commands/sandbox.py",
        'bind = "--ro-bind-fd" if held.is_protected or not self.writable else "--bind-fd"',
        'bind = "--bind-fd"',
        KEPT + "what_is_there_is_read_only_at_any_depth",
    ),
    Guard(
        "tools/commands/undo_writes.py",
        "                if new is not None and self.before.has_visited(path):\n",
        "                if False:\n",
        KEPT + "what_is_made_deeper_is_moved_into_the_record_and_the_call_has_failed",
    ),
    Guard(
        "tools/commands/protected_paths.py",
        "return walk.finish(walk.visit_all(skipped))",
        "return walk.finish(walk.visit_all(skipped, MAX_FOLDERS))",
        HIDDEN_WRITES + "nothing_hides_behind_how_much_a_program_made",
    ),
    Guard(
        "tools/commands/undo_writes.py",
        "            if len(undone.changes) == said:\n",
        "            if True:\n",
        HIDDEN_WRITES + "what_was_put_aside_since_no_record_takes_it_is_searched_as_well",
    ),
    Guard(
        "tools/commands/protected_paths.py",
        "        _make_readable(self._root, folder)\n",
        "",
        HIDDEN_WRITES + "a_folder_that_a_program_made_unreadable_is_searched_and_named",
    ),
    Guard(
        "tools/commands/protected_paths.py",
        "    if len(folder) <= _PATH_CHARS:\n",
        "    if True:\n",
        HIDDEN_WRITES + "what_lies_beyond_the_longest_path_is_found",
    ),
    Guard(
        "tools/commands/interrupted_command.py",
        'aside=kept.get("aside", ".kairos-aside-")',
        'aside="/"',
        ENDED + "what_an_undo_had_put_aside_when_it_was_killed_is_undone_by_the_next_server",
    ),
    Guard(
        "tools/commands/undo_writes.py",
        "        except Exception as error:\n",
        "        except OSError as error:\n",
        ENDED + "what_the_record_refuses_is_put_aside_and_the_rest_is_undone_all_the_same",
    ),
    Guard(
        "tools/files/edit_tools.py",
        '    if not any(scopes.scope_of(change.path) == "L1" for change in changes):\n',
        "    if True:\n",
        KEPT + "what_a_person_lets_a_run_write_waits_for_programs_and_stays",
    ),
    Guard(
        "tools/commands/protected_paths.py",
        "        self._add_link_targets()\n",
        "",
        KEPT + "a_link_is_put_back_and_what_it_leads_to_is_read_only",
    ),
    Guard(
        "tools/mcp_servers/source.py",
        "        return mark_failed(result, undone)",
        "        return result",
        "downstream/test_server_lifecycle.py::test_a_server_in_its_sandbox_writes_no_instructions_to_agents_and_hosts",
    ),
    Guard(
        "tools/mcp_servers/server_writes.py",
        "is_paused = not is_last or self._pause()",
        "is_paused = True",
        PAUSED + "what_a_server_writes_after_its_answer_is_undone_and_nothing_follows",
        quick=True,
    ),
    Guard(
        "tools/mcp_servers/server_writes.py",
        "        self.processes.kill()\n",
        "",
        PAUSED + "a_server_that_can_not_be_paused_is_ended_before_its_call_does",
    ),
    Guard(
        "tools/mcp_servers/server_processes.py",
        "            if was_still and not running:",
        "            if True:",
        PAUSED + "processes_that_start_another_and_end_are_paused_all_the_same",
    ),
    Guard(
        "tools/mcp_servers/server_sandbox.py",
        "open_filter(is_paused=self.sandbox.workspace is not None)",
        "open_filter()",
        PAUSED + "an_alarm_does_not_wake_a_paused_server",
    ),
    Guard(
        "tools/mcp_servers/launcher.py",
        "    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())\n",
        "",
        "downstream/test_odd_servers.py::test_a_server_that_closes_its_output_and_lives_on_ends_its_call_at_once",
    ),
    Guard(
        "tools/mcp_servers/message_repair.py",
        "            if number is None:\n                raise",
        "            if True:\n                raise",
        "downstream/test_odd_servers.py::test_a_deviation_costs_itself_alone",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "LOST_ONE if processes is not None and processes.has_lost_one else None",
        "None",
        PAUSED + "a_paused_server_that_is_killed_is_started_anew",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "        async with self._watch_writes():\n            return await self._open()",
        "        return await self._open()",
        PAUSED + "what_a_server_writes_as_it_starts_is_put_aside_and_named",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "            async with self._watch_writes():  # it ends in order, and so runs meanwhile\n    ",
        "            if True:\n    ",
        PAUSED + "what_a_server_writes_as_it_ends_is_put_aside",
    ),
    Guard(
        "tools/commands/workspace_lock.py",
        "        if not left or not _take_lock_alone(folder_fd):\n",
        "        if not left:\n",
        "tools/test_two_servers.py::test_nothing_is_cleaned_up_while_a_program_runs",
    ),
    Guard(
        "tools/commands/workspace_lock.py",
        "    return bool(is_marked) and status.st_uid == os.geteuid()",
        "    return stat.S_ISDIR(mode)",
        ENDED + "what_earlier_versions_left_goes_with_the_first_call_and_nothing_else_does",
    ),
    Guard(
        "tools/commands/sandbox.py",
        "            _refuse_links(self.workspace)\n",
        "",
        COMMAND + "a_linked_repository_is_refused",
    ),
    Guard(
        "tools/commands/sandbox.py",
        'hidden = list(_existing_mounts("hidden", self.hidden))',
        "hidden: list[SandboxMount] = []",
        COMMAND + "the_state_folder_and_the_configuration_are_not_seen",
    ),
    Guard(
        "tools/commands/run_command.py",
        "            _check_approved_program(program, ctx.base_hashes)\n",
        "",
        COMMAND + "a_program_that_changed_since_it_was_shown_does_not_run",
    ),
    Guard(
        "tools/mcp_servers/source.py",
        "        if not definitions.is_approved(self._pin_source, *key):",
        "        if False:",
        "downstream/test_pins.py::test_what_a_person_removed_stays_away_though_the_server_lists_it",
    ),
    Guard(
        "store/tool_pins.py",
        "                if trusted:\n                    _insert",
        "                if True:\n                    _insert",
        "downstream/test_pins.py::test_a_tool_that_appears_later_waits_too",
    ),
)

STARTED_BY_HOSTS = (
    Guard(
        "cli/own_start.py",
        'words = (os.path.abspath(sys.executable), "-P", "-m", _MODULE)',
        'words = (os.path.abspath(sys.executable), "-m", _MODULE)',
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
        quick=True,
    ),
    Guard(
        "app/command_text.py",
        'return (sys.executable, "-P", "-m", "kairos_mcp")',
        'return (sys.executable, "-m", "kairos_mcp")',
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
    ),
    Guard(
        "tools/commands/runner.py",
        '[sys.executable, "-I", "-S", str(LAUNCHER)',
        '[sys.executable, "-S", str(LAUNCHER)',
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
    ),
    Guard(
        "cli/install.py",
        "corrected = None if before is None or force else correct_entry(before, _program())",
        "corrected = None",
        FOREIGN_FOLDERS + "an_entry_of_before_is_corrected_by_the_next_install[codex]",
    ),
    Guard(
        "cli/install.py",
        "    if not is_own_entry(entry):",
        "    if False:",
        "commands/test_install.py::test_another_entry_of_the_name_is_replaced_only_by_force",
    ),
    Guard(
        "cli/doctor_checks.py",
        "yield from _check_hosts(settings, environ)",
        "pass",
        FOREIGN_FOLDERS + "doctor_names_each_entry_of_before",
    ),
    Guard(
        "cli/doctor_checks.py",
        "and takes_modules_here(server.command)",
        "and False",
        FOREIGN_FOLDERS + "doctor_names_a_server_that_takes_modules_of_the_workspace",
    ),
    Guard(
        "cli/doctor_checks.py",
        "if named and not all(os.path.isabs(part) for part in named.split(os.pathsep)):",
        "if False:",
        FOREIGN_FOLDERS + "doctor_names_a_python_path_with_the_current_folder[lib]",
    ),
)

OUTSIDE = (
    Guard(
        "tools/http/openapi.py",
        "if named.server is not None and origin != parse_url(named.server).origin:",
        "if False:",
        NO_KEY_AWAY,
        quick=True,
    ),
    Guard(
        "settings/masked_servers.py",
        'follows_option = before.startswith("-") and not word.startswith("-")',
        "follows_option = False",
        "registry/test_tools_commands.py::test_no_key_of_a_server_is_printed_by_import_or_doctor",
    ),
    Guard(
        "tools/http/openapi.py",
        "if value is not None and not isinstance(value, list):",
        "if False:",
        "net/test_openapi.py::test_an_odd_value_anywhere_in_a_document_is_taken_or_refused",
    ),
    Guard(
        "tools/http/openapi.py",
        "if has_key and named.server is None and not named.is_origin_of_fetch(origin):",
        "if False:",
        "net/test_openapi.py::test_a_server_in_full_is_not_the_one_that_is_sent_the_key",
    ),
    Guard(
        "tools/http/openapi.py",
        'if not operation.path.startswith("/") or parse_url(_HOLE.sub("x", url)).origin != origin:',
        "if False:",
        NO_KEY_AWAY,
    ),
    Guard(
        "core/input_checks.py",
        "    for _ in range(MAX_DEPTH + 1):",
        "    while True:",
        DECODING + "exactly_64_levels_are_let_in_however_many_brackets_stand_beside_them",
    ),
    Guard(
        "core/input_checks.py",
        "    if has_more_values(text, MAX_VALUES):",
        "    if False:",
        DECODING + "a_reply_of_too_many_values_is_refused_before_anything_is_built_of_them",
    ),
    Guard(
        "core/input_checks.py",
        """    if text.count("{") + text.count("[") > MAX_VALUES or text.count('"') > 4 * MAX_VALUES:""",
        "    if False:",
        DECODING + "a_reply_of_too_many_values_is_refused_before_anything_is_built_of_them",
    ),
    Guard(
        "core/input_checks.py",
        "([^\\r\\n]*+)",
        "[ \\t]*([^\\r\\n]*?)[ \\t]*",
        DECODING + "a_fence_with_a_long_line_is_found_in_linear_time",
    ),
    Guard(
        "core/json_bounds.py",
        "self._is_in_string ^= bool(quotes % 2)",
        "pass",
        COSTS + "law_every_value_is_counted_and_none_that_stands_in_a_string",
    ),
    Guard(
        "server/framing.py",
        "    if has_more_values(line.text, MAX_VALUES):",
        "    if False:",
        COSTS + "a_message_of_too_many_values_is_none",
    ),
    Guard(
        "tools/files/walk.py",
        "for spec in _compile_rules(lines[:MAX_RULES]))",
        "for spec in _compile_rules(lines))",
        "tools/test_search.py::test_of_a_gitignore_without_end_the_first_rules_count_and_that_is_said[*x{}?y*z]",
    ),
    Guard(
        "tools/files/walk.py",
        "        if part and (len(part) == RULES_AT_ONCE or",
        "        if part and (False or",
        "tools/test_search.py::test_of_a_gitignore_without_end_the_first_rules_count_and_that_is_said[*x{}?y*z]",
    ),
    Guard(
        "core/patterns.py",
        "work.spend(1 + len(line) * pattern.programsize // BYTES_PER_UNIT)",
        "pass",
        COSTS + "a_search_in_the_event_loop_is_refused_where_its_pattern_and_text_are_both_large",
    ),
    Guard(
        "settings/bounded_files.py",
        '    with file.open("rb") as opened:\n        content = opened.read(most + 1)\n    if len(content) > most:',
        '    with file.open("rb") as opened:\n        content = opened.read(most + 1)\n    if False:',
        COSTS + "a_file_without_end_is_read_up_to_its_bound",
    ),
    Guard(
        "core/jsonc.py",
        "*+\"?'",
        "*+\"'",
        "commands/test_jsonc.py::test_what_is_never_closed_is_refused_in_linear_time",
    ),
    Guard(
        "core/jsonc.py",
        r'/\*.*?(?:\*/|\Z)"',
        r'/\*.*?\*/"',
        "commands/test_jsonc.py::test_what_is_never_closed_is_refused_in_linear_time",
    ),
    Guard(
        "tools/mcp_servers/child.py",
        "    if has_more_values(line, MESSAGE_VALUES):",
        "    if False:",
        "downstream/test_output_schemas.py::test_content_of_more_values_than_are_read_costs_the_server_its_line",
    ),
    Guard(
        "tools/mcp_servers/bounded_http.py",
        "            if values.feed(counted):",
        "            if False:",
        "downstream/test_downstream_transports.py::test_a_reply_of_too_many_values_is_told_as_that_and_never_built",
    ),
    Guard(
        "tools/mcp_servers/tool_results.py",
        "    if problems == [TOO_COSTLY]:",
        "    if False:",
        "downstream/test_output_schemas.py::test_content_that_would_take_too_long_to_check_is_shown_with_a_note",
    ),
    Guard(
        "tools/mcp_servers/definition.py",
        'relax_schema(body["inputSchema"])[0]',
        'body["inputSchema"]',
        "downstream/test_pins.py::test_a_tool_whose_schema_cant_be_checked_in_part_stays_with_a_note",
    ),
    Guard(
        "models/replies/exchange.py",
        "    if has_more_values(text, MESSAGE_VALUES):",
        "    if False:",
        "providers/test_failures.py::test_a_reply_of_too_many_values_is_refused_before_it_is_built",
    ),
    Guard(
        "core/work.py",
        "        if self.left < 0:",
        "        if False:",
        SCHEMAS + "a_check_that_would_take_too_long_is_refused_in_counted_work",
    ),
    Guard(
        "core/work.py",
        "        self.left -= units\n",
        "        self.left -= 0\n",
        "http/test_costs_of_one_user.py::test_hostile_answers_cost_little_and_another_user_is_served_meanwhile",
    ),
    Guard(
        "core/json_schema_rules.py",
        "        work.spend(units)\n",
        "",
        SCHEMAS + "a_check_that_would_take_too_long_is_refused_in_counted_work",
    ),
    Guard(
        "core/schema_tests.py",
        "(isinstance(value, bool), value) in known",
        "value in {choice for _, choice in known}",
        SCHEMAS + "a_truth_value_is_no_number_among_the_choices",
    ),
    Guard(
        "core/json_schema.py",
        "            if schema is not self._root:  # each level checks all levels below once more",
        "            if False:",
        SCHEMAS + "unevaluated_below_the_top_is_refused_with_a_reason",
    ),
    Guard(
        "core/json_schema.py",
        "        if self._patterns > MAX_PATTERNS or self._pattern_size > PATTERNS_SIZE:",
        "        if False:",
        SCHEMAS + "many_patterns_of_one_schema_are_refused_before_they_fill_the_memory",
    ),
    Guard(
        "core/safe_patterns.py",
        "    options.max_mem = PATTERN_BYTES\n",
        "",
        SCHEMAS + "a_pattern_that_takes_long_to_compile_is_refused",
    ),
    Guard(
        "core/input_checks.py",
        "_SMALLEST <= number <= _LARGEST",
        "abs(number) <= _LARGEST",
        DECODING + "integers_of_64_bits_are_let_in",
    ),
    Guard(
        "tools/files/safe_open.py",
        'return device, next(line for line in info if line.startswith("mnt_id"))',
        'return device, ""',
        WORKSPACE + "a_bind_mount_on_the_same_device_is_not_crossed",
    ),
    Guard(
        "tools/files/safe_open.py",
        "_openat2(_RESOLVE | _CACHED, 1)",
        "_openat2(_RESOLVE, 1)",
        "tools/test_safe_open.py::test_a_path_that_is_not_in_memory_is_not_opened_at_once",
    ),
    Guard(
        "tools/files/safe_open.py",
        "if file_system_type(root) not in LOCAL:",
        "if False:",
        "tools/test_safe_open.py::test_where_an_open_may_ask_others_nothing_is_opened_at_once",
    ),
    Guard(
        "tools/files/workspace.py",
        "if at_once and status.st_size > AT_ONCE_BYTES:",
        "if False:",
        "tools/test_safe_open.py::test_what_is_in_memory_is_read_at_once_and_what_is_not_says_so",
    ),
    Guard(
        "tools/files/workspace.py",
        "offset, os.RWF_NOWAIT)",
        "offset, 0)",
        "tools/test_safe_open.py::test_what_is_in_memory_is_read_at_once_and_what_is_not_says_so",
    ),
    Guard(
        "tools/files/workspace.py",
        "if have < count and offset + have < size:",
        "if False:",
        "tools/test_safe_open.py::test_what_is_in_memory_in_part_is_not_read_in_part",
    ),
    Guard(
        "tools/tool.py",
        "if ctx.check_paths is None else None",
        "if True else None",
        "approvals/test_touched_paths.py::test_a_call_whose_paths_lead_elsewhere_by_now_is_not_made",
    ),
    Guard(
        "tools/tool.py",
        'if self.at_once is not None and self.spec.effect != "read":',
        "if False:",
        "tools/test_registry.py::test_only_a_tool_that_reads_answers_at_once",
    ),
    Guard(
        "tools/files/safe_open.py",
        "_OPENAT2 = 437",
        "_OPENAT2 = 9_437",
        WORKSPACE + "the_kernel_s_own_way_is_taken_where_the_kernel_has_it",
    ),
    Guard(
        "tools/files/workspace.py",
        "while piece and have < count:",
        "while False:",
        WORKSPACE + "what_is_given_in_pieces_is_read_whole",
    ),
    Guard(
        "flows/planner_input.py",
        'return "\\n".join(f"> {line}" if line else ">" for line in text.splitlines())',
        "return text",
        QUOTED + "no_text_of_a_model_makes_a_section_in_a_later_prompt",
        quick=True,
    ),
    Guard(
        "specs/build_ooda.py",
        "shown is not None and request.given_by is None",
        "False",
        "ooda/test_phase_tools.py::test_a_ref_of_a_run_that_is_not_known_is_not_shown[2026-07-28]",
    ),
    Guard(
        "flows/ooda/prompts.py",
        "ensure_ascii=False, indent=1).translate(_LINE_ENDS)",
        "ensure_ascii=False, indent=1)",
        QUOTED + "no_text_from_outside_makes_a_section_either",
    ),
    Guard(
        "flows/ooda/context.py",
        'return " ".join(text.split()) if self.prompts.quoted else text',
        "return text",
        QUOTED + "no_text_from_outside_makes_a_section_either",
    ),
    Guard(
        "flows/ooda/excerpts.py",
        'shown = _LINE_ENDS.sub(r"\\g<0>     | ", line) if barred else line',
        "shown = line",
        QUOTED + "no_text_from_outside_makes_a_section_either",
    ),
    Guard(
        "flows/planner_input.py",
        "quote_lines(body) if quoted else body",
        "body",
        QUOTED + "no_part_of_a_transcript_passes_for_another",
    ),
    Guard(
        "specs/build.py",
        'asked == "sampling" or not any(fnmatchcase(client, glob) for glob in settings.silent_clients)',
        "True",
        "sampling/test_fallback.py::test_a_client_that_is_known_to_stay_silent_is_asked_only_where_that_is_said",
    ),
    Guard(
        "app/answers.py",
        "if new_answers and run.paused is not None and run.resume_at is None and run.outcome is None:",
        "if False:",
        "core/test_app_runs.py::test_a_paused_run_takes_no_answers_until_it_is_resumed",
    ),
    Guard(
        "tools/commands/executable.py",
        "    _check_interpreter(argv[0], program, search_path, reach)\n",
        "",
        "tools/test_toolchains.py::test_an_interpreter_that_is_not_there_is_named_and_not_the_script",
    ),
    Guard(
        "flows/ooda/cycles.py",
        "if checks and all(check.holds for check in checks):",
        "if all(check.holds for check in checks):",
        "flows/ooda/test_mandate_runs.py::test_a_goal_that_is_not_known_to_be_reached_is_worked_on",
    ),
    Guard(
        "flows/ooda/context.py",
        "return carry_over.has_repeated_effect and not idle",
        "return carry_over.has_repeated_effect",
        "flows/ooda/test_mandate_runs.py::test_to_do_nothing_run_after_run_is_no_loop",
    ),
    Guard(
        "server/http_guard.py",
        'if not self._names.include(header(scope, b"host"), reached):',
        "if False:",
        WEB + "a_host_that_we_are_not_is_misdirected",
    ),
    Guard(
        "server/http_guard.py",
        'if b"origin" in counts and not self._names.trust(origin, reached):',
        "if False:",
        WEB + "a_foreign_page_is_refused",
    ),
    Guard(
        "server/http_guard.py",
        'if _JSON.fullmatch(header(scope, b"content-type")) is None:',
        "if False:",
        WEB + "only_json_is_a_message",
    ),
    Guard(
        "server/http_guard.py",
        'elif header(scope, b"content-encoding").lower() not in ("", "identity"):',
        "elif False:",
        WEB + "HTTP_014_a_compressed_body_is_never_inflated",
    ),
    Guard(
        "server/http_guard.py",
        "                if len(body) > limit:",
        "                if False:",
        WEB + "HTTP_013_so_is_one_that_comes_in_chunks",
    ),
    Guard(
        "server/http_guard.py",
        "        if repeated:",
        "        if False:",
        WEB + "a_header_that_stands_twice_is_refused",
    ),
    Guard(
        "server/http_guard.py",
        'if b"origin" not in counts and _FETCH_SITE in counts',
        "if False",
        WEB + "a_page_that_states_no_origin_is_known_by_its_browser",
    ),
    Guard(
        "server/http_protocol.py",
        "        if not is_empty and _LOOSE_LINE_END.search(head):",
        "        if False:",
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "server/http_protocol.py",
        "        if lines and not _has_one_length(lines):",
        "        if False:",
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "server/http_protocol.py",
        "if line is not None and _CHUNK_SIZE.fullmatch(line) is None:",
        "if False:",
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "server/http_transports.py",
        '"" if header(scope, _VERSION) in MODERN_PROTOCOL_VERSIONS else header(scope, _SESSION)',
        "header(scope, _SESSION)",
        "http/test_transports.py::test_the_session_of_an_older_protocol_means_nothing_in_a_request_of_2026",
    ),
    Guard(
        "server/stdio.py",
        "            if number != PARENT_GONE or os.getppid() != parent:",
        "            if number == signal.SIGTERM or os.getppid() != parent:",
        "server/test_stdio.py::test_a_hangup_ends_it_though_its_stdin_stays_open",
    ),
    Guard(
        "server/http_sessions.py",
        "if counts[session.principal] == largest_count]",
        "if True]",
        "http/test_tenancy.py::test_a_principal_that_holds_every_session_gives_them_up_to_others_down_to_an_equal_share",
    ),
    Guard(
        "server/http_sessions.py",
        "if evicted is not None and evicted.calls and counts[evicted.principal] <= counts[principal]:",
        "if False:",
        "http/test_listener.py::test_a_session_in_which_a_call_waits_does_not_go_for_its_owner_s_next_one",
    ),
    Guard(
        "server/http_sessions.py",
        "if held >= self._limit_each or len",
        "if len",
        "http/test_tenancy.py::test_a_principal_has_no_more_sessions_than_are_set_for_each",
    ),
    Guard(
        "server/http_transports.py",
        "        if session.events.find(last_event) is None:",
        "        if False:",
        "http/test_resumed_streams.py::test_an_event_that_is_not_there_is_refused_with_what_to_do[0]",
    ),
    Guard(
        "server/http_events.py",
        "while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:",
        "while len(self._events) > MAX_EVENTS:",
        "http/test_resumed_streams.py::test_the_events_of_a_session_are_bounded_by_number_and_size",
    ),
    Guard(
        "server/http_health.py",
        'elif scope["path"] == LIVE or await self._is_ready():',
        "elif True:",
        "http/test_health.py::test_a_server_whose_state_file_can_not_be_used_lives_and_is_not_ready",
    ),
    Guard(
        "server/http_health.py",
        'scope["path"] not in (LIVE, READY):',
        'not scope["path"].startswith((LIVE, READY)):',
        "http/test_health.py::test_a_probe_needs_no_token_and_no_name_of_ours_and_is_told_nothing_else",
    ),
    Guard(
        "server/http.py",
        "        self._shutdown.begin()\n",
        "",
        "http/test_shutdown.py::test_calls_that_wait_are_answered_with_what_there_is_and_their_runs_go_on",
    ),
    Guard(
        "server/http_shutdown.py",
        "        if has_begun and not has_ended:",
        "        if False:",
        "http/test_shutdown.py::test_streams_that_only_listen_are_closed_in_order_long_before_the_grace_is_over[0.3]",
    ),
    Guard(
        "server/tokens.py",
        "return stored is not None and hmac.compare_digest(stored, _hash(secret).encode())",
        "return stored is not None",
        WEB + "a_token_that_was_not_given_out_lets_nobody_in",
    ),
    Guard(
        "server/auth.py",
        "        if self._no_auth and not authorization:",
        "        if not authorization:",
        OWNER_TOKEN + "another_user_of_this_machine_decides_nothing[False]",
        quick=True,
    ),
    Guard(
        "server/auth.py",
        "return Admission(LOCAL, UNDECIDING)",
        "return Admission(LOCAL)",
        OWNER_TOKEN + "without_auth_runs_are_started_and_read_and_nothing_is_decided_by_dialog[modern http]",
    ),
    Guard(
        "server/auth.py",
        'UNDECIDING: Collection[Scope] = ("run", "admin")',
        'UNDECIDING: Collection[Scope] = ("run", "admin", "approve")',
        OWNER_TOKEN + "another_user_of_this_machine_decides_nothing[True]",
    ),
    Guard(
        "server/http.py",
        "        if is_public or settings.oauth is not None:",
        "        if False:",
        OWNER_TOKEN + "without_auth_it_listens_on_this_machine_alone[beyond this machine]",
    ),
    Guard(
        "server/http.py",
        "    if settings.oauth is not None or tokens.any():",
        "    if settings.oauth is not None:",
        OWNER_TOKEN + "none_is_made_where_there_is_one",
    ),
    Guard(
        "server/tokens.py",
        "os.O_EXCL | os.O_NOFOLLOW, 0o600)",
        "os.O_EXCL | os.O_NOFOLLOW, 0o644)",
        OWNER_TOKEN + "a_server_without_tokens_makes_one_for_the_local_owner",
    ),
    Guard(
        "server/tokens.py",
        "        tokens.revoke(LOCAL)  # else",
        "        pass  # else",
        OWNER_TOKEN + "a_token_whose_text_can_not_be_kept_is_none",
    ),
    Guard(
        "server/tokens.py",
        "        file.unlink(missing_ok=True)  # on a full disk",
        "        pass  # on a full disk",
        OWNER_TOKEN + "a_token_that_fills_the_disk_is_none",
    ),
    Guard(
        "cli/http_entries.py",
        "if token is not None and tokens.find_principal(token) == LOCAL:",
        "if token is not None:",
        INSTALLED_HTTP + "a_token_that_was_revoked_elsewhere_is_written_nowhere",
    ),
    Guard(
        "cli/serve.py",
        "    if sys.stderr.isatty():",
        "    if True:",
        "server/test_log_lines.py::test_all_that_a_server_says_at_its_start_is_such_a_line[http, text]",
    ),
    Guard(
        "cli/install.py",
        "not project and (writes or sys.stdout.isatty())",
        "(writes or sys.stdout.isatty())",
        INSTALLED_HTTP + "the_project_s_file_gets_the_name_of_a_variable[cursor]",
    ),
    Guard(
        "cli/install.py",
        "(writes or sys.stdout.isatty())",
        "True",
        INSTALLED_HTTP + "the_token_is_printed_on_a_terminal_alone",
    ),
    Guard(
        "cli/hostfile.py",
        "0o700 if is_secret else 0o777",
        "0o777",
        INSTALLED_HTTP + "the_user_s_file_gets_the_token_and_is_for_the_user_alone[codex]",
    ),
    Guard(
        "server/http_places.py",
        "        if self._held[holder] >= self._each:",
        "        if False:",
        HTTP_PLACES + "600_unfinished_bodies_of_one_principal_shut_nobody_out",
    ),
    Guard(
        "server/http_places.py",
        "bounds.connections // SHARES",
        "bounds.connections",
        HTTP_PLACES + "open_streams_of_one_principal_hold_a_quarter_at_most",
    ),
    Guard(
        "server/auth.py",
        "self._places.hold(admission.principal)",
        "self._places.hold(str(id(scope)))",
        HTTP_PLACES + "open_streams_of_one_principal_hold_a_quarter_at_most",
    ),
    Guard(
        "server/auth.py",
        'self._places.hold(f"peer {self._peers.find_peer(scope)}")',
        "self._places.hold(str(id(scope)))",
        HTTP_PLACES + "a_peer_that_waits_to_be_admitted_has_its_share",
    ),
    Guard(
        "server/http_places.py",
        'found = getattr(found, "ipv4_mapped", None) or found',
        "pass",
        HTTP_PLACES + "the_peer_is_the_last_address_that_is_no_trusted_proxy[::ffff:10.0.0.1-1.2.3.4-1.2.3.4]",
    ),
    Guard(
        "server/http_places.py",
        "while named and self.include(address) and",
        "while named and",
        HTTP_PLACES + "the_peer_is_the_last_address_that_is_no_trusted_proxy[1.2.3.4-6.6.6.6-1.2.3.4]",
    ),
    Guard(
        "server/http_protocol.py",
        "(-counts[other._peer], other._connected_at)",
        "other._connected_at",
        HTTP_PLACES + "a_peer_that_opens_many_connections_loses_its_own",
    ),
    Guard(
        "server/http_protocol.py",
        'f"{address} {port}" if self.peers.include(address) else address',
        "address",
        HTTP_PLACES + "the_connections_of_a_trusted_proxy_are_those_of_many[proxies1]",
    ),
    Guard(
        "page/app.py",
        "        if self._entering >= MAX_ENTERING:",
        "        if False:",
        HTTP_PLACES + "browsers_that_never_finish_to_enter_shut_nobody_out",
    ),
    Guard(
        "server/auth.py",
        "        if bucket.left < 1:",
        "        if False:",
        "http/test_tenancy.py::test_HTTP_028_one_principal_that_asks_too_often_slows_nobody_else",
    ),
    Guard(
        "app/context.py",
        "queries.run_by_id(session, run_id, caller.principal)",
        "queries.run_by_id(session, run_id)",
        RUNS + "another_principal_s_run_looks_like_an_unknown_one",
    ),
    Guard(
        "server/call.py",
        "bind_principal=lambda _: current_principal()",
        'bind_principal=lambda _: "all"',
        ROUNDS + "a_state_is_its_principal_s_alone",
    ),
    Guard(
        "server/call.py",
        "make_boundary(await self._read_key(), self._lives_s)",
        "make_boundary(await self._read_key(), 1e9)",
        ROUNDS + "a_state_ends_with_its_time_and_outlives_a_restart",
    ),
    Guard(
        "store/asks.py",
        " and consumed is null returning nonce",
        " returning nonce",
        "sampling/test_beside.py::test_an_ask_is_taken_once_also_where_its_answers_are_for_different_steps",
    ),
    Guard(
        "store/asks.py",
        "if step is not None and step.is_waiting]",
        "if step is not None]",
        "sampling/test_beside.py::test_a_reply_whose_step_was_answered_meanwhile_stores_nothing_and_is_no_error",
    ),
    Guard(
        "cli/settings.py",
        "    notes += _refused_tool_notes(settings)\n",
        "",
        "commands/test_doctor_trials.py::test_an_http_tool_whose_host_is_not_allowed_is_named",
    ),
    Guard(
        "tools/http/client.py",
        "connection.open(addresses, url.port,",
        "connection.open(tuple(map(ip_address, self._resolve(url.host))), url.port,",
        EGRESS + "a_name_is_resolved_once_and_the_connection_goes_where_that_answer_was",
    ),
    Guard(
        "tools/http/client.py",
        "if (why := describe_forbidden(address)) is not None:",
        "if (why := None) is not None:",
        EGRESS + "the_metadata_of_a_cloud_is_refused_even_if_it_is_listed",
    ),
    Guard(
        "tools/http/client.py",
        "if not listed and (why := describe_non_public(address)) is not None:",
        "if False:",
        EGRESS + "a_name_that_leads_inside_is_refused_before_a_connection",
    ),
    Guard(
        "tools/http/client.py",
        "if target.origin != url.origin and not _is_same_site(url, target) and not self.is_listed(target):",
        "if False:",
        EGRESS + "a_redirect_on_the_same_host_is_followed_and_one_elsewhere_only_where_listed",
    ),
    Guard(
        "tools/http/client.py",
        " if not is_cross_origin or name.lower() in _CROSS_ORIGIN_HEADERS",
        "",
        EGRESS + "headers_stay_behind_when_a_redirect_leaves_the_origin",
    ),
    Guard(
        "tools/http/client.py",
        'request.method in ("GET", "HEAD") and bool',
        "bool",
        EGRESS + "what_does_more_than_read_is_not_repeated_elsewhere",
    ),
    Guard(
        "tools/http/client.py",
        'if url.scheme == "https" and target.scheme == "http":',
        "if False:",
        EGRESS + "a_redirect_from_https_to_http_is_refused",
    ),
    Guard(
        "app/run_factory.py",
        "        await self._tool_sources.refresh()\n        return registry",
        "        return registry",
        "registry/test_registering.py::test_a_call_of_it_is_approved_and_made_by_a_process_that_never_saw_it",
    ),
    Guard(
        "core/redact_values.py",
        "found = redactor.redact_known(body) if name in written else _redact_given_text(body, redactor)",
        "found = Redacted(body, 0)",
        "secrets/test_planted.py::test_001_a_planted_key_is_found_in_no_row_log_error_or_export",
    ),
    Guard(
        "app/answers.py",
        "drives_here = drive and not await self._context.is_served_elsewhere(run) and ",
        "drives_here = drive and ",
        "crash/test_who_acts.py::test_a_living_server_acts_by_its_own_settings",
    ),
    Guard(
        "core/builtin_tools.py",
        '(spec.name, spec.source) == (self.name, "builtin")',
        "spec.name == self.name",
        "tools/test_builtin_table.py::test_a_tool_of_a_caller_with_the_name_of_ours_is_judged_by_what_it_names",
    ),
    Guard(
        "app/proposals.py",
        "return frozenset(BUILTIN) | {tool",
        "return frozenset[str]() | {tool",
        "tools/test_builtin_table.py::test_the_reserved_names_are_those_of_tools_that_exist",
    ),
    Guard(
        "server/annotations.py",
        'verdict == "allow" or (verdict == "ask" and settings.approvals == "host")',
        'verdict == "allow"',
        "server/test_annotations.py::test_a_tool_that_moves_runs_states_the_most_that_they_may_do",
    ),
    Guard(
        "app/answers.py",
        'self._context.check_may_decide("settlement", caller, command, run_id=run.id)',
        "pass",
        RIGHTS + "every_cell_of_the_table_is_what_each_way_of_deciding_does[settlement-argument-ask]",
    ),
    Guard(
        "app/dialogs.py",
        'case UserSettlement() if self._decides_by_dialog("settlement", caller):',
        "case UserSettlement():",
        "approvals/test_settling_dialogs.py::"
        "test_a_dialog_that_is_still_open_when_only_a_command_may_settle_decides_nothing",
    ),
    Guard(
        "store/settlements.py",
        "        if request.digest == settlement_digest(now, request.path, step):",
        "        if True:",
        "crash/test_settle.py::test_a_settlement_is_of_one_attempt_and_of_no_later_one",
    ),
    Guard(
        "store/settlements.py",
        "about = [run.id, run.workspace, path, step.digest.hex(), step.attempt]",
        "about = [run.id, run.workspace, path, step.digest.hex()]",
        "approvals/test_settling_dialogs.py::test_an_answer_to_what_was_shown_of_an_earlier_attempt_stores_nothing",
    ),
    Guard(
        "store/settlements.py",
        "    if now.principal != principal:",
        "    if False:",
        "crash/test_settle.py::test_another_principal_settles_nothing",
    ),
    Guard(
        "server/elicitation.py",
        '"decline", _ if settlements.is_settlement_key(key):\n            return "left"',
        '"decline", _ if settlements.is_settlement_key(key):\n            return UserSettlement("reattempt", digest)',
        "approvals/test_settling_dialogs.py::test_what_is_no_settlement_leaves_the_call_waiting",
    ),
    Guard(
        "store/settlements.py",
        "if before.settlement != request.settlement:",
        "if False:",
        "crash/test_settle.py::test_a_command_whose_end_is_unknown_is_never_repeated_by_itself",
    ),
    Guard(
        "core/secret_grammar.py",
        "for number, (pattern, judge) in enumerate(_forms()):",
        "for number, (pattern, judge) in enumerate(_forms()[1:]):",
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(
        "core/secret_grammar.py",
        'compile_patterns((f"(?i:{STRONG}|{WEAK}|{HEADERS})", *_BEGINNINGS))',
        "compile_patterns(_BEGINNINGS)",
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(  # `pass` has to begin a word, `password` need not
        "core/secret_assignments.py",
        "if _SHORT_NAME.fullmatch(name) and",
        "if _SHORT_NAME.match(name) and",
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(
        "core/secret_values.py",
        "(?:[-_/. ][A-Za-z]*",
        "(?:[-_/. ]+[A-Za-z]*",
        "secrets/test_masking.py::test_012_no_value_is_split_in_more_than_one_way_while_it_is_judged",
    ),
    Guard(
        "core/secret_keys.py",
        "        if closes < at:",
        "        if True:",
        ASIDE + "no_part_of_a_text_is_searched_twice_for_the_end_of_a_key",
    ),
    Guard(
        "core/redaction.py",
        "        if size > CACHED_BYTES or len(kept) == CACHED_FILES:",
        "        if len(kept) == CACHED_FILES:",
        "secrets/test_masking.py::test_masked_files_are_remembered_within_a_bound_of_bytes",
    ),
    Guard(
        "core/masked_file.py",
        "        if begin and is_over():",
        "        if False:",
        "secrets/test_masking.py::test_masking_ends_with_a_piece_once_its_time_is_over",
    ),
    Guard(  # a list of pairs takes ten times as much
        "core/masked_file.py",
        "    spans = Spans()",
        "    spans = list[Span]()",
        "secrets/test_masking.py::test_the_secrets_of_a_large_file_take_little_memory",
    ),
    Guard(
        "core/redaction.py",
        'found = find_secrets(piece, settings=kind != "source", judged=judged)',
        'found = find_secrets(piece, settings=kind != "source")',
        "secrets/test_masking.py::test_places_are_counted_through_all_pieces_of_a_file",
    ),
    Guard(
        "app/redact_aside.py",
        "    return await asyncio.to_thread(redact, *given, **named)",
        "    return redact(*given, **named)",
        ASIDE + "a_large_value_is_redacted_in_a_worker_thread",
    ),
    Guard(
        "app/answers.py",
        "        if (size := count_chars(value)) > REPLY_BYTES:",
        "        if (size := 0):",
        ASIDE + "an_answer_that_is_too_large_is_refused_before_it_is_searched",
    ),
    Guard(  # a start of a new kind, a new field of an old one
        "app/start.py",
        "spec, texts, secrets = await redact_aside(redact_values.redact_spec, marked, built.texts, redactor)",
        "spec, texts, secrets = marked, built.texts, 0",
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "core/redact_values.py",
        "found = redactor.redact_known(body) if name in written else _redact_given_text(body, redactor)",
        "found = redactor.redact_known(body)",
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "core/redact_values.py",
        'return _collect_texts(value, texts, is_named) or redactor.redact_text("\\n".join(texts)).count > 0',
        "return redactor.redact_text(_JSON.encode(value)).count > 0",
        "secrets/test_every_field.py::test_a_key_behind_a_tab_or_a_line_break_is_stored_nowhere",
    ),
    Guard(
        "core/redact_values.py",
        "(isinstance(item, str) and is_named(name)) or _collect_texts(item, texts, is_named)",
        "_collect_texts(item, texts, is_named)",
        "secrets/test_every_field.py::test_a_value_under_the_name_of_a_key_is_redacted_in_a_results_data",
    ),
    Guard(
        "core/redact_values.py",
        "data=redactor.redact_data(result.data)[0])",
        "data=redactor.redact_json(result.data)[0])",
        "secrets/test_masking.py::test_a_tool_is_given_the_password_that_its_result_does_not_show",
    ),
    Guard(
        "core/redact_values.py",
        "    return redactor.redact_json(arguments)",
        "    return redactor.redact_data(arguments)",
        "secrets/test_masking.py::test_a_tool_is_given_the_password_that_its_result_does_not_show",
    ),
    Guard(
        "core/redact_values.py",
        "plain[name], found_here = _redact_given(value, redactor)",
        "plain[name], found_here = value, 0",
        EVERY_FIELD + "a_start_of_a_new_kind_is_stored_nowhere",
    ),
    Guard(
        "app/start.py",
        "key=None if plan.key is None else redactor.redact_text(plan.key).text",
        "key=plan.key",
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "core/redaction.py",
        "count = sum(name.count + in_item for name, _, in_item in pairs)",
        "count = sum(in_item for name, _, in_item in pairs)",
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "core/redaction.py",
        "    spans = merge_spans(piece, (*found, *more)) if more else found",
        "    spans = found",
        "secrets/test_masking.py::test_a_known_value_survives_in_no_form",
    ),
    Guard(
        "core/redaction.py",
        "            if begins < cut < ends:\n                return start",
        "            if False:\n                return start",
        "secrets/test_parted_secrets.py::test_no_text_is_cut_within_a_known_key",
    ),
    Guard(
        "execution/tool_caller.py",
        "            self.resources.redactor.find_parted,\n",
        "",
        "secrets/test_parted_secrets.py::test_a_program_s_output_that_is_cut_within_a_key_is_stored_without_it",
    ),
    Guard(
        "tools/tool.py",
        "    return redact_values.redact_result(result, redactor)",
        "    return result",
        "secrets/test_planted_everywhere.py::test_a_key_given_to_every_tool_is_in_no_artefact",
    ),
)

WORDS = (
    Guard("core/input_checks.py", "    if len(value) < len(pairs):", "    if False:", NOT_PLAIN),
    Guard(
        "core/json_schema.py",
        "if nodes > EXPANDED_NODES or depth >= EXPANDED_DEPTH:",
        "if False:",
        "test_schemas.py::test_an_unsafe_schema_is_refused_at_once",
    ),
    Guard(
        "core/json_schema_rules.py",
        '        "anyOf": _check_any_of,\n',
        "",
        "test_schemas.py::test_alternatives_are_each_left_at_their_first_problem",
    ),
    Guard(
        "core/input_checks.py",
        "    except RecursionError:\n        raise Undecodable(_TOO_DEEP) from None\n",
        "",
        DECODING + "what_is_nested_too_deep_is_refused_before_the_parser_runs_out_of_stack",
    ),
    Guard("core/input_checks.py", "    if len(found) > 1:", "    if False:", NOT_PLAIN),
    Guard(
        "flows/ending.py",
        'case Completion(finish="length"):',
        'case Completion(finish="never"):',
        "flows/test_planner.py::test_a_truncated_turn_executes_nothing_and_is_shown_to_the_model",
    ),
    Guard(
        "flows/ending.py",
        " and all(call.unreadable is not None for call in turn.tool_calls)",
        " and False",
        "flows/test_stop_reasons.py::test_turns_whose_calls_can_not_be_read_are_format_errors_and_no_stall[bad0]",
    ),
    Guard(
        "flows/ending.py",
        "return StalledLoop(tool) if times >= STALL_AFTER_REPEATS else None",
        "return None",
        "flows/test_planner.py::test_the_same_call_with_the_same_result_is_warned_at_three_and_stalled_at_five",
    ),
    Guard(
        "flows/tool_calls.py",
        "if stopped is None and not isinstance(answer, ToolResult):",
        "if False:",
        "flows/test_planner.py::test_a_call_refused_by_a_limit_leads_to_the_closing_call_and_nothing_more_is_begun",
    ),
    Guard(
        "flows/tool_calls.py",
        "        if reads and after_read:",
        "        if groups:",
        "flows/test_planner.py::test_consecutive_reads_go_side_by_side_and_a_write_is_a_barrier",
    ),
)

PRUNED = "records/test_pruning.py::test_"
UNREAD = "records/test_unreadable.py::test_"

DAMAGED = (
    Guard(
        "app/runs.py",
        "workspaces = None if everywhere else [str(folder) for folder in self._settings.workspaces]",
        "workspaces = None",
        PRUNED + "only_runs_of_this_folder_go_unless_all_are_meant",
    ),
    Guard(
        "cli/runs.py",
        "among=[run.n for run in found]",
        "among=None",
        PRUNED + "only_runs_of_this_folder_go_unless_all_are_meant",
    ),
    Guard(
        "cli/runs.py",
        "if as_json or not is_person_there():",
        "if False:",
        PRUNED + "where_nobody_can_be_asked_nothing_goes",
    ),
    Guard(
        "cli/runs.py",
        '        if not confirm("Remove them for good"):\n',
        "        if False:\n",
        PRUNED + "a_person_is_shown_what_goes_and_asked",
    ),
    Guard(
        "execution/worker.py",
        "            self._is_unreadable = True",
        "            raise",
        UNREAD + "a_run_that_cannot_be_read_is_cancelled_at_once[null for an answer]",
    ),
    Guard(
        "store/force_cancel.py",
        "Units(*(max(0, amount) for amount in left))",
        "NOTHING",
        UNREAD + "a_begun_step_that_does_not_say_what_it_holds_is_charged_with_all_that_the_account_held",
    ),
    Guard(
        "store/integrity.py",
        "                found.setdefault(run_id,",
        "                dict[str, str]().setdefault(run_id,",
        UNREAD + "doctor_names_the_run_and_no_other[null for an answer]",
    ),
    Guard(
        "store/rows.py",
        "    if sha256(body).hexdigest() != content_hash:\n        raise DamagedText(content_hash, body)\n",
        "",
        "records/test_damaged_texts.py::test_a_damaged_text_of_one_run_stops_it_by_name_and_no_other"
        "[a wrong but valid byte]",
    ),
    Guard(
        "store/rows.py",
        " on conflict(hash) do update set body = excluded.body",
        " on conflict(hash) do update set body = body",
        "records/test_damaged_texts.py::test_a_shared_text_is_put_back_by_whoever_reads_it"
        "[prompts-a wrong but valid byte]",
    ),
)

SILENCE = "downstream/test_silent_servers.py::test_"

CLOCK = "budgets/test_clock_set_back.py::test_"

DAYS = (
    Guard(
        "execution/accounting.py",
        "    if newest is None or newest <= today.name:",
        "    if today:",
        CLOCK + "a_day_once_begun_is_charged_until_the_clock_has_passed_it",
    ),
    Guard(
        "store/apply_commit.py",
        "    if commit.charged.is_barred:",
        "    if False:",
        CLOCK + "a_clock_that_is_far_behind_stops_model_calls_until_a_person_says_that_it_is_right",
    ),
    Guard(
        "store/apply_commit.py",
        "*too_small_notes(completions), ",
        "",
        "budgets/test_too_small.py::test_no_run_of_no_rounds_is_without_a_word_why",
    ),
)

LISTED = "secrets/test_listed_secrets.py::test_a_listed_secret_becomes_no_row_and_its_tool_is_called"

ODD = "downstream/test_odd_servers.py::test_a_deviation_"
PINS = "downstream/test_pins.py::test_"
SLOW_SERVER = (
    "registry/test_offers.py::test_a_run_begins_without_a_server_that_is_slow_and_finds_its_tools_when_they_come"
)
ANOTHER_LINE = PINS + "another_command_line_under_a_known_name_waits_for_a_person"

SERVERS_OF_OTHERS = (
    Guard(
        "tools/config_import.py",
        "(problem := _find_problem(setting, self.wanted)) is None",
        "True",
        "registry/test_tools_commands.py::test_a_server_that_settings_can_not_hold_is_named_and_the_others_are_written",
    ),
    Guard(
        "tools/config_import.py",
        "if is_reference(translated) or EMBEDDED_REFERENCE.search(translated):",
        "if False:",
        "downstream/test_config_import.py::test_no_text_of_another_program_s_file_becomes_a_reference_to_a_secret",
        quick=True,
    ),
    Guard(
        "cli/tools_import.py",
        "if as_json or not is_person_there():",
        "if False:",
        "registry/test_tools_commands.py::test_no_server_of_others_is_started_unless_a_person_has_seen_what_it_is[None]",
    ),
    Guard(
        "cli/tools_import.py",
        "if not _may_start(starts, as_json=as_json):",
        "if False:",
        "registry/test_tools_commands.py::test_no_server_of_others_is_started_unless_a_person_has_seen_what_it_is[n]",
    ),
    Guard(
        "core/text.py",
        "    text = content.removeprefix(mark).decode(encoding, errors)",
        '    text = content.removeprefix(mark).decode("utf-8", errors)',
        "test_settings.py::test_a_settings_file_is_read_in_the_encodings_that_editors_write[utf-16]",
    ),
    Guard(
        "settings/agents.py",
        "        if quoted == head:",
        "        if True:",
        "agents/test_agent_files.py::test_a_plain_value_may_hold_a_colon"
        "[description: Use it when: tuning.-Use it when: tuning.]",
    ),
    Guard(
        "gate_rules.py",
        "            and (rule.category is None or fnmatchcase(facts.category, rule.category))\n",
        "",
        "approvals/test_gate.py::test_a_rule_may_be_for_a_category[mcp:y-deny-decisions3]",
    ),
    Guard(
        "app/start.py",
        "    if not context.settings.gate:",
        "    if True:",
        "approvals/test_idle_rules.py::test_a_run_names_the_rules_that_fit_nothing_that_it_could_call",
    ),
    Guard(
        "cli/main.py",
        "    open_standard_streams()\n",
        "",
        "commands/test_closed_streams.py::test_a_command_works_with_closed_streams_and_prints_into_no_file[(1,)]",
    ),
    Guard(
        "cli/doctor.py",
        "        here = _with_current_folder(settings)",
        "        here = settings",
        "commands/test_doctor_trials.py::test_agents_are_judged_by_the_tools_that_this_folder_brings",
    ),
    Guard(
        "cli/doctor_trials.py",
        "            limits=Limits(rounds=1, model_calls=1),",
        "            limits=Limits(rounds=1),",
        "commands/test_doctor_trials.py::test_a_dead_port_is_bad_and_asked_once",
    ),
    Guard(
        "app/tools.py",
        "            await asyncio.to_thread(registry.try_sources, names)",
        "            pass",
        "registry/test_offers.py::test_a_search_says_why_a_tool_that_was_approved_can_t_be_started",
    ),
    Guard(
        "tools/registry.py",
        "    return source.may_match((*unknown, *own))",
        "    return source.may_match(unknown)",
        "downstream/test_offering.py::"
        "test_a_source_that_is_named_by_a_tool_or_a_glob_is_waited_for_longer[globs2-named2-waited2]",
    ),
    Guard(
        "tools/registry.py",
        "now + (max(named_s, soon_s) if _is_named(source, unknown, asked) else soon_s)",
        "now + max(named_s, soon_s)",
        "downstream/test_offering.py::"
        "test_a_source_that_is_named_by_a_tool_or_a_glob_is_waited_for_longer[None-named0-waited0]",
        quick=True,
    ),
    Guard("execution/authorization.py", "        if self.late_globs is None:\n", "        if True:\n", SLOW_SERVER),
    Guard(
        "tools/mcp_servers/client.py",
        "        if opening is None or opening.done():",
        "        if opening is None or opening.done() or self._connection is not None:",
        SLOW_SERVER,
    ),
    Guard(
        "tools/registry.py",
        "if not self._match_glob(glob) and not (_is_glob(glob) and self.starting_sources((glob,))):",
        "if not self._match_glob(glob) and not _is_glob(glob):",
        "downstream/test_offering.py::test_a_glob_may_name_what_is_coming_and_nothing_else_that_is_not_there",
    ),
    Guard(
        "store/tool_pins.py",
        "trusted = known is None and not _has_namesake(session, source)",
        "trusted = known is None",
        ANOTHER_LINE + "[argument]",
    ),
    Guard(
        "tools/mcp_servers/source.py",
        "setting.url, setting.cwd, variables, headers])",
        "setting.url, setting.cwd])",
        ANOTHER_LINE + "[another variable]",
    ),
    Guard(
        "store/tool_pins.py",
        "return earlier if adopter == source else source",
        "return earlier if adopter else source",
        PINS + "what_was_pinned_before_variables_counted_is_adopted_once",
    ),
    Guard(
        "tools/mcp_servers/tool_results.py",
        "problems = compile_schema(schema).problems(answer.structured, THREAD_UNITS)",
        "problems: list[str] = []",
        "downstream/test_output_schemas.py::test_structured_content_that_breaks_the_output_schema_is_an_error[content0-/total]",
    ),
    Guard(
        "tools/mcp_servers/definition.py",
        "repair_definition(redact(as_listed))",
        "repair_definition(as_listed)",
        LISTED,
    ),
    Guard(
        "models/provider_network.py",
        '        return {"trust_env": False,',
        '        return {} and {"trust_env": False,',
        "providers/test_network_variables.py::test_a_request_to_this_machine_arrives_though_a_proxy_is_set",
    ),
    Guard(
        "store/connection.py",
        "real = str(path.parent.resolve() / path.name)",
        "real = str(path)",
        "tools/test_state_folder.py::test_a_state_folder_may_lie_behind_a_link_and_its_file_may_be_none",
    ),
    Guard(
        "tools/mcp_servers/bounded_http.py",
        'if is_plain and (is_event_stream or kind == "application/json"):',
        "if False:",
        "downstream/test_odd_servers.py::test_over_http_a_server_that_deviates_is_used_for_what_is_right"
        "[the first half of an emoji-application/json]",
    ),
    Guard(
        "tools/mcp_servers/message_repair.py",
        'rb"\\ufffd" if found[1] else found[0]',
        "found[0]",
        ODD + "costs_itself_alone[the first half of an emoji]",
    ),
    Guard(
        "tools/mcp_servers/message_repair.py",
        " or (isinstance(error.data, dict) and AS_SENT in error.data)",
        "",
        "downstream/test_odd_servers.py::test_a_process_that_deviates_is_used_for_what_is_right"
        "[error {'code': -32000, 'message': 'lost'}]",
    ),
    Guard(
        "tools/mcp_servers/message_repair.py",
        '    return {"content": [], "resultType": "complete", "_meta": {AS_SENT: sent}}',
        "    return sent",
        ODD + "costs_itself_alone[block {'type': 'video', 'data': 'AAAA'}]",
    ),
    Guard(
        "tools/mcp_servers/connection.py",
        " or cursor in cursors:",
        ":",
        ODD + "costs_itself_alone[cursors in a circle]",
    ),
    Guard(
        "tools/mcp_servers/connection.py",
        "if number > 1 and self.is_alive:",
        "if False:",
        ODD + "costs_itself_alone[second page fails]",
    ),
    Guard(
        "tools/mcp_servers/definition.py",
        '        return "its inputSchema does not say that arguments are an object"',
        "        pass",
        ODD + "costs_itself_alone[inputSchema {'type': ['object', 'null']}]",
    ),
    Guard(
        "core/json_schema.py",
        "            reason.leave_out()\n",
        "            raise\n",
        ODD + "costs_itself_alone[pattern ^(?=x)y]",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "            if answer_deadline > call.deadline:",
        "            if answer_deadline > call.deadline and self._count_unanswered(connection) is None:",
        SILENCE + "calls_that_their_own_limit_cuts_leave_the_server_and_another_s_call_alone",
    ),
    Guard(
        "tools/mcp_servers/client.py",
        "        if self._active_calls:\n            return\n",
        "",
        SILENCE + "a_server_that_was_silent_twice_is_started_anew_once_another_s_call_has_ended",
    ),
)

STATE = "tools/test_state_folder.py::test_"
OWNERSHIP = "test_ownership.py::test_"
BUBBLEWRAP = "tools/test_bubblewrap.py::test_"

OWN_MACHINE = (
    Guard(
        "tools/files/workspace.py",
        "        if self._private is not None:\n            try:",
        "        if False:\n            try:",
        STATE + "the_opener_knows_the_folder_by_its_identity[False]",
        quick=True,
    ),
    Guard(
        "settings/load.py",
        "    check_state_folder(home, environ)\n",
        "",
        OWNERSHIP + "what_another_user_may_replace_is_seen_behind_a_link",
    ),
    Guard(
        "settings/file_ownership.py",
        "(is_parent and found.st_mode & stat.S_ISVTX)",
        "found.st_mode & stat.S_ISVTX",
        OWNERSHIP + "a_folder_of_everybodys_is_fine_above_where_it_is_sticky_and_never_as_the_state_folder",
    ),
    Guard(
        "settings/load.py",
        "        check_settings_file(_absolute_path(named), environ)\n",
        "",
        OWNERSHIP + "a_settings_file_elsewhere_that_others_may_write_is_refused",
    ),
    Guard(
        "tools/commands/bubblewrap.py",
        "if part in folders]",
        "if part]",
        BUBBLEWRAP + "a_folder_that_programs_may_write_makes_no_sandbox_though_path_names_it",
        quick=True,
    ),
    Guard(
        "tools/commands/sandbox.py",
        "(*self.sealed, *find_bubblewrap().installed)",
        "self.sealed",
        BUBBLEWRAP + "a_program_can_not_write_the_bubblewrap_that_makes_its_sandbox",
    ),
    Guard(
        "tools/commands/supervisor.py",
        "    _kill_all(including_self=status is None)\n    _exit_as",
        "    _exit_as",
        COMMAND + "without_a_sandbox_what_left_the_session_ends_with_the_program_too[time]",
    ),
    Guard(
        "models/replies/border.py",
        "        if 300 <= response.status_code < 400:",
        "        if False:",
        "providers/test_failures.py::test_"
        "a_redirect_is_named_with_where_it_leads_and_neither_followed_nor_tried_again[openai:small-302]",
    ),
    Guard(
        "tools/mcp_servers/bounded_http.py",
        "                self._on_flood(flood)\n",
        "",
        "downstream/test_downstream_transports.py::test_a_reply_that_is_too_large_is_told_as_that_and_at_once[http]",
    ),
)

GIVEN_UP = "sampling/test_given_up.py::test_"
DIALOGS = "approvals/test_dialogs.py::test_"

ASKED_OF_CLIENTS = (
    Guard(
        "store/client_requests.py",
        "    if before or not all(",
        "    if not all(",
        GIVEN_UP + "on_the_modern_protocol_another_client_takes_over_and_the_first_ones_answer_counts",
    ),
    Guard(
        "store/apply_commit.py",
        "    if attempt.withdrawn_requests:",
        "    if False:",
        GIVEN_UP + "no_limit_is_passed_by_clients_that_go_away_again_and_again",
    ),
    Guard(
        "store/apply_commit.py",
        "                client_requests.charge_abandoned(session, batch, step, commit.fence, commit.at)\n",
        "                pass\n",
        GIVEN_UP + "what_is_in_the_air_when_a_run_is_cancelled_stays_charged",
    ),
    Guard(
        "store/client_requests.py",
        "            _refund_bound(session, batch, step, answered.charged)\n",
        "            pass\n",
        GIVEN_UP + "a_late_answer_alone_is_charged_with_what_it_cost",
    ),
    Guard(
        "app/client_requests.py",
        "        return self._askers.get((caller.principal, run_id)) == caller.session\n",
        "        return True\n",
        GIVEN_UP + "another_client_takes_the_ask_over_at_once_and_the_silent_one_is_held_against_nobody",
    ),
    Guard(
        "app/dialogs.py",
        "            and (run.n, each.key, each.digest) not in ignored\n",
        "",
        DIALOGS + "what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "server/elicitation.py",
        '        case "accept" | "decline", _ if took_s < instant_s:\n',
        '        case "decline", _ if took_s < instant_s:\n',
        DIALOGS + "what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "execution/accounting.py",
        "    reason = None if completion.usage is None else _why_impossible(completion.usage, completion)\n",
        "    reason = None\n",
        "budgets/test_believed.py::test_the_callers_report_that_can_not_be_is_none",
    ),
)

WHOSE = "identity/test_whose_run.py::test_"
SHOWN = "identity/test_commands_shown.py::test_"

WHOSE_RUN = (
    Guard(
        "app/context.py",
        "if not caller.is_person and not self.factory.has_folder(run):",
        "if False:",
        WHOSE + "a_run_is_looked_at_paused_and_cancelled_from_anywhere_and_answered_only_at_home",
    ),
    Guard(
        "app/client_requests.py",
        "if not _goes_through_clients(run) or not self._factory.has_folder(run) or not waiting.steps:",
        "if not _goes_through_clients(run) or not waiting.steps:",
        WHOSE + "the_model_of_another_folders_client_is_asked_nothing_of_a_run",
    ),
    Guard(
        "app/dialogs.py",
        "if not self._factory.has_folder(run):  # the client's user",
        "if False:  # the client's user",
        WHOSE + "a_dialog_of_another_folders_run_is_never_shown",
    ),
    Guard(
        "store/runs.py",
        "where principal = ? and workspace = ? and key = ?",
        "where principal = ? and ? is not null and key = ?",
        WHOSE + "a_key_belongs_to_its_workspace",
    ),
    Guard(
        "store/report_queries.py",
        " union all select mark from attempt where run = ?1) as asked",
        ") as asked",
        "providers/test_runs.py::test_they_are_named_too_where_a_provider_took_over_a_step_that_began_elsewhere",
    ),
    Guard(
        "store/integrity.py",
        "where attempt.run is distinct from mark.run",
        "where attempt.run <> mark.run",
        "records/test_lengths.py::test_what_is_stored_beside_the_steps_and_differs_is_damage",
    ),
    Guard(
        "store/runs.py",
        "where start_digest = ? and principal || '' = ? and workspace = ? and key is null",
        "where start_digest = ? and principal || '' = ? and ? is not null and key is null",
        WHOSE + "an_identical_start_in_another_project_makes_a_run_of_its_own",
    ),
    Guard(
        "server/validation.py",
        "    refuse_placeholders(arguments)\n",
        "",
        SHOWN + "no_tool_takes_a_placeholder_for_what_it_stands_for",
    ),
    Guard(
        "app/answers.py",
        "        refuse_placeholders(dict(answers))\n",
        "",
        SHOWN + "a_placeholder_is_no_answer_from_a_person_at_a_terminal_either",
    ),
)

WHAT_IS_NEW = (
    Guard(
        "views/waiting.py",
        "if before is None or after not in answered or ",
        "if before is None or ",
        ONLY_NEW + "what_somebody_else_answered_before_is_shown_whole[2025-11-25]",
        quick=True,
    ),
    Guard(
        "views/waiting.py",
        " or step.tools[: len(before.tools)] != before.tools[:]:",
        ":",
        "ooda/test_phase_tools.py::test_tools_that_are_offered_no_more_are_shown_whole",
    ),
    Guard(
        "flows/planner.py",
        "compaction.conversation, compaction.usage, None",
        "compaction.conversation, compaction.usage, predecessor",
        ONLY_NEW + "after_a_compaction_the_item_is_whole_and_only_after_it[2025-11-25]",
    ),
    Guard(
        "app/answers.py",
        "if plain[key] == value)",
        "if plain[key] is not None)",
        ONLY_NEW + "a_turn_of_which_a_word_was_masked_is_shown_whole[2025-11-25]",
    ),
    Guard(
        "store/report_queries.py",
        "where run = ? and step >= ? order by rowid",
        "where run = ? and step <> -? order by rowid",
        ONLY_NEW + "a_note_is_shown_with_the_answer_that_it_came_with_and_not_again[2025-11-25]",
    ),
    Guard(
        "server/truncation.py",
        "        if size(cut) > room and not is_first:\n",
        "        if size(cut) > room and left_out and not is_first:\n",
        "server/test_truncation.py::test_items_that_find_no_room_are_named_and_those_before_are_whole",
    ),
    Guard(
        "server/truncation.py",
        'key=lambda at: "after" not in items[at]',
        "key=lambda at: at",
        "server/test_truncation.py::test_what_follows_this_call_s_answer_finds_room_before_the_rest",
    ),
    Guard(
        "views/waiting.py",
        "if self.answered_at is None or opened_at < self.answered_at:\n",
        "if True:\n",
        FAN_OUT + "a_branch_that_begins_now_is_shown_whole[2025-11-25]",
    ),
    Guard(
        "server/client_requests.py",
        "    if answered and _waits_for_caller(run, waiting):\n",
        "    if False:\n",
        FAN_OUT + "an_open_dialog_of_one_branch_keeps_no_other_waiting[2025-11-25]",
    ),
    Guard(
        "execution/plan_commit.py",
        "some_left or state.startable_steps)",
        "some_left)",
        FAN_OUT + "completions_and_approvals_of_different_branches_travel_in_one_result",
    ),
    Guard(
        "execution/plan_commit.py",
        "    if others_move:\n        return None\n    return Paused",
        "    return Paused",
        "providers/test_outage_beside.py::test_the_other_branch_ends_before_the_run_is_paused",
    ),
    Guard(
        "store/inbox.py",
        "    if run.resume_at is not None:\n        session.rows(RESUME_SQL",
        "    if False:\n        session.rows(RESUME_SQL",
        "providers/test_outage_beside.py::test_an_approval_given_meanwhile_lets_its_branch_go_on",
    ),
    Guard(
        "server/tasks.py",
        " or app.runs.waits_for_worker(run)",
        "",
        "core/test_workers.py::test_a_task_goes_on_while_no_worker_lives",
    ),
    Guard(
        "execution/running_steps.py",
        " and not self.state.finished\n",
        "\n",
        "core/test_branches_apart.py::test_an_answer_that_comes_during_a_commit_goes_on_while_what_that_begins_is_performed",
    ),
    Guard(
        "execution/running_steps.py",
        " and not self.tasks and len(self.state.pending) == 1",
        " and not self.tasks",
        "core/test_branches_apart.py::test_an_approved_call_is_made_while_another_branch_s_model_still_thinks",
    ),
    Guard(
        "app/start.py",
        """    if resources.gate.judge(call).decision != "allow":
        return GoalLines()
""",
        "",
        LINES + "a_rule_against_searching_leaves_the_lines_out",
    ),
    Guard(
        "app/start.py",
        "deadline, lambda _ref: None, is_hidden=resources.gate.hidden_path_test(call))",
        "deadline, lambda _ref: None)",
        LINES + "what_a_rule_hides_or_forbids_is_not_shown",
    ),
    Guard(
        "specs/build.py",
        " and offer.shown.find(SEARCH_FILES.name) is not None:",
        ":",
        LINES + "a_run_that_may_not_search_is_shown_no_lines",
    ),
    Guard(
        "app/start.py",
        "        if later.from_round is None:\n",
        "        if later.continues:\n",
        FORKS + "the_summary_of_a_run_that_was_cut_is_not_told",
    ),
    Guard(
        "flows/planner_input.py",
        "return self.history if self.has_goal else (*self.history, self.goal)",
        "return (*self.history, self.goal)",
        "core/test_forks.py::test_a_fork_without_a_goal_is_asked_what_that_round_was_asked_and_nothing_else[2]",
    ),
    Guard(
        "app/start.py",
        "if not request.goal and (request.from_round is None or request.context is not None or request.messages):",
        "if False:",
        "core/test_forks.py::test_without_a_goal_nothing_else_is_begun[changes1]",
    ),
    Guard(
        "views/fork.py",
        "return row.id > since.id or row.answered_at is None or row.answered_at > since.at",
        "return True",
        FORKS + "files_that_were_changed_since_are_named_and_those_before_are_not",
    ),
    Guard(
        "core/forked_flow.py",
        "if runner.waiting.keys() == branches.keys():",
        "if True:",
        STEP_FORKS + "where_more_was_under_way_nothing_is_forked[task-1]",
    ),
    Guard(
        "core/forked_flow.py",
        "        if shown.digest_at(length) != self._asked.digest:\n",
        "        if shown is not self._asked:\n",
        STEP_FORKS + "a_team_goes_on_from_its_plan_with_another_one",
    ),
    Guard(
        "app/forks.py",
        "if saved is None or saved.digest != mandate.digest:",
        "if saved is None:",
        STEP_FORKS + "cycles_of_a_mandate_that_was_changed_are_not_forked",
    ),
    Guard(
        "app/forks.py",
        "        if open_run is not None:\n",
        "        if False:\n",
        STEP_FORKS + "cycles_are_forked_only_while_no_run_of_their_mandate_is_open",
    ),
    Guard(
        "app/runs.py",
        "mandate=fork.mandate, is_another=is_another",
        "is_another=is_another",
        STEP_FORKS + "a_cycle_goes_on_from_its_decision_with_another_one",
    ),
    Guard(
        "specs/build_fork.py",
        "        given_by=request.continues,",
        "        given_by=None,",
        STEP_FORKS + "what_that_run_observed_is_read_under_its_ref",
    ),
    Guard(
        "specs/build_fork.py",
        "forks = (*source.loaded.forks, ",
        "forks = (",
        STEP_FORKS + "a_fork_of_a_fork_keeps_what_was_said_in_both",
    ),
    Guard(
        "store/queries.py",
        "{_IS_NO_TRIAL}{among} order by n desc",
        "{among} order by n desc",
        "commands/test_doctor_trials.py::test_the_trial_of_a_provider_is_none_of_a_user_s_runs",
    ),
)

BESIDE = "approvals/test_sibling_changes.py::test_"

CHANGED_BY_SIBLINGS = (
    Guard(
        "execution/tool_caller.py",
        "    return shorten(call_redacted(redactor, tool, arguments, ctx), shown_chars, ctx.path)",
        "    return call_redacted(redactor, tool, arguments, ctx), None",
        "core/test_worker_threads.py::test_a_long_result_is_shortened_in_a_worker_thread",
    ),
    Guard(
        "views/run_report.py",
        "    return [shown] if calls.is_cut else []",
        "    return []",
        "core/test_app_runs.py::test_a_report_says_when_it_shows_only_the_newest_calls[6-True]",
    ),
    Guard(
        "app/records.py",
        "await asyncio.to_thread(cut_page, found, query)",
        "cut_page(found, query)",
        "core/test_worker_threads.py::test_the_record_of_a_run_is_searched_in_a_worker_thread",
    ),
    Guard(
        "app/answers.py",
        "new_answers = await redact_aside(make, steps)",
        "new_answers = make(steps)",
        "core/test_worker_threads.py::test_a_long_result_that_a_caller_brings_is_shortened_in_a_worker_thread",
    ),
    Guard(
        "tools/files/read_tools.py",
        "        if numbered and len(numbered) + len(line) > most:",
        "        if False:",
        "tools/test_files.py::test_numbered_lines_take_no_more_than_a_call_shows",
    ),
    Guard(
        "execution/tool_caller.py",
        "            stale = self.sibling_changes.refusal(path, step.call)\n",
        "            stale = None\n",
        BESIDE + "it_is_told_before_a_person_is_asked_and_where_the_change_came_meanwhile",
    ),
    Guard(
        "execution/tool_caller.py",
        "if (refused := self.sibling_changes.refusal(path, step.call)) is not None:",
        "if (refused := None) is not None:",
        BESIDE + "of_two_that_change_a_file_at_once_one_is_told",
    ),
    Guard(
        "execution/tool_caller.py",
        "        async with self.sibling_changes.changing(path, step.call):\n",
        "        if path:\n",
        BESIDE + "of_two_that_change_a_file_at_once_one_is_told",
        quick=True,
    ),
    Guard(
        "execution/authorization.py",
        "    if stale is not None:\n        return stale\n",
        "",
        BESIDE + "it_is_told_before_a_person_is_asked_and_where_the_change_came_meanwhile",
    ),
    Guard(
        "execution/run_state.py",
        "        self.executor.tool_caller.sibling_changes.rebuild(calls_of_tasks)\n",
        "",
        BESIDE + "another_process_tells_it_too_and_not_twice",
    ),
    Guard(
        "execution/sibling_changes.py",
        "if look.turn != turn]\n        return max(",
        "]\n        return max(",
        BESIDE + "what_is_read_or_told_in_a_turn_counts_from_the_next_one",
    ),
)

GRANTED = "budgets/test_more_rounds.py::test_"
GRANTED_HISTORIES = (
    "budgets/test_granted_histories.py::test_no_history_of_requests_and_crashes_passes_what_may_be_granted"
)

MORE_ROUNDS = (
    Guard(
        "budget/more_rounds.py",
        "if len(earlier) >= MAX_GRANTS or sum(earlier) >= MAX_GRANTED_ROUNDS:",
        "if sum(earlier) >= MAX_GRANTED_ROUNDS:",
        GRANTED + "a_grant_is_never_more_than_was_asked_for_nor_than_there_is_room",
        quick=True,
    ),
    Guard(
        "budget/more_rounds.py",
        "    if repeats * 2 >= calls:\n",
        "    if repeats > calls:\n",
        GRANTED + "a_grant_is_never_more_than_was_asked_for_nor_than_there_is_room",
    ),
    Guard(
        "execution/authorization.py",
        'spec.source != "caller" and (lacking := find_wordless_texts(call.arguments))',
        "lacking := []",
        GRANTED + "a_request_that_is_not_as_its_schema_says_is_an_error[changes5-justification has 1 different word,]",
    ),
    Guard(
        "store/more_rounds.py",
        "rooms.append(max(0, free) // request.share.count_parts(len(others))[0] - left)",
        "rooms.append(rest - left)",
        GRANTED_HISTORIES,
    ),
    Guard(
        "store/more_rounds.py",
        "if task_of(grant.call) == task_of(path)]",
        "if grant.call == path]",
        GRANTED_HISTORIES,
    ),
    Guard(
        "store/more_rounds.py",
        "return None if request.most is None else request.most - (own.caps.rounds or 0)",
        "return None",
        GRANTED + "the_configurations_limit_bounds_a_grant_and_a_person_extends_as_before",
    ),
    Guard(
        "specs/build.py",
        "grants_rounds = request.limits.rounds is None and (",
        "grants_rounds = (",
        GRANTED + "rounds_that_the_caller_limited_are_never_more_and_the_tool_is_not_offered",
    ),
)

AGENT_FILES = (
    Guard(
        "settings/agents.py",
        "if isinstance(event, AliasEvent) or levels > HEAD_LEVELS:",
        "if levels > HEAD_LEVELS:",
        AGENTS + "test_agent_files.py::test_a_few_lines_that_would_fill_the_memory_are_refused",
    ),
    Guard(
        "settings/agents.py",
        "if isinstance(event, AliasEvent) or levels > HEAD_LEVELS:",
        "if isinstance(event, AliasEvent):",
        AGENTS + "test_agent_files.py::test_a_file_that_is_wrong_disables_its_agent_alone",
    ),
    Guard(
        "settings/agents.py",
        "if len(content) > AGENT_BYTES:",
        "if False:",
        AGENTS + "test_agent_files.py::test_a_file_that_is_wrong_disables_its_agent_alone",
    ),
    Guard(
        "tools/agent_files.py",
        "if not may_read(path):",
        "if False:",
        AGENTS + "test_claude_agents.py::test_what_no_run_may_read_is_not_read_here_either",
    ),
    Guard(
        "tools/agent_files.py",
        "kept = tuple(dict.fromkeys(name for name in found if name not in denied))",
        "kept = tuple(dict.fromkeys(found))",
        AGENTS + "test_claude_agents.py::test_what_a_file_forbids_it_has_not",
    ),
    Guard(
        "tools/agent_files.py",
        "return ToolSet([spec for spec in own if spec.name in kept])",
        "return registry.select_available(narrowed)",
        AGENTS + "test_agent_files.py::test_what_an_agent_has_is_only_narrowed_and_every_agent_can_read_its_results",
    ),
    Guard(
        "specs/build.py",
        "chosen = select_agent_tools(agent, registry, request.tools)",
        "chosen = registry.select(request.tools)",
        AGENTS + "test_agent_of_a_run.py::test_tools_only_narrows_what_the_agent_has",
    ),
    Guard(
        "execution/run_state.py",
        "Runner(self.make_flow(), self.agent)",
        "Runner(self.make_flow())",
        AGENTS + "test_agent_of_a_run.py::test_every_step_is_the_agent_s_for_rules_of_the_gate",
    ),
    Guard(
        "store/agent_records.py",
        "where principal = ? and workspace = ? and flow = 'team'",
        "where ? <> '' and workspace = ? and flow = 'team'",
        AGENTS + "test_agent_records.py::test_only_runs_of_the_principal_in_the_workspace_count",
    ),
)

READ_AS_RESOURCES = (
    Guard(
        "store/run_changes.py",
        "where principal = ? and workspace in ({placeholders(workspaces)}) order by n desc limit ?",
        "where ? <> '' and workspace in ({placeholders(workspaces)}) order by n desc limit ?",
        RESOURCES + "a_principal_sees_its_own[2026-07-28]",
    ),
    Guard(
        "server/resources.py",
        "return Content(spell_hidden(to_json(",
        "return Content(str.strip(to_json(",
        RESOURCES + "a_text_that_imitates_a_conversation_is_spelled[2025-11-25]",
    ),
    Guard(
        "tools/skill_files.py",
        "    inside = plain_path(path)",
        "    inside = path",
        RESOURCES + "what_is_not_there_is_refused_with_what_to_do[2026-07-28]",
    ),
)

TASKS = "tasks/test_tasks.py::test_"

AS_TASKS = (
    Guard(
        "server/task_methods.py",
        "if not ClientCapabilities.from_context(ctx).takes_tasks:",
        "if False:",
        TASKS + "the_methods_need_the_capability_in_the_same_request",
    ),
    Guard(
        "server/task_methods.py",
        "if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:",
        "if False:",
        TASKS + "older_clients_are_told_of_no_extension_and_have_no_such_method",
    ),
    Guard(
        "server/task_methods.py",
        "if named is not None and decode_header_value(named) != task_id:",
        "if False:",
        "tasks/test_task_processes.py::test_a_header_that_names_another_task_is_refused_and_none_is_not",
    ),
    Guard(
        "server/call.py",
        "takes_tasks=TASKS_EXTENSION in (extensions or {}),",
        "takes_tasks=modern,",
        TASKS + "a_client_that_declares_no_tasks_gets_the_ordinary_result",
    ),
    Guard(
        "server/tasks.py",
        "app.tasks.check_served(task, call.caller)",
        "pass",
        TASKS + "a_server_of_another_folder_shows_a_task_that_ended_and_ends_none",
    ),
    Guard(
        "server/client_requests.py",
        "if not (is_mine or is_old or takes_over):",
        "if False:",
        TASKS + "two_clients_of_one_run_do_not_take_turns_at_asking",
        quick=True,
    ),
    Guard(
        "server/client_requests.py",
        "call.policy.again_s if call.resumed is None and not looks else None",
        "call.policy.again_s if call.resumed is None else None",
        TASKS + "a_client_that_looks_after_its_task_has_not_refused_what_that_asks",
    ),
    Guard(
        "server/client_requests.py",
        "if is_mine and is_old:",
        "if False:",
        TASKS + "a_silent_model_that_was_asked_for_by_name_ends_the_task_and_is_charged_once",
    ),
    Guard(
        "store/tasks.py",
        "result = ?, ended_at = ? where id = ? and ended_at is null",
        "result = ?, ended_at = ? where id = ?",
        TASKS + "of_two_servers_that_end_a_task_the_first_result_stays",
    ),
    Guard(
        "store/tasks.py",
        "where id = ? and ended_at is null returning id",
        "where id = ? returning id",
        TASKS + "cancelling_a_task_that_has_ended_leaves_its_run_alone",
    ),
    Guard(
        "store/tasks.py",
        "json.dumps(sorted({*json.loads(found[0]), *keys}))",
        "found[0]",
        TASKS + "a_dialog_that_the_user_leaves_ends_the_task_and_run_continue_asks_again",
    ),
)

LOGGED = (
    Guard(  # a header of a client, such as tracestate, reaches a log by a library's warning
        "server/log_lines.py",
        "return spell_out_hidden(line)",
        "return line",
        "server/test_log_lines.py::test_no_foreign_text_turns_or_hides_a_part_of_a_line",
    ),
    Guard(
        "server/log_lines.py",
        "handler.addFilter(is_of_interest)",
        "pass",
        "server/test_log_lines.py::test_a_session_that_its_client_ended_meanwhile_is_no_error",
    ),
    Guard(  # a client gets no message below the level that it named
        "server/log_messages.py",
        "return [entry for entry in entries if LEVELS.index(entry.level) >= LEVELS.index(level)]",
        "return list(entries)",
        LOG_MESSAGES + "nothing_below_the_level_is_sent",
    ),
    Guard(  # up to 2025-11-25 a level is named for a session; that one of 2026-07-28 named it the SDK looks to
        "server/log_messages.py",
        "if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS or level is None:",
        "if level is None:",
        LOG_MESSAGES + "nothing_is_sent_that_nobody_asked_for",
    ),
    Guard(  # only who owns the state folder is told a command
        "app/run_log.py",
        "        if not caller.is_local:\n",
        "        if False:\n",
        LOG_MESSAGES + "a_principal_s_log_has_nothing_of_another_s_runs",
    ),
    Guard(  # what a server logs is one line, whatever it says
        "server/log_lines.py",
        "line = line.translate(_ESCAPES)",
        "pass",
        "server/test_log_lines.py::test_text_is_one_line_that_hides_keys",
    ),
    Guard(  # and hides keys
        "server/log_lines.py",
        "return self._redactor.redact_text(text).text",
        "return text",
        "server/test_log_lines.py::test_json_is_one_object_that_hides_keys",
        quick=True,
    ),
)

TYPED_IN_A_HOST = (
    Guard(
        "app/argument_values.py",
        "is_hidden = resources.gate.hidden_path_test(call)",
        "is_hidden = resources.gate.hidden_path_test(call) and None",
        PROMPTED + "names_ids_paths_and_enum_values_complete[2026-07-28]",
    ),
    Guard(
        "server/prompts.py",
        " or (_PLACEHOLDER.fullmatch(value) and not argument.is_required)",
        "",
        PROMPTED + "a_host_may_fill_the_text_in_itself[2025-11-25]",
    ),
    Guard(
        "server/prompts.py",
        "        validate_arguments(kind.tool_arguments, values)",
        "        pass",
        PROMPTED + "a_wrong_prompt_is_refused_with_what_there_is[2025-11-25]",
    ),
)

TOLD_TO_SUBSCRIBERS = (
    Guard(
        "server/subscriptions.py",
        '        await app.runs.find(values["id"], caller)',
        "        pass",
        SUBSCRIBED + "a_principal_is_told_nothing_of_another_s_runs",
    ),
    Guard(
        "app/watch.py",
        "            if not self._watchers:",
        "            if False:",
        SUBSCRIBED + "nobody_looks_before_somebody_subscribes_nor_after_the_last_has_gone[2026-07-28]",
    ),
    Guard(
        "app/watch.py",
        "elif topic != LIST or now - self._listed_at.get(principal, -math.inf) >= REST_S:",
        "else:",
        SUBSCRIBED + "a_list_that_changes_again_is_told_after_a_pause",
    ),
    Guard(
        "app/watch.py",
        "                change = self._next_change()  # before the look: what is committed during it brings the next"
        " one\n                with suppress(KairosError, OSError):  # the store is busy or gone: a request that needs"
        " it reports that\n                    await self._look()",
        "                with suppress(KairosError, OSError):\n"
        "                    await self._look()\n"
        "                change = self._next_change()",
        SUBSCRIBED + "what_is_committed_during_a_look_brings_the_next_one",
    ),
    Guard(
        "server/http_sessions.py",
        "        session.on_end()",
        "        pass",
        "http/test_subscribers.py::test_nobody_looks_for_a_session_that_was_deleted",
    ),
)

TELEMETRY = (
    Guard(
        "app/run_tracing.py",
        "return attempt_key(path, 1 + (0 if step is None else step.attempts))",
        "return attempt_key(path, 1)",
        "telemetry/test_context.py::test_a_provider_is_told_the_span_of_each_attempt[openai]",
    ),
    Guard(
        "app/run_tracing.py",
        "            await self._task  # it may be reading what has ended",
        "            self._task.cancel()",
        SPANS + "what_is_being_read_when_the_server_closes_is_sent",
    ),
    Guard(
        "telemetry/recorder.py",
        " and (self.with_content or not attribute.is_content)",
        "",
        SPANS + "no_content_is_in_any_span_unless_it_is_asked_for",
    ),
    Guard(
        "telemetry/recorder.py",
        "self._mask(value) if attribute.is_content else self._bound_name(value)",
        "value",
        SPANS + "a_secret_that_became_known_later_is_masked_too",
    ),
    Guard(
        "telemetry/recorder.py",
        "        if len(known) >= MAX_LABEL_VALUES:",
        "        if False:",
        METRICS + "names_that_others_make_up_do_not_make_more_and_more_series",
    ),
    Guard(
        "telemetry/recorder.py",
        "[:MAX_NAME_CHARS] if self.with_content else OTHER",
        "[:MAX_NAME_CHARS]",
        MADE_UP + "no_name_that_a_caller_made_up_is_in_a_span_or_a_metric",
    ),
    Guard(
        "telemetry/recorder.py",
        "value = OTHER if isinstance(value, MadeUp) else value[:MAX_NAME_CHARS]",
        "value = value[:MAX_NAME_CHARS]",
        MADE_UP + "with_content_they_are_in_spans_and_never_in_metrics",
    ),
    Guard(
        "server/mcp_server.py",
        "    server.middleware.insert(1, _error_redaction(get_app))",
        "    pass",
        "server/test_stdio.py::test_an_error_repeats_no_secret_that_the_request_held",
    ),
    Guard(
        "server/mcp_server.py",
        "            if secrets:\n",
        "            if False:\n",
        "server/test_stdio.py::test_an_error_repeats_no_secret_that_the_request_held",
    ),
    Guard(
        "server/mcp_server.py",
        "server.middleware[0] = KnownNames(",
        "_ = KnownNames(",
        MADE_UP + "what_the_sdk_sends_of_a_request_has_no_made_up_name",
    ),
    Guard(
        "telemetry/providers.py",
        "    if not span.events and span.status.description is None:",
        "    if True:",
        SPANS + "the_words_of_an_error_stay_here_whichever_library_says_them",
    ),
    Guard(
        "server/http_health.py",
        '        if not has_scope("admin"):',
        "        if False:",
        METRICS + "figures_of_all_principals_take_the_scope_admin",
    ),
    Guard(
        "views/run_spans.py",
        "                del self._measurements[measured:]",
        "                pass",
        SPANS + "what_is_sent_again_after_a_takeover_is_counted_once",
    ),
    Guard(
        "views/run_spans.py",
        "return self._cursor.is_takeover and ",
        "return False and ",
        SPANS + "what_is_sent_again_after_a_takeover_is_counted_once",
    ),
    Guard(
        "app/run_tracing.py",
        "        if known is None or fence > known.cursor.fence + 1:",
        "        if known is None:",
        SPANS + "what_another_server_has_sent_meanwhile_is_not_sent_again",
    ),
)

ON_THE_PAGE = (
    Guard(
        "page/guard.py",
        "        if host not in self._hosts:",
        "        if False:",
        PAGE + "another_host_is_misdirected",
        quick=True,
    ),
    Guard(
        "page/guard.py",
        '        if given.get(b"origin", own_origin) != own_origin:',
        "        if False:",
        PAGE + "another_origin_is_refused_with_our_own_secret",
        quick=True,
    ),
    Guard(
        "page/guard.py",
        'not in ("same-origin", "none") and not is_link:',
        'not in ("same-origin", "none") and False:',
        PAGE + "a_request_that_another_page_made_is_refused",
    ),
    Guard(
        "page/guard.py",
        'b"origin" not in given or ',
        "",
        PAGE + "an_act_lacks_nothing[Origin]",
    ),
    Guard(
        "page/guard.py",
        'given.get(b"content-type", "").lower() != "application/json"',
        "False",
        PAGE + "an_act_lacks_nothing[Content-Type]",
    ),
    Guard(
        "page/guard.py",
        'return None if self._sessions.include(given.get(SECRET, "")) else NO_SESSION',
        "return None",
        PAGE + "without_a_session_nothing_is_read",
    ),
    Guard(
        "page/guard.py",
        'given.get(SECRET, "")',
        'given.get(SECRET, given.get(b"cookie", "").rpartition("=")[2])',
        PAGE + "whoever_is_sent_the_cookies_of_this_host_reads_and_approves_nothing",
        quick=True,
    ),
    Guard(
        "page/guard.py",
        '"" if _is_browser(given) else "none"',
        '"none"',
        PAGE + "a_browser_that_does_not_state_who_asks_is_foreign",
    ),
    Guard(
        "page/guard.py",
        "self._ends.get(_hash(secret), 0.0) > time.monotonic()",
        "_hash(secret) in self._ends",
        PAGE + "a_session_is_over_after_twelve_hours_and_the_oldest_of_many_ends",
    ),
    Guard(
        "page/guard.py",
        "        while len(self._ends) > MAX_SESSIONS:",
        "        while False:",
        PAGE + "a_session_is_over_after_twelve_hours_and_the_oldest_of_many_ends",
    ),
    Guard(
        "page/guard.py",
        "        if any(counts[name] > 1 for name in _ONCE):",
        "        if False:",
        PAGE + "a_header_that_stands_twice_is_refused",
    ),
    Guard(
        "page/guard.py",
        "                headers.update(HEADERS)\n",
        "",
        PAGE + "every_answer_holds_the_page_in_its_place",
    ),
    Guard(
        "page/app.py",
        "        if len(body) > BODY_BYTES:",
        "        if False:",
        PAGE + "an_act_that_is_too_long_or_no_object_is_refused",
    ),
    Guard(
        "store/page_files.py",
        "        age_s = _age_s(path)\n        path.unlink()\n",
        "        age_s = _age_s(path)\n",
        PAGE + "a_code_is_good_for_one_browser",
    ),
    Guard(
        "store/page_files.py",
        "return 0 <= age_s <= CODE_S",
        "return True",
        PAGE + "a_code_is_forgotten_after_two_minutes",
    ),
    Guard(
        "store/page_files.py",
        'os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w")',
        'os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644), "w")',
        PAGE + "what_lets_a_browser_in_is_for_its_owner_s_eyes_alone",
    ),
    Guard(
        "server/http.py",
        " and address in PAGE_ADDRESSES",
        "",
        PAGE + "beyond_this_machine_there_is_no_page",
    ),
    Guard(
        "tools/http/client.py",
        "            if url.port in ports and describe_non_public(address) is not None:",
        "            if False:",
        EGRESS + "no_request_goes_to_the_page_even_if_it_is_listed",
        quick=True,
    ),
    Guard(
        "page/acts.py",
        "digest=self.digest, rule=rule",
        "rule=rule",
        ON_PAGE + "an_approval_is_of_what_was_shown_and_the_run_goes_on",
    ),
    Guard(
        "page/acts.py",
        ' and asked.effect == "irreversible" and self.name != asked.tool:',
        " and False:",
        ON_PAGE + "what_can_t_be_undone_is_approved_by_its_name",
    ),
    Guard(
        "page/acts.py",
        "    if route is None:",
        "    if False:",
        ON_PAGE + "nothing_is_started_where_nobody_would_answer",
    ),
    Guard(
        "app/mandates.py",
        "            if shown is not None and (known is None or known.digest != shown):",
        "            if False:",
        ON_PAGE + "a_mandate_is_saved_edited_and_removed_as_it_was_shown",
    ),
    Guard(
        "app/mandates.py",
        "        if shown not in (None, row.digest):",
        "        if False:",
        ON_PAGE + "a_mandate_is_saved_edited_and_removed_as_it_was_shown",
    ),
    Guard(
        "app/context.py",
        '        if caller.via != "page" or not self.is_command:',
        "        if True:",
        ON_PAGE + "a_run_that_is_started_here_is_left_to_a_living_server",
    ),
    Guard(
        "app/context.py",
        " and route in served.routes",
        "",
        ON_PAGE + "a_run_is_not_left_to_a_server_that_lacks_its_route",
    ),
    Guard(
        "page/live.py",
        "                viewer.is_dropped = True",
        "                pass",
        LIVE + "a_viewer_that_reads_nothing_is_dropped_and_the_others_are_not",
    ),
)

TAKEN_TOGETHER = (
    Guard(
        "app/store_watcher.py",
        "if len(chosen) < free and await",
        "if await",
        TAKEN + "as_many_as_there_are_slots_are_taken_in_one_commit",
    ),
    Guard(
        "app/runs.py",
        " or await self._take_left(runs_now):",
        ":",
        "core/test_app_recovery.py::test_whoever_waits_is_not_told_that_a_run_stands_still_which_goes_on_here[file]",
    ),
    Guard(
        "app/store_watcher.py",
        "            await asyncio.gather(*(self.take_over(run, owners) for run in chosen))",
        "            for run in chosen:\n                await self.take_over(run, owners)",
        TAKEN + "as_many_as_there_are_slots_are_taken_in_one_commit",
    ),
)

ORDER_OF_TAKING = (
    Guard(
        "app/store_watcher.py",
        "                page.sort(key=lambda run: run.fence == FIRST_FENCE)",
        "                pass",
        "core/test_workers.py::test_what_was_begun_is_taken_before_what_is_queued",
    ),
)

READS_AND_PLANS = (
    Guard(
        "store/postgres/session.py",
        "        with self._pipeline():\n            sent =",
        "        if True:\n            sent =",
        "postgres/test_reads_together.py::test_reads_give_what_they_give_alone_in_as_many_trips_as_the_longest_of_them",
    ),
    Guard(
        "store/connection.py",
        "            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)\n",
        "",
        "records/test_statements.py::test_what_was_executed_before_is_not_planned_again",
    ),
    Guard(
        "execution/worker_threads.py",
        "            self._begin(behind)\n",
        "            pass\n",
        "core/test_worker_threads.py::test_a_call_that_takes_long_holds_up_none_of_those_beside_it",
    ),
    Guard(
        "execution/worker_threads.py",
        "            except (RuntimeError, MemoryError) as error:",
        "            except ZeroDivisionError as error:",
        "core/test_worker_threads.py::test_where_no_further_thread_can_be_started_the_one_there_is_makes_all_calls",
    ),
    Guard(
        "execution/worker_threads.py",
        "        for job in (*self._backlog, *self._together):\n            job.done.cancel()\n",
        "",
        "core/test_worker_threads.py::test_what_has_not_begun_is_cancelled_at_the_end",
    ),
    Guard(
        "store/connection.py",
        "self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)",
        "pass",
        "records/test_state_file.py::test_the_log_of_a_long_run_is_written_over_again_and_again",
    ),
    Guard(
        "store/connection.py",
        "wait_s = BUSY_LIMIT_S if self._log_pages > self._must_restart_pages else RESTART_WAIT_S",
        "wait_s = BUSY_LIMIT_S",
        "records/test_state_file.py::test_a_reader_who_takes_his_time_keeps_nobody_from_writing",
    ),
)

BY_ONE_SERVER = (
    Guard(
        "server/push.py",
        "                    if await _claim(call, found.run, push):",
        "                    if True:",
        ASKED_ONCE + "a_model_is_asked_by_one_server_at_a_time[file-legacy http]",
    ),
    Guard(
        "server/push.py",
        "    if not is_ours:",
        "    if False:",
        ASKED_ONCE + "a_user_is_asked_by_one_server_at_a_time[file]",
    ),
    Guard(
        "store/asks.py",
        "        if is_of_another and is_owner_alive(session, owners, owner):",
        "        if is_of_another:",
        ASKED_ONCE + "a_server_that_was_killed_while_it_asked_asks_no_more_and_another_one_does[file]",
    ),
    Guard(
        "store/asks.py",
        " and client == new.client and ",
        " and ",
        ASKED_ONCE + "another_client_is_asked_by_its_own_call",
    ),
)

AT_PLACES = (
    Guard(
        "app/run_factory.py",
        "        return self.is_at(run.place) and (by_hand",
        "        return (by_hand",
        PLACES + "a_run_with_a_workspace_goes_on_only_where_that_folder_is[file]",
    ),
    Guard(
        "app/start.py",
        "if place is None else digest_of(plan.start_digest, place.encode()),",
        "if True else digest_of(plan.start_digest, place.encode()),",
        PLACES + "the_same_start_at_two_places_is_two_runs",
    ),
    Guard(
        "app/start.py",
        "if before is None or not is_here or ",
        "if before is None or ",
        PLACES + "another_place_answers_nothing_and_a_command_there_does_not_drive",
    ),
    Guard(
        "app/mandates.py",
        " and self._factory.is_at(row.place)]",
        "]",
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
    Guard(
        "store/mandates.py",
        " and coalesce(place, ?) = ?",
        " and coalesce(?, ?) is not null",
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
    Guard(
        "store/mandates.py",
        "    if known is not None and known.place not in (None, new.place):",
        "    if False:",
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
)

BY_WORKERS = (
    Guard(
        "app/context.py",
        'if not self.drives or caller.via == "clock":',
        "if not self.drives:",
        STARTED + "workers_that_look_at_the_same_moment_start_a_mandate_once[file]",
    ),
    Guard(
        "store/mandates.py",
        "run.mandate = mandate.id and run.outcome is null)",
        "run.mandate = mandate.id and false)",
        STARTED + "workers_that_look_at_the_same_moment_start_a_mandate_once[file]",
    ),
    Guard(
        "app/scheduler.py",
        "        if find_own_route(self._settings) is None:",
        "        if False:",
        STARTED + "nothing_is_started_before_its_time_without_a_model_or_in_a_folder_that_is_not_served",
    ),
    Guard(
        "app/scheduler.py",
        "            if each not in self._refused:",
        "            if True:",
        STARTED + "a_start_that_is_refused_is_not_tried_at_each_look",
    ),
)

SIDE_BY_SIDE = (
    Guard(
        "app/store_watcher.py",
        "                if news.concerns(n):",
        "                if True:",
        "postgres/test_session_locks.py::test_only_the_runs_of_which_something_is_heard_are_looked_at",
    ),
    Guard(
        "store/postgres/copy.py",
        "if pids or _is_open(source.path):",
        "if pids:",
        "postgres/test_copied_folders.py::test_nothing_is_copied_while_a_server_has_the_folder_open_that_has_written_nothing",
    ),
    Guard(
        "store/postgres/group_session.py",
        "        return self._job is not None and self._job.awaits_results",
        "        return False",
        COMMITS_BESIDE + "a_job_that_was_told_what_is_not_so_is_run_again_and_told_what_is",
    ),
    Guard(
        "server/auth.py",
        'if REQUEST_ID in scope and scope["path"] == "/mcp":',
        "if False:",
        "postgres/test_database_away.py::test_a_clients_session_outlives_what_keeps_the_store_from_being_read",
    ),
    Guard(
        "app/run_tracing.py",
        "            except KairosError:\n                self._counts = Counts(",
        "            except ZeroDivisionError:\n                self._counts = Counts(",
        "telemetry/test_metrics.py::test_a_store_that_can_not_be_read_has_no_figures_and_breaks_no_page",
    ),
    Guard(
        "store/postgres/group_session.py",
        "            self._changed_rows += changed\n",
        "",
        COMMITS_BESIDE + "a_job_that_refuses_after_it_has_written_leaves_nothing",
    ),
    Guard(
        "store/postgres/writer.py",
        "                _await_results(beside)\n                break",
        "                break",
        COMMITS_BESIDE + "a_group_without_room_for_all_is_made_once_more_and_no_third_time",
    ),
    Guard(
        "tools/files/workspace.py",
        "self.by_kernel and (private is None or is_local(private))",
        "self.by_kernel",
        "tools/test_safe_open.py::test_nothing_is_opened_at_once_where_the_private_folder_may_ask_others",
    ),
    Guard(
        "settings/schema.py",
        '(host and user.partition(":")[2]) or',
        "urlsplit(text).password or",
        "postgres/test_access.py::test_a_password_in_the_address_is_refused_and_not_shown",
    ),
    Guard(
        "store/postgres/group_session.py",
        " for no key update",
        "",
        COMMITS_BESIDE + "a_job_waits_for_those_of_its_own_run_and_for_those_of_any",
    ),
    Guard(
        "store/postgres/group_session.py",
        "pg_advisory_xact_lock_shared($1)",
        "$1::bigint",
        COMMITS_BESIDE + "a_job_waits_for_those_of_its_own_run_and_for_those_of_any",
    ),
    Guard(
        "store/postgres/group_session.py",
        "order by n for",
        "order by n desc for",
        COMMITS_BESIDE + "a_group_takes_what_others_may_want_in_the_order_of_numbers",
    ),
    Guard(
        "store/rows.py",
        "sorted(self._writes.items(), key=itemgetter(0))",
        "self._writes.items()",
        COMMITS_BESIDE + "a_group_takes_what_others_may_want_in_the_order_of_numbers",
    ),
    Guard(
        "store/postgres/group_session.py",
        "select 1 / count(*) from changed",
        "select count(*) from changed",
        COMMITS_BESIDE + "a_shared_account_is_never_taken_past_its_cap",
    ),
    Guard(
        "store/postgres/group_session.py",
        "if expected.cursor.rowcount != expected.rows",
        "if False",
        COMMITS_BESIDE + "a_job_that_was_told_what_is_not_so_is_run_again_and_told_what_is",
    ),
    Guard(
        "store/postgres/group_session.py",
        "        raise NotAlone",
        "        return",
        COMMITS_BESIDE + "a_job_that_turns_out_to_concern_other_runs_is_run_alone",
    ),
    Guard(
        "store/postgres/group_session.py",
        "                if self.changed_rows() != before:",
        "                if False:",
        COMMITS_BESIDE + "a_job_that_turns_out_to_concern_other_runs_is_run_alone",
    ),
)

IN_A_DATABASE = (
    Guard(
        "store/postgres/writer.py",
        "            bound_transactions(self._session.connection)\n",
        "",
        "postgres/test_stopped_anywhere.py::test_a_transaction_of_who_stands_still_within_a_pipeline_is_ended",
    ),
    Guard(
        "store/postgres/writer.py",
        'case ("committed",):',
        'case ("kept",):',
        LOST_COMMITS + "a_commit_whose_reply_is_lost_happens_once[after-1]",
    ),
    Guard(
        "store/postgres/writer.py",
        'case ("aborted",):\n                    raise _TransactionLost',
        'case ("aborted",):\n                    return',
        LOST_COMMITS + "a_commit_whose_reply_is_lost_happens_once[before-2]",
    ),
    Guard(
        "store/postgres/writer.py",
        "        session.connection.execute(_COUNT)\n",
        "",
        SESSION_LOCKS + "the_version_of_the_rows_rises_with_each_commit_and_with_nothing_else",
    ),
    Guard(
        "store/postgres/writer.py",
        "        session.connection.execute(_TELL, (named,))\n",
        "",
        SESSION_LOCKS + "what_others_commit_is_heard_and_what_this_process_commits_is_not",
    ),
    Guard(
        "store/postgres/session.py",
        "begin isolation level repeatable read read only",
        "begin read only",
        LOST_COMMITS + "a_read_of_one_state_sees_nothing_that_is_written_meanwhile",
    ),
    Guard(
        "store/postgres/session.py",
        "        with translate_errors():\n            self._await_end()\n            try:",
        "        if True:\n            self._await_end()\n            try:",
        SESSION_LOCKS + "a_read_of_one_state_goes_on_after_its_connection_was_lost",
    ),
    Guard(
        "store/postgres/connection.py",
        "return spell_nul(obj).encode()",
        "return obj.encode()",
        ANY_TEXT + "a_run_whose_texts_hold_nul_ends_and_can_be_read[database]",
    ),
    Guard(
        "store/postgres/connection.py",
        'return restore_nul(str(data, "utf-8")).encode()',
        'return str(data, "utf-8").encode()',
        ANY_TEXT + "what_is_stored_is_what_is_read[database]",
    ),
    Guard(
        "store/postgres/nul_characters.py",
        "(case when strpos(body, '\\u0000') > 0",
        "(case when false",
        ANY_TEXT + "a_run_whose_texts_hold_nul_ends_and_can_be_read[database]",
    ),
    Guard(
        "store/postgres/nul_characters.py",
        '.replace(MARK, f"{MARK}1")',
        "",
        ANY_TEXT + "what_is_stored_is_what_is_read[database]",
    ),
    Guard(
        "store/postgres/schema.py",
        "between -9223372036854775808 and 9223372036854775807",
        "is not null",
        ANY_TEXT + "a_number_that_fits_into_no_column_fails_no_statement",
    ),
    Guard(
        "store/postgres/schema.py",
        "    if version < newest:\n        lacks",
        "    if False:\n        lacks",
        MIGRATED + "a_store_makes_no_tables_and_says_what_does",
    ),
    Guard(
        "store/postgres/database.py",
        "if missing := find_missing(session):",
        "if missing := []:",
        MIGRATED + "what_the_database_lacks_of_its_version_is_named",
    ),
    Guard(
        "store/postgres/ownership.py",
        "where lock = any(?) and seen_at > clock_timestamp() - lease_ms * interval '1 millisecond'",
        "where lock = any(?)",
        SESSION_LOCKS + "a_server_that_stands_still_is_dead_once_its_lease_is_over_and_lives_when_it_goes_on",
    ),
    Guard(
        "store/postgres/ownership.py",
        "            or key in (",
        "            or true or key in (",
        SESSION_LOCKS + "a_killed_server_is_dead_at_once_though_its_lease_is_not_over",
    ),
    Guard(
        "store/postgres/ownership.py",
        "(pg_postmaster_start_time() > clock_timestamp() - lease_ms * interval '1 millisecond'",
        "(false",
        SESSION_LOCKS + "after_a_restart_of_the_database_nobody_is_taken_for_dead_before_the_lease_is_over",
    ),
    Guard(
        "store/postgres/ownership.py",
        "                self._held_until = 0.0",
        "                pass",
        SESSION_LOCKS + "a_lost_session_is_dead_until_there_is_another_and_may_not_act_meanwhile",
    ),
    Guard(
        "store/postgres/database.py",
        "if is_new or not session.connection.closed:",
        "if True:",
        SESSION_LOCKS + "a_store_goes_on_after_its_connections_were_lost",
    ),
    Guard(
        "store/postgres/database.py",
        "if self._loop is not None and not is_own:",
        "if self._loop is not None:",
        SESSION_LOCKS + "what_others_commit_is_heard_and_what_this_process_commits_is_not",
    ),
    Guard(
        "store/postgres/database.py",
        "self._heard_of_any or now - self._looked_at >= LOOK_S",
        "self._heard_of_any",
        "postgres/test_machines_apart.py::test_a_cancel_reaches_a_server_that_hears_nothing",
    ),
    Guard(
        "store/postgres/database.py",
        "await asyncio.wait_for(self._news.wait(), LOOK_S)",
        "await self._news.wait()",
        "postgres/test_machines_apart.py::test_a_worker_that_hears_nothing_takes_what_others_start",
    ),
    Guard(
        "store/postgres/database.py",
        "return super().now() if ahead_ms is None else int(time.monotonic() * 1000 + ahead_ms)",
        "return super().now()",
        SESSION_LOCKS + "the_database_s_clock_is_the_store_s",
    ),
    Guard(
        "store/postgres/database.py",
        "values (?, ?) on conflict do nothing",
        "values (?, ?) on conflict (name) do update set value = excluded.value",
        "postgres/test_access.py::test_servers_that_need_the_sealing_key_at_once_have_the_same",
    ),
    Guard(
        "store/postgres/copy.py",
        "if pids or _is_open(source.path):",
        "if _is_open(source.path):",
        "postgres/test_copied_folders.py::test_nothing_is_copied_beside_rows_that_are_there_or_while_a_server_lives",
    ),
    Guard(
        "store/postgres/copy.py",
        'if target.row(f"select 1 from {table.name} limit 1") is not None:',
        "if False:",
        "postgres/test_copied_folders.py::test_nothing_is_copied_beside_rows_that_are_there_or_while_a_server_lives",
    ),
    Guard(
        "store/tool_pins.py",
        "where definition.body = ''",
        "where body = ''",
        "downstream/test_pins.py::test_what_was_pinned_before_variables_counted_is_adopted_once[database]",
    ),
)

GUARDS = (
    *ONE_OWNER,
    *ONE_ANSWER,
    *SPENDING,
    *APPROVALS,
    *FILES,
    *PROGRAMS,
    *STARTED_BY_HOSTS,
    *OUTSIDE,
    *WORDS,
    *DAMAGED,
    *DAYS,
    *SERVERS_OF_OTHERS,
    *OWN_MACHINE,
    *ASKED_OF_CLIENTS,
    *WHOSE_RUN,
    *WHAT_IS_NEW,
    *IN_THE_TERMINAL,
    *OAUTH,
    *CHANGED_BY_SIBLINGS,
    *MORE_ROUNDS,
    *AGENT_FILES,
    *READ_AS_RESOURCES,
    *AS_TASKS,
    *TOLD_TO_SUBSCRIBERS,
    *LOGGED,
    *TYPED_IN_A_HOST,
    *TELEMETRY,
    *ON_THE_PAGE,
    *BY_WORKERS,
    *AT_PLACES,
    *BY_ONE_SERVER,
    *TAKEN_TOGETHER,
    *ORDER_OF_TAKING,
    *READS_AND_PLANS,
    *SIDE_BY_SIDE,
    *IN_A_DATABASE,
)
