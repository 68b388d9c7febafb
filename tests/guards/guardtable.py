"""The guards of the program, each with the change that switches it off, and a test that fails then.

A row names a function, a class or a constant and a change of its syntax. It stays true when code is moved or formatted
anew, and fails by itself when it does not apply exactly once. CONTRIBUTING.md says how a row is written.
"""

from __future__ import annotations

from typing import NamedTuple

from guard_changes import Change, always, never, replaced, replaced_words, without, without_words


class Guard(NamedTuple):
    name: str
    """Of the definition that is changed, wherever in kairos_mcp it is: `Class.method`, `function` or `CONSTANT`."""
    change: Change | tuple[Change, ...]
    test: str
    """Below tests/; it fails with the change."""
    quick: bool = False
    """Whether the default run tries this row."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.change,) if isinstance(self.change, Change) else self.change


def sql_without(part: str, instead: str = "") -> Change:
    """Leave a part out of the tables: they stand in files of SQL, which this one place reads."""
    reading = "_COMMENT.sub('', file.read_text(encoding='utf-8'))"
    return replaced(reading, f"{reading}.replace({part!r}, {instead!r})")


AGENTS = "agents/"
FIND = "operators/test_find.py::test_"
WATCH = "operators/test_watch.py::test_"
TOKENS_CHANGED = "operators/test_tokens.py::test_"
AUDIT = "operators/test_audit.py::test_"
OBSERVED = "operators/test_observer_page.py::test_"
NINTH_UNIT = "budgets/test_ninth_unit.py::test_"
LOST_COMMITS = "postgres/test_lost_commits.py::test_"
SESSION_LOCKS = "postgres/test_session_locks.py::test_"
MIGRATED = "postgres/test_migrations.py::test_"
ANY_TEXT = "core/test_any_text.py::test_"
RECOVERY = "core/test_app_recovery.py::test_"
OWNERS = "core/test_owner_guards.py::test_"
TEAM_RUNS = "teams/test_team_runs.py::test_"
WIDE_TEAMS = "teams/test_shares_of_tasks.py::test_"
EARLIER_COSTS = "budgets/test_earlier_costs.py::test_"
BRANCHES = "budgets/test_branches.py::test_"
BRANCHING = "budgets/test_branching.py::test_"
OUTAGE_BESIDE = "providers/test_outage_beside.py::test_"
PREFIXES = "budgets/test_prefixes.py::test_"
TASKS_APART = "teams/test_tasks_apart.py::test_"
TEAMS = "flows/test_team.py::test_"
AT_ONCE = "core/test_decided_at_once.py::test_"
RUNS = "core/test_app_runs.py::test_"
BUDGET = "core/test_budget.py::test_"
DECISIONS = "approvals/test_decisions.py::test_"
RIGHTS = "approvals/test_rights.py::test_"
TOGETHER = "approvals/test_asked_together.py::test_"
STEPS = "records/test_steps.py::test_"
EVENT_ROWS = "events/test_rows.py::test_"
NOTIFIED = "events/test_notified.py::test_"
EVENT_METHODS = "events/test_methods.py::test_"
ENDPOINTS = "events/test_endpoints.py::test_"
READ_ONLY = "server/test_read_only.py::test_"
APPROVED_EDITS = "approvals/test_approved_edits.py::test_"
GATE = "approvals/test_gate.py::test_"
ENV = "secrets/test_env_files.py::test_"
LONG = "secrets/test_long_secrets.py::test_a_long_secret_is_masked_to_its_end"
GRAMMAR = "secrets/test_grammar.py::test_"
SOUNDS = "a_value_that_sounds_like_a_name_is_masked_where_credentials_stand"
FORMS_IN_FILES = "secrets/test_forms_in_files.py::test_"
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
STAGE = "tools/test_stage.py::test_"
RENDERED = "commands/test_rendered_markdown.py::test_"
COPIES = "tools/test_stage_copies.py::test_"
STAGED = "approvals/test_staged_runs.py::test_"
STAGED_FLOWS = "approvals/test_staged_flows.py::test_"
MARKED = "crash/test_keys_and_marks.py::test_"
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
RESERVATIONS = "budgets/test_reservations.py::test_"
AT_LIMIT = "core/test_decided_at_once.py::test_answers_of_the_caller_that_reach_a_limit_leave_the_same_rows"
LINES = "providers/test_goal_lines.py::test_"
USAGE = "providers/test_deviating_usage.py::test_"
CALLS = "providers/test_deviating_calls.py::test_"
EVENTS = "providers/test_deviating_events.py::test_"
SERVERS = "providers/test_deviating_servers.py::test_"
ODD_HTTP = "downstream/test_odd_http.py::test_"
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
        "Dialogs._decides_by_dialog",
        without("caller.decides"),
        OAUTH_TESTS + "a_dialog_that_was_shown_is_not_answered_by_a_token_without_the_scope_approve",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        without("algorithm not in setting.algorithms"),
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[signed by an algorithm that is not configured]",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        without("issuer=setting.issuer"),
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[of another issuer]",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        (
            without("audience=setting.audience"),
            replaced("'require': REQUIRED_CLAIMS", "'verify_aud': False, 'require': REQUIRED_CLAIMS"),
        ),
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[for another server]",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        replaced("REQUIRED_CLAIMS", "['sub']"),
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[without an end]",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        replaced("True", "False"),
        OAUTH_TESTS + "a_key_is_used_for_its_own_algorithm_alone_and_a_weak_one_not_at_all",
    ),
    Guard(
        "OAuthVerifier.verify_token",
        without("key.algorithm not in (None, algorithm)"),
        OAUTH_TESTS + "a_key_is_used_for_its_own_algorithm_alone_and_a_weak_one_not_at_all",
    ),
    Guard(
        "_access_token",
        replaced("0 < len(subject) <= MAX_SUBJECT_CHARS and subject.isprintable()", "0 < len(subject)"),
        OAUTH_TESTS + "a_token_that_is_not_valid_here_is_refused[of a subject with hidden characters]",
    ),
    Guard(
        "SigningKeys.find",
        without("self._clock() - self._tried_s > COOLDOWN_S"),
        OAUTH_TESTS + "keys_that_were_rotated_are_fetched_again_and_not_for_every_token_that_names_one",
    ),
    Guard(
        "SigningKeys.find",
        never("self._age_s > STALE_S"),
        OAUTH_TESTS + "an_outage_of_the_authorization_server_is_bridged_and_not_for_ever",
    ),
    Guard(
        "SigningKeys._download",
        never("len(body) > MAX_KEYS_BYTES"),
        OAUTH_TESTS + "a_set_of_keys_that_is_too_large_is_not_read",
    ),
    Guard(
        "Authentication._admit",
        never("not {'run', 'observe'} & set(admission.scopes)"),
        OAUTH_TESTS + "without_the_scope_run_nothing_is_served[approve admin]",
    ),
    Guard(
        "AdminTools.__call__",
        never("scope.get(TOOL) in ADMIN_TOOLS and not has_scope('admin')"),
        OAUTH_TESTS + "only_with_the_scope_admin_tools_are_proposed",
    ),
    Guard(
        "AppContext.check_may_decide",
        never("not caller.decides"),
        OAUTH_TESTS + "an_argument_decides_where_the_host_is_trusted_and_the_token_has_the_scope_approve",
    ),
)

IN_THE_TERMINAL = (
    Guard(
        "RedactedStream._safe_length",
        without("not self._begins_secret(text[at:])"),
        STREAMS + "a_secret_that_comes_in_two_pieces_is_not_heard[7]",
    ),
    Guard(
        "RedactedStream._safe_length",
        without("end > len(text) - MAX_TAIL_CHARS"),
        STREAMS + "each_form_of_a_secret_is_redacted_where_it_comes_letter_by_letter[abcdefgh1]",
    ),
    Guard(
        "_complete_redacted",
        replaced("lambda piece: listener(stream.add(piece))", "listener"),
        STREAMS + "a_run_is_heard_round_by_round_and_what_it_records_is_redacted",
    ),
    Guard(
        "ChatFold.reply",
        never("not (is_done or self._finish)"),
        STREAMS + "a_stream_that_breaks_off_is_no_answer[openai:small-events0]",
    ),
    Guard(
        "EventDecoder._take",
        always("self._is_error or not _HEARTBEAT.fullmatch(text)"),
        EVENTS + "events_are_read_whatever_stands_between_them[ping as data-3]",
    ),
    Guard(
        "EventDecoder._take_data",
        never("len(self._data) > MAX_EVENT_LINES"),
        EVENTS + "the_lines_of_an_event_are_bounded",
    ),
    Guard(
        "index_of",
        never("text.isdecimal()"),
        "providers/test_deviating_calls.py::test_calls_that_come_in_pieces_are_put_together[indexes as texts-1]",
    ),
    Guard(
        "ChatFold.take",
        never("index is not None and index != self._index"),
        "providers/test_deviating_calls.py::test_a_further_answer_in_a_stream_is_not_mixed_into_the_first",
    ),
    Guard(
        "GrowingText._append",
        without("len(set(piece)) >= _MIN_LETTERS"),
        CALLS + "pieces_that_repeat_those_before_are_heard_and_taken_once[short ones-chat]",
    ),
    Guard(
        "GrowingText.end",
        without("len(self._pieces[0]) >= MIN_REPEATED_CHARS"),
        CALLS + "pieces_that_repeat_those_before_are_heard_and_taken_once[two short ones-chat]",
    ),
    Guard(
        "GrowingText._append",
        always("self._last is None"),
        CALLS + "pieces_that_repeat_those_before_are_heard_and_taken_once[each repeats-chat]",
    ),
    Guard(
        "ArgumentPieces.text",
        always("not self._last_is_whole or ..."),
        CALLS + "calls_that_come_in_pieces_are_put_together[each repeats those before-1]",
    ),
    Guard(
        "mend_arguments",
        never("len(told) > 1"),
        CALLS + "a_call_is_taken_whatever_its_shape[two objects-whole]",
    ),
    Guard(
        "_values_in",
        without("len(values) <= MAX_REPETITIONS"),
        CALLS + "arguments_are_compared_with_few_others",
    ),
    Guard(
        "once_each",
        always("call.get('id')"),
        CALLS + "a_call_is_taken_whatever_its_shape[the same call again, without ids-whole]",
    ),
    Guard(
        "MessageFold._begin_ahead",
        replaced("self._ahead[:end]", "self._ahead"),
        CALLS + "what_comes_with_the_start_of_a_message_is_taken_once[a text that comes again]",
    ),
    Guard(
        "MessageFold.reply",
        never("not (is_done or self.has_ended or ...)"),
        EVENTS + "a_message_without_a_stop_reason_is_cut_off[3]",
    ),
    Guard(
        "is_end",
        always("_plain(str(_name_of(word))) not in _NO_END"),
        EVENTS + "the_finish_reason_of_a_chat_is_found_wherever_it_stands[in the choice]",
    ),
    Guard(
        "error_of",
        never("isinstance(held, dict) and ..."),
        EVENTS + "an_error_that_says_nothing_is_none[error-error6]",
    ),
    Guard(
        "newest_of_all",
        replaced_words("where {IS_NO_TRIAL}{older}", "where true{older}"),
        "server/test_trials_hidden.py::test_what_doctor_tried_is_in_no_list_of_runs",
    ),
    Guard(
        "find_last_line",
        never("end and said[end - 1].startswith('at ')"),
        "downstream/test_odd_servers.py::test_the_line_of_stderr_that_is_shown_says_what_is_wrong[of Node]",
    ),
    Guard(
        "BoundedHttp._read_other",
        without("is_lost"),
        ODD_HTTP + "a_session_that_is_lost_is_told_and_the_next_call_has_another[404 with an error]",
    ),
    Guard(
        "_fold_events",
        without("deadline.reschedule(...)"),
        STREAMS + "a_connection_that_stays_open_behind_the_last_event_is_left[openai:small-events0]",
    ),
    Guard(
        "_begins_another",
        without("given_id != call.fields['id']"),
        CALLS + "calls_that_come_in_pieces_are_put_together[index 0 for both, in pieces-1]",
    ),
    Guard(
        "read_usage",
        replaced("_sum_cache_writes(...)", "0"),
        USAGE + "usage_of_a_message_is_charged_as_it_was_meant[whole-a cache written, by its life alone]",
    ),
    Guard(
        "_with_reasoning",
        replaced("written + beside", "written"),
        USAGE + "usage_is_charged_as_it_was_meant[whole-reasoning beside]",
    ),
    Guard(
        "_parse_count", always("0 <= count <= MAX_COUNT"), USAGE + "usage_is_charged_as_it_was_meant[whole-too many]"
    ),
    Guard(
        "largest_report",
        without("report.total_tokens >= largest.total_tokens"),
        USAGE + "usage_in_every_chunk_is_charged_once[None-True]",
    ),
    Guard(
        "take_finish",
        never("meaning == 'broken'"),
        USAGE + "a_reply_that_says_it_broke_off_is_tried_again[error-whole]",
    ),
    Guard(
        "_find_message",
        replaced("error_of(choice) or error_of(reply)", "None"),
        EVENTS + "an_error_in_a_200_is_that_error[429-whole]",
    ),
    Guard(
        "end_in_error",
        without("exchange.reports_usage"),
        EVENTS + "an_error_after_a_report_costs_what_is_reported[usage alone-error0]",
    ),
    Guard(
        "end_in_error",
        never("not is_covered"),
        EVENTS + "an_error_after_a_report_costs_what_is_reported[before its text-error0]",
    ),
    Guard(
        "_read_bounded",
        never("size > MAX_REPLY_BYTES"),
        "providers/test_failures.py::test_a_reply_without_end_is_refused",
    ),
    Guard(
        "_ConversationWriter._with_unique_id",
        without("wire_id in self.taken_ids"),
        SERVERS + "ids_that_are_missing_or_repeat_go_back_as_ours[ids0]",
    ),
    Guard(
        "with_reported_usage", always("usage is None"), SERVERS + "a_reply_that_broke_off_costs_what_it_reports[error]"
    ),
    Guard(
        "provider_errors:_quote",
        replaced("redact_keys(said.words, environ)", "said.words"),
        SERVERS + "words_are_redacted_before_they_are_cut",
    ),
    Guard(
        "_bad_reply_failure",
        without("exchange.note_repair(...)"),
        SERVERS + "an_error_in_a_reply_of_status_200_is_noted_once",
    ),
    Guard(
        "plan_commit",
        replaced("_failure_notes(state, attempts)", "()"),
        SERVERS + "an_error_in_a_reply_of_status_200_is_noted_once",
    ),
    Guard(
        "find_possible",
        without("each.name not in before"),
        SERVERS + "a_server_that_knows_neither_name_is_not_asked_for_ever",
    ),
    Guard(
        "find_possible",
        never("before & {*LIMIT_FIELDS}"),
        SERVERS + "a_server_that_knows_neither_name_is_not_asked_for_ever",
    ),
    Guard(
        "take_written_call",
        without("_is_answer(reply.content, step)"),
        WRITTEN + "what_the_schema_of_the_run_admits_is_its_answer[schema0-True-{}]",
    ),
    Guard(
        "take_written_call",
        without("len(offered) < len(written)"),
        WRITTEN + "beside_a_call_of_what_was_not_offered_none_is_taken",
    ),
    Guard(
        "_type_texts",
        never("has_more_values(','.join(coded.values()), MAX_VALUES)"),
        WRITTEN + "a_tag_that_holds_too_many_values_is_asked_back",
    ),
    Guard(
        "written_calls:_find_problem",
        without("'; '.join(problems)"),
        WRITTEN + "a_call_whose_arguments_do_not_fit_is_asked_back",
    ),
    Guard("redact_model", replaced("redactor.redact_text(text).text", "text"), SERVERS + "a_note_holds_no_secret"),
    Guard(
        "planner:_loop",
        replaced("was_too_long or usage.is_full(...)", "usage.is_full(...)"),
        SERVERS + "a_conversation_that_is_too_long_is_shortened_once_and_asked_again",
    ),
    Guard(
        "phase_failure",
        replaced(
            "case Failure(code='context_full', message=message): ...",
            "case Failure(code='never', message=message): ...",
        ),
        SERVERS + "a_phase_that_is_too_long_ends_as_that_and_names_the_setting",
    ),
    Guard(
        "_is_certain",
        without("target.is_exact"),
        SHORT_NAMES + "without_a_terminal_a_short_name_decides_only_with_the_digest[words2]",
    ),
    Guard(
        "_pin",
        without("len(digest) >= DIGEST_CHARS"),
        SHORT_NAMES + "without_a_terminal_a_short_name_decides_only_with_the_digest[words0]",
    ),
    Guard(
        "Keyboard._show_unanswered",
        replaced("termios.TCSAFLUSH", "termios.TCSADRAIN"),
        IN_PLACE + "a_key_that_is_typed_as_the_question_appears_is_no_answer_to_it",
    ),
    Guard(
        "Keyboard._show_unanswered",
        without("self._typed = b''"),
        IN_PLACE + "what_is_no_choice_is_asked_again_and_what_was_typed_before_the_question_counts_for_nothing",
    ),
    Guard(
        "Keyboard._show_unanswered",
        without("await anyio.sleep(SEEN_S)"),
        IN_PLACE + "a_key_that_is_typed_as_the_question_appears_is_no_answer_to_it",
    ),
    Guard(
        "render_markdown",
        without("_escape(shown.parsed)"),
        "commands/test_talk.py::test_the_markdown_of_an_answer_is_rendered_and_hides_nothing",
    ),
    Guard(
        "render_markdown",
        replaced("'\\n'.join(lines).replace(...)", "'\\n'.join(lines)"),
        "commands/test_talk.py::test_the_markdown_of_an_answer_is_rendered_and_hides_nothing",
    ),
    Guard(
        "render_markdown",
        replaced("{'html': False}", "{'html': True}"),
        "commands/test_talk.py::test_the_markdown_of_an_answer_is_rendered_and_hides_nothing",
    ),
    Guard(
        "render_markdown",
        replaced("text if ... else rendered", "rendered"),
        RENDERED + "what_would_not_be_shown_leaves_the_text_as_it_was_written",
    ),
    Guard(
        "render_markdown",
        never("len(text) > MAX_CHARS or text.count('\\n') > MAX_LINES"),
        RENDERED + "a_long_text_is_shown_as_it_was_written",
    ),
    Guard(
        "_has_known_width",
        never("'\\t' in line and len(line.expandtabs()) > columns"),
        RENDERED + "what_may_be_narrower_than_it_counts_erases_nothing_before_it",
    ),
    Guard(
        "_has_known_width",
        replaced("line.isascii() or ...", "True"),
        RENDERED + "what_may_be_narrower_than_it_counts_erases_nothing_before_it",
    ),
    Guard(
        "cli.escape:ESCAPES",
        (without("*range(9608, 9617)"), without("*range(10072, 10075)")),
        IN_PLACE + "no_text_of_a_model_can_look_like_the_question",
    ),
    Guard(
        "ask_about_approval",
        replaced("QuestionLine(line)", "line"),
        IN_PLACE + "no_text_of_a_model_can_look_like_the_question",
    ),
    Guard(
        "_Program.invoke",
        always("wrong is None"),
        "commands/test_runs.py::test_a_wrong_choice_is_refused_with_the_nearest_one_like_any_wrong_use[words0]",
    ),
    Guard(
        "ProgressScreen.print_above",
        never("self.is_speaking"),
        "commands/test_conversation.py::test_what_was_done_is_not_printed_into_what_is_being_said",
    ),
    Guard(
        "Overview.find_run",
        without("principal is not None and found[0].principal != principal"),
        "approvals/test_commands.py::test_what_can_not_be_decided_is_said_and_stores_nothing",
    ),
)

ONE_OWNER = (
    Guard(
        "_IS_PARKED",
        replaced_words("fence =", "fence >="),
        JOINED + "nothing_is_written_where_another_process_has_changed_the_run[another server had it meanwhile]",
    ),
    Guard(
        "_IS_PARKED",
        replaced_words("paused is null and outcome", "outcome"),
        JOINED + "nothing_is_written_where_another_process_has_changed_the_run[it was paused]",
    ),
    Guard(
        "_NO_OTHER_REQUEST",
        replaced_words("= ?", "= -?"),
        JOINED + "nothing_is_written_where_a_client_was_asked_about_the_step",
    ),
    Guard(
        "_IS_PARKED",
        replaced_words("not null)", "null)"),
        JOINED + "nothing_is_written_where_the_ask_was_answered_before",
    ),
    Guard(
        "condition_of",
        replaced("f'{statement} and {_NOTHING_CAME}' if decided.releases else statement", "statement"),
        SHORTCUTS + "a_run_that_is_about_to_be_let_go_of_is_kept_for_what_came",
    ),
    Guard("Ledger.settle", replaced("_TOKENS_AND_MONEY", "NOTHING"), AT_LIMIT + "[above a limit of the day]"),
    Guard("Ledger.hold", replaced("_LIMITS_OUTSIDE", "NOTHING"), AT_LIMIT + "[the last call of the day]"),
    Guard(
        "Ledger.hold",
        replaced("(held, 0)", "(NOTHING, 0)"),
        RESERVATIONS + "random_histories_never_pass_a_cap_and_add_up",
    ),
    Guard(
        "Ledger.hold",
        never("request.price is None and self.shared_accounts is None"),
        RESERVATIONS + "what_has_no_price_is_not_held_before_shared_accounts_are_read",
        quick=True,
    ),
    Guard(
        "decide_at_once",
        never("ledger.exceeded and any(ledger.exceeded_caps())"),
        AT_LIMIT + "[above a limit of the run]",
    ),
    Guard(
        "RunWorker.drive",
        without("self.is_current = False"),
        SHORTCUTS + "after_an_error_it_is_read_before_anything_more_is_begun",
    ),
    Guard(
        "memory_in_rows",
        without("state.has_notes_of_tools = True"),
        SHORTCUTS + "what_a_tool_has_kept_goes_with_the_answer_of_its_call",
    ),
    Guard(
        "RunState.has_notes_of_tools",
        replaced("True", "False"),
        SHORTCUTS + "what_a_server_that_ended_has_kept_goes_with_the_end_of_the_run",
    ),
    Guard(
        "_OWNED_RUN",
        replaced_words("owner = ? and fence = ?", "? is not null and ? is not null"),
        RECOVERY + "an_owner_whose_run_was_taken_commits_nothing_more",
        quick=True,
    ),
    Guard(
        "_release",
        never("decided.releases and condition is None and has_arrivals(...)"),
        RECOVERY + "a_run_is_not_let_go_of_while_something_that_came_was_not_seen",
    ),
    Guard(
        "release_run",
        never("has_arrivals(session, plan.run, plan.open_step_ids)"),
        RECOVERY + "a_run_is_not_let_go_of_while_something_that_came_was_not_seen",
    ),
    Guard(
        "take_run",
        (replaced_words("(owner is null or owner in (", "("), replaced_words("))", "or 1)")),
        OWNERS + "a_run_that_somebody_living_owns_is_taken_by_nobody",
    ),
    Guard(
        "drain_inbox",
        without("(now.owner, now.fence) != (owner, fence)"),
        OWNERS + "control_requests_are_applied_by_the_owner_alone",
    ),
    Guard(
        "call_redacted",
        without("ctx.memory.check_owner()"),
        "core/test_released.py::test_a_tool_that_does_more_than_read_is_not_called_after_a_release",
    ),
    Guard(
        "HttpConnection._send_bytes",
        without("recheck()"),
        "crash/test_woken_late.py::test_an_order_that_another_server_made_is_not_sent_by_the_one_that_wakes",
    ),
    Guard(
        "runner:_start_process",
        without("request.recheck()"),
        "tools/test_command_released.py::test_a_program_is_not_started_where_its_run_is_anothers_by_then",
    ),
    Guard(
        "ServerClient.call",
        without("call.recheck()"),
        "downstream/test_server_lifecycle.py::test_a_call_is_not_sent_where_its_run_is_anothers_once_the_server_is_there",
    ),
    Guard(
        "BoundedHttp.handle_async_request",
        without("recheck()"),
        "downstream/test_downstream_transports.py::"
        "test_over_http_a_call_is_not_sent_where_its_run_is_anothers_once_the_connection_stands",
    ),
    Guard(
        "apply_changes",
        replaced(
            "if done:\n    ctx.memory.check_owner()\nif ctx.stop.is_set or ...:\n    ...",
            "if ctx.stop.is_set or ...:\n    ...",
        ),
        RELEASED_EDITS + "no_further_file_is_changed_and_the_next_server_brings_it_to_its_end",
    ),
    Guard(
        "recover",
        replaced("_check_recovery(ctx)\n_clear_staging(...)", "_clear_staging(...)"),
        RELEASED_EDITS + "a_recovery_removes_no_staging_file_once_the_run_is_anothers",
    ),
    Guard(
        "recover",
        replaced("_check_recovery(ctx)\n_apply_change(...)", "_apply_change(...)"),
        RELEASED_EDITS + "a_recovery_changes_no_file_once_the_run_is_anothers",
    ),
    Guard(
        "recover",
        replaced("if cause is not None:\n    _check_recovery(ctx)\n    ...", "if cause is not None:\n    ..."),
        RELEASED_EDITS + "a_recovery_takes_no_file_back_once_the_run_is_anothers",
    ),
    Guard(
        "_check_recovery",
        never("time.monotonic() >= ctx.deadline"),
        "tools/test_writing_interrupted.py::test_a_look_whose_time_is_over_writes_nothing_more",
    ),
    Guard(
        "_run_checked",
        replaced("FenceLost", "ZeroDivisionError"),
        RELEASED_EDITS + "no_further_file_is_changed_and_the_next_server_brings_it_to_its_end",
    ),
    Guard(
        "missing_settings",
        never("... and route.name not in serves.routes"),
        "providers/test_out_of_reach.py::test_a_server_without_a_provider_leaves_the_run_to_one_that_has_it",
    ),
    Guard(
        "open_call",
        without("app.watcher.wake()"),
        "crash/test_left_behind.py::test_any_tool_that_is_called_makes_the_server_go_on_with_it",
    ),
    Guard(
        "dead_owners",
        without("lock is None or lock not in living"),
        OWNERS + "an_owner_that_lives_is_not_among_the_dead",
    ),
    Guard("release_runs", replaced_words("?, fence = fence + 1", "?"), OWNERS + "a_release_raises_the_fence"),
    Guard(
        "RunWorker._perform_steps",
        without("if self._inbox_changed: ..."),
        OWNERS + "a_step_that_a_cancel_forestalled_during_its_commit_is_never_begun",
    ),
    Guard(
        "RunWorker._advance",
        without("self.state.run.paused is not None"),
        RUNS + "a_pause_lets_what_runs_finish_and_begins_nothing_more",
    ),
)

ONE_ANSWER = (
    Guard(
        "_read_migrations",
        sql_without(" primary key references step"),
        RECOVERY + "a_mark_takes_one_answer_whoever_brings_it",
    ),
    Guard(
        "_find_open_step",
        without("found.body is None and (... or run.outcome is not None)"),
        OWNERS + "an_answer_is_taken_for_an_open_step_and_another_one_is_refused",
    ),
    Guard(
        "_find_open_step",
        replaced("found.body == encode_answer(submitted.answer)", "found.body"),
        OWNERS + "an_answer_is_taken_for_an_open_step_and_another_one_is_refused",
    ),
    Guard("find_same_start", never("found[2] != new.start_digest"), RUNS + "a_key_gives_its_run_also_after_the_end"),
    Guard(
        "_read_dropped",
        without("step.body is None"),
        OWNERS + "what_was_answered_meanwhile_is_not_released_as_well",
    ),
    Guard(
        "Runner.replay",
        without("request != digest"),
        "core/test_runner.py::test_a_row_that_asks_something_else_is_named_by_its_path",
        quick=True,
    ),
    Guard(
        "Runner._add_waiting",
        never("path in self._used_paths"),
        "core/test_runner.py::test_a_name_used_twice_is_refused",
    ),
    Guard(
        "decide_at_once",
        without("runner.try_begin(path)"),
        TEAM_RUNS + "a_task_that_is_alone_has_its_account_from_its_first_step_on",
    ),
    Guard(
        "ToolAccess.offered_at",
        always("self.by_agent is None"),
        TEAM_RUNS + "a_tool_that_its_agent_does_not_have_is_not_called_though_another_agent_has_it",
    ),
    Guard(
        "_run_tasks",
        replaced("_watch_answer_needs(given, tasks)", "UNLIMITED"),
        TEAM_RUNS + "the_limits_of_a_team_are_sums_and_what_is_left_pays_the_answer",
    ),
    Guard(
        "_divide",
        never("share.keeps_share and aside is None"),
        BRANCHING + "what_comes_after_them_keeps_a_part_in_the_units_that_are_not_named",
    ),
    Guard(
        "_free_by_unit",
        replaced("... + sum(each[place] or 0 for each in promised)", "..."),
        BRANCHING + "whatever_runs_side_by_side_keeps_what_it_has_and_what_is_set_aside_stays",
    ),
    Guard(
        "open_branch",
        always("_buys_closing(...)"),
        BRANCHING + "fewer_run_where_a_part_for_each_would_buy_no_round_and_closing_and_one_alone_has_the_reserve",
    ),
    Guard(
        "_buys_closing",
        replaced("_affordable_tokens(remaining, step, closing_tokens)[0] >= min(...)", "True or min(...)"),
        BRANCHING + "fewer_run_where_a_part_for_each_would_buy_no_round_and_closing_and_one_alone_has_the_reserve",
    ),
    Guard("_binding_caps", never("cap == most"), BRANCHING + "what_was_asked_for_a_branch_itself_is_no_reason_to_wait"),
    Guard(
        "BranchShare.count_parts",
        replaced("(beginning + (beginning < unbegun), 1 + (unbegun > 1))", "(beginning, 1)"),
        BRANCHING + "as_many_divide_what_is_free_as_may_run_and_one_part_stays_for_those_to_come",
    ),
    Guard(
        "Ledger.open_branches",
        never("siblings and not is_enough"),
        WIDE_TEAMS + "sixteen_tasks_buy_nine_tenths_of_what_a_small_budget_can_buy_and_the_answer[16]",
    ),
    Guard(
        "raise_caps",
        never("share.unended > len(siblings) + 1"),
        BRANCHING + "those_that_run_get_more_once_all_have_begun_and_as_much_as_each_other",
    ),
    Guard(
        "raise_caps",
        replaced("range(share.unended, 0, -1)", "(1,)"),
        BRANCHING + "those_that_run_get_more_once_all_have_begun_and_as_much_as_each_other",
    ),
    Guard(
        "_unused_share",
        replaced("max(0, asked - done)", "asked"),
        BRANCHING + "a_branch_that_gets_more_takes_nothing_from_another_nor_of_what_is_set_aside",
    ),
    Guard(
        "Ledger.fit",
        replaced("if caps is not None: ...", "if False: ..."),
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "_decide_step",
        never("may_wait and request.wanted_tokens and ledger.may_get_more(...)"),
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "_decide_steps_in_branches",
        replaced("sorted(enumerate(plan.new_steps), key=...)", "enumerate(plan.new_steps)"),
        BRANCHES + "of_branches_that_all_wait_for_each_other_one_is_refused_and_the_others_have_what_it_leaves",
    ),
    Guard(
        "_decide_steps_in_branches",
        without("not plan.others_move"),
        BRANCHES + "a_branch_that_has_used_its_cap_waits_for_what_the_others_leave_and_gets_it",
    ),
    Guard(
        "Ledger.may_get_more",
        never("any(is_final(...) for each in around)"),
        BRANCHES + "what_was_asked_for_a_branch_itself_is_no_reason_to_wait_for_others",
    ),
    Guard(
        "_watch_answer_needs",
        replaced("min(most, given.synthesis_conversation(found).size + SHORT_RESULT * unended)", "most"),
        WIDE_TEAMS + "sixteen_tasks_buy_nine_tenths_of_what_a_small_budget_can_buy_and_the_answer[16]",
    ),
    Guard(
        "_pause_at_rest",
        replaced("... - state.kept_waiting", "..."),
        OUTAGE_BESIDE + "a_branch_that_waits_for_what_another_leaves_keeps_no_run_from_its_pause",
    ),
    Guard(
        "_plan_new_steps",
        never("state.may_be_kept_waiting(item[0])"),
        WIDE_TEAMS + "branches_that_wait_take_no_line_before_one_that_goes_on_in_the_same_commit",
    ),
    Guard(
        "StepExecutor.reservation_request",
        without("bound = bound if beside is None else min(bound, beside)"),
        WIDE_TEAMS + "a_task_is_bounded_by_what_one_beside_it_cost_that_begins_alike",
    ),
    Guard(
        "PrefixReports.bound",
        replaced(
            "conversation.size - prefix.size + MESSAGE_TOKENS * (len(...) - prefix.length)",
            "MESSAGE_TOKENS * (len(...) - prefix.length)",
        ),
        PREFIXES + "no_request_costs_more_than_its_bound",
    ),
    Guard(
        "PrefixReports.bound",
        replaced("max(known)", "known[-1]"),
        PREFIXES + "the_most_that_was_reported_lately_counts_and_estimates_do_not",
    ),
    Guard(
        "StepExecutor.reservation_request",
        replaced("(self._prefix_reports, self.known_costs)", "(self._prefix_reports,)"),
        EARLIER_COSTS + "a_run_is_bounded_by_what_an_earlier_one_cost_in_whatever_process",
    ),
    Guard(
        "prefixes:_LIST",
        replaced_words("principal = ?", "? is not null"),
        EARLIER_COSTS + "neither_other_tools_nor_another_model_address_or_principal_is_bounded_by_it",
    ),
    Guard(
        "RunFactory.make_state",
        without("self.settings.base_url"),
        EARLIER_COSTS + "neither_other_tools_nor_another_model_address_or_principal_is_bounded_by_it",
    ),
    Guard(
        "StepExecutor.reported_cost",
        without("self._estimators[...].length"),
        EARLIER_COSTS + "a_later_request_of_a_conversation_says_nothing_of_what_it_began_with",
    ),
    Guard(
        "_room_notes",
        replaced("read + USEFUL_TOKENS", "read"),
        EARLIER_COSTS + "a_start_says_for_how_many_calls_a_limit_has_room_by_what_is_known_of_their_cost",
    ),
    Guard("prefix_of", without("step.tools.digest"), PREFIXES + "a_report_bounds_what_begins_alike_and_nothing_else"),
    Guard(
        "_run_task",
        never("failed is not None and task.task.on_failed_dependency == 'skip'"),
        TEAMS + "a_task_that_failed_twice_holds_back_what_depends_on_it_and_nothing_else",
    ),
    Guard(
        "_run_task",
        without("attempt.problem is not None"),
        TEAMS + "an_agent_may_end_its_task_because_the_plan_is_wrong_and_no_other_tries_it",
    ),
    Guard(
        "TeamInput.next_agent",
        replaced("self.agents[name].power", "0"),
        TEAMS + "a_failed_task_goes_to_the_least_powerful_agent_that_fits[read-needs0]",
    ),
    Guard(
        "_find_faults",
        replaced("name for name, is_good in earlier.items() if is_good", "earlier"),
        TEAMS + "a_replacement_takes_no_id_again_and_waits_for_nothing_that_failed",
    ),
    Guard(
        "_find_faults",
        replaced("CycleError", "ZeroDivisionError"),
        TEAMS + "a_plan_that_is_none_is_repaired_once_and_else_becomes_a_single_task_that_says_so",
    ),
    Guard(
        "_ActiveGather.may_begin",
        always("len(self.begun) < self.gather.max_parallel"),
        "core/test_runner.py::test_never_more_branches_run_than_the_limit_allows",
    ),
    Guard(
        "_must_ask_person",
        never("not (repeatable or ... and step.probe_result.state == 'not_done')"),
        "crash/test_settle.py::test_a_command_whose_end_is_unknown_is_never_repeated_by_itself[run_control-already_done-1]",
    ),
    Guard(
        "_finish_probed_calls",
        replaced("'resolved'", "'never'"),
        "crash/test_settle.py::test_an_edit_that_was_made_before_the_crash_is_not_made_again",
    ),
)

SPENDING = (
    Guard(
        "_stop_step",
        always("step.failed_result is None"),
        "providers/test_cut_off_between_tries.py::"
        "test_a_failed_attempt_is_charged_with_what_is_known_of_it_where_a_cancel_forestalls_the_next",
    ),
    *(
        Guard(
            "_COUNTED",
            replaced("unit.held == 'count'", f"unit.held == 'count' and field != '{unit}'"),
            RESERVE + "a_count_that_is_used_up_is_refused",
        )
        for unit in ("rounds", "model_calls", "tool_calls")
    ),
    *(
        Guard(
            "_WEIGHED",
            replaced("unit.held == 'tokens'", f"unit.held == 'tokens' and field != '{unit}'"),
            RESERVE + test_name,
            quick=unit == "total_tokens",
        )
        for unit, test_name in (
            ("input_tokens", "a_completion_that_does_not_fit_is_refused"),
            ("output_tokens", "a_completion_is_clamped_to_what_is_left"),
            ("total_tokens", "a_completion_is_clamped_to_what_is_left"),
            ("nano_usd", "a_completion_is_clamped_to_what_is_left"),
        )
    ),
    Guard(
        "decode_units",
        replaced("(*found, *[0] * missing)", "found"),
        NINTH_UNIT + "a_run_that_began_before_goes_on_with_the_unit",
    ),
    Guard("decode_units", never("missing < 0"), NINTH_UNIT + "amounts_of_a_newer_version_are_refused_and_say_so"),
    Guard(
        "_grant_time",
        replaced("min(request.timeout_ms, share)", "request.timeout_ms"),
        RESERVE + "a_completion_is_clamped_to_what_is_left",
    ),
    Guard(
        "_grant_tokens",
        replaced("_closings_to_keep(account, request)", "(None,)"),
        RESERVE + "after_a_round_a_closing_call_fits",
    ),
    Guard(
        "_reserve_in_nearest",
        never("counts.rounds and remaining.model_calls == 1 and account.spent.rounds"),
        BUDGET + "the_last_model_call_is_kept_for_the_closing",
    ),
    Guard(
        "_grant_time",
        replaced("remaining.milliseconds // max(1, request.time_shares)", "remaining.milliseconds"),
        BUDGET + "the_steps_of_a_commit_share_the_time_that_is_left",
    ),
    Guard(
        "_reserve_outside",
        never("weight is not None and remaining[place] == 0"),
        BUDGET + "a_completion_is_not_handed_out_where_a_token_limit_is_used_up",
    ),
    Guard(
        "StepResult.spent",
        replaced("with_measured(self.counted, self.answer)", "self.counted"),
        NINTH_UNIT + "a_new_store_has_the_unit_and_no_tool_is_called_once_nothing_is_left_of_it",
    ),
    Guard(
        "_decide_step",
        replaced(
            "with_measured(reserved.held._replace(milliseconds=0), answer)", "reserved.held._replace(milliseconds=0)"
        ),
        NINTH_UNIT + "a_new_store_has_the_unit_and_no_tool_is_called_once_nothing_is_left_of_it",
    ),
    Guard(
        "_exhausted_unit",
        never("remaining[place] == 0 and counts.tool_calls"),
        NINTH_UNIT + "a_new_store_has_the_unit_and_no_tool_is_called_once_nothing_is_left_of_it",
    ),
    Guard(
        "_fit_into_shared",
        never("... and request.counts.model_calls > remaining.model_calls"),
        RESERVE + "what_runs_share_is_never_passed_either",
    ),
    Guard(
        "_grant_tokens",
        never("request.price is None and remaining.nano_usd is not None"),
        "providers/test_money.py::test_money_that_nobody_can_count_is_not_spent_under_a_cap",
    ),
    Guard(
        "Tariff.from_settings",
        never("is_loopback(base_url)"),
        "providers/test_unpriced.py::test_a_model_on_this_machine_is_free_and_is_no_unknown",
    ),
    Guard(
        "StepExecutor.record_answer",
        replaced("(conversation, sent.route)", "(conversation, 'provider')"),
        "budgets/test_meter.py::test_what_a_caller_said_of_its_own_tokens_bounds_no_call_of_a_provider",
    ),
    Guard(
        "Ledger.exceeded_caps",
        replaced("... + getattr(account.held, unit)", "..."),
        "budgets/test_branches.py::test_a_cap_that_an_honest_answer_crosses_after_one_beyond_its_hold_is_named",
    ),
    Guard(
        "StoreWatcher._check_store",
        replaced("found.items() & self._undriven.items()", "dict[int, int]().items()"),
        "core/test_abandoned_calls.py::test_a_run_moves_whose_start_was_given_up",
    ),
    Guard(
        "_AS_KNOWN",
        replaced_words("= ?", "is not ? + 0.5"),
        AT_ONCE + "an_account_that_somebody_else_has_written_is_read_again",
    ),
    Guard(
        "_OWNED",
        replaced_words("owner = ? and fence = ?", "(owner = ? or 1) and (fence = ? or 1)"),
        AT_ONCE + "a_run_that_has_another_owner_is_written_no_more",
    ),
    Guard(
        "_write_due",
        replaced(
            "write_shared(session, number, change)", "write_shared(session, number, change._replace(limited=NOTHING))"
        ),
        RESERVATIONS + "random_histories_never_pass_a_cap_and_add_up",
    ),
    Guard(
        "_write_due",
        without("write_shared(session, earlier, done.undone())"),
        AT_ONCE + "a_mandates_day_that_is_used_up_leaves_the_principals_day_as_it_was",
    ),
    Guard(
        "_write_back",
        without("session.rows(statement, before)"),
        AT_ONCE + "what_is_not_decided_at_once_leaves_the_same_rows",
    ),
    Guard(
        "RunState.has_more_to_do",
        without("bool(self.runner.branches) and self._has_branches_to_open"),
        TEAM_RUNS + "a_task_that_is_alone_has_its_account_from_its_first_step_on",
    ),
    Guard(
        "QueuedJob.run",
        never("session.changed_rows() != before"),
        "core/test_writer.py::test_a_job_that_refuses_after_a_write_leaves_nothing_and_takes_no_other_with_it",
    ),
    Guard(
        "drain_inbox",
        replaced("{'commit', 'pause'}", "{'commit'}"),
        "crash/test_failed_commits.py::test_a_resume_lets_a_flow_go_on_though_the_server_ended_before_it_did",
    ),
    Guard(
        "PendingStep.apply_approval",
        without("self.is_open"),
        "crash/test_settle_approved.py::test_a_command_that_a_rule_let_through_later_is_never_repeated_by_itself_either",
    ),
    Guard(
        "_begin_call",
        never("not isinstance(access.authorize_at_once(path, step, spec), Allowed)"),
        AT_ONCE + "what_is_not_decided_at_once_leaves_the_same_rows",
    ),
    Guard(
        "decide",
        replaced("result.spent", "NOTHING"),
        "approvals/test_approved_edits.py::test_an_edit_waits_for_approval_and_is_made_once",
    ),
    Guard(
        "_decide_attempt",
        replaced(
            "ledger.settle(path, attempt.freed, lost, attempt.shared_accounts)",
            "ledger.settle(path, attempt.freed, NOTHING, attempt.shared_accounts)",
        ),
        "providers/test_runs.py::test_an_attempt_whose_end_is_unknown_stays_charged",
    ),
    Guard(
        "DailyAccounts.find_accounts",
        without("await self._is_still_charged(run.principal, known[0], at)"),
        "budgets/test_days_limits.py::test_budget_020_a_round_is_charged_to_the_day_on_which_it_was_reserved",
    ),
    Guard(
        "DailyAccounts._find_and_check",
        replaced("session.row(accounts.ANY_CHARGE) is None", "True"),
        "budgets/test_days_limits.py::test_a_damaged_day_refuses_instead_of_beginning_anew",
    ),
    Guard(
        "ANY_CHARGE",
        without_words("union all select 1 from attempt where shared is not null"),
        "budgets/test_days_limits.py::test_a_step_or_an_attempt_alone_is_a_charge",
    ),
    Guard(
        "DailyAccounts._find_and_check",
        replaced("accounts.check_day_accounts_exist(session, principal, min(day.begins, at))", "None"),
        "budgets/test_days_limits.py::test_a_damaged_day_refuses_instead_of_beginning_anew",
    ),
    Guard(
        "RunWorker._rebuild",
        replaced("integrity.check_run_account(session, run.n, run.account)", "None"),
        OWNERS + "an_account_that_is_not_the_sum_of_its_rows_spends_nothing_more",
    ),
    Guard(
        "_take_back_closings",
        always("all(...)"),
        "core/test_taken_back.py::test_one_that_is_under_way_ends_the_run",
    ),
    Guard(
        "SubmittedAnswer.as_result",
        replaced("Refused | Extended", "Refused"),
        "core/test_taken_back.py::test_the_loop_goes_on_and_may_close_again",
    ),
    Guard(
        "ToolAccess._check_rate",
        always("len(recent) < CALLS_PER_MINUTE"),
        RUNS + "the_thirty_first_call_of_a_changing_tool_in_a_minute_is_refused",
    ),
    Guard(
        "ToolAccess._check_rate",
        replaced("0 <= at - recent[0] < 60000", "at - recent[0] < 60000"),
        RUNS + "a_clock_that_is_set_back_does_not_stop_a_tool_for_long",
    ),
)

APPROVALS = (
    Guard(
        "ask_queued",
        replaced("... - len(list_pending(session, run, at))", "..."),
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "_NEXT_QUEUED",
        replaced_words(
            "(select count(*) from approval as other where other.run = approval.run and {_IS_PENDING}) < :places",
            ":at < :places << 60",
        ),
        DECISIONS + "a_fifth_of_a_run_waits_for_a_place_and_places_go_in_the_order_of_marks",
    ),
    Guard(
        "_set_verdict",
        without("approvals.ask_queued(session, n, at)"),
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "write_commit",
        without("approvals.ask_queued(session, run, at)"),
        DECISIONS + "a_run_that_ends_gives_its_places_up[cancelled]",
    ),
    Guard(
        "force_cancel",
        without("approvals.ask_queued(session, run.n, at)"),
        DECISIONS + "a_run_that_ends_gives_its_places_up[broken off]",
    ),
    Guard(
        "_must_record",
        never("found.unasked and found.verdict is None"),
        DECISIONS + "the_seventeenth_of_a_workspace_waits_for_a_place",
    ),
    Guard(
        "RunState._apply_verdicts",
        replaced("(not row.is_renewable, row.is_renewable)", "(True, False)"),
        APPROVED_EDITS + "a_lapsed_approval_is_asked_again_once_by_a_server_that_died_after_the_resume",
    ),
    Guard(
        "RunState._apply_verdicts",
        replaced("(not row.is_renewable, row.is_renewable)", "(False, True)"),
        TASKS_APART + "what_lapsed_while_no_server_lived_stays_held_in_the_next",
    ),
    Guard(
        "_pause_at_rest",
        always("all(step.has_lapsed for step in steps)"),
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "expire_overdue",
        replaced("_PAUSE_IF_ALL_LAPSED", "'update run set paused = ?, resume_at = null where n = ?'"),
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "expire_overdue",
        without("session.rows(_LOOK_AT_APPROVED, (ANY_SERVER, n))"),
        TOGETHER + "those_that_lapse_are_asked_about_again_as_they_were[approved_before1]",
    ),
    Guard(
        "_INSERT_STEP",
        replaced_words("(select seq + 1 from run", "(select 0 * seq from run"),
        STEPS + "a_step_that_waits_is_seen_once_it_came",
    ),
    Guard(
        "_INSERT_ANSWER",
        replaced_words("(select seq + 1 from run", "(select 0 * seq from run"),
        STEPS + "steps_say_what_was_asked_for_and_what_came_of_it",
    ),
    Guard(
        "_read_migrations",
        sql_without(" update step set seq = (select seq from run where n = new.run) where id = new.step;"),
        STEPS + "steps_say_what_was_asked_for_and_what_came_of_it",
    ),
    Guard(
        "_IS_RENEWABLE",
        replaced_words("'resume' and later.id > lapse.id)", "'resume')"),
        TASKS_APART + "a_task_whose_approval_lapsed_is_held_alone_and_the_run_pauses_once_no_other_waits",
    ),
    Guard(
        "Control._is_paused",
        without("bool(waits.lapsed)"),
        TASKS_APART + "a_command_asks_again_about_what_lapsed_in_one_task",
    ),
    Guard(
        "_must_record",
        without("found.verdict is None and found.expires_at <= at"),
        DECISIONS + "EDIT_032_a_decision_after_its_time_is_none_though_no_server_lived",
    ),
    Guard(
        "_must_record",
        without("now.principal != decision.actor.principal"),
        DECISIONS + "a_job_takes_a_decision_of_the_runs_own_principal_alone",
    ),
    Guard(
        "_must_record",
        never("found.digest != decision.digest"),
        DECISIONS + "a_decision_that_is_not_about_what_was_shown_stores_nothing",
        quick=True,
    ),
    Guard(
        "_set_verdict",
        replaced_words("and verdict is null returning", "returning"),
        DECISIONS + "a_verdict_is_never_written_over",
    ),
    Guard("approval_digest", without("preview"), GATE + "whatever_differs_in_what_was_shown_is_another_ask"),
    Guard(
        "tool_pin",
        without("tool.source"),
        GATE + "DOWNSTREAM_023_a_tool_from_another_place_is_another_tool",
    ),
    Guard(
        "Gate._apply_rules",
        never("facts.effect != 'read' and 'L0' in facts.scopes"),
        GATE + "no_rule_lets_a_run_write_what_is_the_servers_own",
        quick=True,
    ),
    Guard(
        "Gate._ask_if_needed", never("facts.has_instructions"), GATE + "instructions_to_agents_are_always_asked_about"
    ),
    Guard(
        "Gate._apply_rules",
        never("rule.setting.verdict == 'deny' and rule.matches(facts)"),
        GATE + "deny_wins_then_the_first_that_matches",
    ),
    Guard(
        "CompiledRule._allows_all",
        never("facts.effect == 'irreversible' and rule.effect is None and rule.tools != facts.name and not rule.argv"),
        GATE + "TENANCY_010_a_broad_allowance_does_not_cover_what_can_not_be_undone",
    ),
    Guard(
        "Gate._call_facts",
        replaced("(*touched.inside, *call.preview_paths)", "touched.inside"),
        GATE + "paths_that_a_preview_found_count_as_those_that_are_named",
    ),
    Guard(
        "Gate._apply_rules",
        without("return GateRuling('deny', 'there is no tool of this name')"),
        GATE + "no_rule_however_broad_lets_a_tool_through_that_nobody_knows",
    ),
    Guard(
        "unused_rules",
        replaced("None if is_coming else names", "names"),
        "approvals/test_idle_rules.py::test_a_tool_that_was_not_met_yet_gives_no_false_alarm",
    ),
    Guard(
        "Gate._may_remember",
        never("{'L0', 'L1'} & set(...) or touched.unresolved or touched.outside"),
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[instructions]",
    ),
    Guard(
        "Gate._may_remember",
        without("facts.has_hidden_text"),
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[invisible characters]",
    ),
    Guard(
        "_shape_of",
        without("approval.has_sandbox"),
        REMEMBERED + "what_is_always_asked_about_can_be_approved_and_not_remembered[a program without a sandbox]",
    ),
    Guard(
        "authorize",
        always("verdict.may_remember"),
        REMEMBERED + "what_is_denied_or_always_asked_about_later_is_not_let_through[instructions to agents]",
    ),
    Guard(
        "_shape_of",
        always("len(paths) == 1"),
        REMEMBERED + "a_plan_of_one_file_is_remembered_for_the_file_and_one_of_two_is_not",
    ),
    Guard(
        "CompiledRule._fits_command",
        never("rule.verdict == 'allow'"),
        COMMAND_RULES + "a_program_is_allowed_by_a_safe_name_and_denied_by_any",
    ),
    Guard(
        "fits_pattern",
        without("('/' in name) == ('/' in program)"),
        "core/test_command_patterns.py::test_a_bare_name_and_a_path_are_told_apart",
    ),
    Guard(
        "fits_pattern",
        without("len(rest) == len(arguments)"),
        "core/test_command_patterns.py::test_law_only_an_open_end_lets_further_arguments_in",
    ),
    Guard(
        "_safe_names",
        always("shutil.which(name, path=search_path) == located"),
        "core/test_command_patterns.py::test_a_name_that_finds_another_program_is_no_name_of_this_one",
    ),
    Guard(
        "_safe_names",
        always("_inner_path(real, root) is None"),
        "core/test_command_patterns.py::test_a_link_outside_that_leads_into_the_workspace_is_allowed_by_no_name",
    ),
    Guard(
        "_safe_names",
        never("located != os.path.normpath(located)"),
        "core/test_command_patterns.py::test_a_path_that_goes_up_is_allowed_by_no_name",
    ),
    Guard(
        "read_named_paths",
        replaced("'cwd' if is_program else 'path'", "'path'"),
        COMMAND_RULES + "a_rule_on_paths_judges_a_command_by_its_folder",
    ),
    Guard(
        "parse_http_tool",
        replaced("{'effect': 'irreversible', **fields}", "fields"),
        "registry/test_registering.py::test_a_GET_that_was_approved_when_it_was_shown_as_irreversible_stays_so",
    ),
    Guard(
        "find_rule",
        without("rule.folder == shape.folder"),
        REMEMBERED + "another_folder_of_the_same_path_is_another_project",
    ),
    Guard(
        "_FITTING",
        replaced_words("removed is null and rule.principal", "rule.principal"),
        REMEMBERED + "a_rule_that_was_removed_lets_nothing_through",
    ),
    Guard("_FITTING", replaced_words("rule.run = ?)", "? > 0)"), REMEMBERED + "a_rule_for_a_run_ends_with_it[run]"),
    Guard(
        "_FITTING",
        replaced_words("tool = ? and pin = ?", "(tool = ? or pin <> ?)"),
        "registry/test_offers.py::test_a_remembered_approval_is_for_the_definition_that_was_approved",
    ),
    Guard(
        "Answers._check_may_decide",
        without("self._context.check_may_decide('rule', caller, decision_command(...), run_id=run.id)"),
        REMEMBERED + "only_a_persons_command_makes_a_rule",
    ),
    Guard(
        "_must_record",
        never("... and rules.find_made_with(session, run, decision.key) is None"),
        REMEMBERED + "a_denial_is_not_remembered_and_a_rule_comes_with_the_approval",
    ),
    Guard(
        "Gate._apply_rules",
        never("not shows_files(tool) and _reads_env_file(tool, facts)"),
        ENV + "reading_a_file_of_settings_is_asked_about_and_its_example_is_not",
    ),
    Guard(
        "Gate.secret_file_test",
        replaced("is_env_file", "lambda _path: False"),
        ENV + "reading_a_file_of_settings_is_asked_about_and_its_example_is_not",
    ),
    Guard(
        "Gate.unreadable_file_test",
        replaced("is_env_file", "None"),
        GATE + "files_of_secrets_are_hidden_where_the_rules_for_a_tool_are_for_others",
    ),
    Guard(
        "Gate.secret_file_test",
        without("not any(rule.applies_to(tool) or ... for rule in self._rules)"),
        GATE + "law_a_call_that_is_let_through_by_its_paths_alone_is_one_that_the_table_allows",
    ),
    Guard(
        "reading_tool",
        replaced("redactor.mask_file(opened.path, head)", "MaskedFile(head)"),
        ENV + "where_a_rule_allows_it_no_value_is_shown_found_or_recorded",
    ),
    Guard(
        "read_masked",
        replaced("redactor.mask_file(opened.path, content)", "MaskedFile(content)"),
        ASKED + "of_a_file_that_is_too_large_for_one_call_each_part_is_masked",
    ),
    Guard(
        "is_binary",
        replaced("content", "content[:8192]"),
        "tools/test_files.py::test_a_part_in_another_encoding_behind_much_text_makes_a_file_binary[10000]",
    ),
    Guard(
        "_search_file",
        replaced(
            "redactor.mask_file(path, content, search.is_over).masked_part(0, FILE_BYTES)", "content[:FILE_BYTES]"
        ),
        ENV + "where_a_rule_allows_it_no_value_is_shown_found_or_recorded",
    ),
    Guard(
        "_comparable_texts",
        replaced("before.comparable_text([f'{n}' for n in range(len(before.spans))])", "before.content.decode()"),
        ASKED + "an_unasked_plan_returns_no_secret_and_its_match_finds_none[.npmrc]",
    ),
    Guard(
        "_comparable_texts",
        (
            replaced(
                "before.comparable_text([...])",
                'before.comparable_text([f"{before.content[slice(*span)]!r}" for span in before.spans])',
            ),
            replaced(
                "after.comparable_text([...])",
                'after.comparable_text([f"{after.content[slice(*span)]!r}" for span in after.spans])',
            ),
        ),
        ASKED + "law_a_plan_answers_a_right_guess_of_a_secret_as_a_wrong_one[the same line before]",
    ),
    Guard(
        "unified_diff",
        without("not has_secrets"),
        ASKED + "law_a_plan_answers_a_right_guess_of_a_secret_as_a_wrong_one[the same line behind]",
    ),
    Guard(
        "_plan_result",
        never("rules.holds_secrets(change)"),
        ASKED + "a_plan_is_applied_and_its_files_edited_on_by_hashes_where_they_hold_secrets",
    ),
    Guard(
        "ToolMemory.keep_taken",
        replaced(
            "self.redactor.mask_file(f'{path}/{part}' if part else path, text.encode()).masked_content.decode()", "text"
        ),
        "tools/test_instructions_protected.py::test_the_record_has_no_secret_of_what_is_moved_into_it",
    ),
    Guard(
        "keyed_hash",
        replaced(r"path.encode('utf-8', 'surrogatepass') + b'\x00' + content", "content"),
        ASKED + "the_hash_of_a_file_is_that_of_no_other_of_the_same_content",
    ),
    Guard(
        "overwrite_text",
        without("not before.spans"),
        ASKED + "a_whole_text_that_guesses_a_secret_is_answered_like_any_other",
    ),
    Guard(
        "_find_places",
        always("STAND_IN not in touched"),
        ASKED + "a_change_right_beside_a_secret_is_answered_like_one_of_what_is_not_there",
    ),
    Guard(
        "EditRules.propose_edits",
        never("not self.redactor.mask_file(path, content).covers(after.masked)"),
        ASKED + "an_unasked_plan_returns_no_secret_and_its_match_finds_none[a.ini]",
    ),
    Guard(
        "_contains_text",
        replaced(
            "read_masked(opened, offset, min(offset + WINDOW_BYTES, opened.size), redactor)",
            "opened.read(WINDOW_BYTES, offset)",
        ),
        ASKED + "a_check_of_a_mandate_does_not_find_out_what_a_file_hides",
    ),
    Guard(
        "RunFactory._make_resources",
        without("hash_content=hash_content"),
        ASKED + "the_hashes_that_a_model_sees_are_not_those_of_the_content_alone",
    ),
    Guard(
        "authorize",
        replaced("case _ if is_private: ...", "case _ if False: ..."),
        ASKED + "answers_before_a_decision_are_equal_whatever_the_file_holds[an edit of a comment-by default]",
    ),
    Guard(
        "authorize",
        without("not is_private"),
        ASKED + "answers_before_a_decision_are_equal_whatever_the_file_holds[an edit of a value-by default]",
    ),
    Guard(
        "_approval_items",
        replaced("row.person_preview if for_person else row.preview", "row.person_preview"),
        ASKED + "the_person_sees_the_masked_diff_and_the_caller_its_own_arguments",
    ),
    Guard(
        "Dialogs.open_questions",
        without("row.private_preview is None"),
        ASKED + "the_person_sees_the_masked_diff_and_the_caller_its_own_arguments",
    ),
    Guard(
        "_no_match_error",
        replaced("describe_lookalike(text, edit.old)", "None"),
        SPELLED + "a_text_that_only_looks_the_same_is_named_with_what_differs",
    ),
    Guard(
        "Workspace.find_spelling",
        always("plain.isascii() or self._exists(plain)"),
        SPELLED + "a_file_is_found_however_its_accents_are_spelled",
    ),
    Guard(
        "fold_path",
        replaced("unicodedata.normalize('NFC', path.casefold())", "path.casefold()"),
        SPELLED + "a_rule_holds_for_a_path_however_its_accents_are_spelled",
    ),
    Guard(
        "EditRules._note_names",
        always("others < 1"),
        SPELLED + "an_edit_of_a_file_with_another_name_says_that_this_one_keeps_the_old_text",
    ),
    Guard(
        "EditRules._check_marks",
        always("before is None or not before.spans or after.count(mark) <= before.content.count(mark)"),
        ENV + "new_text_with_the_mark_where_a_value_stood_is_refused",
    ),
    Guard(
        "Gate._ask_if_needed",
        never("facts.has_hidden_text"),
        HIDING + "a_write_or_an_edit_that_brings_what_nobody_sees_asks_though_a_rule_allows_it",
    ),
    Guard(
        "Gate._call_facts",
        never("writes_files and self._paths.writes_repository(inside)"),
        "approvals/test_touched_paths.py::test_"
        "a_write_that_makes_a_repository_of_any_name_or_goes_into_one_asks_though_a_rule_allows_it",
    ),
    Guard(
        "_RECALL_FROM_CALLS",
        replaced_words("= mine.principal", "is not null"),
        HIDING + "a_plan_of_a_single_call_is_applied_by_another_single_call_and_by_nothing_else",
    ),
    Guard(
        "recall", without("not name.startswith(_PLAN)"), HIDING + "a_single_call_finds_nothing_of_another_but_its_plans"
    ),
    Guard(
        "Gate._ask_if_needed",
        never("touched.unresolved"),
        TOUCHED + "a_writing_call_with_a_path_that_nobody_can_resolve_counts_as_one_on_instructions",
    ),
    Guard(
        "CompiledRule._touches_any",
        without("facts.touched.unresolved"),
        TOUCHED + "what_can_not_be_resolved_matches_each_deny_and_ask_rule_with_paths",
    ),
    Guard(
        "Gate._ask_if_needed",
        never("not all(allowed_by is not None and ... for path in touched.outside)"),
        TOUCHED + "a_writing_call_outside_the_workspace_asks_unless_a_rule_names_its_path",
    ),
    Guard(
        "Gate._ask_if_needed",
        never("touched.has_instructions and not names_paths"),
        TOUCHED + "a_folder_that_holds_what_is_guarded_is_asked_about",
    ),
    Guard(
        "Gate._ask_if_needed",
        never("not names_paths and rule.setting.verdict != 'allow' and rule.concerns_folders(...)"),
        TOUCHED + "a_folder_that_holds_what_is_guarded_is_asked_about",
    ),
    Guard(
        "_ArgumentWalk.add_path",
        without("self.real_paths[self._map_to_root(real)] = None"),
        TOUCHED + "a_link_is_what_it_leads_to_and_itself",
    ),
    Guard(
        "call_redacted", without("ctx.check_paths()"), TOUCHED + "a_call_whose_paths_lead_elsewhere_by_now_is_not_made"
    ),
    Guard(
        "ToolContext._check_all",
        without("self.check_paths()"),
        "downstream/test_server_tool_paths.py"
        "::test_a_path_that_leads_elsewhere_between_the_gate_and_the_call_is_not_followed",
    ),
    Guard(
        "raise_risk",
        replaced("max(risk, declared, key=RISKS.index)", "declared"),
        GATE + "the_risk_is_a_fixed_table_that_a_model_can_only_raise",
    ),
    Guard(
        "read_decision",
        without("case ['accept' | 'decline', _] if took_s < instant_s: ..."),
        "approvals/test_dialogs.py::test_what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "_format_goal",
        replaced("quoted, _ = make_visible(json.dumps(...))", "quoted = json.dumps(...)"),
        "ooda/test_told_meanwhile.py::test_a_goal_in_a_dialog_stays_on_its_line_and_hides_nothing",
    ),
    Guard(
        "record_start",
        replaced_words("and (last_due is null or last_due < :due) returning", "returning"),
        "ooda/test_killed_and_commands.py::test_a_time_of_a_schedule_is_run_for_once_though_two_timers_found_it_due",
    ),
    Guard(
        "ToolAccess._missing_tool",
        without("self.registry.resolve(spec)"),
        "registry/test_offers.py::test_a_tool_of_another_pin_than_the_offered_one_is_not_called",
    ),
    Guard(
        "act",
        never("RISKS.index(risk) > RISKS.index(context.mandate.risk_budget)"),
        "flows/ooda/test_mandate_runs.py"
        "::test_an_act_above_the_risk_budget_pauses_and_is_then_recorded_as_denied_and_never_made",
    ),
    Guard(
        "_check_goal",
        replaced(
            "case ToolResult(is_error=False, data={'goal_hash': str(found)}) if found == "
            "context.mandate.goal_hash: ...",
            "case ToolResult(is_error=False, data={'goal_hash': str()}): ...",
        ),
        "flows/ooda/test_mandate_runs.py::test_a_changed_goal_pauses_before_anything_else_until_it_is_what_it_was",
    ),
)

FILES = (
    Guard(
        "_write_answer",
        without("tool_intents.forget_call(session, plan.run, answered.path)"),
        EDITED + "what_a_file_held_is_in_no_row_once_the_call_that_changed_it_has_its_answer",
    ),
    Guard(
        "store.connection:as_store_error",
        replaced("apsw.SQLITE_IOERR_SHMSIZE", "-1"),
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "store.connection:translate_errors",
        replaced("isinstance(...) and folder is not None and has_no_room(folder)", "isinstance(...) and False"),
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "run_command",
        always("error.errno not in (errno.ENOSPC, errno.EDQUOT)"),
        "commands/test_runs.py::test_a_disk_that_is_full_is_an_error_of_one_line",
    ),
    Guard(
        "LockFile.__init__",
        replaced("raise as_folder_error(error) from error", "raise"),
        "records/test_full_disk.py::test_a_full_disk_is_called_full",
    ),
    Guard(
        "_use_wal",
        replaced("if time.monotonic() >= deadline:\n    raise", "raise"),
        "core/test_store.py::test_a_new_file_that_another_server_is_writing_is_opened_once_that_has_ended",
    ),
    Guard(
        "_read_migrations",
        sql_without("create index step_run on step(run);"),
        "records/test_lengths.py::test_a_look_at_a_run_costs_the_same_at_any_length",
    ),
    Guard(
        "_read_migrations",
        sql_without("create index step_shared on step(shared) where shared is not null;"),
        "records/test_lengths.py::test_the_first_call_of_a_day_costs_the_same_however_many_there_were_before",
    ),
    Guard(
        "_read_migrations",
        sql_without(
            "begin\n    delete from waiting where run = (select run from step where id = new.step) and step = new.step;"
            "\n    update",
            "begin\n    update",
        ),
        "records/test_lengths.py::test_what_is_stored_beside_the_steps_and_differs_is_damage",
    ),
    Guard(
        "store.connection:connect",
        replaced_words("secure_delete = on", "secure_delete = off"),
        EDITED + "what_a_file_held_is_in_no_row_once_the_call_that_changed_it_has_its_answer",
    ),
    Guard(
        "write_commit",
        without("tool_intents.forget_calls(session, run)"),
        "crash/test_settle.py::"
        "test_what_a_file_held_goes_with_a_run_that_is_cancelled_while_its_edit_waits_to_be_settled",
    ),
    Guard(
        "_write_attempt",
        never("not attempt.request.counts_only"),
        "crash/test_settle.py::test_an_edit_that_a_person_has_made_again_stands_on_what_the_file_holds_now",
    ),
    Guard("keep_text", never("name.startswith(_INTENT)"), EDITED + "a_call_that_has_its_answer_keeps_nothing_more"),
    Guard(
        "_KEEP_TEXT",
        replaced_words("fence = ?", "? is not null"),
        MARKED + "a_server_that_has_lost_the_run_keeps_nothing",
    ),
    Guard(
        "_next_for_paused",
        never("run.paused == clock_behind_reason(run.principal)"),
        "budgets/test_clock_set_back.py"
        "::test_a_clock_that_is_far_behind_stops_model_calls_until_a_person_says_that_it_is_right",
    ),
    Guard(
        "mark_departure",
        replaced("raise NotMarked(str(error)) from error", "raise"),
        MARKED + "a_call_whose_mark_the_store_did_not_take_is_begun_again[NoSpace]",
    ),
    Guard(
        "check_before_leaving",
        without("mark_departure(ctx)"),
        MARKED + "what_can_not_be_undone_is_marked_before_its_first_byte_and_nothing_else_is[irreversible-marks0]",
        quick=True,
    ),
    Guard(
        "ServerClient.call",
        never("call.mark is not None"),
        MARKED + "a_server_s_call_is_marked_before_it_is_sent",
    ),
    Guard(
        "call_redacted",
        never("ctx.is_marked and not tool.marks_itself"),
        MARKED + "what_does_not_mark_itself_is_marked_before_it_is_called",
    ),
    Guard(
        "probe_departure",
        replaced("ctx.memory.recall(...) is None", "True"),
        MARKED + "a_person_is_asked_about_a_lost_call_only_if_it_had_left[True-1-stands1]",
    ),
    Guard(
        "probe_departure",
        never("is_stricter(tool.spec.effect, effect)"),
        MARKED + "a_server_s_call_carries_its_key_and_is_repeated_with_it[keyed-False-irreversible-stands1]",
    ),
    Guard(
        "_must_ask_person",
        replaced("(spec, spec if tool is None else tool.spec)", "(spec,)"),
        MARKED + "a_server_s_call_carries_its_key_and_is_repeated_with_it[idempotent-False-irreversible-stands2]",
    ),
    Guard(
        "probe_departure",
        replaced("0 <= ctx.begun_s_ago < tool.key_life_s", "0 <= ctx.begun_s_ago"),
        MARKED + "a_person_is_asked_once_the_other_end_may_have_forgotten_the_key",
    ),
    Guard(
        "probe_departure",
        replaced("0 <= ctx.begun_s_ago < tool.key_life_s", "ctx.begun_s_ago < tool.key_life_s"),
        MARKED + "a_clock_that_went_back_proves_no_key",
    ),
    Guard(
        "ToolCaller._effect_of",
        replaced("self.tool_access.find_spec(...)", "self.tool_access.find_tool(step.call.name).spec"),
        MARKED + "a_server_s_call_carries_its_key_and_is_repeated_with_it[irreversible-True-keyed-stands6]",
    ),
    Guard(
        "ToolCaller._key_of",
        replaced("path", "''"),
        MARKED + "a_call_that_is_keyed_is_made_again_with_its_key_and_nobody_is_asked",
    ),
    Guard(
        "CommandRunner.clean_up",
        never("ctx.memory.recall(...) is None"),
        MARKED + "a_program_finds_its_call_s_key_in_its_environment",
    ),
    Guard(
        "_RESOLVE",
        replaced("1 | 2 | 4 | 8", "0"),
        "tools/test_workspace.py::test_a_folder_beyond_a_link_is_not_listed",
        quick=True,
    ),
    Guard(
        "Workspace.open_file",
        without("raise _not_regular_error(plain, folder=stat.S_ISDIR(...))"),
        "tools/test_workspace.py::test_a_socket_and_a_device_are_no_files",
    ),
    Guard(
        "FileSlot._drop_displaced",
        replaced("self._find_problem(displaced, before, lease)", "None"),
        "tools/test_concurrent_writers.py::test_what_another_writes_stands_there_afterwards",
    ),
    Guard(
        "FileSlot._find_problem",
        never("lease.was_refused"),
        "tools/test_writing.py::test_a_file_that_another_has_open_for_writing_is_left_to_it",
    ),
    Guard(
        "FileSlot._find_problem",
        never("not self._is_in_place()"),
        "tools/test_concurrent_writers.py::test_nothing_stays_written_in_a_folder_that_was_moved_outside",
    ),
    Guard(
        "FileSlot.remove",
        never("not self._name_holds(aside, content)"),
        "tools/test_concurrent_writers.py"
        "::test_a_new_file_that_another_has_changed_already_is_not_taken_away_with_its_folder",
    ),
    Guard(
        "edit_tool",
        without("_check_base(path, hashed, ctx.base_hashes, 'shown')"),
        APPROVED_EDITS + "a_file_that_changed_since_it_was_shown_is_not_touched",
    ),
    Guard(
        "edit_tool",
        without("_check_base(path, hashed, read, 'read')"),
        "tools/test_writing.py::test_what_the_caller_read_must_still_be_there",
    ),
    Guard(
        "check_writable_path",
        never("scopes.scope_of(path) == 'L0'"),
        "tools/test_scopes.py::test_no_run_writes_the_files_that_rule_the_server",
    ),
)

PROGRAMS = (
    Guard("EDITORS", without("'.zed'"), INSTRUCTIONS + "all_that_install_writes_is_in_the_list"),
    Guard(
        "INSTRUCTION_FILES",
        (without("*SHELLS"), without("*GIT")),
        INSTRUCTIONS + "what_a_host_an_editor_a_shell_or_git_reads_by_itself_is_an_instruction[mise.toml]",
    ),
    Guard(
        "scrub_environment",
        without("name in ('LANG', 'TERM') or name.startswith('LC_')"),
        COMMAND + "it_is_told_of_the_environment_what_it_needs",
    ),
    Guard(  # not by the test that sends signals: without the guard it would hit
        "_NAMESPACES",
        without("'--unshare-pid'"),
        "tools/test_processes_apart.py::test_a_program_has_numbers_of_its_own_and_sees_no_process_outside",
    ),
    Guard(
        "_LEASH",
        replaced_words("[ $$ = 2 ] && kill -9 -1; kill", "kill"),
        COMMAND + "what_a_program_started_ends_with_the_leash_where_bubblewrap_died_while_it_set_itself_up",
    ),
    Guard(
        "Sandbox.wrap",
        without("arguments += [] if self.network else ['--unshare-net']"),
        COMMAND + "there_is_no_network",
    ),
    Guard(
        "Sandbox.wrap",
        (without("'--seccomp'"), without("str(filter_fd)")),
        "tools/test_kernel_keys.py::test_the_kernel_s_keys_are_neither_read_nor_planted",
    ),
    Guard(
        "resolve_address",
        always("os.path.isabs(part)"),
        SANDBOXED_SERVERS + "no_program_of_the_workspace_is_started_by_a_relative_folder_of_the_path[False]",
    ),
    Guard(
        "ServerWrites._start_watch",
        replaced(
            "WriteWatch.start(root, limits.rules, HeldPaths(survey), (), limits.is_unreadable)",
            "WriteWatch.start(root, limits.rules, HeldPaths(survey))",
        ),
        SANDBOXED_SERVERS + "a_server_that_makes_more_files_like_env_than_a_sandbox_covers_can_be_called_again",
    ),
    Guard(
        "ServerSandbox._open_in_workspace",
        without("filter_fd=filter_fd"),
        SANDBOXED_SERVERS + "a_server_in_its_sandbox_reaches_no_keys_of_the_kernel",
    ),
    Guard(
        "Sandbox.wrap",
        without("*_kernel_setting_arguments()"),
        "tools/test_sandbox_kernel.py::test_no_setting_of_the_kernel_can_be_written",
    ),
    Guard(
        "undo_new_repository",
        always("wanted == found"),
        REPOSITORIES + "one_below_a_build_folder_or_an_ignored_one_stays_without_what_starts_programs",
    ),
    Guard(
        "restore_repository",
        always("found == before"),
        REPOSITORIES + "a_bare_repository_that_was_there_takes_pushes_and_gets_its_hooks_and_settings_back",
    ),
    Guard(
        "_is_covered",
        without("bool(old.fingerprint)"),
        ENDED + "what_a_killed_server_s_program_wrote_is_undone_by_the_next_server[True]",
    ),
    Guard(
        "_SurveyWalk.visit_folder",
        never("is_repository({entry.name for entry in entries})"),
        REPOSITORIES + "a_folder_that_git_takes_for_a_repository_whatever_its_name_loses_what_starts_programs",
    ),
    Guard(
        "_is_harmless_setting",
        without("found[1].lower() not in _SAFE_SETTINGS.get(section, ())"),
        REPOSITORIES + "of_its_settings_only_what_starts_nothing_stays",
    ),
    Guard(
        "CommandRunner._run_program",
        without("keep_survey(...)"),
        ENDED + "what_a_killed_server_s_program_wrote_is_undone_by_the_next_server",
    ),
    Guard(
        "undo_interrupted",
        always("kept['begun'] <= status.st_ctime_ns // 1000000 <= kept['until']"),
        ENDED + "what_a_person_made_after_the_program_s_time_stays",
    ),
    Guard(
        "Sandbox._list_mounts",
        replaced("list_system_settings()", "[Path('/etc')]"),
        VIEW + "of_the_machine_it_sees_what_programs_need_and_nothing_else",
    ),
    Guard(
        "Sandbox.wrap",
        without("arguments += ['--ro-bind', os.devnull, str(self.workspace / path)]"),
        VIEW + "files_that_may_not_be_read_unasked_are_covered_and_stay_as_they_are",
    ),
    Guard(
        "Gate.hidden_path_test",
        replaced("self._covered_file_test(call)", "None"),
        VIEW + "one_decision_covers_a_file_for_programs_and_for_read_file",
    ),
    Guard(
        "Gate._judge_read_files",
        replaced("GateRuling('deny' if 'deny' in verdicts else 'ask', reason) if paths else None", "None"),
        UNASKED + "what_may_not_be_read_unasked_is_shown_by_no_way[a folder is denied]",
    ),
    Guard(
        "Gate.secret_file_test",
        without("rule.applies_to(READ_SPEC)"),
        UNASKED + "what_may_not_be_read_unasked_is_shown_by_no_way[a folder is denied]",
    ),
    Guard(
        "Gate.hidden_path_test",
        without("decision = max(decision, self.judge(...).decision, key=_STRICT)"),
        UNASKED + "a_search_that_a_person_is_asked_about_shows_no_file_that_read_file_is_denied",
    ),
    Guard(
        "Gate._unreadable_by",
        never("is_unreadable(path) and any(rule.matches(facts) for rule in rules)"),
        UNASKED + "a_search_that_a_rule_allows_opens_files_like_env_and_none_that_read_file_is_denied",
    ),
    Guard(
        "Gate._gate_of_paths",
        replaced("self if shows_some else by_paths", "by_paths"),
        UNASKED + "where_a_rule_allows_one_folder_all_others_are_kept",
    ),
    Guard(
        "Gate._gate_of_paths",
        replaced("self if shows_some else by_paths", "self"),
        UNASKED + "where_no_file_is_read_unasked_others_keep_what_rules_name_and_files_like_env[rules0]",
    ),
    Guard(
        "Gate._ask_if_needed",
        never("facts.opens_more"),
        VIEW + "no_configured_rule_allows_a_call_that_asks_to_read_more",
    ),
    Guard(
        "FlowView.label_results",
        replaced("not any(row.is_of_others for row in rows)", "True"),
        "flow/test_opening_rows.py::test_words_of_a_model_are_of_others_and_private_as_far_as_anything_in_view_of_it_was",
    ),
    Guard(
        "FlowView.label_results",
        replaced(
            "TakenOver(row.source, row.is_trusted, row.is_private, row.is_printed)",
            "TakenOver(row.source, row.is_trusted, False, row.is_printed)",
        ),
        "flow/test_hops.py::test_what_a_run_goes_on_with_is_whose_it_was_in_the_run_before",
    ),
    Guard(
        "CoveredCalls.fits",
        without("{*command.reads} <= {*self.reads}"),
        REMEMBERED + "a_folder_that_a_person_lets_a_command_read_is_part_of_what_they_allow",
    ),
    Guard(
        "_shape_of",
        replaced("CalledCommand(..., reads)", "CalledCommand(...)"),
        REMEMBERED + "a_folder_that_a_person_lets_a_command_read_is_part_of_what_they_allow",
    ),
    Guard("find_asked_path", never("is_wide(real, environ)"), VIEW + "no_call_asks_for_a_whole_home_or_system_folder"),
    Guard(
        "find_asked_path",
        never("any(Path(os.path.realpath(each)).is_relative_to(workspace) for each in (path, *path.parents))"),
        VIEW + "no_call_asks_by_a_link_that_a_program_could_have_made",
    ),
    Guard(
        "Gate._apply_rules",
        replaced(
            "(ruling := self.judge(read_call(path, call.agent, call.mandate))).decision == 'deny'",
            "(ruling := self.judge(read_call(path, call.agent, call.mandate))) is None",
        ),
        VIEW + "what_read_file_is_denied_no_call_asks_for",
    ),
    Guard(
        "Gate._covered_file_test",
        replaced("not is_asked or ...", "not is_asked"),
        VIEW + "what_read_file_is_denied_no_call_asks_for",
    ),
    Guard(
        "_find_entries",
        without("not is_wide(Path(os.path.realpath(folder)), environ)"),
        "tools/test_toolchains.py::test_a_toolchain_that_links_to_the_whole_home_folder_is_none",
    ),
    Guard(
        "CommandRunner._explain_failure",
        always("missed is None"),
        VIEW + "a_program_that_is_missed_inside_is_named_with_the_line_that_opens_it",
    ),
    Guard(
        "ServerClient._open",
        never("reason is not None and not self._use_legacy and self._newest is not None and ..."),
        "downstream/test_odd_servers.py::"
        "test_a_server_that_dies_of_a_first_request_that_it_does_not_know_is_met_all_the_same",
    ),
    Guard(
        "ServerClient._connect",
        replaced("missed and missed.describe()", "None"),
        SANDBOXED_SERVERS + "what_a_sandboxed_server_misses_at_its_start_is_named_with_the_line_that_opens_it",
    ),
    Guard(
        "build_server_sandbox",
        replaced("(*sandbox.reads, *_program_folders(argv[0], env, sandbox))", "sandbox.reads"),
        SANDBOXED_SERVERS + "a_server_whose_interpreter_lies_in_the_real_home_starts_where_home_names_another_folder",
    ),
    Guard(
        "_make_caches",
        without("cache"),
        SANDBOXED_SERVERS + "what_a_sandboxed_server_writes_into_a_cache_of_launchers_is_its_own_and_outlives_it",
    ),
    Guard(
        "ServerClient.call",
        replaced("await self._close_if_unusable()", "None"),
        SANDBOXED_SERVERS + "what_is_replaced_or_made_while_a_sandboxed_server_runs_is_covered_before_its_next_call",
    ),
    Guard(
        "Workspace._check_links",
        never("status.st_nlink > 1"),
        "tools/test_hard_links.py::test_no_tool_opens_another_name_of_a_file_like_env",
    ),
    Guard(
        "_covers",
        without("status.st_ctime < search.began_at - CLOCK_S"),
        "tools/test_hard_links.py::test_a_name_that_came_to_be_after_a_search_is_found_too",
    ),
    Guard(
        "survey_protected_paths",
        without("walk.find_other_names()"),
        "tools/test_hard_links.py::test_other_names_are_covered_for_programs_wherever_they_lie",
    ),
    Guard(
        "_SurveyWalk._rename_excess",
        never("len(known) + self._new_names > MAX_UNREADABLE"),
        VIEW + "a_program_that_makes_more_files_like_env_than_a_sandbox_covers_keeps_no_later_one_from_starting",
    ),
    Guard(
        "_SurveyWalk._add_unreadable",
        never("len(self.unreadable) > MAX_UNREADABLE"),
        "tools/test_unasked_reads.py::test_where_a_sandbox_can_not_cover_so_many_files_the_folders_that_hold_them_are_named",
    ),
    Guard(
        "ServerSandbox._open_in_workspace",
        without("unreadable=held.survey.unreadable"),
        SANDBOXED_SERVERS + "a_file_that_may_not_be_read_unasked_is_covered_for_a_sandboxed_server",
    ),
    Guard(
        "Sandbox.wrap",
        never("held.is_protected or not self.writable"),
        KEPT + "what_is_there_is_read_only_at_any_depth",
    ),
    Guard(
        "WriteWatch._undo_found",
        never("new is not None and self.before.has_visited(path)"),
        KEPT + "what_is_made_deeper_is_moved_into_the_record_and_the_call_has_failed",
    ),
    Guard(
        "survey_again",
        replaced("walk.visit_all(skipped)", "walk.visit_all(skipped, MAX_FOLDERS)"),
        HIDDEN_WRITES + "nothing_hides_behind_how_much_a_program_made",
    ),
    Guard(
        "_SurveyWalk._is_as",
        replaced("(self._device, known.inode, known.changed_at)", "(self._device, known.inode, status.st_ctime_ns)"),
        HIDDEN_WRITES + "what_appears_in_old_folders_is_found_whatever_became_of_them",
    ),
    Guard(
        "_SurveyWalk._remember",
        replaced("status.st_ctime_ns < self._seen_before", "True"),
        HIDDEN_WRITES + "a_folder_that_was_just_changed_is_listed_again",
    ),
    Guard(
        "WriteWatch.undo",
        always("len(undone.changes) == said"),
        HIDDEN_WRITES + "what_was_put_aside_since_no_record_takes_it_is_searched_as_well",
    ),
    Guard(
        "_SurveyWalk._open_to_search",
        without("_make_readable(self._root, folder)"),
        HIDDEN_WRITES + "a_folder_that_a_program_made_unreadable_is_searched_and_named",
    ),
    Guard(
        "open_long_path",
        never("len(rest) > _PATH_CHARS"),
        HIDDEN_WRITES + "what_lies_beyond_the_longest_path_is_found",
    ),
    Guard(
        "open_long_path",
        replaced("rest.rindex('/', 0, _PATH_CHARS + 1)", "rest.index('/')"),
        HIDDEN_WRITES + "however_deep_a_program_nests_folders_a_search_takes_few_calls_for_each",
    ),
    Guard(
        "_SurveyWalk.visit_all",
        never("len(path) > MAX_PATH_CHARS"),
        HIDDEN_WRITES + "however_deep_a_program_nests_folders_a_search_takes_few_calls_for_each",
    ),
    Guard(
        "survey_protected_paths",
        never("walk.too_deep and is_unreadable is not None"),
        HIDDEN_WRITES + "however_deep_a_program_nests_folders_a_search_takes_few_calls_for_each",
    ),
    Guard(
        "undo_interrupted",
        replaced("kept.get('aside', '.kairos-aside-')", "'/'"),
        ENDED + "what_an_undo_had_put_aside_when_it_was_killed_is_undone_by_the_next_server",
    ),
    Guard(
        "_keep_or_raise",
        replaced("Exception", "OSError"),
        ENDED + "what_the_record_refuses_is_put_aside_and_the_rest_is_undone_all_the_same",
    ),
    Guard(
        "_Submission._implied_calls",
        without("self.rules.scopes.scope_of(change.path) == 'L1'"),
        STAGED + "of_programs_that_a_rule_allows_some_changes_are_always_asked_about",
    ),
    Guard(
        "_Submission._implied_calls",
        without("change.changes_mode"),
        STAGED + "of_programs_that_a_rule_allows_some_changes_are_always_asked_about",
    ),
    Guard(
        "_Submission._implied_calls",
        without("change.after.kind == 'link'"),
        STAGED + "of_programs_that_a_rule_allows_some_changes_are_always_asked_about",
    ),
    Guard(
        "_Submission._implied_calls",
        without("(change.after == ABSENT and is_of_program)"),
        STAGED + "of_programs_that_a_rule_allows_some_changes_are_always_asked_about",
    ),
    Guard(
        "_list_uncovered",
        never("gate.judge(made).decision != 'allow'"),
        STAGED + "words_of_a_denial_are_a_turn_and_the_run_goes_on",
    ),
    Guard(
        "_Submission.run",
        replaced(
            "(digests := self._digests(found)) != dict(ctx.base_hashes)", "(digests := self._digests(found)) is None"
        ),
        STAGE + "what_changed_after_it_was_shown_is_not_applied",
    ),
    Guard(
        "collect_changes",
        never("scopes.scope_of(path) == 'L0'"),
        STAGE + "a_commit_inside_works_and_leaves_the_workspace_s_repository_as_it_is",
    ),
    Guard(
        "_add_change",
        replaced("base is None or base.is_unclear", "base is None"),
        STAGE + "a_file_saved_while_a_program_changed_it_is_never_merged",
    ),
    Guard(
        "changes:_is_strange",
        replaced("not _stays_inside(path, state.target or '')", "False"),
        STAGE + "what_is_submitted_is_applied_with_deletions_modes_links_and_folders",
    ),
    Guard(
        "Overlay.list_touched",
        without("_has_entry(self.root, path)"),
        STAGE + "files_are_deleted_and_moved_in_the_stage",
    ),
    Guard(
        "Stage._make_folder",
        never("notes.count or (notes.bases and not self.layer.root.is_dir())"),
        STAGE + "a_stage_whose_folder_is_gone_applies_nothing",
    ),
    Guard(
        "StagedCommands._list_unreadable",
        replaced("(*found.unreadable, *in_layer.unreadable)", "found.unreadable"),
        STAGE + "a_program_sees_no_env_file_and_nothing_of_the_layer",
    ),
    Guard(
        "_watch_size",
        never("sum_bytes(folder, began + 10 * QUOTA_POLL_S) > most_bytes"),
        STAGE + "a_stage_that_holds_too_much_ends_its_program",
    ),
    Guard(
        "sum_bytes",
        never("depth > MAX_DEPTH"),
        STAGE + "folders_however_deep_stop_neither_the_next_calls_nor_the_limit",
    ),
    Guard(
        "sum_bytes",
        replaced("max(ENTRY_BYTES, ...)", "..."),
        STAGE + "empty_files_count_too",
    ),
    Guard(
        "is_deep",
        replaced("path.count('/') >= MAX_DEPTH", "False"),
        STAGE + "folders_however_deep_stop_neither_the_next_calls_nor_the_limit",
    ),
    Guard(
        "WorkspaceCopy._find_touched",
        never("not self._record_file.exists()"),
        COPIES + "of_a_copy_that_was_cut_short_nothing_counts",
    ),
    Guard(
        "WorkspaceCopy._find_touched",
        replaced("record.files[path][1] != look", "record.files[path][1][1:3] != look[1:3]"),
        COPIES + "what_a_program_changes_without_a_trace_in_its_time_or_size_is_seen",
    ),
    Guard(
        "WorkspaceCopy._bring_up_to_date",
        without("path not in touched"),
        COPIES + "what_others_change_is_seen_but_where_the_run_has_changed_it",
    ),
    Guard(
        "Stage.writing",
        replaced("must=True", "must=False"),
        COPIES + "what_only_reads_need_not_look_again_and_what_writes_does",
    ),
    Guard(
        "WorkspaceCopy._copy",
        never("look[3] >= change_clock_ns() - _FRESH_NS"),
        COPIES + "a_file_that_is_saved_twice_in_one_tick_is_taken_over",
    ),
    Guard(
        "_look_around",
        never("most_bytes is not None and size > most_bytes"),
        COPIES + "a_workspace_that_outgrows_a_copy_is_refused[COPIED_BYTES]",
    ),
    Guard(
        "StagedTools.__init__",
        never("commands.mode == 'bare'"),
        COPIES + "programs_without_a_sandbox_are_not_contained_and_only_a_person_settles_them",
    ),
    Guard(
        "StagedCommands._open_copy",
        never("root.name != COPY"),
        COPIES + "a_layer_runs_no_program_without_a_sandbox",
    ),
    Guard(
        "StagedCommands._list_unreadable",
        without("not mounted.isdisjoint(folders_above(path))"),
        COPIES + "a_program_reads_what_is_mounted_in_the_workspace_but_no_env_file_there",
    ),
    Guard(
        "_stays_inside",
        without("*further"),
        STAGE + "a_link_may_go_up_only_where_it_begins",
    ),
    Guard(
        "EditRules.check_rename",
        never("not mask(to, content).covers(mask(path, content))"),
        STAGE + "no_new_name_shows_a_value_that_the_old_one_hides",
    ),
    Guard(
        "StageNotes.list_causes",
        without("*others"),
        STAGE + "behind_what_a_program_wrote_are_all_calls_before_it",
    ),
    Guard(
        "Application.complete",
        without("raise _stale_error(strange)"),
        "tools/test_stage_applied.py::test_what_another_program_wrote_after_the_crash_stays_and_all_else_goes_back",
    ),
    Guard(
        "Gate.judge_contained",
        without("self.asks_by_rule(call)"),
        STAGED + "an_ask_rule_asks_in_the_stage_and_a_deny_rule_denies",
    ),
    Guard(
        "_check_files",
        never("decision.verdict != 'approve' or ..."),
        STAGED + "words_with_some_files_are_a_turn_and_a_call_is_approved_whole",
    ),
    Guard(
        "_must_record",
        without("found.files == decision.files"),
        STAGED + "files_are_approved_alone_and_the_others_stay",
    ),
    Guard(
        "ApprovalRow.approved_base",
        replaced("self.files is None", "True"),
        STAGED + "files_are_approved_alone_and_the_others_stay",
    ),
    Guard(
        "_refuse_unseen",
        replaced("(changed := ...)", "(changed := ())"),
        STAGED + "a_caller_s_tool_is_not_told_of_a_file_that_it_does_not_see_as_it_is",
    ),
    Guard(
        "StageChoice.add_for_task",
        replaced("spec.name != SUBMIT_CHANGES.name", "True"),
        STAGED_FLOWS + "a_task_of_a_team_has_no_submit_of_its_own",
    ),
    Guard(
        "SiblingChanges.end",
        replaced("(*changed_files(answer), *changed_files(answer, 'staged'))", "changed_files(answer)"),
        STAGED_FLOWS + "a_task_does_not_overwrite_unseen_what_another_changed_in_the_stage",
    ),
    Guard(
        "_run_cycles",
        never("submitted.note and reason == 'goal_achieved'"),
        STAGED_FLOWS + "a_goal_whose_changes_are_denied_is_not_achieved",
    ),
    Guard(
        "_run_cycles",
        without("not submitted.was_asked"),
        STAGED_FLOWS + "to_decide_at_a_checkpoint_resumes_it_and_what_rules_apply_does_not",
    ),
    Guard(
        "collect_changes",
        never("calls and all(...) and not (...)"),
        STAGED_FLOWS + "checks_judge_the_stage_and_what_they_alone_write_stays_there",
    ),
    Guard(
        "submit_stage",
        never("not stage.has_undecided"),
        "flows/test_submit.py::test_what_was_denied_is_not_asked_about_again",
    ),
    Guard(
        "exclude_programs",
        always("not any(...)"),
        KEPT + "what_a_person_lets_a_run_write_waits_for_programs_and_stays",
    ),
    Guard(
        "_SurveyWalk.finish",
        without("self._add_link_targets()"),
        KEPT + "a_link_is_put_back_and_what_it_leads_to_is_read_only",
    ),
    Guard(
        "McpServerSource._run",
        replaced("mark_failed(result, undone)", "result"),
        "downstream/test_server_lifecycle.py::test_a_server_in_its_sandbox_writes_no_instructions_to_agents_and_hosts",
    ),
    Guard(
        "ServerWrites._end",
        always("not is_last or self._pause()"),
        PAUSED + "what_a_server_writes_after_its_answer_is_undone_and_nothing_follows",
    ),
    Guard(
        "ServerWrites._pause",
        without("self.processes.kill()"),
        PAUSED + "a_server_that_can_not_be_paused_is_ended_before_its_call_does",
    ),
    Guard(
        "ServerProcesses._stop_all",
        always("_are_all(listed)"),
        PAUSED + "a_process_that_is_taken_over_above_the_place_that_is_looked_at_is_paused_all_the_same",
    ),
    Guard(
        "_is_stopped",
        replaced("_list_threads(process)", "[str(process)]"),
        PAUSED + "a_process_whose_first_thread_has_ended_goes_on_with_the_next_call",
    ),
    Guard(
        "ServerSandbox.open_arguments",
        without("is_paused=self.sandbox.workspace is not None"),
        PAUSED + "an_alarm_does_not_wake_a_paused_server",
    ),
    Guard(
        "mcp_servers.launcher:main",
        without("os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())"),
        "downstream/test_odd_servers.py::test_a_server_that_closes_its_output_and_lives_on_ends_its_call_at_once",
    ),
    Guard(
        "MessageRepair._decode_or_refuse",
        always("number is None"),
        "downstream/test_odd_servers.py::test_a_deviation_costs_itself_alone",
    ),
    Guard(
        "ServerClient._close_if_unusable",
        never("processes is not None and processes.has_lost_one"),
        PAUSED + "a_paused_server_that_is_killed_is_started_anew",
    ),
    Guard(
        "ServerClient._open_watched",
        replaced("async with self._watch_writes():\n    return await self._open()", "return await self._open()"),
        PAUSED + "what_a_server_writes_as_it_starts_is_put_aside_and_named",
    ),
    Guard(
        "ServerClient.close",
        replaced("async with self._watch_writes(): ...", "if True: ..."),
        PAUSED + "what_a_server_writes_as_it_ends_is_put_aside",
    ),
    Guard(
        "remove_leftovers",
        without("not _take_lock_alone(folder_fd)"),
        "tools/test_two_servers.py::test_nothing_is_cleaned_up_while_a_program_runs",
    ),
    Guard(
        "_is_leftover",
        replaced("bool(is_marked) and status.st_uid == os.geteuid()", "stat.S_ISDIR(mode)"),
        ENDED + "what_earlier_versions_left_goes_with_the_first_call_and_nothing_else_does",
    ),
    Guard("Sandbox._list_mounts", without("_refuse_links(self.workspace)"), COMMAND + "a_linked_repository_is_refused"),
    Guard(
        "Sandbox._list_mounts",
        replaced("hidden = list(_existing_mounts('hidden', self.hidden))", "hidden: list[SandboxMount] = []"),
        COMMAND + "the_state_folder_and_the_configuration_are_not_seen",
    ),
    Guard(
        "CommandRunner.run",
        without("for path, approved_hash in ctx.base_hashes.items():\n    ..."),
        COMMAND + "a_program_that_changed_since_it_was_shown_does_not_run",
    ),
    Guard(
        "McpServerSource._run",
        never("not definitions.is_approved(self._pin_source, *key)"),
        "downstream/test_pins.py::test_what_a_person_removed_stays_away_though_the_server_lists_it",
    ),
    Guard(
        "DefinitionTable.record_listing",
        replaced(
            "if trusted:\n    _insert(...)\nelse:\n    _insert_pending(...)",
            "if True:\n    _insert(...)\nelse:\n    _insert_pending(...)",
        ),
        "downstream/test_pins.py::test_a_tool_that_appears_later_waits_too",
    ),
)

STARTED_BY_HOSTS = (
    Guard(
        "installed_words",
        without("'-P'"),
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
        quick=True,
    ),
    Guard(
        "program_words",
        without("'-P'"),
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
    ),
    Guard(
        "runner:_start_process",
        without("'-I'"),
        FOREIGN_FOLDERS + "each_python_that_the_package_starts_is_told_to_leave_out_the_folder",
    ),
    Guard(
        "_write_entry",
        always("before is None or force"),
        FOREIGN_FOLDERS + "an_entry_of_before_is_corrected_by_the_next_install[codex]",
    ),
    Guard(
        "install:_remove_entry",
        never("not is_own_entry(entry)"),
        "commands/test_install.py::test_another_entry_of_the_name_is_replaced_only_by_force",
    ),
    Guard(
        "_list_entries",
        without("not file.is_file()"),
        "commands/test_install.py::test_a_pipe_in_the_place_of_a_project_s_file_is_not_read",
    ),
    Guard(
        "HostFile.read",
        never("path.exists() and not path.is_file()"),
        "commands/test_install.py::test_a_pipe_in_the_place_of_a_project_s_file_is_not_edited",
    ),
    Guard(
        "Host.file",
        never("not file.resolve().is_relative_to(current_folder().resolve())"),
        "commands/test_install.py::test_a_project_s_file_that_leads_out_of_the_project_is_left_alone",
    ),
    Guard(
        "check_environment",
        without("yield from _check_hosts(entries)"),
        FOREIGN_FOLDERS + "doctor_names_each_entry_of_before",
    ),
    Guard(
        "check_server_commands",
        never("takes_modules_here(server.command)"),
        FOREIGN_FOLDERS + "doctor_names_a_server_that_takes_modules_of_the_workspace",
    ),
    Guard(
        "check_python",
        never("named and not all(...)"),
        FOREIGN_FOLDERS + "doctor_names_a_python_path_with_the_current_folder[lib]",
    ),
)

OUTSIDE = (
    Guard(
        "_operation_url",
        never("named.server is not None and origin != parse_url(named.server).origin"),
        NO_KEY_AWAY,
    ),
    Guard(
        "_mask_word",
        never("before.startswith('-') and not word.startswith('-')"),
        "registry/test_tools_commands.py::test_no_key_of_a_server_is_printed_by_import_or_doctor",
    ),
    Guard(
        "openapi:_list_of",
        never("value is not None and not isinstance(value, list)"),
        "net/test_openapi.py::test_an_odd_value_anywhere_in_a_document_is_taken_or_refused",
    ),
    Guard(
        "_operation_url",
        never("has_key and named.server is None and not named.is_origin_of_fetch(origin)"),
        "net/test_openapi.py::test_a_server_in_full_is_not_the_one_that_is_sent_the_key",
    ),
    Guard(
        "_operation_url", never("not operation.path.startswith('/') or parse_url(...).origin != origin"), NO_KEY_AWAY
    ),
    Guard(
        "find_unfit_value",
        replaced("for _ in range(MAX_DEPTH + 1): ...", "while True: ..."),
        DECODING + "exactly_64_levels_are_let_in_however_many_brackets_stand_beside_them",
    ),
    Guard(
        "parse_strict_json",
        never("has_more_values(text, MAX_VALUES)"),
        DECODING + "a_reply_of_too_many_values_is_refused_before_anything_is_built_of_them",
    ),
    Guard(
        "_find_balanced_object",
        never("text.count('{') + text.count('[') > MAX_VALUES or ..."),
        DECODING + "a_reply_of_many_open_brackets_is_refused_before_each_is_looked_at",
    ),
    Guard(
        "_find_balanced_object",
        never("pieces > MAX_PIECES"),
        DECODING + "a_reply_of_many_pieces_in_brackets_is_refused_before_each_is_tried",
    ),
    Guard(
        "input_checks:_FENCE",
        replaced_words(r"\t]*+(`{3,}+|~{3,}+)([^\r\n]*+)\r?$", r"\t]*+(`{3,}+|~{3,}+)[ \t]*([^\r\n]*?)[ \t]*\r?$"),
        DECODING + "a_fence_with_a_long_line_is_found_in_linear_time",
    ),
    Guard(
        "ValueCounter.feed",
        without("self._is_in_string ^= bool(quotes % 2)"),
        COSTS + "law_every_value_is_counted_and_none_that_stands_in_a_string",
    ),
    Guard(
        "parse_line", never("has_more_values(line.text, MAX_VALUES)"), COSTS + "a_message_of_too_many_values_is_none"
    ),
    Guard(
        "parse_line",
        never("_names_odd_version(message)"),
        "server/test_framing.py::test_a_protocol_version_that_can_not_be_one_is_refused_and_not_repeated",
    ),
    Guard(
        "parse_line",
        without("_replace_odd_version(message)"),
        "server/test_stdio.py::test_an_error_repeats_no_secret_that_the_request_held",
    ),
    Guard(
        "IgnoreRules.inside_folder",
        replaced("lines[:MAX_RULES]", "lines"),
        "tools/test_search.py::test_of_a_gitignore_without_end_the_first_rules_count_and_that_is_said[*x{}?y*z]",
    ),
    Guard(
        "IgnoreRules.inside_folder",
        always("len(line) <= RULE_CHARS"),
        "tools/test_search.py::test_of_a_gitignore_no_long_rule_counts_and_few_characters_are_compiled_at_once",
    ),
    Guard(
        "IgnoreRules.inside_folder",
        always("line.count('[') <= RULE_SETS"),
        "tools/test_search.py::test_of_a_gitignore_no_long_rule_counts_and_few_characters_are_compiled_at_once",
    ),
    Guard(
        "_weigh",
        replaced("len(line) + SET_CHARS * line.count('[')", "len(line)"),
        "tools/test_search.py::test_of_a_gitignore_no_long_rule_counts_and_few_characters_are_compiled_at_once",
    ),
    Guard(
        "_compile_rules",
        never("len(part) == RULES_AT_ONCE"),
        "tools/test_search.py::test_of_a_gitignore_without_end_the_first_rules_count_and_that_is_said[*x{}?y*z]",
    ),
    Guard(
        "compile_line_search",
        without("work.spend(1 + len(line) * pattern.programsize // BYTES_PER_UNIT)"),
        COSTS + "a_search_in_the_event_loop_is_refused_where_its_pattern_and_text_are_both_large",
    ),
    Guard(
        "search_safely",
        replaced("SEARCH_UNITS + ...", "1"),
        COSTS + "many_names_looked_for_by_many_patterns_cost_a_bounded_number_of_calls",
    ),
    Guard(
        "Schema.problems",
        replaced("self._list_problems(value, work)", "self._list_problems(value, Work(units, self.nodes))"),
        COSTS + "a_value_that_two_ways_look_at_is_bounded_once",
    ),
    Guard(
        "_parse_line",
        never("has_more_values(raw, DOCUMENT_VALUES)"),
        "records/test_export.py::test_a_file_without_line_ends_is_read_up_to_its_bound",
    ),
    Guard(
        "read_records",
        never("has_more_values(text, MAX_VALUES)"),
        COSTS + "an_answer_of_too_many_values_is_running_text_for_the_rules_of_flow",
    ),
    Guard("read_bounded", never("len(content) > most"), COSTS + "a_file_without_end_is_read_up_to_its_bound"),
    Guard(
        "_STRING",
        replaced('\'"(?:\\\\\\\\.|[^"\\\\\\\\])*+"?\'', '\'"(?:\\\\\\\\.|[^"\\\\\\\\])*+"\''),
        "commands/test_jsonc.py::test_what_is_never_closed_is_refused_in_linear_time",
    ),
    Guard(
        "_STRING_OR_COMMENT",
        replaced_words(r"|//[^\r\n]*|/\*.*?(?:\*/|\Z)", r"|//[^\r\n]*|/\*.*?\*/"),
        "commands/test_jsonc.py::test_what_is_never_closed_is_refused_in_linear_time",
    ),
    Guard(
        "_read_line",
        never("has_more_values(line, MESSAGE_VALUES)"),
        "downstream/test_output_schemas.py::test_content_of_more_values_than_are_read_costs_the_server_its_line",
    ),
    Guard(
        "_BoundedStream.__aiter__",
        never("values.feed(counted)"),
        "downstream/test_downstream_transports.py::test_a_reply_of_too_many_values_is_told_as_that_and_never_built",
    ),
    Guard(
        "check_output_schema",
        never("problems == [TOO_COSTLY]"),
        "downstream/test_output_schemas.py::test_content_that_would_take_too_long_to_check_is_shown_with_a_note",
    ),
    Guard(
        "ServerToolDefinition.build_spec",
        replaced("relax_schema(body['inputSchema'])[0]", "body['inputSchema']"),
        "downstream/test_pins.py::test_a_tool_whose_schema_cant_be_checked_in_part_stays_with_a_note",
    ),
    Guard(
        "refuse_many_values",
        never("has_more_values(text, MESSAGE_VALUES)"),
        "providers/test_failures.py::test_a_reply_of_too_many_values_is_refused_before_it_is_built",
    ),
    Guard(
        "Work.spend", never("self.left < 0"), SCHEMAS + "a_check_that_would_take_too_long_is_refused_in_counted_work"
    ),
    Guard(
        "Work.spend",
        replaced("units", "0"),
        "http/test_costs_of_one_user.py::test_hostile_answers_cost_little_and_another_user_is_served_meanwhile",
    ),
    Guard(
        "_charge_before",
        without("work.spend(units)"),
        SCHEMAS + "a_check_that_would_take_too_long_is_refused_in_counted_work",
    ),
    Guard(
        "_compile_choices",
        replaced("(isinstance(value, bool), value) in known", "value in {choice for _, choice in known}"),
        SCHEMAS + "a_truth_value_is_no_number_among_the_choices",
    ),
    Guard(
        "_Expansion._check_keywords",
        replaced("if schema is not self._root: ...", "if False: ..."),
        SCHEMAS + "unevaluated_below_the_top_is_refused_with_a_reason",
    ),
    Guard(
        "_Expansion._check_pattern",
        never("self._patterns > MAX_PATTERNS or self._pattern_size > PATTERNS_SIZE"),
        SCHEMAS + "many_patterns_of_one_schema_are_refused_before_they_fill_the_memory",
    ),
    Guard(
        "safe_patterns:_compile",
        without("options.max_mem = PATTERN_BYTES"),
        SCHEMAS + "a_pattern_that_takes_long_to_compile_is_refused",
    ),
    Guard(
        "_find_flaw",
        replaced("_SMALLEST <= number <= _LARGEST", "abs(number) <= _LARGEST"),
        DECODING + "integers_of_64_bits_are_let_in",
    ),
    Guard(
        "_file_system",
        replaced("next(line for line in info if line.startswith('mnt_id'))", "''"),
        WORKSPACE + "a_bind_mount_on_the_same_device_is_not_crossed",
    ),
    Guard(
        "memory_opener",
        replaced("... | _CACHED", "..."),
        "tools/test_safe_open.py::test_a_path_that_is_not_in_memory_is_not_opened_at_once",
    ),
    Guard(
        "memory_opener",
        never("file_system_type(root) not in LOCAL"),
        "tools/test_safe_open.py::test_where_an_open_may_ask_others_nothing_is_opened_at_once",
    ),
    Guard(
        "Workspace.open_file",
        never("status.st_size > AT_ONCE_BYTES"),
        "tools/test_safe_open.py::test_what_is_in_memory_is_read_at_once_and_what_is_not_says_so",
    ),
    Guard(
        "_read_from_memory",
        replaced("os.RWF_NOWAIT", "0"),
        "tools/test_safe_open.py::test_what_is_in_memory_is_read_at_once_and_what_is_not_says_so",
    ),
    Guard(
        "_read_from_memory",
        never("have < count and offset + have < size"),
        "tools/test_safe_open.py::test_what_is_in_memory_in_part_is_not_read_in_part",
    ),
    Guard(
        "call_redacted_at_once",
        always("ctx.check_paths is None"),
        "approvals/test_touched_paths.py::test_a_call_whose_paths_lead_elsewhere_by_now_is_not_made",
    ),
    Guard(
        "Tool.__post_init__",
        never("self.at_once is not None and self.spec.effect != 'read'"),
        "tools/test_registry.py::test_only_a_tool_that_reads_answers_at_once",
    ),
    Guard("_OPENAT2", replaced("437", "9437"), WORKSPACE + "the_kernel_s_own_way_is_taken_where_the_kernel_has_it"),
    Guard("workspace:_read", never("piece and have < count"), WORKSPACE + "what_is_given_in_pieces_is_read_whole"),
    Guard(
        "quote_lines",
        replaced(r"'\n'.join(f'> {line}' if line else '>' for line in text.splitlines())", "text"),
        QUOTED + "no_text_of_a_model_makes_a_section_in_a_later_prompt",
    ),
    Guard(
        "build_phase_spec",
        never("shown is not None and given.run is None"),
        "ooda/test_phase_tools.py::test_a_ref_of_a_run_that_is_not_known_is_not_shown[2026-07-28]",
    ),
    Guard(
        "format_json",
        replaced("json.dumps(...).translate(_LINE_ENDS)", "json.dumps(...)"),
        QUOTED + "no_text_from_outside_makes_a_section_either",
    ),
    Guard(
        "CycleContext.as_one_line",
        replaced("' '.join(text.split())", "text"),
        QUOTED + "no_text_from_outside_makes_a_section_either",
    ),
    Guard("_number_lines", never("barred"), QUOTED + "no_text_from_outside_makes_a_section_either"),
    Guard(
        "render_transcript",
        replaced("quote_lines(body)", "body"),
        QUOTED + "no_part_of_a_transcript_passes_for_another",
    ),
    Guard(
        "may_use_sampling",
        always("is_answered_by('client', asked) or not any(...)"),
        "sampling/test_fallback.py::test_a_client_that_is_known_to_stay_silent_is_asked_only_where_that_is_said",
    ),
    Guard(
        "Answers.submit",
        never("new_answers and run.paused is not None and run.resume_at is None and run.outcome is None"),
        "core/test_app_runs.py::test_a_paused_run_takes_no_answers_until_it_is_resumed",
    ),
    Guard(
        "resolve_program",
        without("_check_interpreter(argv[0], program, search_path, reach)"),
        "tools/test_toolchains.py::test_an_interpreter_that_is_not_there_is_named_and_not_the_script",
    ),
    Guard(
        "_begin_cycle",
        replaced("checks and all(...)", "all(...)"),
        "flows/ooda/test_mandate_runs.py::test_a_goal_that_is_not_known_to_be_reached_is_worked_on",
    ),
    Guard(
        "CycleContext.is_circling",
        without("newest != NOOP_DIGEST"),
        "flows/ooda/test_mandate_runs.py::test_to_do_nothing_run_after_run_is_no_loop",
    ),
    Guard(
        "HttpGuard._refusal",
        never("not self._names.include(header(scope, b'host'), reached)"),
        WEB + "a_host_that_we_are_not_is_misdirected",
    ),
    Guard(
        "HttpGuard._refusal",
        never("b'origin' in counts and not self._names.trust(origin, reached)"),
        WEB + "a_foreign_page_is_refused",
    ),
    Guard(
        "CheckedBody.__call__",
        never("_JSON.fullmatch(header(scope, b'content-type')) is None"),
        WEB + "only_json_is_a_message",
    ),
    Guard(
        "CheckedBody.__call__",
        never("header(scope, b'content-encoding').lower() not in ('', 'identity')"),
        WEB + "HTTP_014_a_compressed_body_is_never_inflated",
    ),
    Guard("CheckedBody._read_body", never("len(body) > limit"), WEB + "HTTP_013_so_is_one_that_comes_in_chunks"),
    Guard(
        "HttpGuard._refusal",
        replaced("if repeated: ...", "if False: ..."),
        WEB + "a_header_that_stands_twice_is_refused",
    ),
    Guard(
        "HttpGuard._refusal",
        replaced(
            "b'origin' not in counts and _FETCH_SITE in counts and site not in ('same-origin', 'none')",
            "False and site not in ('same-origin', 'none')",
        ),
        WEB + "a_page_that_states_no_origin_is_known_by_its_browser",
    ),
    Guard(
        "StrictBuffer.maybe_extract_lines",
        never("not is_empty and _LOOSE_LINE_END.search(head)"),
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "StrictBuffer.maybe_extract_lines",
        never("lines and not _has_one_length(lines)"),
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "StrictBuffer.maybe_extract_next_line",
        never("line is not None and _CHUNK_SIZE.fullmatch(line) is None"),
        WEB + "where_a_message_ends_is_never_guessed",
    ),
    Guard(
        "StreamableTransport.__call__",
        never("header(scope, _VERSION) in MODERN_PROTOCOL_VERSIONS"),
        "http/test_transports.py::test_the_session_of_an_older_protocol_means_nothing_in_a_request_of_2026",
    ),
    Guard(
        "_cancel_on_signal",
        replaced("number != PARENT_GONE", "number == signal.SIGTERM"),
        "server/test_stdio.py::test_a_hangup_ends_it_though_its_stdin_stays_open",
    ),
    Guard(
        "_drop_late_probe",
        replaced("waiting[1:]", "waiting"),
        "server/test_stdio.py::test_a_handshake_behind_a_probe_that_nobody_answered_in_time[copilot-cli-initialize]",
    ),
    Guard(
        "HttpSessions._choose_evicted",
        always("counts[session.principal] == largest_count"),
        "http/test_tenancy.py::test_a_principal_that_holds_every_session_gives_them_up_to_others_down_to_an_equal_share",
    ),
    Guard(
        "HttpSessions._choose_evicted",
        never("evicted is not None and evicted.calls and counts[evicted.principal] <= counts[principal]"),
        "http/test_listener.py::test_a_session_in_which_a_call_waits_does_not_go_for_its_owner_s_next_one",
    ),
    Guard(
        "HttpSessions.begin",
        without("held >= self._limit_each"),
        "http/test_tenancy.py::test_a_principal_has_no_more_sessions_than_are_set_for_each",
    ),
    Guard(
        "StreamableTransport._resume",
        never("session.events.find(last_event) is None"),
        "http/test_resumed_streams.py::test_an_event_that_is_not_there_is_refused_with_what_to_do[0]",
    ),
    Guard(
        "SessionEvents.add",
        without("self._bytes > MAX_BYTES"),
        "http/test_resumed_streams.py::test_the_events_of_a_session_are_bounded_by_number_and_size",
    ),
    Guard(
        "Health.__call__",
        always("scope['path'] == LIVE or await self._is_ready()"),
        "http/test_health.py::test_a_server_whose_state_file_can_not_be_used_lives_and_is_not_ready",
    ),
    Guard(
        "Health.__call__",
        replaced("scope['path'] not in (LIVE, READY)", "not scope['path'].startswith((LIVE, READY))"),
        "http/test_health.py::test_a_probe_needs_no_token_and_no_name_of_ours_and_is_told_nothing_else",
    ),
    Guard(
        "UvicornServer._exit_on_signal",
        without("self._shutdown.begin()"),
        "http/test_shutdown.py::test_calls_that_wait_are_answered_with_what_there_is_and_their_runs_go_on",
    ),
    Guard(
        "OrderlyClose.__call__",
        never("has_begun and not has_ended"),
        "http/test_shutdown.py::test_streams_that_only_listen_are_closed_in_order_long_before_the_grace_is_over[0.3]",
    ),
    Guard(
        "tokens:_match",
        replaced("hmac.compare_digest(each.hashed.encode(), hashed)", "True"),
        WEB + "a_token_that_was_not_given_out_lets_nobody_in",
    ),
    Guard(
        "AccessRule.admit",
        without("self._no_auth"),
        OWNER_TOKEN + "another_user_of_this_machine_decides_nothing[False]",
        quick=True,
    ),
    Guard(
        "AccessRule.admit",
        without("UNDECIDING"),
        OWNER_TOKEN + "without_auth_runs_are_started_and_read_and_nothing_is_decided_by_dialog[modern http]",
    ),
    Guard(
        "UNDECIDING",
        replaced("('run', 'admin')", "('run', 'admin', 'approve')"),
        OWNER_TOKEN + "another_user_of_this_machine_decides_nothing[True]",
    ),
    Guard(
        "_ensure_access",
        never("is_public or settings.oauth is not None"),
        OWNER_TOKEN + "without_auth_it_listens_on_this_machine_alone[beyond this machine]",
    ),
    Guard("_ensure_access", without("tokens.any()"), OWNER_TOKEN + "none_is_made_where_there_is_one"),
    Guard(
        "_write_new",
        replaced("os.open(..., 384)", "os.open(..., 420)"),
        OWNER_TOKEN + "a_server_without_tokens_makes_one_for_the_local_owner",
    ),
    Guard(
        "make_owner_token", without("tokens.revoke(LOCAL)"), OWNER_TOKEN + "a_token_whose_text_can_not_be_kept_is_none"
    ),
    Guard("_write_new", without("file.unlink(missing_ok=True)"), OWNER_TOKEN + "a_token_that_fills_the_disk_is_none"),
    Guard(
        "find_token",
        without("tokens.find_principal(token) == LOCAL"),
        INSTALLED_HTTP + "a_token_that_was_revoked_elsewhere_is_written_nowhere",
    ),
    Guard(
        "_show_token",
        always("sys.stderr.isatty()"),
        "server/test_log_lines.py::test_all_that_a_server_says_at_its_start_is_such_a_line[http, text]",
    ),
    Guard(
        "_http_entry", without("not project"), INSTALLED_HTTP + "the_project_s_file_gets_the_name_of_a_variable[cursor]"
    ),
    Guard(
        "_http_entry",
        always("writes or sys.stdout.isatty()"),
        INSTALLED_HTTP + "the_token_is_printed_on_a_terminal_alone",
    ),
    Guard(
        "HostFile.set_entry",
        never("is_secret"),
        INSTALLED_HTTP + "the_user_s_file_gets_the_token_and_is_for_the_user_alone[codex]",
    ),
    Guard(
        "Places.hold",
        never("self._held[holder] >= self._each"),
        HTTP_PLACES + "600_unfinished_bodies_of_one_principal_shut_nobody_out",
    ),
    Guard(
        "Places.__init__",
        replaced("... // SHARES", "..."),
        HTTP_PLACES + "open_streams_of_one_principal_hold_a_quarter_at_most",
    ),
    Guard(
        "Authentication.__call__",
        replaced("admission.principal", "str(id(scope))"),
        HTTP_PLACES + "open_streams_of_one_principal_hold_a_quarter_at_most",
    ),
    Guard(
        "Authentication.__call__",
        replaced("f'peer {peer}'", "str(id(scope))"),
        HTTP_PLACES + "a_peer_that_waits_to_be_admitted_has_its_share",
    ),
    Guard(
        "Peers.include",
        without("found = getattr(found, 'ipv4_mapped', None) or found"),
        HTTP_PLACES + "the_peer_is_the_last_address_that_is_no_trusted_proxy[::ffff:10.0.0.1-1.2.3.4-1.2.3.4]",
    ),
    Guard(
        "Peers.find_peer",
        without("self.include(address)"),
        HTTP_PLACES + "the_peer_is_the_last_address_that_is_no_trusted_proxy[1.2.3.4-6.6.6.6-1.2.3.4]",
    ),
    Guard(
        "BoundedProtocol._make_room",
        replaced("(-counts[other._peer], other._connected_at)", "other._connected_at"),
        HTTP_PLACES + "a_peer_that_opens_many_connections_loses_its_own",
    ),
    Guard(
        "BoundedProtocol.connection_made",
        never("self.peers.include(address)"),
        HTTP_PLACES + "the_connections_of_a_trusted_proxy_are_those_of_many[proxies1]",
    ),
    Guard(
        "Page._enter",
        never("self._entering >= MAX_ENTERING"),
        HTTP_PLACES + "browsers_that_never_finish_to_enter_shut_nobody_out",
    ),
    Guard(
        "RateLimiter.wait_s",
        never("left < 1"),
        "http/test_tenancy.py::test_HTTP_028_one_principal_that_asks_too_often_slows_nobody_else",
    ),
    Guard("read_run", replaced("caller.principal", "None"), RUNS + "another_principal_s_run_looks_like_an_unknown_one"),
    Guard("make_boundary", replaced("current_principal()", "'all'"), ROUNDS + "a_state_is_its_principal_s_alone"),
    Guard(
        "RequestStateSealer._get_boundary",
        replaced(
            "make_boundary(await self._read_key(), self._ttl_s)",
            "make_boundary(await self._read_key(), 1000000000.0)",
        ),
        ROUNDS + "a_state_ends_with_its_time_and_outlives_a_restart",
    ),
    Guard(
        "consume_ask",
        replaced_words("and consumed is null returning", "returning"),
        "sampling/test_beside.py::test_an_ask_is_taken_once_also_where_its_answers_are_for_different_steps",
    ),
    Guard(
        "record_still_open",
        without("step.is_waiting"),
        "sampling/test_beside.py::test_a_reply_whose_step_was_answered_meanwhile_stores_nothing_and_is_no_error",
    ),
    Guard(
        "settings_for_server",
        without("notes += _refused_tool_notes(settings)"),
        "commands/test_doctor_trials.py::test_an_http_tool_whose_host_is_not_allowed_is_named",
    ),
    Guard(
        "HttpClient._exchange",
        replaced(
            "connection.open(addresses, ...)", "connection.open(tuple(map(ip_address, self._resolve(url.host))), ...)"
        ),
        EGRESS + "a_name_is_resolved_once_and_the_connection_goes_where_that_answer_was",
    ),
    Guard(
        "HttpClient.addresses",
        replaced("describe_forbidden(address)", "None"),
        EGRESS + "the_metadata_of_a_cloud_is_refused_even_if_it_is_listed",
    ),
    Guard(
        "HttpClient.addresses",
        never("not listed and (why := describe_non_public(address)) is not None"),
        EGRESS + "a_name_that_leads_inside_is_refused_before_a_connection",
    ),
    Guard(
        "HttpClient._redirected_request",
        never("target.origin != url.origin and not _is_same_site(url, target) and not self.is_listed(target)"),
        EGRESS + "a_redirect_on_the_same_host_is_followed_and_one_elsewhere_only_where_listed",
    ),
    Guard(
        "HttpClient._redirected_request",
        without("not is_cross_origin or name.lower() in _CROSS_ORIGIN_HEADERS"),
        EGRESS + "headers_stay_behind_when_a_redirect_leaves_the_origin",
    ),
    Guard(
        "HttpClient._exchange",
        without("request.method in ('GET', 'HEAD')"),
        EGRESS + "what_does_more_than_read_is_not_repeated_elsewhere",
    ),
    Guard(
        "HttpClient._redirected_request",
        never("url.scheme == 'https' and target.scheme == 'http'"),
        EGRESS + "a_redirect_from_https_to_http_is_refused",
    ),
    Guard(
        "RunFactory.registry",
        without("await self._tool_sources.refresh()"),
        "registry/test_registering.py::test_a_call_of_it_is_approved_and_made_by_a_process_that_never_saw_it",
    ),
    Guard(
        "redact_spec",
        replaced("found = ...", "found = Redacted(body, 0)"),
        "secrets/test_planted.py::test_001_a_planted_key_is_found_in_no_row_log_error_or_export",
    ),
    Guard(
        "Answers._submit_responses",
        without("not await self._context.is_served_elsewhere(run)"),
        "crash/test_who_acts.py::test_a_living_server_acts_by_its_own_settings",
    ),
    Guard(
        "BuiltinTool.is_tool",
        replaced("(spec.name, spec.source) == (self.name, 'builtin')", "spec.name == self.name"),
        "tools/test_builtin_table.py::test_a_tool_of_a_caller_with_the_name_of_ours_is_judged_by_what_it_names",
    ),
    Guard(
        "make_outcome",
        replaced("truncate(record, RECORD_CHARS - 1)", "record"),
        "core/test_outcomes.py::test_a_record_is_cut",
    ),
    Guard(
        "make_outcome",
        replaced("did_all and row.may_complete", "did_all"),
        "core/test_outcomes.py::test_only_a_run_that_did_the_cycles_it_was_asked_for_is_complete_where_a_guard_is_its_reason",
    ),
    Guard(
        "_run_due",
        replaced('COMPLETED if report.status == "stopped" else exit_code_of(report)', "exit_code_of(report)"),
        "ooda/test_killed_and_commands.py::test_a_timer_takes_a_run_that_was_stopped_for_no_failure_and_is_told_which",
    ),
    Guard(
        "cause_lines",
        replaced("was_cut_short(report)", "False"),
        "commands/test_stopped_runs.py::test_stdout_has_the_summary_and_stderr_the_cause_and_a_command_that_goes_on",
    ),
    Guard(
        "_run_cycles",
        replaced("did_all=are_asked", "did_all=True"),
        "flows/ooda/test_mandate_runs.py"
        "::test_a_run_that_did_the_cycles_it_was_asked_for_is_complete_and_one_at_the_most_of_its_mandate_is_stopped",
    ),
    Guard(
        "reserved_tool_names",
        replaced("frozenset(BUILTIN)", "frozenset[str]()"),
        "tools/test_builtin_table.py::test_the_reserved_names_are_those_of_tools_that_exist",
    ),
    Guard(
        "possible_effect",
        without("verdict == 'ask' and settings.approvals == 'host'"),
        "server/test_annotations.py::test_a_tool_that_moves_runs_states_the_most_that_they_may_do",
    ),
    Guard(
        "Answers._check_may_decide",
        without("self._context.check_may_decide('settlement', caller, command, run_id=run.id)"),
        RIGHTS + "every_cell_of_the_table_is_what_each_way_of_deciding_does[settlement-argument-ask]",
    ),
    Guard(
        "Dialogs.take_decisions",
        always("self._decides_by_dialog('settlement', caller)"),
        "approvals/test_settling_dialogs.py::"
        "test_a_dialog_that_is_still_open_when_only_a_command_may_settle_decides_nothing",
    ),
    Guard(
        "must_record",
        always("request.digest == settlement_digest(now, request.path, step)"),
        "crash/test_settle.py::test_a_settlement_is_of_one_attempt_and_of_no_later_one",
    ),
    Guard(
        "settlement_digest",
        without("step.attempt"),
        "approvals/test_settling_dialogs.py::test_an_answer_to_what_was_shown_of_an_earlier_attempt_stores_nothing",
    ),
    Guard(
        "must_record",
        never("now.principal != principal"),
        "crash/test_settle.py::test_another_principal_settles_nothing",
    ),
    Guard(
        "read_decision",
        replaced(
            "case 'accept' | 'decline', _ if settlements.is_settlement_key(key): ...",
            "case 'accept' | 'decline', _ if settlements.is_settlement_key(key): return "
            "SettlementRequest(key, 'reattempt', None, digest)",
        ),
        "approvals/test_settling_dialogs.py::test_what_is_no_settlement_leaves_the_call_waiting",
    ),
    Guard(
        "must_record",
        never("before.settlement != request.settlement"),
        "crash/test_settle.py::test_a_command_whose_end_is_unknown_is_never_repeated_by_itself",
    ),
    Guard(
        "SecretSearch.__init__",
        replaced("_forms()", "_forms()[1:]"),
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(
        "_trigger",
        replaced("(f'(?i:{STRONG}|{WEAK}|{HEADERS})', *_BEGINNINGS)", "_BEGINNINGS"),
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(  # `pass` has to begin a word, `password` need not
        "_judge_name",
        replaced("_SHORT_NAME.fullmatch", "_SHORT_NAME.match"),
        "secrets/test_masking.py::test_a_secret_is_taken_out_and_nothing_else",
    ),
    Guard(
        "secret_values:_WORDS",
        replaced_words(r"][A-Za-z]*\d{0,3})*", r"]+[A-Za-z]*\d{0,3})*"),
        "secrets/test_masking.py::test_012_no_value_is_split_in_more_than_one_way_while_it_is_judged",
    ),
    Guard(
        "disable_repository",
        replaced("open_without_links(folder_fd, name.split('/'))", "os.open(name, os.O_RDONLY, dir_fd=folder_fd)"),
        HIDDEN_WRITES + "a_link_that_is_put_aside_leads_to_no_repository_of_the_user",
    ),
    Guard(
        "remove_mount_points",
        replaced("open_without_links(root, folders)", "os.open('/'.join(folders) or '.', os.O_RDONLY, dir_fd=root)"),
        HIDDEN_WRITES + "no_empty_file_goes_through_a_link_in_the_place_of_a_folder",
    ),
    Guard(
        "_SurveyWalk._rename_excess",
        replaced(
            "open_without_links(self._root, path.split('/')[:-1])",
            "os.open(path.rpartition('/')[0] or '.', os.O_RDONLY, dir_fd=self._root)",
        ),
        HIDDEN_WRITES + "no_file_is_renamed_where_a_link_leads_that_came_during_a_search",
    ),
    Guard(
        "overlay:_remove_entry",
        replaced("open_without_links(layer, folders)", "os.open('/'.join(('.', *folders)), FOLDER, dir_fd=layer)"),
        "tools/test_stage.py::test_through_a_link_in_the_place_of_a_folder_nothing_outside_is_removed",
    ),
    Guard(
        "Overlay.take_out",
        without("self._take_in(layer, path)"),
        "tools/test_stage.py::test_files_of_a_folder_that_took_a_files_place_are_approved_one_after_another",
    ),
    Guard(
        "FlowView._label",
        never("is_ours and not is_foreign and ... and spec.name in _SHOWING_TEXTS"),
        "flow/test_foreign_files.py::test_an_address_of_others_stays_theirs_through_what_a_program_wrote",
    ),
    Guard(
        "_workspace_of",
        replaced("here or ...", "..."),
        "flow/test_foreign_files.py::test_a_file_is_trusted_in_the_workspace_where_the_person_is",
    ),
    Guard(
        "_workspace_of",
        never("len(holding) > 1"),
        "flow/test_foreign_files.py::test_a_file_is_trusted_in_the_workspace_where_the_person_is",
    ),
    Guard("is_setting", replaced("is_none(plain)", "(is_none(plain) or is_label(plain))"), GRAMMAR + SOUNDS),
    Guard(
        "_is_plain_reference",
        without("if (default := _DEFAULT.fullmatch(unit)) is not None: ..."),
        GRAMMAR + SOUNDS + "[a default behind another reference]",
    ),
    Guard(
        "_is_plain_reference",
        replaced("all(map(is_none, texts))", "True"),
        GRAMMAR + SOUNDS + "[a default in a template]",
    ),
    Guard(
        "_is_plain_reference",
        replaced("words <= _LABEL_WORDS", "True"),
        GRAMMAR + SOUNDS + "[yaml]",
    ),
    Guard(
        "judge_user",
        replaced("user.isdigit() and value.isdigit()", "value.isdigit()"),
        GRAMMAR + SOUNDS + "[a user of curl]",
    ),
    Guard(
        "_judge_header",
        never("settings and ' ' not in value and ..."),
        GRAMMAR + SOUNDS + "[a header with a scheme]",
    ),
    Guard("find_key_blocks", always("closes < at"), ASIDE + "no_part_of_a_text_is_searched_twice_for_the_end_of_a_key"),
    Guard(
        "_forms",
        without("(compile_patterns([PAIR]), judge_pair)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not",
    ),
    Guard(
        "_forms",
        without("(compile_patterns([USER]), judge_user)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not",
    ),
    Guard(
        "find_quoted",
        replaced("closed >= 0 and has_lines", "0 <= closed < start + 600 and has_lines"),
        FORMS_IN_FILES + "a_value_of_many_lines_is_masked_to_its_end",
    ),
    Guard(
        "_block_lines",
        replaced("at < len(text)", "at < min(len(text), 600)"),
        FORMS_IN_FILES + "a_value_of_many_lines_is_masked_to_its_end",
    ),
    Guard(
        "secret_assignments:SEPARATOR",
        replaced_words("[:?+]=", ":="),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[a variable of a Makefile]",
    ),
    Guard(
        "Tools.try_servers",
        replaced("redact(trial.stderr).text[-STDERR_CHARS:]", "redact(trial.stderr[-STDERR_CHARS:]).text"),
        "commands/test_doctor_trials.py::test_what_a_server_wrote_is_not_cut_within_a_known_key[12]",
    ),
    Guard(
        "fetch:read_body",
        never("begins < len(kept)"),
        "net/test_fetch.py::test_a_body_is_not_cut_within_a_known_key[0-12]",
    ),
    Guard("_block_lines", replaced("whole_line_end", "line_end"), LONG + "[a block of one line]"),
    Guard("_line_value", never("end - begins >= MAX_SECRET_BYTES"), LONG + "[a line]"),
    Guard("_follow_key_lines", replaced("rest < len(text)", "rest < min(len(text), at + 16384)"), LONG + "[a key]"),
    Guard("find_key_blocks", never("reached < closes < reached + MAX_SECRET_BYTES"), LONG + "[a key in one line]"),
    Guard("mask_in_pieces", replaced("[span for span in found if span[1] > end]", "[]"), LONG + "[a quoted text]"),
    Guard(
        "_search_form",
        replaced("_lies_within(match.start(), ahead)", "match.start() < max((end for _, end in ahead), default=0)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not",
    ),
    Guard(
        "_next_line",
        without("_line_kind(text, at, 0) != 'empty'"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not",
    ),
    Guard(
        "_quoted_below",
        never("_QUOTED_NAME.match(text, begins)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not",
    ),
    Guard(
        "_search_form",
        without("count += len(spans[1:])"),
        FORMS_IN_FILES + "the_lists_in_a_list_are_counted_with_what_they_hold",
    ),
    Guard(
        "list_members_below",
        replaced("_list_below(text, at, len(text))", "_list_below(text, at)"),
        FORMS_IN_FILES + "each_member_of_a_long_record_of_secrets_is_masked",
    ),
    Guard(
        "_forms",
        without("(compile_patterns([CALL]), judge_call)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[calls]",
    ),
    Guard(
        "_forms",
        without("(compile_patterns([EXPLICIT]), judge_explicit)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[a key that is said to be one]",
    ),
    Guard(
        "_forms",
        without("(compile_patterns([TABLE]), judge_table)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[a table of secrets]",
    ),
    Guard(
        "_forms",
        without("(compile_patterns([DATA_IN_BRACES]), judge_data_in_braces)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[a Kubernetes Secret in braces]",
    ),
    Guard(
        "_find_telling",
        always("sets or makes"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[calls]",
    ),
    Guard(
        "_find_telling",
        never("_CHECKS.fullmatch(name)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[calls with several arguments]",
    ),
    Guard(
        "_judge_login",
        never("len(quoted) != 2"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[calls with several arguments]",
    ),
    Guard(
        "_list_below",
        replaced("ends_with_item=not reach", "ends_with_item=True"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[records in a list of secrets]",
    ),
    Guard(
        "_list_lines",
        never("column > MAX_COLUMN"),
        "secrets/test_masking.py::test_of_the_lines_of_records_in_records_few_are_looked_at_for_each",
    ),
    Guard(
        "_not_deeper",
        never("column > MAX_COLUMN"),
        "secrets/test_masking.py::test_of_the_lines_of_records_in_records_few_are_looked_at_for_each",
    ),
    Guard(
        "_list_flow",
        never("far > most"),
        "secrets/test_masking.py::test_records_in_records_take_bounded_work[nested in braces]",
    ),
    Guard(
        "_list_records",
        never("far > MAX_FAR_BRACES"),
        "secrets/test_masking.py::test_records_in_records_take_bounded_work[nested in lists]",
    ),
    Guard(
        "find_members",
        replaced("islice(members, MAX_JUDGED_MEMBERS)", "members"),
        "secrets/test_masking.py::test_of_a_record_of_secrets_so_many_members_are_judged",
    ),
    Guard(
        "_values_within",
        never("_SECRETS.fullmatch(named.name)"),
        FORMS_IN_FILES + "a_form_is_masked_and_what_stands_beside_it_is_not[records in a list of secrets of JSON]",
    ),
    Guard(
        "_values_within",
        always("item[1] < last"),
        FORMS_IN_FILES + "the_lists_in_a_list_are_counted_with_what_they_hold",
    ),
    Guard(
        "_bare_value", replaced("to_end(text, found.span(), _CODE_REST)", "found.span()"), LONG + "[a word in prose]"
    ),
    Guard(
        "list_values_around",
        replaced("islice(..., MAX_MEMBERS)", "..."),
        FORMS_IN_FILES + "of_a_record_few_values_are_looked_at",
    ),
    Guard(
        "find_by_file_name", never("is_table(name)"), FORMS_IN_FILES + "a_column_with_the_name_of_a_secret_is_masked"
    ),
    Guard("is_env_file", without("'.envs' in folders"), FORMS_IN_FILES + "all_below_envs_is_asked_about_and_masked"),
    Guard(
        "reading_tool.read_file",
        without("is_table_of_secrets"),
        FORMS_IN_FILES + "a_table_of_secrets_too_large_to_be_masked_is_refused",
    ),
    Guard(
        "_keep_last",
        without("size > CACHED_BYTES"),
        "secrets/test_masking.py::test_masked_files_are_remembered_within_a_bound_of_bytes",
    ),
    Guard(
        "mask_in_pieces",
        never("begin and is_over()"),
        "secrets/test_masking.py::test_masking_ends_with_a_piece_once_its_time_is_over",
    ),
    Guard(  # a list of pairs takes ten times as much
        "mask_in_pieces",
        replaced("Spans", "list[Span]"),
        "secrets/test_masking.py::test_the_secrets_of_a_large_file_take_little_memory",
    ),
    Guard(
        "_search_form",
        never("count > MAX_JUDGED"),
        "secrets/test_masking.py::test_places_are_counted_through_all_pieces_of_a_file",
    ),
    Guard(
        "redact_aside",
        replaced("await asyncio.to_thread(redact, *given, **named)", "redact(*given, **named)"),
        ASIDE + "a_large_value_is_redacted_in_a_worker_thread",
    ),
    Guard(
        "_refuse_large",
        replaced("(size := count_chars(value)) > REPLY_BYTES", "size := 0"),
        ASIDE + "an_answer_that_is_too_large_is_refused_before_it_is_searched",
    ),
    Guard(  # a start of a new kind, a new field of an old one
        "start_run",
        replaced(
            "await redact_aside(redact_values.redact_spec, marked, built.texts, redactor)", "(marked, built.texts, 0)"
        ),
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "redact_spec",
        replaced("_redact_given_text(body, redactor)", "redactor.redact_known(body)"),
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "_may_hold_secrets",
        replaced("return _collect_texts(...) or ...", "return redactor.redact_text(_JSON.encode(value)).count > 0"),
        "secrets/test_every_field.py::test_a_key_behind_a_tab_or_a_line_break_is_stored_nowhere",
    ),
    Guard(
        "_collect_texts",
        without("isinstance(item, str) and is_named(name)"),
        "secrets/test_every_field.py::test_a_value_under_the_name_of_a_key_is_redacted_in_a_results_data",
    ),
    Guard(
        "redact_result",
        replaced("redactor.redact_data", "redactor.redact_json"),
        "secrets/test_masking.py::test_a_tool_is_given_the_password_that_its_result_does_not_show",
    ),
    Guard(
        "redact_arguments",
        replaced("redactor.redact_json", "redactor.redact_data"),
        "secrets/test_masking.py::test_a_tool_is_given_the_password_that_its_result_does_not_show",
    ),
    Guard(
        "redact_spec",
        replaced("_redact_given(value, redactor)", "(value, 0)"),
        EVERY_FIELD + "a_start_of_a_new_kind_is_stored_nowhere",
    ),
    Guard(
        "start_run",
        replaced("None if plan.key is None else redactor.redact_text(plan.key).text", "plan.key"),
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "Redactor._redact_json",
        replaced("name.count + in_item", "in_item"),
        EVERY_FIELD + "a_tool_is_stored_and_logged_nowhere",
    ),
    Guard(
        "_mask_content",
        without("found.append(span)"),
        "secrets/test_masking.py::test_a_known_value_survives_in_no_form",
    ),
    Guard(
        "Redactor.find_parted",
        never("begins < cut < ends"),
        "secrets/test_parted_secrets.py::test_no_text_is_cut_within_a_known_key",
    ),
    Guard(
        "ToolCaller._call",
        without("self.resources.redactor.find_parted"),
        "secrets/test_parted_secrets.py::test_a_program_s_output_that_is_cut_within_a_key_is_stored_without_it",
    ),
    Guard(
        "_redact_result",
        replaced("redact_values.redact_result(result, redactor)", "result"),
        "secrets/test_planted_everywhere.py::test_a_key_given_to_every_tool_is_in_no_artefact",
    ),
)

WORDS = (
    Guard("_unique_keys", never("len(value) < len(pairs)"), NOT_PLAIN),
    Guard(
        "_refuse_growth",
        never("nodes > EXPANDED_NODES or depth >= EXPANDED_DEPTH"),
        "test_schemas.py::test_an_unsafe_schema_is_refused_at_once",
    ),
    Guard(
        "guarded_validator",
        without("'anyOf': _check_any_of"),
        "test_schemas.py::test_alternatives_are_each_left_at_their_first_problem",
    ),
    Guard(
        "parse_strict_json",
        without("except RecursionError: ..."),
        DECODING + "what_is_nested_too_deep_is_refused_before_the_parser_runs_out_of_stack",
    ),
    Guard("_find_balanced_object", never("len(found) > 1"), NOT_PLAIN),
    Guard(
        "classify_turn",
        replaced("'length'", "'never'"),
        "flows/test_planner.py::test_a_truncated_turn_executes_nothing_and_is_shown_to_the_model",
    ),
    Guard(
        "LoopGuards.check_turn",
        never("all(call.unreadable is not None for call in turn.tool_calls)"),
        "flows/test_stop_reasons.py::test_turns_whose_calls_can_not_be_read_are_format_errors_and_no_stall[bad0]",
    ),
    Guard(
        "LoopGuards.check_repeats",
        never("times >= STALL_AFTER_REPEATS"),
        "flows/test_planner.py::test_the_same_call_with_the_same_result_is_warned_at_three_and_stalled_at_five",
    ),
    Guard(
        "_ActiveGather.may_begin",
        never("any(...)"),
        "flows/test_planner.py::test_consecutive_reads_go_side_by_side_and_a_write_is_a_barrier",
    ),
    Guard(
        "_plan_attempts",
        without("state.runner.try_begin(path)"),
        TOGETHER + "they_are_made_in_order_whatever_is_decided_first",
    ),
    Guard(
        "RunState._feed",
        never("has_failed and step.was_decided"),
        TOGETHER + "a_call_that_fails_withdraws_the_later_ones",
    ),
    Guard(
        "edit_tool.propose_changes",
        replaced("ctx.drafts[path] if path in ctx.drafts else rules.read_content(path)", "rules.read_content(path)"),
        TOGETHER + "all_are_shown_at_once_as_the_ones_before_leave_the_files",
    ),
    Guard(
        "CommandRunner.preview",
        never("program.base_hashes.keys() & ctx.drafts.keys()"),
        TOGETHER + "a_program_that_a_call_before_it_changes_is_asked_about_once_it_is_there",
    ),
    Guard(
        "_must_record",
        never("found.verdict == 'withdrawn'"),
        TOGETHER + "a_denial_withdraws_the_later_ones[False]",
    ),
    Guard(
        "ToolRegistry._leaves_out",
        always("not self._is_read_only"),
        READ_ONLY + "no_tool_that_does_more_than_read_is_offered_to_a_run_or_called[edit_file]",
    ),
    Guard("Gate.judge", never("self._is_read_only"), READ_ONLY + "what_would_be_asked_about_is_denied"),
    Guard(
        "AppContext.check_may_decide",
        never("self._is_read_only(kind)"),
        READ_ONLY + "a_run_of_another_server_is_shown_and_neither_decided_nor_taken_over[2025-11-25]",
    ),
    Guard(
        "AppContext.require_writing",
        never("self.settings.read_only"),
        READ_ONLY + "one_that_writes_is_refused_where_it_is_called_all_the_same[2025-11-25-mandate_save]",
    ),
)

PRUNED = "records/test_pruning.py::test_"
UNREAD = "records/test_unreadable.py::test_"

DAMAGED = (
    Guard("Runs.list_prunable", always("everywhere"), PRUNED + "only_runs_of_this_folder_go_unless_all_are_meant"),
    Guard(
        "_prune_runs",
        replaced("[run.n for run in found]", "None"),
        PRUNED + "only_runs_of_this_folder_go_unless_all_are_meant",
    ),
    Guard("_prune_runs", never("as_json or not is_person_there()"), PRUNED + "where_nobody_can_be_asked_nothing_goes"),
    Guard(
        "_prune_runs", never("not confirm('Remove them for good')"), PRUNED + "a_person_is_shown_what_goes_and_asked"
    ),
    Guard(
        "RunWorker._rebuild",
        replaced("self._is_unreadable = True", "raise"),
        UNREAD + "a_run_that_cannot_be_read_is_cancelled_at_once[null for an answer]",
    ),
    Guard(
        "_end_steps",
        replaced("Units(*(max(0, amount) for amount in left))", "NOTHING"),
        UNREAD + "a_begun_step_that_does_not_say_what_it_holds_is_charged_with_all_that_the_account_held",
    ),
    Guard(
        "_unreadable_rows",
        replaced("found.setdefault", "dict[str, str]().setdefault"),
        UNREAD + "doctor_names_the_run_and_no_other[null for an answer]",
    ),
    Guard(
        "read_text",
        never("sha256(body).hexdigest() != content_hash"),
        "records/test_damaged_texts.py::test_a_damaged_text_of_one_run_stops_it_by_name_and_no_other"
        "[a wrong but valid byte]",
    ),
    Guard(
        "_KEEP",
        replaced_words("= excluded.body", "= body"),
        "records/test_damaged_texts.py::test_a_shared_text_is_put_back_by_whoever_reads_it"
        "[prompts-a wrong but valid byte]",
    ),
)

SILENCE = "downstream/test_silent_servers.py::test_"

CLOCK = "budgets/test_clock_set_back.py::test_"

DAYS = (
    Guard(
        "day_to_charge",
        replaced("newest is None or newest <= today.name", "today"),
        CLOCK + "a_day_once_begun_is_charged_until_the_clock_has_passed_it",
    ),
    Guard(
        "_hold",
        never("plan.charged.is_barred"),
        CLOCK + "a_clock_that_is_far_behind_stops_model_calls_until_a_person_says_that_it_is_right",
    ),
    Guard(
        "decide",
        without("notes += too_small_notes(...)"),
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
        "_ServerReader.read_valid_setting",
        replaced("_find_problem(...)", "None"),
        "registry/test_tools_commands.py::test_a_server_that_settings_can_not_hold_is_named_and_the_others_are_written",
    ),
    Guard(
        "_ServerReader._read_pairs",
        never("is_reference(translated) or EMBEDDED_REFERENCE.search(translated)"),
        "downstream/test_config_import.py::test_no_text_of_another_program_s_file_becomes_a_reference_to_a_secret",
    ),
    Guard(
        "_may_start",
        never("as_json or not is_person_there()"),
        "registry/test_tools_commands.py::test_no_server_of_others_is_started_unless_a_person_has_seen_what_it_is[None]",
    ),
    Guard(
        "import_servers",
        never("not _may_start(starts, as_json=as_json)"),
        "registry/test_tools_commands.py::test_no_server_of_others_is_started_unless_a_person_has_seen_what_it_is[n]",
    ),
    Guard(
        "decode_text",
        replaced("content.removeprefix(mark).decode(encoding, ...)", "content.removeprefix(mark).decode('utf-8', ...)"),
        "test_settings.py::test_a_settings_file_is_read_in_the_encodings_that_editors_write[utf-16]",
    ),
    Guard(
        "read_front_matter",
        always("quoted == head"),
        "agents/test_agent_files.py::test_a_plain_value_may_hold_a_colon"
        "[description: Use it when: tuning.-Use it when: tuning.]",
    ),
    Guard(
        "CompiledRule.fits_call",
        without("rule.category is None or fnmatchcase(facts.category, rule.category)"),
        "approvals/test_gate.py::test_a_rule_may_be_for_a_category[mcp:y-deny-decisions3]",
    ),
    Guard(
        "note_idle_rules",
        always("not context.settings.gate"),
        "approvals/test_idle_rules.py::test_a_run_names_the_rules_that_fit_nothing_that_it_could_call",
    ),
    Guard(
        "main:main",
        without("open_standard_streams()"),
        "commands/test_closed_streams.py::test_a_command_works_with_closed_streams_and_prints_into_no_file[(1,)]",
    ),
    Guard(
        "doctor",
        replaced("_with_current_folder(settings)", "settings"),
        "commands/test_doctor_trials.py::test_agents_are_judged_by_the_tools_that_this_folder_brings",
    ),
    Guard(
        "check_provider_answer",
        without("model_calls=1"),
        "commands/test_doctor_trials.py::test_a_dead_port_is_bad_and_asked_once",
    ),
    Guard(
        "Tools.search",
        without("await asyncio.to_thread(registry.try_sources, names)"),
        "registry/test_offers.py::test_a_search_says_why_a_tool_that_was_approved_can_t_be_started",
    ),
    Guard(
        "_is_named",
        replaced("(*unknown, *own)", "unknown"),
        "downstream/test_offering.py::"
        "test_a_source_that_is_named_by_a_tool_or_a_glob_is_waited_for_longer[globs2-named2-waited2]",
    ),
    Guard(
        "ToolRegistry.wait_ready",
        always("_is_named(source, unknown, asked)"),
        "downstream/test_offering.py::"
        "test_a_source_that_is_named_by_a_tool_or_a_glob_is_waited_for_longer[None-named0-waited0]",
    ),
    Guard("ToolAccess._late_tools", always("self.late_globs is None"), SLOW_SERVER),
    Guard(
        "ServerClient._get_connection",
        replaced(
            "opening is None or opening.done()", "opening is None or opening.done() or self._connection is not None"
        ),
        SLOW_SERVER,
    ),
    Guard(
        "ToolRegistry.select",
        without("self.starting_sources((glob,))"),
        "downstream/test_offering.py::test_a_glob_may_name_what_is_coming_and_nothing_else_that_is_not_there",
    ),
    Guard("DefinitionTable.record_listing", without("not _has_namesake(session, source)"), ANOTHER_LINE + "[argument]"),
    Guard(
        "pin_source",
        replaced("[list(...), setting.url, setting.cwd, variables, headers]", "[list(...), setting.url, setting.cwd]"),
        ANOTHER_LINE + "[another variable]",
    ),
    Guard(
        "check_output_schema",
        replaced(
            "problems = compile_schema(schema).problems(answer.structured, THREAD_UNITS)", "problems: list[str] = []"
        ),
        "downstream/test_output_schemas.py::test_structured_content_that_breaks_the_output_schema_is_an_error[content0-/total]",
    ),
    Guard("read_listing", replaced("redact(as_listed)", "as_listed"), LISTED),
    Guard(
        "client_options",
        replaced(
            "{'trust_env': False, 'verify': make_tls_context(...)}",
            "{} and {'trust_env': False, 'verify': make_tls_context(...)}",
        ),
        "providers/test_network_variables.py::test_a_request_to_this_machine_arrives_though_a_proxy_is_set",
    ),
    Guard(
        "store.connection:connect",
        replaced("path.parent.resolve() / path.name", "path"),
        "tools/test_state_folder.py::test_a_state_folder_may_lie_behind_a_link_and_its_file_may_be_none",
    ),
    Guard(
        "BoundedHttp.handle_async_request",
        replaced("_RepairedStream(bounded, self._repair, request, is_event_stream=is_event_stream)", "bounded"),
        "downstream/test_odd_servers.py::test_over_http_a_server_that_deviates_is_used_for_what_is_right"
        "[the first half of an emoji-application/json]",
    ),
    Guard(
        "BoundedHttp.handle_async_request",
        without("info['request'].method != b'CONNECT'"),
        "downstream/test_odd_http.py::test_a_call_is_checked_right_before_its_own_head_not_before_a_proxy_s",
    ),
    Guard(
        "pass_network_variables",
        without("name not in withheld"),
        "downstream/test_server_lifecycle.py::"
        "test_a_server_finds_its_way_out_by_the_proxies_and_certificates_of_this_machine",
    ),
    Guard("MessageRepair._decode", never("found[1]"), ODD + "costs_itself_alone[the first half of an emoji]"),
    Guard(
        "has_answered",
        without("isinstance(error.data, dict) and AS_SENT in error.data"),
        "downstream/test_odd_servers.py::test_a_process_that_deviates_is_used_for_what_is_right"
        "[error {'code': -32000, 'message': 'lost'}]",
    ),
    Guard(
        "has_answered",
        never("isinstance(error.data, dict) and NO_ANSWER in error.data"),
        ODD_HTTP + "a_call_that_gets_no_answer_is_told_with_its_cause[504 with a page]",
    ),
    Guard(
        "ServerClient._convert_failure",
        without("has_lost_session(error.error)"),
        ODD_HTTP + "a_call_that_gets_no_answer_is_told_with_its_cause[429]",
    ),
    Guard(
        "has_lost_session",
        without("error.code in _LOST_CODES and ..."),
        ODD_HTTP + "a_session_that_is_lost_is_told_and_the_next_call_has_another[an error in a 200]",
    ),
    Guard(
        "MessageRepair._answers_notification",
        replaced("self._notified > 0 and _may_answer_notification(answer)", "False"),
        ODD + "costs_itself_alone[a notification gets an error, late]",
    ),
    Guard(
        "_carry_result",
        replaced("{'content': [], 'resultType': 'complete', '_meta': {AS_SENT: sent}}", "sent"),
        ODD + "costs_itself_alone[block {'type': 'video', 'data': 'AAAA'}]",
    ),
    Guard("ServerConnection.list_tools", without("cursor in cursors"), ODD + "costs_itself_alone[cursors in a circle]"),
    Guard(
        "ServerConnection.list_tools",
        never("number > 1 and self.is_alive"),
        ODD + "costs_itself_alone[second page fails]",
    ),
    Guard(
        "definition:_find_problem",
        without("return 'its inputSchema does not say that arguments are an object'"),
        ODD + "costs_itself_alone[inputSchema {'type': ['object', 'null']}]",
    ),
    Guard("relax_schema", replaced("reason.leave_out()", "raise"), ODD + "costs_itself_alone[pattern ^(?=x)y]"),
    Guard(
        "ServerClient.call",
        replaced(
            "answer_deadline > call.deadline",
            "answer_deadline > call.deadline and self._count_unanswered(connection) is None",
        ),
        SILENCE + "calls_that_their_own_limit_cuts_leave_the_server_and_another_s_call_alone",
    ),
    Guard(
        "ServerClient._close_if_silent",
        never("self._active_calls"),
        SILENCE + "a_server_that_was_silent_twice_is_started_anew_once_another_s_call_has_ended",
    ),
)

STATE = "tools/test_state_folder.py::test_"
OWNERSHIP = "test_ownership.py::test_"
BUBBLEWRAP = "tools/test_bubblewrap.py::test_"

OWN_MACHINE = (
    Guard(
        "Workspace.open_fd",
        never("self._private is not None"),
        STATE + "the_opener_knows_the_folder_by_its_identity[False]",
    ),
    Guard(
        "load_settings",
        without("check_state_folder(home, environ)"),
        OWNERSHIP + "what_another_user_may_replace_is_seen_behind_a_link",
    ),
    Guard(
        "_check_path",
        without("is_parent"),
        OWNERSHIP + "a_folder_of_everybodys_is_fine_above_where_it_is_sticky_and_never_as_the_state_folder",
    ),
    Guard(
        "_find_settings_file",
        without("check_settings_file(absolute_path(named), environ)"),
        OWNERSHIP + "a_settings_file_elsewhere_that_others_may_write_is_refused",
    ),
    Guard(
        "find_bubblewrap",
        replaced("part in folders", "part"),
        BUBBLEWRAP + "a_folder_that_programs_may_write_makes_no_sandbox_though_path_names_it",
    ),
    Guard(
        "Sandbox._list_mounts",
        replaced("(*self.sealed, *find_bubblewrap().installed)", "self.sealed"),
        BUBBLEWRAP + "a_program_can_not_write_the_bubblewrap_that_makes_its_sandbox",
    ),
    Guard(
        "supervise",
        without("_kill_all(including_self=status is None)"),
        COMMAND + "without_a_sandbox_what_left_the_session_ends_with_the_program_too[time]",
    ),
    Guard(
        "reply_hook",
        never("300 <= response.status_code < 400"),
        "providers/test_failures.py::test_"
        "a_redirect_is_named_with_where_it_leads_and_neither_followed_nor_tried_again[openai:small-302]",
    ),
    Guard(
        "_BoundedStream.__aiter__",
        without("self._on_flood(flood)"),
        "downstream/test_downstream_transports.py::test_a_reply_that_is_too_large_is_told_as_that_and_at_once[http]",
    ),
)

GIVEN_UP = "sampling/test_given_up.py::test_"
DIALOGS = "approvals/test_dialogs.py::test_"
LAYOUT = "approvals/test_dialog_layout.py::test_"

ASKED_OF_CLIENTS = (
    Guard(
        "create_requests",
        replaced("before or not all(...)", "not all(...)"),
        GIVEN_UP + "on_the_modern_protocol_another_client_takes_over_and_the_first_ones_answer_counts",
    ),
    Guard(
        "_decide_attempt",
        replaced("if attempt.withdrawn_requests: ...", "if False: ..."),
        GIVEN_UP + "no_limit_is_passed_by_clients_that_go_away_again_and_again",
    ),
    Guard(
        "_drop_steps",
        without("charges += charge_requests(ledger, *found)"),
        GIVEN_UP + "what_is_in_the_air_when_a_run_is_cancelled_stays_charged",
    ),
    Guard(
        "settle_answered",
        without("_refund_bound(session, ledger, step, answered.charged)"),
        GIVEN_UP + "a_late_answer_alone_is_charged_with_what_it_cost",
    ),
    Guard(
        "ClientRequests.is_newest_asker",
        always("self._askers.get((caller.principal, run_id)) == caller.session"),
        GIVEN_UP + "another_client_takes_the_ask_over_at_once_and_the_silent_one_is_held_against_nobody",
    ),
    Guard(
        "Dialogs.open_questions",
        without("(run.n, each.key, each.digest) not in ignored"),
        DIALOGS + "what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "read_decision",
        replaced(
            "case ['accept' | 'decline', _] if took_s < instant_s: ...",
            "case ['decline', _] if took_s < instant_s: ...",
        ),
        DIALOGS + "what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more",
    ),
    Guard(
        "make_dialog",
        always("question.tool == RUN_COMMAND.name"),
        DIALOGS + "a_line_of_a_call_that_reads_like_one_of_ours_is_no_reason_to_hide_it",
    ),
    Guard(
        "read_decision",
        always("choice == 'deny' or shown.decides"),
        DIALOGS + "what_a_dialog_does_not_show_whole_is_not_approved_there",
        quick=True,
    ),
    Guard(
        "read_decision",
        without("case ['accept', _] if shown.way == 'page': ..."),
        DIALOGS + "a_client_that_opens_links_is_sent_to_the_page_and_its_call_waits_for_the_decision_there",
    ),
    Guard(
        "report_when_at_rest",
        without("if call.on_page and await client_requests.waits_on_page(call, run, call.on_page): ..."),
        DIALOGS + "a_client_that_opens_links_is_sent_to_the_page_and_its_call_waits_for_the_decision_there",
    ),
    Guard(
        "lay_out",
        without("1 + len(body) <= screen.lines"),
        LAYOUT + "every_changed_line_is_seen_where_it_can_be_approved",
    ),
    Guard(
        "lay_out",
        without("not notes"),
        LAYOUT + "a_remark_is_shown_or_nothing_is_approved",
    ),
    Guard(
        "_make_fields",
        without("max(map(count_columns, lines)) > ABOUT_CHARS"),
        LAYOUT + "every_changed_line_is_seen_where_it_can_be_approved",
    ),
    Guard(
        "_read_hunk",
        always("old == new == 0"),
        LAYOUT + "a_text_that_is_no_whole_diff_is_shown_line_by_line",
    ),
    Guard(
        "drop_impossible_usage",
        always("completion.usage is None"),
        "budgets/test_believed.py::test_the_callers_report_that_can_not_be_is_none",
    ),
)

WHOSE = "identity/test_whose_run.py::test_"
SHOWN = "identity/test_commands_shown.py::test_"

WHOSE_RUN = (
    Guard(
        "AppContext.check_served",
        never("not caller.is_person and not self.factory.has_folder(run)"),
        WHOSE + "a_run_is_looked_at_paused_and_cancelled_from_anywhere_and_answered_only_at_home",
    ),
    Guard(
        "ClientRequests.open_requests",
        without("not self._factory.has_folder(run)"),
        WHOSE + "the_model_of_another_folders_client_is_asked_nothing_of_a_run",
    ),
    Guard(
        "Dialogs.open_questions",
        never("not self._factory.has_folder(run)"),
        WHOSE + "a_dialog_of_another_folders_run_is_never_shown",
    ),
    Guard(
        "find_same_start",
        replaced_words("= ? and workspace = ? and key =", "= ? and ? is not null and key ="),
        WHOSE + "a_key_belongs_to_its_workspace",
    ),
    Guard(
        "has_private_content",
        replaced_words("union all select step from attempt where run = ?1)", ")"),
        "providers/test_runs.py::test_they_are_named_too_where_a_provider_took_over_a_step_that_began_elsewhere",
    ),
    Guard(
        "_wrong_figures",
        replaced_words("is distinct from", "<>"),
        "records/test_lengths.py::test_what_is_stored_beside_the_steps_and_differs_is_damage",
    ),
    Guard(
        "find_same_start",
        replaced_words("= ? and workspace = ? and key is", "= ? and ? is not null and key is"),
        WHOSE + "an_identical_start_in_another_project_makes_a_run_of_its_own",
    ),
    Guard(
        "validate_arguments",
        without("refuse_placeholders(arguments)"),
        SHOWN + "no_tool_takes_a_placeholder_for_what_it_stands_for",
    ),
    Guard(
        "Answers.submit",
        without("refuse_placeholders(dict(answers))"),
        SHOWN + "a_placeholder_is_no_answer_from_a_person_at_a_terminal_either",
    ),
)

WHAT_IS_NEW = (
    Guard(
        "Predecessor.newest_of",
        replaced("within + found.name not in names", "within + found.name not in names and found.before"),
        ONLY_NEW + "what_a_person_let_go_on_elsewhere_is_shown_from_where_the_caller_was[2025-11-25]",
    ),
    Guard(
        "_new_part",
        replaced(
            "step.tools and step.tools[:len(before.tools)] != before.tools[:]",
            "step.tools[:len(before.tools)] != before.tools[:]",
        ),
        "ooda/test_phase_tools.py::test_an_item_says_that_tools_are_offered_no_more",
    ),
    Guard(
        "planner:_loop",
        replaced(
            "(compaction.conversation, compaction.usage, None)",
            "(compaction.conversation, compaction.usage, predecessor)",
        ),
        ONLY_NEW + "after_a_compaction_the_item_is_whole_and_only_after_it[2025-11-25]",
    ),
    Guard(
        "Answers.keys_unmasked",
        replaced("plain[key] == value", "plain[key] is not None"),
        ONLY_NEW + "a_turn_of_which_a_word_was_masked_is_shown_whole[2025-11-25]",
    ),
    Guard(
        "list_notes",
        replaced_words(">= ?", "<> -?"),
        ONLY_NEW + "a_note_is_shown_with_the_answer_that_it_came_with_and_not_again[2025-11-25]",
    ),
    Guard(
        "_fit_items",
        replaced("size(cut) > room and not is_first", "size(cut) > room and left_out and not is_first"),
        "server/test_truncation.py::test_items_that_find_no_room_are_named_and_those_before_are_whole",
    ),
    Guard(
        "_fit_items",
        replaced("'after' not in items[at]", "at"),
        "server/test_truncation.py::test_what_follows_this_call_s_answer_finds_room_before_the_rest",
    ),
    Guard(
        "_fit_items",
        replaced("leave_out_texts(items[at], told)", "items[at]"),
        FAN_OUT + "a_result_has_each_system_text_and_list_of_tools_once[2025-11-25]",
    ),
    Guard(
        "ShownBefore.covers",
        always("self.answered_at is None or opened_at < self.answered_at"),
        FAN_OUT + "a_branch_that_begins_now_is_shown_whole[2025-11-25]",
    ),
    Guard(
        "_find_requests",
        never("answered and _waits_for_caller(run, waiting)"),
        FAN_OUT + "an_open_dialog_of_one_branch_keeps_no_other_waiting[2025-11-25]",
    ),
    Guard(
        "plan_commit",
        without("state.startable"),
        FAN_OUT + "completions_and_approvals_of_different_branches_travel_in_one_result",
    ),
    Guard(
        "_pause_at_rest",
        without("if others_move: ..."),
        "providers/test_outage_beside.py::test_the_other_branch_ends_before_the_run_is_paused",
    ),
    Guard(
        "_resume_if_by_itself",
        never("run.resume_at is not None"),
        "providers/test_outage_beside.py::test_an_approval_given_meanwhile_lets_its_branch_go_on",
    ),
    Guard(
        "find_state",
        without("app.runs.waits_for_worker(run)"),
        "core/test_workers.py::test_a_task_goes_on_while_no_worker_lives",
    ),
    Guard(
        "RunningSteps.begin",
        without("not self.state.finished"),
        "core/test_branches_apart.py::test_an_answer_that_comes_during_a_commit_goes_on_while_what_that_begins_is_performed",
    ),
    Guard(
        "RunningSteps.begin",
        without("len(self.state.pending) == 1"),
        "core/test_branches_apart.py::test_an_approved_call_is_made_while_another_branch_s_model_still_thinks",
    ),
    Guard(
        "read_goal_lines",
        never("resources.gate.judge(call).decision != 'allow'"),
        LINES + "a_rule_against_searching_leaves_the_lines_out",
    ),
    Guard(
        "read_goal_lines",
        without("is_hidden=resources.gate.hidden_path_test(call)"),
        LINES + "what_a_rule_hides_or_forbids_is_not_shown",
    ),
    Guard(
        "build_planner_spec",
        always("offer.shown.find(SEARCH_FILES.name) is not None"),
        LINES + "a_run_that_may_not_search_is_shown_no_lines",
    ),
    Guard(
        "_read_summaries",
        replaced("later.from_round is None", "later.continues"),
        FORKS + "the_summary_of_a_run_that_was_cut_is_not_told",
    ),
    Guard(
        "PlannerInput.opening_messages",
        never("self.has_goal"),
        "core/test_forks.py::test_a_fork_without_a_goal_is_asked_what_that_round_was_asked_and_nothing_else[2]",
    ),
    Guard(
        "read_continued_run",
        never("not request.goal and (request.from_round is None or ...)"),
        "core/test_forks.py::test_without_a_goal_nothing_else_is_begun[changes1]",
    ),
    Guard(
        "_change_notes",
        always("row.id > since.id or row.answered_at is None or row.answered_at > since.at"),
        FORKS + "files_that_were_changed_since_are_named_and_those_before_are_not",
    ),
    Guard(
        "_replay_to",
        always("runner.waiting.keys() == branches.keys()"),
        STEP_FORKS + "where_more_was_under_way_nothing_is_forked[task-1]",
    ),
    Guard(
        "_AddedTurn.add_to",
        replaced("shown.digest_at(length) != self._asked.digest", "shown is not self._asked"),
        STEP_FORKS + "a_team_goes_on_from_its_plan_with_another_one",
    ),
    Guard(
        "_check_mandate",
        without("saved.digest != mandate.digest"),
        STEP_FORKS + "cycles_of_a_mandate_that_was_changed_are_not_forked",
    ),
    Guard(
        "_check_mandate",
        never("open_run is not None"),
        STEP_FORKS + "cycles_are_forked_only_while_no_run_of_their_mandate_is_open",
    ),
    Guard(
        "_plan_planner",
        without("mandate=mandate"),
        STEP_FORKS + "a_cycle_goes_on_from_its_decision_with_another_one",
    ),
    Guard(
        "build_fork_spec",
        without("grants_rounds=spec.grants_rounds if request.limits.rounds is None else None"),
        STEP_FORKS + "a_fork_whose_rounds_are_limited_grants_no_more",
    ),
    Guard(
        "build_fork_spec",
        replaced("given_by=request.continues", "given_by=None"),
        STEP_FORKS + "what_that_run_observed_is_read_under_its_ref",
    ),
    Guard(
        "build_fork_spec",
        replaced("(*source.loaded.forks, FrozenFork(...))", "FrozenFork(...)"),
        STEP_FORKS + "a_fork_of_a_fork_keeps_what_was_said_in_both",
    ),
    Guard(
        "queries:newest_run_ids",
        replaced_words("where {IS_NO_TRIAL}", "where true"),
        "commands/test_doctor_trials.py::test_the_trial_of_a_provider_is_none_of_a_user_s_runs",
    ),
)

BESIDE = "approvals/test_sibling_changes.py::test_"

CHANGED_BY_SIBLINGS = (
    Guard(
        "_call_shortened",
        replaced(
            "shorten(_mark_foreign(call_redacted(...), ctx, flow), shown_chars, ctx.path)", "(call_redacted(...), None)"
        ),
        "core/test_worker_threads.py::test_a_long_result_is_shortened_in_a_worker_thread",
    ),
    Guard(
        "run_report:_notes_after",
        never("facts.calls.is_cut"),
        "core/test_app_runs.py::test_a_report_says_when_it_shows_only_the_newest_calls[6-True]",
    ),
    Guard(
        "Records.trace",
        replaced("await asyncio.to_thread(cut_page, found, query)", "cut_page(found, query)"),
        "core/test_worker_threads.py::test_the_record_of_a_run_is_searched_in_a_worker_thread",
    ),
    Guard(
        "Answers.submit",
        replaced("await redact_aside(make, steps)", "make(steps)"),
        "core/test_worker_threads.py::test_a_long_result_that_a_caller_brings_is_shortened_in_a_worker_thread",
    ),
    Guard(
        "read_tools:_number_lines",
        never("numbered and len(numbered) + len(line) > most"),
        "tools/test_files.py::test_numbered_lines_take_no_more_than_a_call_shows",
    ),
    Guard(
        "ToolCaller._authorize",
        replaced("self.sibling_changes.refusal(path, step.call)", "None"),
        BESIDE + "it_is_told_before_a_person_is_asked_and_where_the_change_came_meanwhile",
    ),
    Guard(
        "ToolCaller._call_beside_others",
        replaced("self.sibling_changes.refusal(path, step.call)", "None"),
        BESIDE + "of_two_that_change_a_file_at_once_one_is_told",
    ),
    Guard(
        "ToolCaller._call_beside_others",
        replaced("async with self.sibling_changes.changing(path, step.call): ...", "if path: ..."),
        BESIDE + "of_two_that_change_a_file_at_once_one_is_told",
    ),
    Guard(
        "authorize",
        never("(stale := ...) is not None"),
        BESIDE + "it_is_told_before_a_person_is_asked_and_where_the_change_came_meanwhile",
    ),
    Guard(
        "RunState.rebuild",
        replaced(
            "if calls_of_tasks:\n    self.executor.tool_caller.restore_changes(calls_of_tasks)\n"
            "for path, approval in stored.approvals.items(): ...",
            "if calls_of_tasks:\n    for path, approval in stored.approvals.items(): ...",
        ),
        BESIDE + "another_process_tells_it_too_and_not_twice",
    ),
    Guard(
        "SiblingChanges._is_unseen",
        without("look.turn != turn"),
        BESIDE + "what_is_read_or_told_in_a_turn_counts_from_the_next_one",
    ),
)

GRANTED = "budgets/test_more_rounds.py::test_"
GRANTED_HISTORIES = (
    "budgets/test_granted_histories.py::test_no_history_of_requests_and_crashes_passes_what_may_be_granted"
)

MORE_ROUNDS = (
    Guard(
        "grant_rounds",
        without("len(earlier) >= MAX_GRANTS"),
        GRANTED + "a_grant_is_never_more_than_was_asked_for_nor_than_there_is_room",
    ),
    Guard(
        "grant_rounds",
        replaced("repeats * 2 >= calls", "repeats > calls"),
        GRANTED + "a_grant_is_never_more_than_was_asked_for_nor_than_there_is_room",
    ),
    Guard(
        "ToolAccess.check_call",
        replaced("not spec.is_caller_tool and (lacking := find_wordless_texts(call.arguments))", "lacking := []"),
        GRANTED + "a_request_that_is_not_as_its_schema_says_is_an_error[changes5-justification has 1 different word,]",
    ),
    Guard("_room", replaced("max(0, free) // request.share.count_parts(len(others))[0]", "rest"), GRANTED_HISTORIES),
    Guard("answer_request", replaced("task_of(grant.call) == task_of(path)", "grant.call == path"), GRANTED_HISTORIES),
    Guard(
        "_room",
        always("request.most is None"),
        GRANTED + "the_configurations_limit_bounds_a_grant_and_a_person_extends_as_before",
    ),
    Guard(
        "planner:_offer_tools",
        without("request.limits.rounds is None"),
        GRANTED + "rounds_that_the_caller_limited_are_never_more_and_the_tool_is_not_offered",
    ),
)

AGENT_FILES = (
    Guard(
        "parse_front_matter",
        without("isinstance(event, AliasEvent)"),
        AGENTS + "test_agent_files.py::test_a_few_lines_that_would_fill_the_memory_are_refused",
    ),
    Guard(
        "parse_front_matter",
        without("levels > HEAD_LEVELS"),
        AGENTS + "test_agent_files.py::test_a_file_that_is_wrong_disables_its_agent_alone",
    ),
    Guard(
        "split_agent_file",
        never("len(content) > AGENT_BYTES"),
        AGENTS + "test_agent_files.py::test_a_file_that_is_wrong_disables_its_agent_alone",
    ),
    Guard(
        "read_claude_agents",
        never("not may_read(path)"),
        AGENTS + "test_claude_agents.py::test_what_no_run_may_read_is_not_read_here_either",
    ),
    Guard(
        "_translate_tools",
        replaced("name for name in found if name not in denied", "found"),
        AGENTS + "test_claude_agents.py::test_what_a_file_forbids_it_has_not",
    ),
    Guard(
        "select_agent_tools",
        replaced("ToolSet([spec for spec in own if spec.name in kept])", "registry.select_available(narrowed)"),
        AGENTS + "test_agent_files.py::test_what_an_agent_has_is_only_narrowed_and_every_agent_can_read_its_results",
    ),
    Guard(
        "_select_tools",
        replaced("select_agent_tools(agent, registry, request.tools)", "registry.select(request.tools)"),
        AGENTS + "test_agent_of_a_run.py::test_tools_only_narrows_what_the_agent_has",
    ),
    Guard(
        "RunState.rebuild",
        without("self.agent"),
        AGENTS + "test_agent_of_a_run.py::test_every_step_is_the_agent_s_for_rules_of_the_gate",
    ),
    Guard(
        "_ENDED_TEAMS",
        replaced_words("principal = ?", "? <> ''"),
        AGENTS + "test_agent_records.py::test_only_runs_of_the_principal_in_the_workspace_count",
    ),
)

READ_AS_RESOURCES = (
    Guard(
        "newest_runs", replaced_words("principal = ?", "? <> ''"), RESOURCES + "a_principal_sees_its_own[2026-07-28]"
    ),
    Guard(
        "_outside_json",
        replaced("spell_hidden", "str.strip"),
        RESOURCES + "a_text_that_imitates_a_conversation_is_spelled[2025-11-25]",
    ),
    Guard(
        "read_skill_file",
        replaced("plain_path(path)", "path"),
        RESOURCES + "what_is_not_there_is_refused_with_what_to_do[2026-07-28]",
    ),
)

TASKS = "tasks/test_tasks.py::test_"

AS_TASKS = (
    Guard(
        "_check_takes_tasks",
        never("not ClientCapabilities.from_context(ctx).takes_tasks"),
        TASKS + "the_methods_need_the_capability_in_the_same_request",
    ),
    Guard(
        "_check_takes_tasks",
        never("ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS"),
        TASKS + "older_clients_are_told_of_no_extension_and_have_no_such_method",
    ),
    Guard(
        "TaskMethods._open",
        never("named is not None and decode_header_value(named) != task_id"),
        "tasks/test_task_processes.py::test_a_header_that_names_another_task_is_refused_and_none_is_not",
    ),
    Guard(
        "ClientCapabilities.from_context",
        replaced("TASKS_EXTENSION in (extensions or {})", "modern"),
        TASKS + "a_client_that_declares_no_tasks_gets_the_ordinary_result",
    ),
    Guard(
        "find_state",
        without("app.tasks.check_served(task, call.caller)"),
        TASKS + "a_server_of_another_folder_shows_a_task_that_ended_and_ends_none",
    ),
    Guard(
        "ask_through_task",
        never("not (is_mine or is_old or takes_over)"),
        TASKS + "two_clients_of_one_run_do_not_take_turns_at_asking",
    ),
    Guard(
        "ask_client", without("not looks"), TASKS + "a_client_that_looks_after_its_task_has_not_refused_what_that_asks"
    ),
    Guard(
        "ask_through_task",
        never("is_mine and is_old"),
        TASKS + "a_silent_model_that_was_asked_for_by_name_ends_the_task_and_is_charged_once",
    ),
    Guard(
        "end_task",
        replaced_words("? and ended_at is null", "?"),
        TASKS + "of_two_servers_that_end_a_task_the_first_result_stays",
    ),
    Guard(
        "mark_cancelled",
        replaced_words("and ended_at is null returning", "returning"),
        TASKS + "cancelling_a_task_that_has_ended_leaves_its_run_alone",
    ),
    Guard(
        "skip_keys",
        replaced("sorted({*json.loads(old), *new})", "json.loads(old)"),
        TASKS + "a_dialog_that_the_user_leaves_ends_the_task_and_run_continue_asks_again",
    ),
)

LOGGED = (
    Guard(  # a header of a client, such as tracestate, reaches a log by a library's warning
        "LineFormatter.format",
        replaced("spell_out_hidden(line)", "line"),
        "server/test_log_lines.py::test_no_foreign_text_turns_or_hides_a_part_of_a_line",
    ),
    Guard(
        "write_log_lines",
        without("handler.addFilter(is_of_interest)"),
        "server/test_log_lines.py::test_a_session_that_its_client_ended_meanwhile_is_no_error",
    ),
    Guard(  # a client gets no message below the level that it named
        "_at_level",
        replaced("[entry for entry in entries if LEVELS.index(entry.level) >= LEVELS.index(level)]", "list(entries)"),
        LOG_MESSAGES + "nothing_below_the_level_is_sent",
    ),
    Guard(  # up to 2025-11-25 a level is named for a session; that one of 2026-07-28 named it the SDK looks to
        "open_log",
        without("ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS"),
        LOG_MESSAGES + "nothing_is_sent_that_nobody_asked_for",
    ),
    Guard(  # only who owns the state folder is told a command
        "RunLog._complete",
        never("not caller.is_local"),
        LOG_MESSAGES + "a_principal_s_log_has_nothing_of_another_s_runs",
    ),
    Guard(  # what a server logs is one line, whatever it says
        "LineFormatter.format",
        without("line = line.translate(_ESCAPES)"),
        "server/test_log_lines.py::test_text_is_one_line_that_hides_keys",
    ),
    Guard(  # and hides keys
        "LineFormatter._redact",
        replaced("self._redactor.redact_text(text).text", "text"),
        "server/test_log_lines.py::test_json_is_one_object_that_hides_keys",
    ),
)

TYPED_IN_A_HOST = (
    Guard(
        "Tools.list_paths",
        replaced("resources.gate.hidden_path_test(call)", "resources.gate.hidden_path_test(call) and None"),
        PROMPTED + "names_ids_paths_and_enum_values_complete[2026-07-28]",
    ),
    Guard(
        "_tool_arguments",
        without("_PLACEHOLDER.fullmatch(value) and not argument.is_required"),
        PROMPTED + "a_host_may_fill_the_text_in_itself[2025-11-25]",
    ),
    Guard(
        "_tool_arguments",
        without("validate_arguments(kind.tool_arguments, values)"),
        PROMPTED + "a_wrong_prompt_is_refused_with_what_there_is[2025-11-25]",
    ),
)

TOLD_TO_SUBSCRIBERS = (
    Guard(
        "_find_topic",
        without("await app.runs.find(values['id'], caller)"),
        SUBSCRIBED + "a_principal_is_told_nothing_of_another_s_runs",
    ),
    Guard(
        "Watch.watching",
        never("not self._watchers"),
        SUBSCRIBED + "nobody_looks_before_somebody_subscribes_nor_after_the_last_has_gone[2026-07-28]",
    ),
    Guard(
        "Watch._look",
        always("... or now - self._listed_at.get(principal, -math.inf) >= REST_S"),
        SUBSCRIBED + "a_list_that_changes_again_is_told_after_a_pause",
    ),
    Guard(
        "Watch._look_again_and_again",
        replaced(
            "change = self._next_change()\nwith suppress(KairosError, OSError):\n    await self._look()",
            "with suppress(KairosError, OSError):\n    await self._look()\nchange = self._next_change()",
        ),
        SUBSCRIBED + "what_is_committed_during_a_look_brings_the_next_one",
    ),
    Guard(
        "HttpSessions.end",
        without("session.on_end()"),
        "http/test_subscribers.py::test_nobody_looks_for_a_session_that_was_deleted",
    ),
)

TELEMETRY = (
    Guard(
        "_current_attempt",
        replaced("... + (0 if step is None else step.further_attempts)", "..."),
        "telemetry/test_context.py::test_a_provider_is_told_the_span_of_each_attempt[openai]",
    ),
    Guard(
        "RunTracing.close",
        replaced("await self._task", "self._task.cancel()"),
        SPANS + "what_is_being_read_when_the_server_closes_is_sent",
    ),
    Guard(
        "Recorder.send",
        without("self.with_content or not attribute.is_content"),
        SPANS + "no_content_is_in_any_span_unless_it_is_asked_for",
    ),
    Guard(
        "Recorder.send",
        replaced("self._mask(value) if attribute.is_content else self._bound_name(value)", "value"),
        SPANS + "a_secret_that_became_known_later_is_masked_too",
    ),
    Guard(
        "Recorder._bound_label",
        never("len(known) >= MAX_LABEL_VALUES"),
        METRICS + "names_that_others_make_up_do_not_make_more_and_more_series",
    ),
    Guard(
        "Recorder._bound_name",
        always("self.with_content"),
        MADE_UP + "no_name_that_a_caller_made_up_is_in_a_span_or_a_metric",
    ),
    Guard(
        "Recorder._bound_label",
        never("isinstance(value, MadeUp)"),
        MADE_UP + "with_content_they_are_in_spans_and_never_in_metrics",
    ),
    Guard(
        "build_server",
        without("server.middleware.insert(1, _error_redaction(get_app))"),
        "server/test_stdio.py::test_an_error_repeats_no_secret_that_the_request_held",
    ),
    Guard(
        "_error_redaction",
        replaced("if secrets: ...", "if False: ..."),
        "server/test_stdio.py::test_an_error_repeats_no_secret_that_the_request_held",
    ),
    Guard(
        "build_server",
        replaced("server.middleware[0] = KnownNames(...)", "_ = KnownNames(...)"),
        MADE_UP + "what_the_sdk_sends_of_a_request_has_no_made_up_name",
    ),
    Guard(
        "_without_words",
        always("not span.events and span.status.description is None"),
        SPANS + "the_words_of_an_error_stay_here_whichever_library_says_them",
    ),
    Guard(
        "MetricsPage._answer",
        never("not (has_scope('admin') or has_scope('observe'))"),
        METRICS + "figures_of_all_principals_take_the_scope_admin",
    ),
    Guard(
        "_Look.read",
        without("del self._measurements[measured:]"),
        SPANS + "what_is_sent_again_after_a_takeover_is_counted_once",
    ),
    Guard(
        "_Look.read",
        never("cursor.is_takeover"),
        SPANS + "what_is_sent_again_after_a_takeover_is_counted_once",
    ),
    Guard(
        "RunTracing.follow",
        without("fence > known.cursor.fence + 1"),
        SPANS + "what_another_server_has_sent_meanwhile_is_not_sent_again",
    ),
)

ON_THE_PAGE = (
    Guard("Guard._find_refusal", never("host not in self._hosts"), PAGE + "another_host_is_misdirected"),
    Guard(
        "Guard._find_refusal",
        never("given.get(b'origin', own_origin) != own_origin"),
        PAGE + "another_origin_is_refused_with_our_own_secret",
    ),
    Guard("Guard._find_refusal", never("not is_link"), PAGE + "a_request_that_another_page_made_is_refused"),
    Guard("Guard._find_refusal", without("b'origin' not in given"), PAGE + "an_act_lacks_nothing[Origin]"),
    Guard(
        "Guard._find_refusal",
        never("given.get(b'content-type', '').lower() != 'application/json'"),
        PAGE + "an_act_lacks_nothing[Content-Type]",
    ),
    Guard(
        "Guard._find_refusal",
        always("self._sessions.include(given.get(SECRET, ''))"),
        PAGE + "without_a_session_nothing_is_read",
    ),
    Guard(
        "Guard._find_refusal",
        replaced("given.get(SECRET, '')", "given.get(SECRET, given.get(b'cookie', '').rpartition('=')[2])"),
        PAGE + "whoever_is_sent_the_cookies_of_this_host_reads_and_approves_nothing",
    ),
    Guard(
        "Guard._find_refusal",
        replaced("'' if is_browser else 'none'", "'none'"),
        PAGE + "a_browser_that_does_not_state_who_asks_is_foreign",
    ),
    Guard(
        "Sessions.include",
        replaced("self._ends.get(_hash(secret), 0.0) > time.monotonic()", "_hash(secret) in self._ends"),
        PAGE + "a_session_is_over_after_twelve_hours_and_the_oldest_of_many_ends",
    ),
    Guard(
        "Sessions.enter",
        never("len(self._ends) > MAX_SESSIONS"),
        PAGE + "a_session_is_over_after_twelve_hours_and_the_oldest_of_many_ends",
    ),
    Guard(
        "Guard._find_refusal",
        never("any(counts[name] > 1 for name in _ONCE)"),
        PAGE + "a_header_that_stands_twice_is_refused",
    ),
    Guard("with_headers", without("headers.update(HEADERS)"), PAGE + "every_answer_holds_the_page_in_its_place"),
    Guard("app:read_body", never("len(body) > BODY_BYTES"), PAGE + "an_act_that_is_too_long_or_no_object_is_refused"),
    Guard("use_code", without("path.unlink()"), PAGE + "a_code_is_good_for_one_browser"),
    Guard("use_code", always("0 <= age_s <= CODE_S"), PAGE + "a_code_is_forgotten_after_two_minutes"),
    Guard(
        "write_redirect",
        replaced("os.open(..., 384)", "os.open(..., 420)"),
        PAGE + "what_lets_a_browser_in_is_for_its_owner_s_eyes_alone",
    ),
    Guard("http:serve", without("address in PAGE_ADDRESSES"), PAGE + "beyond_this_machine_there_is_no_page"),
    Guard(
        "HttpClient.addresses",
        never("url.port in ports and describe_non_public(address) is not None"),
        EGRESS + "no_request_goes_to_the_page_even_if_it_is_listed",
    ),
    Guard(
        "Approve.do", without("digest=self.digest"), ON_PAGE + "an_approval_is_of_what_was_shown_and_the_run_goes_on"
    ),
    Guard(
        "Approve.do",
        never("... and self.name != asked.tool"),
        ON_PAGE + "what_can_t_be_undone_is_approved_by_its_name",
    ),
    Guard(
        "own_route",
        never("not is_answered_by('server', choice.route)"),
        ON_PAGE + "nothing_is_started_where_nobody_would_answer",
    ),
    Guard(
        "SavedMandates.save_parsed",
        never("shown is not None and (known is None or known.digest != shown)"),
        ON_PAGE + "a_mandate_is_saved_edited_and_removed_as_it_was_shown",
    ),
    Guard(
        "Mandates.remove",
        never("shown not in (None, row.digest)"),
        ON_PAGE + "a_mandate_is_saved_edited_and_removed_as_it_was_shown",
    ),
    Guard(
        "AppContext.leaves_start",
        always("caller.via != 'page' or not self.is_command"),
        ON_PAGE + "a_run_that_is_started_here_is_left_to_a_living_server",
    ),
    Guard(
        "AppContext.leaves_start",
        without("route in served.routes"),
        ON_PAGE + "a_run_is_not_left_to_a_server_that_lacks_its_route",
    ),
    Guard(
        "Live._tell",
        without("viewer.is_dropped = True"),
        LIVE + "a_viewer_that_reads_nothing_is_dropped_and_the_others_are_not",
    ),
)

TAKEN_TOGETHER = (
    Guard(
        "StoreWatcher._take_runs_of",
        without("len(chosen) < free"),
        TAKEN + "as_many_as_there_are_slots_are_taken_in_one_commit",
    ),
    Guard(
        "Runs.wait",
        without("await self._adopt_orphans(runs_now)"),
        "core/test_app_recovery.py::test_whoever_waits_is_not_told_that_a_run_stands_still_which_goes_on_here[file]",
    ),
    Guard(
        "StoreWatcher._take_runs_of",
        replaced(
            "await asyncio.gather(*(self.take_over(run, owners) for run in chosen))",
            "[await self.take_over(run, owners) for run in chosen]",
        ),
        TAKEN + "as_many_as_there_are_slots_are_taken_in_one_commit",
    ),
)

ORDER_OF_TAKING = (
    Guard(
        "StoreWatcher._take_runs_of",
        without("page.sort(key=lambda run: run.fence == FIRST_FENCE)"),
        "core/test_workers.py::test_what_was_begun_is_taken_before_what_is_queued",
    ),
)

READS_AND_PLANS = (
    Guard(
        "PostgresSession._fetch",
        replaced("with self._pipeline(): ...", "if True: ..."),
        "postgres/test_reads_together.py::test_reads_give_what_they_give_alone_in_as_many_trips_as_the_longest_of_them",
    ),
    Guard(
        "store.connection:connect",
        without("connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)"),
        "records/test_statements.py::test_what_was_executed_before_is_not_planned_again",
    ),
    Guard(
        "WorkerThreads._leave",
        without("self._begin(behind)"),
        "core/test_worker_threads.py::test_a_call_that_takes_long_holds_up_none_of_those_beside_it",
    ),
    Guard(
        "WorkerThreads._begin",
        replaced("(RuntimeError, MemoryError)", "ZeroDivisionError"),
        "core/test_worker_threads.py::test_where_no_further_thread_can_be_started_the_one_there_is_makes_all_calls",
    ),
    Guard(
        "WorkerThreads.close",
        without("for job in *self._backlog, *self._together: ..."),
        "core/test_worker_threads.py::test_what_has_not_begun_is_cancelled_at_the_end",
    ),
    Guard(
        "Writer._checkpoint",
        without("self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)"),
        "records/test_state_file.py::test_the_log_of_a_long_run_is_written_over_again_and_again",
    ),
    Guard(
        "Writer._checkpoint_if_grown",
        always("self._log_pages > self._must_restart_pages"),
        "records/test_state_file.py::test_a_reader_who_takes_his_time_keeps_nobody_from_writing",
    ),
)

BY_ONE_SERVER = (
    Guard(
        "_start_pushes",
        always("await _claim(call, found.run, push)"),
        ASKED_ONCE + "a_model_is_asked_by_one_server_at_a_time[file-legacy http]",
    ),
    Guard("_ask_user", never("not is_ours"), ASKED_ONCE + "a_user_is_asked_by_one_server_at_a_time[file]"),
    Guard(
        "claim",
        without("is_owner_alive(session, owners, owner)"),
        ASKED_ONCE + "a_server_that_was_killed_while_it_asked_asks_no_more_and_another_one_does[file]",
    ),
    Guard("claim", without("client == new.client"), ASKED_ONCE + "another_client_is_asked_by_its_own_call"),
)

AT_PLACES = (
    Guard(
        "missing_settings",
        replaced("is_at and (by_hand or run.workspace in serves.workspaces)", "run.workspace in serves.workspaces"),
        PLACES + "a_run_with_a_workspace_goes_on_only_where_that_folder_is[file]",
    ),
    Guard("start_run", always("place is None"), PLACES + "the_same_start_at_two_places_is_two_runs"),
    Guard(
        "choose_workspace",
        without("not is_here"),
        PLACES + "another_place_answers_nothing_and_a_command_there_does_not_drive",
    ),
    Guard(
        "SavedMandates.find_saved",
        without("self._factory.is_at(row.place)"),
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
    Guard(
        "_list_startable",
        replaced_words("coalesce(place, ?) = ?", "coalesce(?, ?) is not null"),
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
    Guard(
        "store.mandates:save",
        never("known is not None and known.place not in (None, new.place)"),
        PLACES + "a_mandate_belongs_to_its_place[file]",
    ),
)

BY_WORKERS = (
    Guard(
        "AppContext.leaves_start",
        without("caller.via == 'clock'"),
        STARTED + "workers_that_look_at_the_same_moment_start_a_mandate_once[file]",
    ),
    Guard(
        "_list_startable",
        replaced_words("run.outcome is null)", "false)"),
        STARTED + "workers_that_look_at_the_same_moment_start_a_mandate_once[file]",
    ),
    Guard(
        "Schedules.start_due",
        never("find_own_route(self._settings) is None"),
        STARTED + "nothing_is_started_before_its_time_without_a_model_or_in_a_folder_that_is_not_served",
    ),
    Guard(
        "Schedules.start_due",
        always("each not in self._refused"),
        STARTED + "a_start_that_is_refused_is_not_tried_at_each_look",
    ),
)

SIDE_BY_SIDE = (
    Guard(
        "StoreWatcher._wake_for",
        always("news.concerns(n)"),
        "postgres/test_session_locks.py::test_only_the_runs_of_which_something_is_heard_are_looked_at",
    ),
    Guard(
        "_require_unused",
        without("_is_open(source.path)"),
        "postgres/test_copied_folders.py::test_nothing_is_copied_while_a_server_has_the_folder_open_that_has_written_nothing",
    ),
    Guard(
        "GroupSession._awaits_results",
        never("self._job is not None and self._job.awaits_results"),
        COMMITS_BESIDE + "a_job_that_was_told_what_is_not_so_is_run_again_and_told_what_is",
    ),
    Guard(
        "answer_unavailable",
        never("REQUEST_ID in scope and scope['path'] == '/mcp'"),
        "postgres/test_database_away.py::test_a_clients_session_outlives_what_keeps_the_store_from_being_read",
    ),
    Guard(
        "RunTracing._read_gauge",
        replaced("KairosError", "ZeroDivisionError"),
        "telemetry/test_metrics.py::test_a_store_that_can_not_be_read_has_no_figures_and_breaks_no_page",
    ),
    Guard(
        "GroupSession.change",
        without("self._changed_rows += changed"),
        COMMITS_BESIDE + "a_job_that_refuses_after_it_has_written_leaves_nothing",
    ),
    Guard(
        "PostgresWriter._commit",
        without("_await_results(beside)"),
        COMMITS_BESIDE + "a_group_without_room_for_all_is_made_once_more_and_no_third_time",
    ),
    Guard(
        "Workspace.__init__",
        without("private is None or is_local(private)"),
        "tools/test_safe_open.py::test_nothing_is_opened_at_once_where_the_private_folder_may_ask_others",
    ),
    Guard(
        "_check_address",
        replaced("host and user.partition(':')[2]", "urlsplit(text).password"),
        "postgres/test_access.py::test_a_password_in_the_address_is_refused_and_not_shown",
    ),
    Guard(
        "_LOCK_RUNS",
        replaced_words("n for no key update", "n"),
        COMMITS_BESIDE + "a_job_waits_for_those_of_its_own_run_and_for_those_of_any",
    ),
    Guard(
        "_LOCK_SHARED",
        replaced_words("pg_advisory_xact_lock_shared($1)", "$1::bigint"),
        COMMITS_BESIDE + "a_job_waits_for_those_of_its_own_run_and_for_those_of_any",
    ),
    Guard(
        "_LOCK_RUNS",
        replaced_words("for", "desc for"),
        COMMITS_BESIDE + "a_group_takes_what_others_may_want_in_the_order_of_numbers",
    ),
    Guard(
        "LastWrites.write",
        replaced("sorted(self._writes.items(), key=itemgetter(0))", "self._writes.items()"),
        COMMITS_BESIDE + "a_group_takes_what_others_may_want_in_the_order_of_numbers",
    ),
    Guard(
        "_fail_unless_changed",
        replaced_words("1 / count(*)", "count(*)"),
        COMMITS_BESIDE + "a_shared_account_is_never_taken_past_its_cap",
    ),
    Guard(
        "GroupSession.require_told_right",
        never("expected.cursor.rowcount != expected.rows"),
        COMMITS_BESIDE + "a_job_that_was_told_what_is_not_so_is_run_again_and_told_what_is",
    ),
    Guard(
        "GroupSession.require_alone",
        replaced("raise NotAlone", "return"),
        COMMITS_BESIDE + "a_job_that_turns_out_to_concern_other_runs_is_run_alone",
    ),
    Guard(
        "GroupSession.run_jobs",
        never("self.changed_rows() != before"),
        COMMITS_BESIDE + "a_job_that_turns_out_to_concern_other_runs_is_run_alone",
    ),
)

IN_A_DATABASE = (
    Guard(
        "PostgresWriter._open_session",
        without("bound_transactions(self._session.connection)"),
        "postgres/test_stopped_anywhere.py::test_a_transaction_of_who_stands_still_within_a_pipeline_is_ended",
    ),
    Guard(
        "PostgresWriter._require_committed",
        replaced("case ['committed']: ...", "case ['kept']: ..."),
        LOST_COMMITS + "a_commit_whose_reply_is_lost_happens_once[after-1]",
    ),
    Guard(
        "PostgresWriter._require_committed",
        replaced("raise _TransactionLost", "return"),
        LOST_COMMITS + "a_commit_whose_reply_is_lost_happens_once[before-2]",
    ),
    Guard(
        "_Transaction.send_commit",
        without("session.connection.execute(_COUNT)"),
        SESSION_LOCKS + "the_version_of_the_rows_rises_with_each_commit_and_with_nothing_else",
    ),
    Guard(
        "_Transaction.send_commit",
        without("session.connection.execute(_TELL, (named,))"),
        SESSION_LOCKS + "what_others_commit_is_heard_and_what_this_process_commits_is_not",
    ),
    Guard(
        "_BEGIN_STATE",
        replaced_words("isolation level repeatable read read", "read"),
        LOST_COMMITS + "a_read_of_one_state_sees_nothing_that_is_written_meanwhile",
    ),
    Guard(
        "ReadingSession._pipeline",
        replaced("with translate_errors(): ...", "if True: ..."),
        SESSION_LOCKS + "a_read_of_one_state_goes_on_after_its_connection_was_lost",
    ),
    Guard(
        "_TextDumper.dump",
        replaced("spell_nul(obj)", "obj"),
        ANY_TEXT + "a_run_whose_texts_hold_nul_ends_and_can_be_read[database]",
    ),
    Guard(
        "_TextBytesLoader.load",
        replaced("restore_nul(str(data, 'utf-8'))", "str(data, 'utf-8')"),
        ANY_TEXT + "what_is_stored_is_what_is_read[database]",
    ),
    Guard(
        "READABLE_JSON",
        replaced_words(r"strpos(body, '\u0000') > 0", "false"),
        ANY_TEXT + "a_run_whose_texts_hold_nul_ends_and_can_be_read[database]",
    ),
    Guard(
        "spell_nul",
        replaced("text.replace(MARK, f'{MARK}1')", "text"),
        ANY_TEXT + "what_is_stored_is_what_is_read[database]",
    ),
    Guard(
        "FUNCTIONS",
        replaced_words("between -9223372036854775808 and 9223372036854775807", "is not null"),
        ANY_TEXT + "a_number_that_fits_into_no_column_fails_no_statement",
    ),
    Guard("check_version", never("version < newest"), MIGRATED + "a_store_makes_no_tables_and_says_what_does"),
    Guard(
        "PostgresStore.find_damage",
        replaced("find_missing(session)", "[]"),
        MIGRATED + "what_the_database_lacks_of_its_version_is_named",
    ),
    Guard(
        "_LIVING",
        replaced_words("any(?) and seen_at > clock_timestamp() - lease_ms * interval '1 millisecond'", "any(?)"),
        SESSION_LOCKS + "a_server_that_stands_still_is_dead_once_its_lease_is_over_and_lives_when_it_goes_on",
    ),
    Guard(
        "_LIVING",
        replaced_words("key", "true or key"),
        SESSION_LOCKS + "a_killed_server_is_dead_at_once_though_its_lease_is_not_over",
    ),
    Guard(
        "_LIVING",
        replaced_words(
            "(pg_postmaster_start_time() > clock_timestamp() - lease_ms * interval '1 millisecond'", "(false"
        ),
        SESSION_LOCKS + "after_a_restart_of_the_database_nobody_is_taken_for_dead_before_the_lease_is_over",
    ),
    Guard(
        "SessionLock._keep",
        without("self._held_until = 0.0"),
        SESSION_LOCKS + "a_lost_session_is_dead_until_there_is_another_and_may_not_act_meanwhile",
    ),
    Guard(
        "PostgresStore._read",
        always("is_new or not session.connection.closed"),
        SESSION_LOCKS + "a_store_goes_on_after_its_connections_were_lost",
    ),
    Guard(
        "PostgresStore._hear",
        without("not is_own"),
        SESSION_LOCKS + "what_others_commit_is_heard_and_what_this_process_commits_is_not",
    ),
    Guard(
        "PostgresStore.take_news",
        without("now - self._looked_at >= LOOK_S"),
        "postgres/test_machines_apart.py::test_a_cancel_reaches_a_server_that_hears_nothing",
    ),
    Guard(
        "PostgresStore.wait_for_news",
        replaced("asyncio.wait_for(self._news.wait(), LOOK_S)", "self._news.wait()"),
        "postgres/test_machines_apart.py::test_a_worker_that_hears_nothing_takes_what_others_start",
    ),
    Guard(
        "_read_numbers",
        always("_NUMBERS.fullmatch(runs)"),
        SESSION_LOCKS + "whoever_sends_an_odd_notice_ends_no_lease[x,1]",
    ),
    Guard("PostgresStore.now", always("ahead_ms is None"), SESSION_LOCKS + "the_database_s_clock_is_the_store_s"),
    Guard(
        "_make_key",
        replaced_words("do nothing", "(name) do update set value = excluded.value"),
        "postgres/test_access.py::test_servers_that_need_the_sealing_key_at_once_have_the_same",
    ),
    Guard(
        "_require_unused",
        without("pids"),
        "postgres/test_copied_folders.py::test_nothing_is_copied_beside_rows_that_are_there_or_while_a_server_lives",
    ),
    Guard(
        "_copy_tables",
        never("target.row(f'select 1 from {table.name} limit 1') is not None"),
        "postgres/test_copied_folders.py::test_nothing_is_copied_beside_rows_that_are_there_or_while_a_server_lives",
    ),
)

ROOTS = "server/test_roots.py::"
NEXT_CALLS = "server/test_next_calls.py::"
PHASE_TOOLS = "ooda/test_phase_tools.py::"
ARGUMENTS = "server/test_arguments.py::"
ABSOLUTE = "tools/test_absolute_paths.py::"
AS_MODELS_WRITE = (
    Guard(
        "ToolAccess.gate_call",
        replaced("self.local_call(step.call)", "step.call"),
        ABSOLUTE + "test_the_gate_judges_it_as_the_relative_one",
    ),
    Guard(
        "touched_paths:_relative",
        replaced("f'{path}/'.startswith(f'{workspace}/')", "path.startswith(workspace)"),
        ABSOLUTE + "test_one_that_leads_elsewhere_is_denied[{}-secret/f.txt]",
    ),
    Guard(
        "_decode_texts",
        never("text.startswith('{')"),
        ARGUMENTS + "test_objects_are_taken_as_json_texts_too[2026-07-28]",
    ),
    Guard(
        "ToolRegistry.unknown_tool",
        always("tool in self._tools"),
        ARGUMENTS + "test_names_of_hosts_tools_lead_to_ours",
    ),
)
TAKEN_UP = "core/test_taken_up.py::"
CALLED_NEXT = (
    Guard(
        "RunReports._find_driver",
        without("self._context.watcher.takes_runs"),
        "core/test_app_recovery.py::test_a_host_that_was_only_looked_at_takes_nothing",
    ),
    Guard(
        "RunReports._as_server",
        replaced("await self._find_driver(run)", "(False, ())"),
        TAKEN_UP + "test_a_server_that_is_asked_about_it_says_working_and_takes_it_up",
    ),
    Guard(
        "RunReports._find_driver",
        replaced("self._context.watcher.takes_runs and not own", "self._context.watcher.takes_runs"),
        TAKEN_UP + "test_one_that_can_not_says_working_while_another_can_and_paused_with_what_it_takes_else",
    ),
    Guard(
        "_plan_by_record",
        replaced("context.factory.find_workspace(request.workspace)", "context.factory.find_workspace(None)"),
        ROOTS + "test_a_single_call_works_in_the_folder_that_it_names",
    ),
    Guard(
        "RunReports._viewer",
        always("caller.is_person or self._factory.has_folder(stands.run)"),
        NEXT_CALLS + "test_whatever_a_caller_did_the_next_call_is_taken",
    ),
    Guard(
        "_find_mandate",
        always("named is None"),
        PHASE_TOOLS + "test_the_next_call_of_a_phase_goes_on_with_its_mandate_workspace_and_route[2026-07-28]",
    ),
    Guard(
        "plan_phase",
        never("before is not None and request.route == AUTO"),
        PHASE_TOOLS + "test_the_next_call_of_a_phase_goes_on_with_its_mandate_workspace_and_route[2026-07-28]",
    ),
    Guard(
        "_read_phase_output",
        never("run.workspace != workspace"),
        PHASE_TOOLS + "test_the_next_call_of_a_phase_goes_on_with_its_mandate_workspace_and_route[2026-07-28]",
    ),
)

LEAVES = "flow/test_leaving.py::test_"
FOREIGN_FILES = "flow/test_foreign_files.py::test_"
FLOW_RULES = "flow/test_rules.py::test_"
LABELS = "flow/test_labels.py::test_"
ATTACKS = "flow/test_attacks_end_to_end.py::test_"

WHAT_LEAVES = (
    Guard(
        "ToolAccess.authorize_at_once",
        never("self.judges_flow(spec)"),
        LEAVES + "an_injected_page_can_have_no_private_file_sent_out_unasked",
    ),
    Guard(
        "authorize",
        always("not seen.warnings"),
        LEAVES + "an_injected_page_can_have_no_private_file_sent_out_unasked",
    ),
    Guard(
        "authorize",
        never("seen.found and flow is not None and flow.policy.mode == 'deny'"),
        LEAVES + "where_nobody_is_there_the_call_is_not_made",
    ),
    Guard(
        "judge",
        replaced("(Finding('leaves', '', 'what could not be looked through'),)", "()"),
        FLOW_RULES + "arguments_that_can_not_be_looked_through_are_asked_about",
        quick=True,
    ),
    Guard(
        "FlowView.judge",
        replaced("(Finding('leaves', '', \"what can't be told: its rows can't be read\"),)", "()"),
        LEAVES + "a_row_that_can_not_be_read_asks",
    ),
    Guard(
        "FlowView._label",
        never("is_ours and spec.name in _WRITING and (is_foreign or self._hears_others(path))"),
        LEAVES + "a_word_of_a_page_stays_theirs_through_a_file_however_short",
    ),
    Guard(
        "FlowView._label",
        without("self._shows_foreign(spec, result, at)"),
        LEAVES + "words_of_others_stay_theirs_through_a_file[by a search]",
    ),
    Guard(
        "_paths_in",
        replaced("plain_path(each)", "each"),
        LEAVES + "words_of_others_stay_theirs_through_a_file[moved]",
    ),
    Guard(
        "flow_view:_WRITING",
        without("MOVE_FILE.name"),
        LEAVES + "words_of_others_stay_theirs_through_a_file[moved]",
    ),
    Guard(
        "_Judgement.findings",
        never("sum(...) > MAX_SENT"),
        FLOW_RULES + "more_than_is_looked_through_is_asked_about",
    ),
    Guard(
        "_Judgement._spend",
        never("self._left < 0"),
        FLOW_RULES + "more_than_is_looked_through_is_asked_about",
    ),
    Guard(
        "is_address",
        replaced("text.strip().translate(_DOTS)", "text.strip()"),
        FLOW_RULES + "an_address_as_browsers_read_it_is_no_plain_word_and_no_other_host",
    ),
    Guard(
        "host_of",
        replaced_words("[/\\\\?#]", "[/?#]"),
        FLOW_RULES + "an_address_as_browsers_read_it_is_no_plain_word_and_no_other_host",
    ),
    Guard(
        "insert_answer",
        without("if result.foreign_files: ..."),
        FOREIGN_FILES + "a_later_run_takes_no_address_from_what_an_earlier_one_wrote_down[file]",
    ),
    Guard(
        "FlowView._is_foreign_file",
        without("any((file.counts_at(at) for file in self._files.get(path, ())))"),
        FOREIGN_FILES + "a_later_run_takes_no_address_from_what_an_earlier_one_wrote_down[file]",
    ),
    Guard(
        "ForeignFile.counts_at",
        replaced("self.trusted is None or ...", "True"),
        FOREIGN_FILES + "a_file_that_a_person_trusts_is_read_as_their_own_from_then_on",
    ),
    Guard(
        "foreign_text:find_sources",
        never("after in moved"),
        FOREIGN_FILES + "a_move_carries_the_label",
    ),
    Guard(
        "_new_address",
        never("looked_through > MAX_LOOKED_THROUGH"),
        FOREIGN_FILES + "a_file_with_very_many_addresses_is_looked_through_once",
    ),
    Guard(
        "_look_at_flow",
        replaced("flow.find_sources(ctx.path, ctx.written) if ctx.written else {}", "{}"),
        FOREIGN_FILES + "a_stage_says_which_of_its_files_hold_words_of_others_and_asks_although_a_rule_allows",
    ),
    Guard(
        "Row.is_of_others",
        without("not self.is_printed"),
        "flow/test_hops.py::test_a_run_of_ordinary_coding_asks_no_question_more[1]",
    ),
    Guard(
        "FlowView._label",
        without("not _names_address(...)"),
        "flow/test_hops.py::test_a_command_that_fetched_what_others_wrote_lets_no_further_one_run_unasked",
    ),
    Guard(
        "make_call",
        replaced("is_command and reaches == 'outside'", "False"),
        ATTACKS + "an_attack_waits_for_a_person_and_nothing_is_heard_of_it[commit message, pushed]",
    ),
    Guard(
        "opening_rows",
        without("*map(partial(_material, 'lessons', ...), filter(...))"),
        "flow/test_hops.py::test_a_lesson_takes_nothing_along_of_what_the_run_before_it_read",
    ),
    Guard(
        "opening_rows",
        without("*_history_rows(...)"),
        "flow/test_opening_rows.py::test_of_a_history_only_what_the_user_wrote_is_the_persons_word",
    ),
    Guard(
        "_history_rows",
        without("spec.continues is None"),
        "flow/test_opening_rows.py::test_of_another_runs_conversation_nothing_is_the_persons_word",
    ),
    Guard(
        "opening_rows",
        without("*_team_rows(...)"),
        "flow/test_opening_rows.py::test_a_given_plan_is_the_persons_word_and_the_context_beside_it_is_not",
    ),
    Guard(
        "opening_rows",
        without("*_fork_rows(...)"),
        "flow/test_opening_rows.py::test_what_a_fork_takes_over_is_in_view_and_only_its_new_words_are_the_persons",
    ),
    Guard(
        "FlowView.judge",
        replaced("wish or self.policy.wish", "self.policy.wish"),
        "flow/test_clean.py::test_a_change_has_to_be_wished_for_whatever_the_settings_say[clean]",
    ),
    Guard(
        "Gate.__init__",
        never("rule.flow == 'clean' and not sees_flow"),
        "flow/test_clean.py::test_where_nobody_looks_at_flow_nothing_is_clean",
    ),
    Guard(
        "find_other_judgement",
        never("found != judgement.found"),
        "flow/test_judged_again.py::test_findings_and_clean_ones_are_found_again[file]",
    ),
    Guard(
        "_Judgement._one_link",
        without("may_follow"),
        FLOW_RULES + "an_attack_is_asked_about[choosing among links of the page]",
    ),
    Guard(
        "texts_of",
        without("yield from (('', str(key)) for key in value if name)"),
        FLOW_RULES + "nothing_goes_along_with_a_link_as_it_stands[key]",
    ),
    Guard(
        "_Judgement._find_taken",
        replaced("forms.disguises(values)", "values"),
        FLOW_RULES + "an_attack_is_asked_about[the same in base64]",
    ),
    Guard(
        "_Judgement._leaves",
        without("not forms.hosts_in(call.arguments)"),
        FLOW_RULES + "a_command_is_asked_about_for_words_that_are_no_address_only_after_others_had_their_say"
        "[private words to whom was said]",
    ),
    Guard("covers", replaced("call.sent", "call.tool"), FLOW_RULES + "a_yes_covers_the_call_and_no_word_more"),
    Guard(
        "_NUMBERED_LINE",
        replaced_words("\\d{1,3}", "\\d+"),
        FLOW_RULES + "a_short_number_is_named_by_nobody_on_a_line_of_its_own_alone[a longer number]",
    ),
    Guard("tool_pin", without("tool.reaches"), LABELS + "labels_are_part_of_what_a_person_approves"),
    Guard(
        "classify_reach",
        never("by_glob is not None and annotations.get('openWorldHint') is True"),
        LABELS + "a_servers_own_word_makes_a_tool_reach_further_and_never_less_far",
    ),
    Guard(
        "NOT_PROPOSED",
        without("'reaches'"),
        LABELS + "no_agent_can_propose_what_flows_through_its_tool[reaches-inside]",
    ),
    Guard(
        "_Judgement.findings",
        never("not call.is_stated"),
        FLOW_RULES + "a_tool_of_the_caller_is_asked_about_for_found_words_alone",
    ),
)


AT_LIMIT = "approvals/test_asked_at_limit.py::test_"
ON_EVENTS = "ooda/test_started_by_events.py::test_"
BY_STREAMS = "ooda/test_started_by_streams.py::test_"
OF_EVENTS = (
    Guard(
        "stop_early",
        replaced("isinstance((yield from limit_pause(...)), Resumed)", "[(yield from limit_pause(...))]"),
        AT_LIMIT + "denied_it_sums_up_and_ends",
    ),
    Guard(
        "_is_given_more",
        replaced("isinstance((yield from pause), Resumed)", "[(yield from pause)]"),
        AT_LIMIT + "cycles_that_are_given_nothing_end_with_what_they_have",
    ),
    Guard("ask_about", never("cap <= allowed"), AT_LIMIT + "nobody_is_asked_for_more_than_is_configured"),
    Guard(
        "ask_about",
        replaced("2 * allowed if bound is None else min(2 * allowed, bound)", "2 * allowed"),
        AT_LIMIT + "nobody_is_asked_for_more_than_is_configured",
    ),
    Guard(
        "_take_verdict",
        without_words(" and verdict = 'approve'"),
        AT_LIMIT + "denied_it_sums_up_and_ends",
    ),
    Guard(
        "_take_back_closings",
        without("if questions := [...]: ..."),
        AT_LIMIT + "extended_meanwhile_it_goes_on_without_a_decision",
    ),
    Guard(
        "MandateTriggers._start_on_server",
        replaced_words("event:{row.id}", "event"),
        BY_STREAMS + "two_mandates_share_a_stream_which_ends_with_them",
    ),
    Guard(
        "MandateTriggers.start_triggered",
        without("self.server_events.keep_only(...)"),
        BY_STREAMS + "two_mandates_share_a_stream_which_ends_with_them",
    ),
    Guard(
        "ServerEvents._open",
        never("not held.stream.has_ended or now < held.again_at"),
        BY_STREAMS + "a_server_that_does_not_stream_is_polled_and_asked_again_ever_more_seldom",
    ),
    Guard(
        "EventStream.take",
        never("self.has_ended or self.event_count >= MAX_STREAM_EVENTS"),
        BY_STREAMS + "a_stream_that_tells_more_than_is_kept_is_ended_and_the_rest_is_polled",
    ),
    Guard(
        "MandateTriggers._start",
        replaced("CyclesRequest(mandate, key=key)", "CyclesRequest(mandate)"),
        ON_EVENTS + "workers_that_look_at_once_start_one_run_for_each_event",
    ),
    Guard(
        "MandateTriggers._start_on_own",
        never("event is not None and not await self._start(...)"),
        ON_EVENTS + "while_a_run_is_open_events_wait_and_none_is_lost_before_its_record",
    ),
    Guard(
        "_check_triggers",
        never("trigger.mandate_id is not None and trigger.mandate_id == own_id"),
        ON_EVENTS + "a_mandate_can_t_start_itself",
    ),
    Guard(
        "_check_triggers",
        never("(trigger.mandate_id is None) == (trigger.server is None)"),
        ON_EVENTS + "a_trigger_that_names_no_event_is_refused",
    ),
    Guard(
        "is_outage",
        replaced("after is not None and after > MAX_BACKOFF_S", "False"),
        "providers/test_retries.py::test_a_provider_that_says_when_its_limit_is_reset_is_waited_for_until_then",
    ),
    Guard(
        "_read_migrations",
        sql_without(
            "select 'run.waiting', principal, workspace, id, mandate, 'approval', new.key from run where n",
            "select 'run.waiting', principal, workspace, id, mandate, 'approval', new.key from run where -n",
        ),
        EVENT_ROWS + "what_waits_and_what_ends_is_an_event_of_its_principal",
    ),
    Guard(
        "_read_migrations",
        sql_without("when new.outcome is not null and old.outcome is null begin", "when false begin"),
        EVENT_ROWS + "what_waits_and_what_ends_is_an_event_of_its_principal",
    ),
    Guard(
        "_read_migrations",
        sql_without("when new.scope <> 'branch' and", "when false and"),
        EVENT_ROWS + "a_run_that_a_limit_stops_was_near_it_before",
    ),
    Guard(
        "_read_migrations",
        sql_without("and new.last_due is not old.last_due"),
        EVENT_ROWS + "a_mandate_is_due_once_for_each_time",
    ),
    Guard(
        "schema:_translate",
        replaced_words("tx < pg_snapshot_xmin(pg_current_snapshot())::text::bigint", "tx > 0"),
        EVENT_ROWS + "a_position_never_passes_an_open_transaction",
    ),
    Guard(
        "EventFilter.condition",
        replaced_words("principal = ?", "? is not null"),
        EVENT_ROWS + "what_waits_and_what_ends_is_an_event_of_its_principal",
    ),
    Guard(
        "events:remove_old",
        without_words(" and id < (select max(id) from event)"),
        EVENT_ROWS + "old_events_go_and_their_ids_are_given_to_no_other",
    ),
    Guard(
        "describe_event",
        replaced("truncate(in_one_line(data['text']), TEXT_CHARS - 1)", "data['text']"),
        EVENT_ROWS + "what_waits_and_what_ends_is_an_event_of_its_principal",
    ),
    Guard(
        "Notifier._claim",
        never("await self._store.read(...)"),
        NOTIFIED + "what_was_not_taken_is_sent_again_and_of_two_servers_one_sends",
    ),
    Guard(
        "Notifier._notify",
        replaced("[event for event in ready if not is_over(session, event)]", "ready"),
        NOTIFIED + "what_waits_no_more_after_a_quiet_time_is_not_told",
    ),
    Guard(
        "Notifier._notify",
        never("setting.quiet is not None and _is_quiet(...)"),
        NOTIFIED + "what_waits_no_more_after_a_quiet_time_is_not_told",
    ),
    Guard("RUN_MS", replaced("60_000", "0"), NOTIFIED + "of_one_run_a_person_is_told_once_a_minute"),
    Guard("Notifier._look", never("not self._store.is_open"), NOTIFIED + "a_look_opens_no_store"),
    Guard("check_url", never("url.scheme != 'https' and ..."), EVENT_METHODS + "what_is_no_request_is_refused"),
    Guard(
        "decode_secret",
        never("not secret.startswith(SECRET_PREFIX) or ..."),
        EVENT_METHODS + "what_is_no_request_is_refused",
    ),
    Guard(
        "verify_endpoint",
        replaced("compare_digest(returned.encode(), challenge.encode())", "True"),
        EVENT_METHODS + "an_endpoint_that_does_not_want_events_gets_none",
    ),
    Guard(
        "Subscriptions.subscribe",
        without("await asyncio.to_thread(verify_endpoint, ...)"),
        EVENT_METHODS + "an_endpoint_that_does_not_want_events_gets_none",
    ),
    Guard(
        "Subscriptions.subscribe",
        never("before is None and len(mine) >= MAX_SUBSCRIPTIONS"),
        EVENT_METHODS + "a_principal_has_so_many_subscriptions",
    ),
    Guard(
        "Subscriptions.subscribe.write",
        without("events.remove_expired(session, now)"),
        EVENT_METHODS + "what_has_expired_is_sent_nothing_and_begins_anew",
    ),
    Guard(
        "list_listeners",
        replaced_words("expires_at > ?", "? is not null"),
        EVENT_METHODS + "what_has_expired_is_sent_nothing_and_begins_anew",
    ),
    Guard(
        "Subscriptions.subscribe",
        replaced("granted if ends_at is None else min(granted, ends_at)", "granted"),
        ENDPOINTS + "a_subscription_does_not_outlast_the_token_that_asked_for_it",
    ),
    Guard(
        "Authentication._answer_as",
        without("set_end(admission.ends_at)"),
        ENDPOINTS + "a_subscription_does_not_outlast_the_token_that_asked_for_it",
    ),
    Guard(
        "audit:note_token.record",
        never("ends_at is not None"),
        ENDPOINTS + "a_revoked_token_ends_the_webhooks_of_its_principal",
    ),
    Guard(
        "end_webhooks",
        replaced_words("principal = ?", "? is not null"),
        ENDPOINTS + "a_revoked_token_ends_the_webhooks_of_its_principal",
    ),
    Guard(
        "record_sent",
        replaced_words("expires_at > ?", "? is not null"),
        ENDPOINTS + "what_ends_while_it_is_sent_events_is_sent_no_more",
    ),
    Guard(
        "Notifier._look",
        replaced("min(REST_S, (min(tries) - now) / 1000) if tries else REST_S", "REST_S"),
        ENDPOINTS + "any_server_looks_again_when_the_next_try_is_due",
    ),
    Guard(
        "Notifier._put_off",
        without("LAST_RETRY_MS"),
        ENDPOINTS + "tries_follow_each_other_ever_more_slowly_up_to_five_minutes",
    ),
    Guard(
        "send_event",
        replaced("raise Undelivered('connection_refused') from None", "raise"),
        ENDPOINTS + "a_private_address_that_nobody_lists_any_more_is_sent_nothing",
    ),
    Guard(
        "Notifier._send_webhook",
        never("error.status == GONE"),
        EVENT_METHODS + "an_endpoint_that_is_gone_ends_its_subscription",
    ),
    Guard(
        "Notifier._send_webhook",
        replaced("error.status != TOO_LARGE", "True"),
        ENDPOINTS + "an_event_that_is_too_large_is_passed_over",
    ),
    Guard(
        "receivers:post",
        never("not reply.is_success"),
        EVENT_METHODS + "a_webhook_is_verified_signed_and_sent_each_event_in_order",
    ),
)

OPERATORS = (
    Guard(
        "AccessRule.admit",
        never("held.has_expired(self._tokens.now())"),
        TOKENS_CHANGED + "a_token_ends_and_makes_room_for_another[file]",
    ),
    Guard(
        "Tokens.find_principal",
        without("found.has_expired(self.now())"),
        TOKENS_CHANGED + "a_token_ends_and_makes_room_for_another[file]",
    ),
    Guard(
        "Tokens.rotate",
        without("self._limit(old, ends_at)"),
        TOKENS_CHANGED + "two_tokens_give_access_while_clients_change_and_then_the_new_one_alone[file]",
    ),
    Guard(
        "Tokens.rotate",
        never("len(held) > 1"),
        TOKENS_CHANGED + "two_tokens_give_access_while_clients_change_and_then_the_new_one_alone[file]",
    ),
    Guard(
        "AdminTools.__call__",
        never("not has_scope('run') and ..."),
        TOKENS_CHANGED + "the_tools_of_a_token_are_those_of_its_scopes[scopes3-planner_run-403]",
    ),
    Guard(
        "AppContext.find_own_run",
        replaced("replace(caller, sees_all=False)", "caller"),
        TOKENS_CHANGED + "an_observer_sees_the_runs_of_all_and_moves_none",
    ),
    Guard(
        "DayBudget.holds_for",
        replaced("any(...)", "True"),
        "operators/test_day_budgets.py::test_one_principals_day_is_used_up_and_anothers_is_not[file]",
    ),
    Guard(
        "Settings.day_of",
        without("each.group is None"),
        "operators/test_day_budgets.py::test_a_group_is_beside_what_each_may_use",
    ),
    Guard(
        "DailyAccounts._find_and_check",
        without("*of_groups"),
        "operators/test_day_budgets.py::test_members_of_a_group_use_up_one_sum_together_and_not_more[file]",
    ),
    Guard(
        "ObserverData._answer",
        never("not has_scope('observe')"),
        OBSERVED + "data_needs_a_token_that_may_observe_and_files_need_none",
    ),
    Guard(
        "ObserverFiles.__call__",
        never("not self._names.include(...)"),
        OBSERVED + "data_needs_a_token_that_may_observe_and_files_need_none",
    ),
    Guard(
        "SignIn._exchange",
        never("'observe' not in found.scopes"),
        OBSERVED + "a_code_of_the_authorization_server_is_exchanged_for_a_token_that_may_observe[run-403]",
    ),
    Guard(
        "show_row",
        replaced("caller.visible_path(run.workspace)", "run.workspace"),
        OBSERVED + "what_an_observer_reads_holds_no_path_and_nothing_private",
    ),
    Guard(
        "cli.tokens:_open_tokens",
        without("tokens.check_store()"),
        "operators/test_documented_sql.py::test_tables_of_another_version_are_refused[token list-database]",
    ),
    Guard(
        "_check_versions",
        never("len(found) > 1"),
        "operators/test_side_by_side.py::test_who_lives_is_shown_with_its_version[database]",
    ),
    Guard(
        "AuditRecords.send",
        replaced("while ...: ...", "self._exporter.export(records)"),
        AUDIT + "each_line_is_an_otlp_log_record_that_is_sent_until_it_is_taken",
    ),
    Guard("Auditing.follow", always("entry.id not in seen"), AUDIT + "the_stream_tells_each_act_once_and_goes_on"),
    Guard(
        "StoreWatcher._share",
        replaced("max(free, everywhere)", "free"),
        "operators/test_work.py::test_a_worker_takes_its_part_of_what_waits[10-30-8-2]",
    ),
    Guard(
        "plan_migration",
        without("*list_renewals(session)"),
        "operators/test_renewed_functions.py::test_what_is_not_as_this_version_makes_it_is_named_shown_and_renewed[database]",
    ),
    Guard(
        "Refusals.note",
        replaced("(now := self._clock()) < until", "(now := self._clock()) < 0"),
        WATCH + "a_wrong_token_is_counted_and_told_once_a_minute",
    ),
    Guard(
        "OutageLog.note",
        replaced("time.monotonic() if began is None else began", "time.monotonic()"),
        WATCH + "an_outage_is_told_with_its_true_beginning_and_length",
    ),
    Guard(
        "StoreWatcher._take_runs_of",
        without("self._log_takeovers(...)"),
        WATCH + "a_takeover_is_told_with_the_runs_and_the_server_that_ended",
    ),
    Guard(
        "_log_failure",
        without("PROCESS_TALLY.add(PROVIDER_ERRORS, failure.code)"),
        WATCH + "a_failure_of_a_provider_is_counted_by_its_code_and_told",
    ),
    Guard(
        "doctor:_check_store",
        without("yield from _check_queue(health, settings)"),
        WATCH + "a_queue_that_nobody_serves_is_in_status_and_named_by_doctor",
    ),
    Guard(
        "Authentication._admit",
        replaced("self._within_s", "math.inf"),
        "operators/test_tokens.py::test_who_scrapes_is_told_soon_that_the_store_is_away",
    ),
    Guard(
        "_TALLY",
        replaced_words("step.kind <> 'call'", "true"),
        FIND + "a_lost_tool_call_is_not_counted_among_lost_model_calls",
    ),
    Guard(
        "AppContext.close",
        without("await self._release_runs()"),
        WATCH + "what_a_server_leaves_at_its_end_is_no_takeover[file]",
    ),
    Guard(
        "RunReports._find_driver",
        replaced("chain.from_iterable(elsewhere)", "()"),
        FIND + "a_queued_run_says_what_every_living_worker_lacks_for_it[file]",
    ),
    Guard(
        "list_driving",
        without("each.serves.drives"),
        WATCH + "a_server_that_drives_nothing_is_listed_before_its_first_call[file]",
    ),
    Guard(
        "_who",
        never("through in BY_OWNER"),
        AUDIT + "what_an_operator_does_to_anothers_run_is_told_as_the_operators",
    ),
    Guard(
        "plan_migration",
        without("check_is_new_enough(session)"),
        "postgres/test_migrations.py::test_a_server_that_is_too_old_is_named_before_a_statement_fails",
    ),
    Guard(
        "list_wanted",
        never("wanted.principal is not None"),
        FIND + "a_users_runs_and_spending_are_found_by_a_command[file]",
    ),
    Guard(
        "list_wanted",
        never("wanted.since is not None"),
        FIND + "a_users_runs_and_spending_are_found_by_a_command[file]",
    ),
    Guard("list_wanted", never("wanted.model is not None"), FIND + "a_list_is_of_one_model_and_of_what_a_server_has"),
    Guard("list_wanted", never("wanted.owner is not None"), FIND + "a_list_is_of_one_model_and_of_what_a_server_has"),
    Guard(
        "Finder.list_runs",
        always("not by_look or ..."),
        FIND + "open_runs_are_told_apart_by_how_they_stand",
    ),
    Guard(
        "_check_choice",
        never("everyone and whose is not None"),
        FIND + "an_option_that_would_have_no_effect_is_refused[budget --everyone --principal anna]",
    ),
    Guard(
        "_check_choice",
        never("run is not None and chosen"),
        FIND + "an_option_that_would_have_no_effect_is_refused[budget last --days]",
    ),
    Guard(
        "read_lost",
        replaced("HAS_ACCOUNT", "'false'"),
        FIND + "what_a_killed_server_may_have_used_is_shown_apart",
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
    *CALLED_NEXT,
    *AS_MODELS_WRITE,
    *WHAT_LEAVES,
    *OF_EVENTS,
    *OPERATORS,
)
