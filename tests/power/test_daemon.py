"""`pdplugins power` as an operator runs it, over stand-in GPUs: kills, second controllers, reloads, refusals."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.rig.gpus.nodes import Standin
from pdplugins.hosts.power import daemon
from pdplugins.power.saved import SavedCaps, boot
from pdplugins.processes.ports import free_ports
from pdplugins.registry import default_registry
from tests.power.daemon import Power
from tests.waiting import until

pytestmark = [
    pytest.mark.moderate,
    pytest.mark.skipif(
        not any(plugin.name.startswith("power") for plugin in default_registry().plugins()),
        reason="the installed pdplugins is older than its power commands; install it again",
    ),
]
BEFORE_W, OURS_W = [700.0] * 8, [600.0] * 8


@pytest.fixture
def power(nvidia: Standin, tmp_path: Path) -> Iterator[Power]:
    it = Power(nvidia, tmp_path)
    yield it
    for process in it.running:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_caps_are_ours_while_it_runs_and_those_from_before_again_after_it(power: Power) -> None:
    (port,) = free_ports(1)
    process = power.start("--metrics-port", str(port))
    assert power.keeps(port)
    said = power.end(process)
    assert process.returncode == 0, said
    assert power.node.limits_w() == BEFORE_W
    assert not (power.state / "caps.json").exists()


def test_after_a_kill_the_next_start_knows_the_caps_from_before(power: Power) -> None:
    power.node.gpu[3].limit_mw = 650_000
    before_w = power.node.limits_w()
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.end(process, signal.SIGKILL)
    assert power.node.limits_w() == OURS_W
    told = power.do("status", "--config", str(power.config), "--json")
    assert [row["before_w"] for row in json.loads(told.stdout)] == before_w
    (port,) = free_ports(1)
    again = power.start("--metrics-port", str(port))
    assert power.keeps(port)
    power.end(again)
    assert power.node.limits_w() == before_w
    assert max(power.node.sums_w(before_w)) <= sum(before_w)


def killed_and_left_with_six(power: Power) -> list[str]:
    """Kill a daemon that has set caps, and leave the first two GPUs out of its config. Return the UUIDs of all."""
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.end(process, signal.SIGKILL)
    uuids = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    deployment = {"profile": "mi300x/llama-3.1-8b", "prefill": {"replicas": 3}, "decode": {"replicas": 3, "tp": 1}}
    policy = {"name": "rapid", "budget_w": 3600, "max_w": 700}
    power.write(deployment=deployment, power=policy, node={"gpus": uuids[2:]})
    return uuids


def test_a_gpu_that_takes_no_part_after_a_kill_gets_its_cap_back_at_the_start(power: Power) -> None:
    killed_and_left_with_six(power)
    again = power.start()
    assert until(lambda: power.node.limits_w() == BEFORE_W[:2] + OURS_W[2:])
    said = power.end(again)
    assert power.node.limits_w() == BEFORE_W, (again.returncode, said)


def test_a_gpu_that_takes_no_part_and_refuses_its_cap_stops_no_start(power: Power) -> None:
    uuids = killed_and_left_with_six(power)
    power.node.gpu[0].write_fault = 4
    again = power.start()
    assert power.settled_at(*OURS_W[:1], *BEFORE_W[1:2], *OURS_W[2:])
    said = power.end(again)
    assert power.node.limits_w() == OURS_W[:1] + BEFORE_W[1:], said
    with closing(SavedCaps(power.state)) as saved:
        assert saved.load() == {uuids[0]: BEFORE_W[0]}


def test_restore_puts_back_what_a_killed_process_left(power: Power) -> None:
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.end(process, signal.SIGKILL)
    done = power.do("restore", "--config", str(power.config))
    assert (done.returncode, power.node.limits_w()) == (0, BEFORE_W), done.stderr
    assert "nothing to put back" in power.do("restore", "--config", str(power.config)).stdout


def killed_with_two(power: Power) -> tuple[str, str]:
    """Leave two GPUs as a killed daemon does: before it 700 and 300 W, now the other way round. Return their UUIDs."""
    power.node.gpus = 2
    one, other = (row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout))
    with closing(SavedCaps(power.state)) as saved:
        saved.save({one: 700.0, other: 300.0})
    for gpu, watts in zip(power.node.gpu[:2], (300.0, 700.0), strict=True):
        gpu.limit_mw, gpu.kept_w = int(watts * 1000), watts
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 1, "tp": 1}}
    deployment = {"profile": "mi300x/llama-3.1-8b", "gpu_budget": 2, **pools}
    policy = {"name": "rapid", "budget_w": 900, "min_w": 200, "max_w": 700}
    power.write(deployment=deployment, power=policy, node={"restore_s": 2.0})
    return one, other


def test_restore_raises_a_cap_only_when_its_watts_are_free(power: Power) -> None:
    killed_with_two(power)
    power.node.gpu[1].write_delay_s = 0.3
    done = power.do("restore", "--config", str(power.config))
    assert (done.returncode, power.node.limits_w()) == (0, [700.0, 300.0]), done.stderr
    assert max(power.node.sums_w([300.0, 700.0])) == 1000.0


@pytest.mark.parametrize("trouble", ["write_fault", "write_delay_s", "read_fault"])
@pytest.mark.parametrize("named", [True, False], ids=["a budget", "no budget"])
def test_restore_raises_no_cap_while_another_gpu_keeps_its_watts(power: Power, trouble: str, named: bool) -> None:
    """It refuses its lower cap, hangs in it, or cannot be read at all."""
    _, other = killed_with_two(power)
    setattr(power.node.gpu[1], trouble, 600 if trouble == "write_delay_s" else 15)
    words = ("--config", str(power.config)) if named else ("--state", str(power.state))
    done = power.do("restore", *words)
    assert done.returncode == 2
    assert other in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert power.node.limits_w() == [300.0, 700.0]
    with closing(SavedCaps(power.state)) as saved:
        assert len(saved.load()) == 2


def test_the_end_gives_no_watts_away_that_a_silent_gpu_may_draw(power: Power) -> None:
    """It fell off the bus after the checks of the start, and before it told its cap."""
    _, other = killed_with_two(power)
    power.node.gpu[1].read_delay_s = 0.5
    (port,) = free_ports(1)
    process = power.start("--metrics-port", str(port))
    assert until(lambda: "pdplugins_power_over_budget_watts" in power.metrics(port))
    power.node.gpu[1].read_fault = 15
    said = power.end(process)
    assert process.returncode == 2
    assert f"not all caps from before are back ({other}); run pdplugins power restore" in said.splitlines()[-1]
    assert power.node.limits_w() == [300.0, 700.0]


def test_no_noted_cap_is_put_back_below_the_floor(power: Power) -> None:
    """AMD's driver takes any cap."""
    uuids = killed_with_two(power)
    for gpu in power.node.gpu[:2]:
        gpu.min_mw = 0
    with closing(SavedCaps(power.state)) as saved:
        saved.save(dict.fromkeys(uuids, 5.0))
    done = power.do("restore", "--config", str(power.config))
    assert (done.returncode, power.node.limits_w()) == (0, [100.0, 100.0]), done.stderr
    assert f"{uuids[1]}: its cap from before, 5 W, is outside its limits; it gets 100 W" in done.stderr


