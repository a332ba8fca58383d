"""What does not go together with several roles is refused, with the option and the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.config import Config, find, load, parse
from pdplugins.errors import ConfigError
from pdplugins.hosts.sglang import install
from pdplugins.hosts.sglang.hooking import HookInstaller
from pdplugins.hosts.sglang.install import checked_ranks
from pdplugins.hosts.sglang.limits import LIMITS, refused_arguments, refused_model
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import Policies, build_policies
from pdplugins.testing import request
from pdplugins.types import BatchPlan, BatchScheduler, BatchView, QueuedPrefill

GOOD: dict[str, Any] = {
    "disaggregation_mode": "decode",
    "disaggregation_transfer_backend": "nixl",
    "disaggregation_decode_enable_radix_cache": True,
    "tp_size": 1,
    "speculative_algorithm": None,
    "lora_paths": None,
    "optimistic_prefill_attempts": 0,
}


def test_a_plain_decode_server_is_accepted_whatever_its_version_knows() -> None:
    assert list(refused_arguments(SimpleNamespace(**GOOD))) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("disaggregation_mode", "prefill"),
        ("disaggregation_mode", "null"),
        ("disaggregation_transfer_backend", "mooncake"),
        ("disaggregation_decode_enable_radix_cache", False),
        ("tp_size", 2),
        ("pp_size", 2),
        ("dp_size", 8),
        ("speculative_algorithm", "EAGLE"),
        ("lora_paths", ["a=b"]),
        ("enable_lora", True),
        ("enable_priority_scheduling", True),
        ("enable_hierarchical_cache", True),
        ("enable_pd_role_switch", True),
        ("disaggregation_decode_host_receive_threshold", 0.5),
        ("optimistic_prefill_attempts", 1),
    ],
)
def test_what_does_not_work_is_named_with_its_reason(option: str, value: object) -> None:
    (refusal,) = refused_arguments(SimpleNamespace(**GOOD | {option: value}))
    assert refusal.startswith("--" + option.replace("_", "-"))
    assert repr(value) in refusal
    assert len(refusal.split(": ")[1]) > 10


@pytest.mark.parametrize("error", [ConfigError("no such profile"), RuntimeError("a plugin may raise anything")])
def test_strict_refuses_to_serve_stock_where_a_bundle_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """SGLang logs what leaves `install`, and serves as if no plugin were there."""

    def broken(_: Config) -> Policies:
        raise error

    monkeypatch.setattr(install, "_policies", broken)
    monkeypatch.setattr(install, "broken_seams", list)
    monkeypatch.setattr(install, "load", lambda _: parse({"bundle": "fusion", "sglang": {"dual_role": True}}))
    with pytest.raises(SystemExit, match=str(error)):
        install.install("fusion")


def test_strict_refuses_a_batch_scheduler_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the engine at its first prompt."""

    def build() -> BatchScheduler:
        raise ConfigError("no dense table")

    monkeypatch.setattr(install, "_policies", lambda _: SimpleNamespace(batch_scheduler=lambda: build))
    monkeypatch.setattr(install, "broken_seams", list)
    monkeypatch.setattr(install, "load", lambda _: parse({"batch_scheduler": "dynaserve"}))
    with pytest.raises(SystemExit, match="no dense table"):
        install.install("dynaserve")


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("does", [False, True])
def test_a_batch_scheduler_is_made_for_what_the_engine_does(said: bool, does: bool) -> None:
    """Whatever the config says: a chunk in a step of its own takes longer."""
    config = parse({"bundle": "fusion", "deployment": {"mixed_steps": said, "decode": {"tp": 2}, "prefill": {"tp": 2}}})
    build = install.batch_schedulers(config)
    assert build is not None
    scheduler = build(does)
    waiting = QueuedPrefill(request("a", 8000), 8000, 0.0, 0)
    tokens = sum(scheduler.next_batch(BatchView((waiting,), 64, 64_000), 0.0).prefill_tokens.values())
    one, two = (sum(agreed(mixes).prefill_tokens.values()) for mixes in (True, False))
    assert tokens == (one if does else two)
    assert one > two


def agreed(mixes: bool) -> BatchPlan:
    """Return what fusion runs beside 64 decodes where config and engine agree."""
    config = parse(
        {"bundle": "fusion", "deployment": {"mixed_steps": mixes, "decode": {"tp": 2}, "prefill": {"tp": 2}}}
    )
    make = build_policies(config, build_deployment(config)).batch_scheduler()
    assert make is not None
    return make().next_batch(BatchView((QueuedPrefill(request("a", 8000), 8000, 0.0, 0),), 64, 64_000), 0.0)


def test_models_with_state_beyond_the_kv_cache_are_refused() -> None:
    scheduler = SimpleNamespace(is_generation=True, is_hybrid_swa=False, is_hybrid_ssm=True)
    assert list(refused_model(scheduler)) == [
        "is_hybrid_ssm is True: the state of a recurrent layer is not kept per role"
    ]


def test_each_option_is_listed_once() -> None:
    options = [limit.option for limit in LIMITS]
    assert len(options) == len(set(options))


@pytest.mark.parametrize(("option", "value"), [("tp_size", 8), ("pp_size", 1), ("pp_size", 2), ("attn_cp_size", 2)])
def test_a_batch_scheduler_decides_for_tensor_parallel_ranks_and_no_others(option: str, value: int) -> None:
    check = checked_ranks(HookInstaller(["batch_scheduler dopd"], strict=True))
    arguments = SimpleNamespace(**{option: value})
    if option == "tp_size" or value == 1:
        assert check(lambda arguments: "checked", arguments) == "checked"
    else:
        with pytest.raises(SystemExit, match=f"--{option.replace('_', '-')} is 2, must be 1: each of its ranks"):
            check(lambda arguments: "checked", arguments)


@pytest.mark.parametrize(("pp_size", "active"), [(1, True), (2, False)])
def test_where_stock_sglang_is_to_serve_its_engines_are_stock_too(
    monkeypatch: pytest.MonkeyPatch, pp_size: int, active: bool
) -> None:
    """They run in other processes than the one that checks the options, each with hooks of its own."""
    installed: dict[str, Any] = {}
    installers: list[HookInstaller] = []

    def keep(installer: HookInstaller, hooks: dict[str, Any]) -> None:
        installers.append(installer)
        installed.update(hooks)

    config = load(find("dopd"))
    lenient = config.model_copy(update={"sglang": config.sglang.model_copy(update={"strict": False})})
    monkeypatch.setattr(install, "load", lambda path: lenient)
    monkeypatch.setattr(install, "broken_seams", list)
    monkeypatch.setattr(HookInstaller, "install", keep)
    install.install("dopd")
    scheduler = SimpleNamespace(server_args=SimpleNamespace(pp_size=pp_size))
    built = installed["sglang.srt.managers.scheduler.Scheduler.init_disaggregation"](lambda _: "built", scheduler)
    assert (built, installers[0].active) == ("built", active)
