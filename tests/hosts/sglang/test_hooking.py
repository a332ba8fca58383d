"""Hooks are installed all or none: strict mode refuses to start, lenient mode leaves stock SGLang and says so."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pdplugins.hosts.sglang import hooking
from pdplugins.hosts.sglang.hooking import HookInstaller, chained


class FakeRegistry:
    """SGLang's hook registry in small: a target that fails is only skipped."""

    hooks: ClassVar[dict[str, Any]] = {}
    broken: ClassVar[set[str]] = set()

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: Any) -> None:
        cls.hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls.hooks.items():
            if target in cls.broken:
                continue
            module, name = sys.modules[target.rpartition(".")[0]], target.rpartition(".")[2]
            original = getattr(module, name)

            def wrapper(*arguments: Any, hook: Any = hook, original: Any = original) -> Any:
                return hook(original, *arguments)

            wrapper.__wrapped__ = original  # type: ignore[attr-defined]
            setattr(module, name, wrapper)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A host with two functions, and the hook registry."""

    class Registry(FakeRegistry):
        hooks: ClassVar[dict[str, Any]] = {}
        broken: ClassVar[set[str]] = set()

    module = ModuleType("fakehost")
    module.double = lambda x: 2 * x  # type: ignore[attr-defined]
    module.triple = lambda x: 3 * x  # type: ignore[attr-defined]
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry = Registry  # type: ignore[attr-defined]
    registry.HookType = Enum("HookType", "AROUND")  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setitem(sys.modules, "fakehost", module)
    module.registry = Registry  # type: ignore[attr-defined]
    return module


def plus_one(original: Callable[[int], int], x: int) -> int:
    return original(x) + 1


HOOKS = {"fakehost.double": plus_one, "fakehost.triple": plus_one}


def test_hooks_wrap_the_originals(host: ModuleType) -> None:
    HookInstaller(["f"], strict=True).install(HOOKS)
    host.registry.apply_hooks()
    assert (host.double(5), host.triple(5)) == (11, 16)


def test_strict_does_not_start_when_the_registry_swallowed_a_failure(host: ModuleType) -> None:
    host.registry.broken.add("fakehost.triple")
    HookInstaller(["f"], strict=True).install(HOOKS)
    with pytest.raises(SystemExit, match=r"f refused: SGLang did not apply the hooks on fakehost\.triple"):
        host.registry.apply_hooks()


def test_lenient_serves_stock_and_says_so(host: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    host.registry.broken.add("fakehost.triple")
    installer = HookInstaller(["f"], strict=False)
    installer.install(HOOKS)
    with caplog.at_level(logging.ERROR):
        host.registry.apply_hooks()
    assert (host.double(5), host.triple(5)) == (10, 15)
    assert not installer.active
    assert "stock SGLang serves" in caplog.text


def test_the_metric_tells_whether_a_feature_serves(tmp_path: Any) -> None:
    """In a process of its own: prometheus-client reads the variable once."""
    code = (
        "import os; os.environ['PROMETHEUS_MULTIPROC_DIR'] = {folder!r}\n"
        "from pdplugins.hosts.sglang.hooking import HookInstaller\n"
        "HookInstaller(['dual_role'], strict=False).refuse('x'); HookInstaller(['batch'], strict=False).report()\n"
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
        "registry = CollectorRegistry(); multiprocess.MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.format(folder=str(tmp_path))], check=True, capture_output=True, text=True
    )
    assert 'pdplugins_sglang_feature{feature="dual_role"} 0.0' in done.stdout
    assert 'pdplugins_sglang_feature{feature="batch"} 1.0' in done.stdout


def test_two_hooks_on_one_target_nest() -> None:
    def times_ten(original: Callable[[int], int], x: int) -> int:
        return original(x) * 10

    both = chained({"a": times_ten, "b": plus_one}, {"a": plus_one})
    assert both["a"](lambda x: 2 * x, 5) == 110
    assert both["b"](lambda x: 2 * x, 5) == 11


def test_a_missing_host_is_a_broken_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lenient and strict alike, nothing is hooked into a version that nobody has looked at."""

    def versions(name: str) -> str:
        return {"sglang": "0.4.1"}[name]

    monkeypatch.setattr(hooking.seams.importlib.metadata, "version", versions)
    assert any(line.startswith("sglang >=0.5.16") for line in hooking.broken_seams())


def test_without_a_config_the_entry_point_imports_nothing_and_touches_nothing() -> None:
    """Nothing is hooked by what is not imported."""
    code = (
        "import sys; from pdplugins.hosts.sglang.entry import register\n"
        "register()\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('pdplugins', 'pydantic', 'yaml', 'sglang', 'nixl'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={})
    assert done.stdout.split() == [
        "pdplugins",
        "pdplugins.hosts",
        "pdplugins.hosts.sglang",
        "pdplugins.hosts.sglang.entry",
        "pdplugins.resources",
    ]


def test_a_config_that_cannot_be_used_stops_the_server() -> None:
    """It was asked for: to serve without it would be to ignore the operator."""
    code = "from pdplugins.hosts.sglang.entry import register; register()"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PDPLUGINS_CONFIG": "nothing"}
    )
    assert done.returncode == 1
    assert "pdplugins: PDPLUGINS_CONFIG: " in done.stderr
    assert "shipped configs are" in done.stderr


@pytest.mark.moderate
def test_a_config_for_other_hosts_changes_nothing() -> None:
    code = (
        "import sys; from pdplugins.hosts.sglang.entry import register; register()\n"
        "print([m for m in sys.modules if m.startswith('sglang')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PDPLUGINS_CONFIG": "stock-random"},
    )
    assert done.stdout.strip() == "[]"
