"""What docs/production.md tells operators to use: rules, dashboard, units and image, and the commands of the page."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from pdplugins import cli
from pdplugins.config import parse
from pdplugins.contracts.request import Slo
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.registry import default_registry
from pdplugins.runtime.metrics import Metrics
from pdplugins.studies.advise.kubernetes import manifest
from pdplugins.workloads import traces
from tests.kubernetes_models import as_kubernetes_reads
from tests.prometheus import prometheus, tool
from tests.waiting import until
from tools import metrics_page

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/pdplugins-alerts.yaml"
PAGE = (ROOT / "docs/production.md").read_text(encoding="utf-8")
UNITS = [*sorted((DEPLOY / "systemd").glob("*.service")), ROOT / "docs/pdplugins-power.service"]
MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")
"""Where a query may write a label: in a matcher, or in an aggregation."""
GIVEN = {"instance", "job", "le"}
"""Labels that Prometheus gives, and that of a histogram's buckets."""


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DEPLOY / "grafana/pdplugins.json").read_text(encoding="utf-8")))


def queries() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [*(rule["expr"] for rule in rules()), *panels]


def labels() -> dict[str, set[str]]:
    groups = metrics_page.groups().values()
    return {name: set(one.labels) | GIVEN for group in groups for one in group for name in one.series}


@pytest.mark.parametrize("query", queries())
def test_every_query_names_what_is_exported(query: str) -> None:
    known = labels()
    named = set(re.findall(r"\bpdplugins_\w+", query))
    assert named
    assert named <= set(known)
    used = {*MATCHED.findall(query)}
    for group in GROUPED.findall(query):
        used |= {label.strip() for label in group.split(",")}
    assert used <= set.intersection(*(known[name] for name in named))


def test_a_query_of_a_metric_that_nobody_exports_is_found() -> None:
    assert "pdplugins_gateway_ttft_seconds_bucket" in labels()
    assert "pdplugins_gateway_ttft_seconds" not in labels()
    assert "outcome" not in labels()["pdplugins_gateway_requests_waiting"]


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "do"}
        assert all((ROOT / path).exists() for path in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["do"]))


def test_the_dashboard_has_every_panel_in_its_place() -> None:
    panels = dashboard()["panels"]
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
    assert {target["datasource"]["uid"] for p in panels for target in p.get("targets", ())} == {"${source}"}


SCRAPES = [block for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "scrape_" in block]


def test_a_key_for_a_remote_admin_listener_comes_from_a_file() -> None:
    jobs = [job for block in SCRAPES for job in yaml.safe_load(block)["scrape_configs"]]
    assert [set(job["authorization"]) for job in jobs if "authorization" in job] == [{"credentials_file"}]


