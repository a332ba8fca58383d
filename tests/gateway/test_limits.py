"""The limits: one table in the docs, one section of the config, options that change it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.gateway.command import changed_limits
from pdplugins.limits import GatewayConfig
from tests.gateway.rig import config

PAGE = Path(__file__).parents[2] / "docs/limits.md"


ACTS = {
    "head_s": "test_clients::test_a_slow_head_is_cut_off",
    "idle_s": "test_clients::test_a_connection_without_requests_is_closed",
    "body_s": "test_clients::test_a_slow_body_is_cut_off_and_gives_its_place_back",
    "write_s": "test_clients::test_a_client_that_does_not_read_is_cut_off",
    "timeout_s": "test_faults::test_the_deadline_ends_everything",
    "connect_s": "test_limits_act::test_a_connection_that_does_not_open_is_not_waited_for",
    "first_token_s": "test_faults::test_a_prefill_has_the_deadline_of_a_first_token_also_when_nothing_streams",
    "silence_s": "test_limits_act::test_a_stream_that_falls_silent_goes_on_elsewhere",
    "worker_wait_s": "test_lost_workers::test_the_wait_for_a_worker_is_bounded_in_time_and_number",
    "rest_s": "test_limits_act::test_a_worker_that_failed_rests_and_then_serves_again",
    "poll_s": "test_faults::test_a_worker_comes_back",
    "poll_timeout_s": "test_faults::test_a_worker_that_does_not_say_its_load_is_not_asked_for_more",
    "poll_misses": "test_polls::test_one_odd_load_takes_no_worker_away",
    "drain_s": "test_process::test_a_stop_cuts_what_is_left_in_time_with_an_error_event",
    "max_connections": "test_limits_act::test_clients_of_many_addresses_have_a_limit_together",
    "max_connections_per_client": "test_clients::test_one_connection_too_many_is_told_so",
    "key_rate": "access/test_rates::test_a_key_has_its_rate_and_others_have_theirs",
    "key_burst": "access/test_rates::test_a_key_has_its_rate_and_others_have_theirs",
    "max_requests": "test_retries::test_requests_beyond_the_limit_are_refused_before_anything_is_read",
    "max_waiting": "test_lost_workers::test_the_wait_for_a_worker_is_bounded_in_time_and_number",
    "max_sessions": "test_names::test_sessions_are_bounded_and_the_least_recent_goes_first",
    "max_body_mib": "test_bodies::test_a_body_is_refused_by_what_its_head_says_of_its_length",
    "max_bodies_mib": "test_bodies::test_bodies_have_a_limit_together_and_give_their_bytes_back",
    "max_json_depth": "test_bodies::test_nesting_is_counted_exactly",
    "max_prompts": "test_bodies::test_mistakes_of_a_client_are_told_in_openais_form",
    "max_name_chars": "test_names::test_a_name_that_would_go_back_is_short",
    "max_answer_mib": "test_odd_answers::test_a_whole_answer_has_a_limit",
    "max_answers_mib": "test_odd_answers::test_whole_answers_have_a_limit_together_and_give_their_room_back",
    "retries": "test_faults::test_no_worker_left_is_an_error_within_the_deadline",
    "retry_share": "test_retries::test_the_budget_is_a_share_with_a_reserve",
    "retry_reserve": "test_retries::test_retries_of_full_workers_are_a_tenth_of_the_requests",
    "backoff_s": "test_retries::test_pauses_double_up_to_a_bound",
    "max_backoff_s": "test_retries::test_pauses_double_up_to_a_bound",
    "transfer_history": "test_routers::test_a_prefill_worker_gets_the_history_that_the_decode_worker_has",
    "access_log": "test_process::test_an_access_log_has_a_line_for_each_request",
    "access_log_json": "test_account::test_each_request_is_a_json_object",
    "shadow": "test_shadow::test_a_router_in_shadow_decides_and_is_told_and_nobody_follows_it",
    "app.LONGEST_LINE": "test_limits_act::test_the_head_of_a_request_has_a_limit",
    "app.MOST_HEADERS": "test_limits_act::test_the_head_of_a_request_has_a_limit",
    "app.LINGER_S": "test_bodies::test_a_body_is_refused_by_what_its_head_says_of_its_length",
    "app.ADMIN_CONNECTIONS": "test_limits_act::test_operators_have_few_connections_and_none_of_those_of_clients",
    "process.CUT_OFF_S": "test_process::test_a_policy_that_never_returns_does_not_keep_the_process",
    "clients.LEAST_IDLE_S": "test_clients::test_a_connection_that_has_just_been_opened_makes_no_way",
    "clients.MOST_REFUSED": "test_clients::test_those_that_are_refused_are_few_at_a_time",
    "books.MOST_BLOCKS": "test_books::test_no_more_prefixes_are_kept_in_mind_than_a_kv_cache_can_have",
    "nesting.MOST_BRACKETS": "test_limits_act::test_brackets_are_gone_through_for_each_level_only_while_they_are_few",
    "nesting.MOST_MARKS": "test_limits_act::test_marks_are_not_counted_for_ever",
    "engines.sglang.engine.TEXTS_S": "test_seams::test_a_question_for_the_text_that_gets_no_answer",
    "engines.sglang.fields.LONGEST_VALUE": "test_names::test_a_name_that_would_go_back_is_short",
    "engines.sglang.fields.SHORT": "test_bodies::test_no_long_body_takes_much_longer_than_an_honest_one",
    "engines.sglang.fields.LONGEST_LAX": "test_limits_act::test_what_only_python_takes_for_json_is_short",
    "engines.sglang.engine.REPORT_BYTES": "test_polls::test_odd_loads_of_a_worker_that_serves_are_missed_polls",
    "engines.sglang.upstream.LONGEST_WAIT_S": "test_retries::test_what_a_full_worker_says_of_later_is_passed_on",
    "engines.sglang.upstream.REST_S": "test_given_up::test_a_stream_that_does_not_end_after_its_last_event",
    "engines.sglang.connections.MOST_HEAD_BYTES": "test_connections::test_failures_are_errors_of_aiohttp",
    "reading.LONGEST_TYPE": "test_odd_answers::test_a_type_that_no_head_can_hold_is_not_told",
    "replies.LONGEST_REFUSAL": "test_app::test_of_a_long_refusal_the_beginning_is_told",
    "engines.sglang.connections.MOST_UNREAD_BYTES": "test_connections::test_what_nobody_reads_stays_with_its_server",
    "retry.RESERVE_PER_S": "test_retries::test_the_budget_is_a_share_with_a_reserve",
    "descriptors.RESERVED": "test_process::test_few_descriptors_are_raised_and_connections_fit_into_them",
    "descriptors.PER_CONNECTION": "test_process::test_few_descriptors_are_raised_and_connections_fit_into_them",
    "logs.EVERY_S": "test_logs::test_what_was_left_out_is_counted_in_the_next_line",
}
"""Of each row of the table, a test that fails when it does not act."""


def test_each_limit_has_a_test_that_meets_it() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert list(ACTS) == rows
    for name in set(ACTS.values()):
        module, _, test = name.partition("::")
        assert f"def {test}(" in (Path(__file__).parent / f"{module}.py").read_text(), name


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def test_the_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    fields = GatewayConfig.model_fields
    keys, fixed = rows[: len(fields)], rows[len(fields) :]
    assert keys == [(name, shown(field.default), field.description) for name, field in fields.items()]
    assert [(place, value) for place, value, _ in fixed] == [(place, shown(constant(place))) for place, *_ in fixed]
    assert len(fixed) > 10


def constant(place: str) -> object:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"pdplugins.gateway.{module}"), name)


def test_options_take_precedence_over_the_file() -> None:
    cfg = config(gateway={"head_s": 3, "retries": 1, "poll_s": 7})
    changed = changed_limits(cfg, {"retries": 0, "poll_s": None}, ["head_s=4", "max_requests=5"]).gateway
    assert (changed.head_s, changed.retries, changed.poll_s, changed.max_requests) == (4, 0, 7, 5)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("head_s=0", r"gateway\.head_s: .*above 0"),
        ("head_s=.inf", r"gateway\.head_s: .*finite"),
        ("max_requests=0", r"gateway\.max_requests"),
        ("retry_share=2", r"gateway\.retry_share"),
        ("most=1", r"unknown key 'gateway\.most'; valid keys here are access_log, .*write_s"),
        ("head_s", "key=value"),
    ],
)
def test_a_limit_that_is_none_is_one_line(setting: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        changed_limits(config(), {}, [setting])