def test_a_second_controller_is_told_who_the_first_one_is(power: Power) -> None:
    process = power.start()
    assert power.settled_at(*OURS_W)
    seen = power.node.writes
    for words in (("run", "--config", str(power.config)), ("cap", "all=650", "--config", str(power.config))):
        done = power.do(*words)
        assert done.returncode == 2
        assert f"process {process.pid} sets the caps of this node already" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert power.node.writes == seen
    power.end(process)


def test_a_start_takes_the_roles_that_the_last_process_changed(power: Power) -> None:
    power.write(node={"actuator": "command", "command": ["true"]})
    uuids = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    power.state.mkdir()
    workers = {"gpu7": {"role": "prefill", "instead_of": "decode", "gpus": [uuids[7]]}}
    (power.state / "roles.json").write_text(json.dumps({"schema": 1, "boot": boot(), "workers": workers}))
    process = power.start()
    assert power.settled_at(*OURS_W)
    assert "gpu7 serves prefill since a change of its role; the config says decode" in power.end(process)


def test_shadow_and_dry_run_change_nothing(power: Power) -> None:
    (port,) = free_ports(1)
    process = power.start("--shadow", "--metrics-port", str(port))
    assert until(lambda: 'pdplugins_power_target_watts{gpu="GPU' in power.metrics(port))
    assert until(lambda: " 600.0" in "".join(line for line in power.metrics(port).splitlines() if "target_w" in line))
    assert "_over_budget_watts" in power.metrics(port)
    power.end(process)
    done = power.do("run", "--config", str(power.config), "--dry-run", "--json")
    assert {gpu["cap_w"] for gpu in json.loads(done.stdout)["gpus"]} == {600.0}
    assert power.node.writes == 0
    assert not power.state.exists()


