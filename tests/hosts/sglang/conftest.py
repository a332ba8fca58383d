"""Real SGLang servers, which the tests of all files share: those of one setup run at a time."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from benchmarks.rig import servers, tiny_model
from benchmarks.rig.servers import Server
from tests.hosts.sglang.setups import Bench, Pool, Setup

FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-pages", action="store_true", help="write the tables that these tests compare with pages")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that the test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not servers.trees():
        pytest.skip("PDPLUGINS_SGLANG_TREES names no SGLang; run make test-sglang")
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def pool(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(model, tmp_path_factory.mktemp("sglang"))
    ends = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C does: with a report and without servers
    yield pool
    pool.stop()
    signal.signal(signal.SIGTERM, ends)


@pytest.fixture
def bench(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Bench]:
    """Servers of the setup that `setups.on` names. None may die, unless the test asks for `may_die`."""
    bench = pool.bench(request.param)
    if "may_die" in request.fixturenames:
        bench.note_busy()  # while they are the servers of the tests before
    yield bench
    if request.node.stash.get(FAILED, False):
        pool.stop()  # the next test is not to suffer
    elif "may_die" not in request.fixturenames:
        bench.healthy()


@pytest.fixture
def third(bench: Bench, pool: Pool) -> Iterator[Server]:
    """One more server like the two of `bench`."""
    with pool.another(bench.setup) as server:
        yield server.wait()


@pytest.fixture
def fresh() -> None:
    """The servers are new to this test: it runs as one of the first of its setup."""


@pytest.fixture
def may_die() -> None:
    """Servers may die in this test. It runs as one of the last of its setup, and the next one gets new servers."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one setup together, and setups of one version."""
    setups: dict[Setup, int] = {}
    for item in items:
        if (setup := setup_of(item)) is not None:
            setups.setdefault(setup, len(setups))

    def order(item: pytest.Item) -> tuple[str, int, int]:
        if (setup := setup_of(item)) is None:
            return "", 0, 0
        return setup.version, setups[setup], ("may_die" in item.fixturenames) - ("fresh" in item.fixturenames)

    items.sort(key=order)


def setup_of(item: pytest.Item) -> Setup | None:
    """The setup whose servers a test uses."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("bench") if callspec is not None else None