@pytest.mark.parametrize("words", [("check", "rules", str(RULES)), ("test", "rules", "pdplugins-alerts.test.yaml")])
def test_promtool_takes_the_rules(words: tuple[str, ...]) -> None:
    """Alerts that page fire when they should, and not on a quiet day."""
    done = subprocess.run(
        [tool("promtool", "prometheus"), *words], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scrape", SCRAPES)
def test_promtool_takes_the_configs_of_the_page(scrape: str, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    (tmp_path / "pdplugins.key").write_text("key")
    config = tmp_path / "prometheus.yml"
    config.write_text(scrape.replace("/etc/prometheus/", ""))
    words = [tool("promtool", "prometheus"), "check", "config", str(config)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus with our rules, which has scraped metrics of a gateway and of every kind of policy."""
    gateway = GatewayMetrics(slo=Slo(2.0, 0.08))
    gateway.begun()
    gateway.over("ok")
    gateway.ttft.observe(0.3)
    gateway.itl.observe(0.02, 4)
    gateway.ended(Outcome(Ending.FINISHED, 5, 0.3, 0.02), 0.38, 100)
    every = CollectorRegistry()
    every.register(gateway.registry)  # type: ignore[arg-type]  # a registry collects, too
    for kind in metrics_page.Kind:
        Metrics(kind, every)
    server, thread = start_http_server(0, "127.0.0.1", every)
    config = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "p", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}],
    }
    try:
        with prometheus(tmp_path_factory.mktemp("prometheus"), config) as address:
            assert until(lambda: asked(address, "pdplugins_gateway_requests_total"))
            yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(address: str, query: str) -> list[Any]:
    with urllib.request.urlopen(
        f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10
    ) as answer:
        told = json.load(answer)
    assert told["status"] == "success"
    return list(told["data"]["result"])


@pytest.mark.moderate
def test_a_real_prometheus_answers_every_query(scraped: str) -> None:
    assert asked(scraped, "pdplugins_gateway_requests_total")
    for query in queries():
        asked(scraped, query)
    with urllib.request.urlopen(f"http://{scraped}/api/v1/rules", timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    loaded = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(loaded) == {rule["alert"] for rule in rules()}
    assert "err" not in loaded.values()


@pytest.mark.moderate
def test_a_real_prometheus_has_every_metric_of_the_gateway(scraped: str) -> None:
    for one in metrics_page.groups()["gateway"]:
        for name in one.series if not one.labels else ():
            assert asked(scraped, name), name
    assert asked(scraped, 'pdplugins_gateway_ttft_seconds_bucket{le="2.0"}')[0]["value"][1] == "1"
    assert asked(scraped, 'pdplugins_gateway_itl_seconds_bucket{le="0.02"}')[0]["value"][1] == "4"


@pytest.fixture(scope="module")
def command() -> Any:
    default_registry().add_commands(cli.app)
    return typer.main.get_command(cli.app)


def parsed(command: Any, words: list[str]) -> None:
    """Have the command that `words` name parse its options, as far as it can without doing anything."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("pdplugins", words, resilient_parsing=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_start_what_there_is(unit: Path, command: Any) -> None:
    text = unit.read_text(encoding="utf-8")
    lines = re.findall(r"^Exec(?:Start|StartPre)=/usr/local/bin/pdplugins (.*)$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        parsed(command, shlex.split(line.replace("$WORKERS", "--worker http://127.0.0.1:30000").replace("%d", "/run")))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_say_how_their_program_gets_where_they_look_for_it(unit: Path) -> None:
    """Behind ProtectHome an environment below /home is not there."""
    text = unit.read_text(encoding="utf-8")
    head = text.partition("[Unit]")[0].replace("\n# ", " ")
    assert "python3.11 -m venv /opt/pdplugins && /opt/pdplugins/bin/pip install" in head
    assert "&& ln -s /opt/pdplugins/bin/pdplugins /usr/local/bin/" in head
    assert "ProtectHome=yes" in text


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    program = tool("systemd-analyze", "systemd")
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/usr/local/bin/pdplugins", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    files = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run([program, "verify", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("pdplugins ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_page_can_be_typed(line: str, command: Any) -> None:
    parsed(command, shlex.split(line)[1:])


def test_the_files_that_the_page_names_exist() -> None:
    named = re.findall(r"(?<![\w/])deploy/[\w./-]+\w", PAGE)
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


CONFIGS = {
    "StatefulSet": "{router: arrow, sglang: {dual_role: true}}",
    "DynamoGraphDeployment": "{planner: dopd}",
}


def test_kubernetes_does_not_know_a_field_that_is_not_there() -> None:
    spec = {"ports": [{"port": 8000, "prot": "TCP"}]}
    assert as_kubernetes_reads({"kind": "Service", "spec": spec}, "V1Service") != {"kind": "Service", "spec": spec}


@pytest.mark.parametrize("kind", CONFIGS)
def test_kubernetes_knows_every_field_of_the_manifest(kind: str) -> None:
    """As far as its own API goes, without Dynamo's."""
    kinds = []
    for found in yaml.safe_load_all(manifest(parse(yaml.safe_load(CONFIGS[kind])), "org/model", "about")):
        kinds.append(found["kind"])
        group = found["apiVersion"]
        if group == "nvidia.com/v1alpha1":
            model, checked = "V1ObjectMeta", found["metadata"]
        else:
            model, checked = f"{group.rpartition('/')[2].capitalize()}{found['kind']}", found
        assert as_kubernetes_reads(checked, model) == checked
    assert kind in kinds


def test_the_image_is_built_from_what_make_wheels_writes() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text(encoding="utf-8")
    targets = re.findall(r"^FROM \$\{\w+\} AS (\w+)$", text, re.MULTILINE)
    assert targets == re.findall(r"--target (\w+)", PAGE)
    assert set(re.findall(r"^COPY (\S+)", text, re.MULTILINE)) == {"dist/pdplugins_slim-*.whl"}
    assert "dist" in (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nwheels:")[2].partition("\n\n")[0]
    assert parse({"router": "least-loaded"}).router is not None


def printed(command: str) -> list[list[str]]:
    """Return the words of each line of the page that begins with `command`, with its continued lines."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.replace("$REGISTRY", "REGISTRY")) for line in lines if line.startswith(command)]


def test_the_chart_installs_the_images_that_the_page_builds() -> None:
    """The images are there before the chart that names them, under the names that it has for them."""
    values = yaml.safe_load((DEPLOY / "helm/pdplugins/values.yaml").read_text(encoding="utf-8"))
    sections = {section: values[section] for section in ("gateway", "workers", "graph")}
    every = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    ours = {path: value for path, value in every.items() if str(value).startswith("REGISTRY/")}
    built = {words[words.index("-t") + 1] for words in printed("docker build")}
    assert built == {words[2] for words in printed("docker push")} == set(ours.values())
    installed: dict[str, str] = {}
    for words in printed("helm install"):
        settings = [after for word, after in pairwise(words) if word == "--set"]
        installed |= dict(setting.split("=", 1) for setting in settings)
    assert ours.items() <= installed.items()
    assert set(installed) <= set(every)
    assert [path for path in installed if f"`{path}`" not in PAGE] == []
    assert PAGE.index("docker build") < PAGE.index("docker push") < PAGE.index("helm install")


def ended(second: int, **other: Any) -> dict[str, Any]:
    """What a trace needs of a line of the gateway's access log."""
    line = {"at": f"2026-01-31T12:00:0{second}.250+00:00", "status": 200, "took_s": 1.0}
    return {**line, "prompt_tokens": 512, "output_tokens": 64, **other}


def test_a_trace_is_made_of_what_the_gateway_and_dynamo_write(tmp_path: Path) -> None:
    program = tool("jq", "jq")
    came = [ended(1), ended(3)]
    gone = [ended(2, status=499), ended(2, output_tokens=0), {"at": ended(2)["at"], "status": 200, "took_s": 0.0}]
    said = ["gateway on http://127.0.0.1:8000", *map(json.dumps, [*came, *gone])]
    recorded = (ROOT / "tests/data/dynamo-request-trace.jsonl").read_text(encoding="utf-8")
    kept = recorded, recorded.replace("743226", "745226"), recorded.replace("request_end", "tool_start")
    files = {"gateway.log": "\n".join(said), "dynamo.jsonl": "".join(kept)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {}
    for words in printed("jq"):
        *command, log, _, trace = words
        done = subprocess.run([program, *command[1:], log], cwd=tmp_path, check=True, capture_output=True, text=True)
        (tmp_path / trace).write_text(done.stdout)
        found[log] = [(one.arrival_s, one.isl_tokens, one.osl_tokens) for one in traces.read(tmp_path / trace)]
    assert found == {"gateway.log": [(0.0, 512, 64), (2.0, 512, 64)], "dynamo.jsonl": [(0.0, 32, 1), (2.0, 32, 1)]}


def test_a_secret_is_made_before_the_chart_names_it() -> None:
    (made,) = printed("kubectl create secret")
    assert f"workers.envSecret={made[4]}" in " ".join(word for words in printed("helm install") for word in words)