def test_a_reload_takes_the_new_budget_and_refuses_a_bad_config(power: Power) -> None:
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.write(power={"name": "rapid", "budget_w": 4000, "max_w": 700, "max_decode_w": 500})
    process.send_signal(signal.SIGHUP)
    assert power.settled_at(*[500.0] * 8)
    power.write(power={"name": "rapid", "budget_w": 4400, "max_w": 900})
    process.send_signal(signal.SIGHUP)
    said = power.end(process)
    assert "rapid within 4000 W" in said
    assert power.node.limits_w() == BEFORE_W


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"power": {"name": "rapid", "budget_w": 4800}}, "max_w 750 is outside the limits of GPU-"),
        ({"power": None}, "no policy chosen"),
        ({"node": {"gpus": ["GPU-not-there"]}}, "there is no GPU-not-there here"),
        ({"node": {"budget_w": 1000}}, "budget_w 4800 is more than node.budget_w 1000"),
        ({"node": {"beside": "gateway"}}, "say where the gateway is"),
        ({"node": {"backend": "amd"}}, "power_backend: there is no 'amd'"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_is_touched(
    power: Power, changes: dict[str, object], says: str
) -> None:
    power.write(**changes)
    done = power.do("run", "--config", str(power.config))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert power.node.writes == 0


def test_a_gpu_without_a_worker_is_refused(power: Power) -> None:
    power.write(deployment={**{"profile": "mi300x/llama-3.1-8b"}, "prefill": {"replicas": 1}, "decode": {"tp": 1}})
    assert "serves no worker" in power.do("run", "--config", str(power.config)).stderr


def test_cap_sets_and_restore_puts_back(power: Power) -> None:
    uuids = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    done = power.do("cap", "all=500", f"{uuids[2]}=650", "--state", str(power.state))
    assert done.returncode == 0, done.stderr
    assert power.node.limits_w() == [500.0, 500.0, 650.0, 500.0, 500.0, 500.0, 500.0, 500.0]
    words = done.stdout.partition("; pdplugins power ")[2].partition(" puts the old ones back")[0].split()
    assert words == ["restore", "--state", str(power.state)]
    assert power.do(*words).returncode == 0
    assert power.node.limits_w() == BEFORE_W


def test_cap_raises_nothing_above_the_budget_that_the_config_names(power: Power) -> None:
    uuids = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    named = ("--config", str(power.config))
    for gpu in power.node.gpu[:8]:
        gpu.limit_mw = 600_000
    seen = power.node.writes
    done = power.do("cap", f"{uuids[0]}=700", *named)
    assert done.returncode == 2
    assert "all caps would sum to 4900 W, the config names a budget of 4800 W; ask for lower caps" in done.stderr
    assert power.node.writes == seen
    done = power.do("cap", f"{uuids[0]}=700", f"{uuids[1]}=500", *named)
    assert (done.returncode, power.node.limits_w()[:2]) == (0, [700.0, 500.0]), done.stderr
    assert max(power.node.sums_w(OURS_W, seen)) == 4800.0
    seen, power.node.gpu[0].write_delay_s = power.node.writes, 0.3
    assert power.do("restore", *named).returncode == 0
    assert power.node.limits_w()[:2] == OURS_W[:2]
    assert max(power.node.sums_w([700.0, 500.0, *OURS_W[2:]], seen)) == 4800.0, "the other GPUs need their watts"


def one_lost(power: Power) -> list[str]:
    """Set all to 600 W, and let the last GPU fall off the bus. Return the UUIDs."""
    uuids = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    for gpu in power.node.gpu[:8]:
        gpu.limit_mw = 600_000
    power.node.gpu[7].read_fault = 15
    return uuids


def test_status_shows_the_others_beside_a_gpu_that_is_lost(power: Power) -> None:
    uuids = one_lost(power)
    with closing(SavedCaps(power.state)) as saved:
        saved.save({uuids[7]: 650.0})
    done = power.do("status", "--state", str(power.state), "--json")
    rows = {row["uuid"]: row for row in json.loads(done.stdout)}
    assert [rows[uuid]["cap_w"] for uuid in uuids] == [600.0] * 7 + [None]
    assert "is lost" in rows[uuids[7]]["error"]
    assert rows[uuids[7]]["before_w"] == 650.0
    done = power.do("status", "--state", str(power.state))
    assert done.returncode == 0
    assert done.stderr.startswith(f"{uuids[7]}: NVML says GPU is lost")


def test_cap_needs_only_the_gpus_that_are_asked_for(power: Power) -> None:
    uuids = one_lost(power)
    done = power.do("cap", f"{uuids[0]}=500", "--state", str(power.state))
    assert (done.returncode, power.node.limits_w()[:2]) == (0, [500.0, 600.0]), done.stderr
    seen = power.node.writes
    for asked in ("all=500", f"{uuids[7]}=500"):
        done = power.do("cap", asked, "--state", str(power.state))
        assert done.returncode == 2
        assert f"{uuids[7]}: NVML says GPU is lost" in done.stderr
    assert power.node.writes == seen


def test_cap_counts_a_lost_gpu_at_the_highest_cap_where_a_budget_is_kept(power: Power) -> None:
    uuids = one_lost(power)
    named = ("--config", str(power.config))
    done = power.do("cap", f"{uuids[0]}=650", *named)
    assert done.returncode == 2
    assert "all caps would sum to 4950 W" in done.stderr
    assert power.node.writes == 0
    done = power.do("cap", f"{uuids[0]}=650", f"{uuids[1]}=450", *named)
    assert (done.returncode, power.node.limits_w()[:2]) == (0, [650.0, 450.0]), done.stderr


def test_cap_lowers_a_cap_also_where_all_exceed_the_budget(power: Power) -> None:
    (first, *_) = [row["uuid"] for row in json.loads(power.do("status", "--state", str(power.state), "--json").stdout)]
    done = power.do("cap", f"{first}=300", "--config", str(power.config))
    assert (done.returncode, power.node.limits_w()) == (0, [300.0, *BEFORE_W[1:]]), done.stderr


@pytest.mark.parametrize(
    ("cap", "says"),
    [
        ("all=5000", "outside its limits"),
        ("all=1", "below node.floor_w"),
        ("all", "say UUID=WATTS"),
        ("all=1e308", "say UUID=WATTS"),
        ("x=300", "no GPU"),
    ],
)
def test_a_cap_that_cannot_be_is_refused(power: Power, cap: str, says: str) -> None:
    done = power.do("cap", cap, "--state", str(power.state))
    assert done.returncode == 2
    assert says in done.stderr
    assert power.node.writes == 0


def test_a_driver_that_refuses_is_told_with_the_fix(power: Power) -> None:
    power.node.gpu[4].write_fault = 4
    done = power.do("cap", "all=500", "--state", str(power.state))
    assert done.returncode == 2
    assert "start as root" in done.stderr
    assert power.do("status", "--state", str(power.state)).returncode == 0
    assert not (power.state / "caps.json").exists(), "nothing was changed, so nothing is to be put back later"


def test_who_may_not_set_caps_is_told_so_and_the_daemon_ends(power: Power) -> None:
    for gpu in power.node.gpu[:8]:
        gpu.write_fault = 4
    done = power.do("run", "--config", str(power.config))
    assert done.returncode == 2
    assert "only root may set caps" in done.stderr.splitlines()[-1]
    assert power.node.limits_w() == BEFORE_W
    assert not (power.state / "caps.json").exists()


def test_status_shows_the_others_beside_a_gpu_that_hangs(power: Power) -> None:
    power.node.gpu[2].read_delay_s = 600.0
    done = power.do("status", "--state", str(power.state), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["cap_w"] for row in rows] == [*BEFORE_W[1:], None]
    assert "no answer within 5 s" in rows[-1]["error"]


def test_a_driver_that_hangs_in_its_list_is_one_line(power: Power) -> None:
    power.write(node={"call_s": 0.1})
    power.node.list_delay_s = 600.0
    for words in (["status"], ["cap", "all=500"], ["run"]):
        done = power.do(*words, "--config", str(power.config))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "driver: it does not list its GPUs within 6 s" in done.stderr
    assert power.node.writes == 0


def test_a_hung_gpu_stops_neither_the_others_nor_the_end(power: Power) -> None:
    power.write(node={"call_s": 0.2, "restore_s": 2.0})
    (port,) = free_ports(1)
    process = power.start("--metrics-port", str(port))
    assert power.settled_at(*OURS_W)
    assert power.keeps(port)
    power.node.gpu[0].read_delay_s = 600.0
    power.node.gpu[1].limit_mw = 300_000  # somebody else; the loop puts it right while GPU 0 hangs
    assert until(lambda: power.node.gpu[1].limit_mw == 600_000)
    said = power.end(process)
    assert process.returncode == 2
    assert "not all caps from before are back" in said
    assert power.node.limits_w()[1:] == BEFORE_W[1:]
    assert (power.state / "caps.json").exists()


def test_restore_puts_back_what_is_there_and_keeps_the_rest_noted(power: Power) -> None:
    """A GPU that fell off the bus is a likely reason for a daemon that was killed."""
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.end(process, signal.SIGKILL)
    with closing(SavedCaps(power.state)) as saved:
        noted = saved.load()
        saved.save({**noted, "GPU-lost": 700.0})
    done = power.do("restore", "--config", str(power.config))
    assert (done.returncode, power.node.limits_w()) == (2, BEFORE_W), done.stderr
    assert "GPU-lost: it is not there any more; its cap of 700 W from before stays noted in" in done.stderr
    with closing(SavedCaps(power.state)) as saved:
        assert saved.load() == {"GPU-lost": 700.0}


def test_a_key_file_that_holds_no_key_is_refused_at_the_start_and_not_shown(power: Power, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first-0123456789abcdef\nsecond-0123456789abcdef\n")
    power.write(node={"key_file": str(tmp_path / "key"), "beside": "gateway", "url": "http://127.0.0.1:9"})
    done = power.do("run", "--config", str(power.config))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "node.key_file" in done.stderr
    assert "0123456789abcdef" not in done.stderr
    assert power.node.writes == 0


def test_a_start_keeps_what_is_noted_of_gpus_that_are_not_there_now(power: Power) -> None:
    """The operator leaves a GPU out that cannot be read, and brings it back later."""
    process = power.start()
    assert power.settled_at(*OURS_W)
    power.end(process, signal.SIGKILL)
    with closing(SavedCaps(power.state)) as saved:
        saved.save({**saved.load(), "GPU-lost": 700.0})
    (port,) = free_ports(1)
    process = power.start("--metrics-port", str(port))
    assert power.keeps(port)
    said = power.end(process)
    assert process.returncode == 0, said
    with closing(SavedCaps(power.state)) as saved:
        assert saved.load() == {"GPU-lost": 700.0}


def test_a_reload_that_raises_anything_keeps_the_old_policy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the daemon its caps would go, and the node would draw more than its feed gives."""

    def broken(_: Path) -> None:
        raise ValueError("a policy that cannot be built")

    monkeypatch.setattr(daemon, "load", broken)
    asked = daemon.Asked(reload=True)
    old: Any = SimpleNamespace(controller="the old one")
    daemon._reload(daemon.Options("rapid"), *cast("Any", (None, old, None, None)), asked)
    assert old.controller == "the old one"
    assert "not reloaded, the old config goes on" in caplog.text
    assert not asked.reload
