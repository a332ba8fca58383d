"""Keys of clients, and files of keys."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.api_keys import ApiKeys, new_key, read_keys
from pdplugins.gateway.access.worker_keys import read_worker_keys
from tests.gateway.access.rig import KEY, bearer, status_of, with_key
from tests.gateway.rig import Stand, ask, stand
from tests.refusals import refusal


def test_without_a_key_nothing_is_told_but_that_someone_listens(keys: Path) -> None:
    key = new_key(keys, "alice", admin=False)

    async def run() -> None:
        async with stand("unified", access=Access(api_keys=ApiKeys(keys))) as it:
            asked = [("POST", "/generate"), ("POST", "/v1/chat/completions"), ("POST", "/v1/tokenize")]
            asked += [("GET", "/v1/models"), ("GET", "/server_info"), ("GET", "/nothing"), ("DELETE", "/generate")]
            wrong = (None, bearer("pdp-wrong"), bearer(""), {"Authorization": key}, bearer(key[:-1]), bearer(key + "x"))
            for method, path in asked:
                for headers in wrong:
                    assert await status_of(it, method, path, headers, ask() if method == "POST" else None) == 401
            assert await status_of(it, "GET", "/health") == 200
            assert not it.workers[0].seen
            assert it.faults["unauthorized"] == len(asked) * len(wrong)
            for headers in (bearer(key), {"Authorization": f"bearer  {key}"}):
                assert await status_of(it, "POST", "/generate", headers, ask()) == 200

    asyncio.run(run())


def test_a_client_is_told_how_to_send_a_key(keys: Path) -> None:
    new_key(keys, "alice", admin=False)

    async def run() -> None:
        async with (
            stand("unified", access=Access(api_keys=ApiKeys(keys))) as it,
            it.client.post(it.gateway.url + "/generate", json=ask()) as answer,
        ):
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert (await answer.json())["error"]["message"].endswith("in the header Authorization, after 'Bearer'")

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize("how", ["by itself", "when told"])
def test_keys_come_and_go_while_it_runs(keys: Path, how: str) -> None:
    """A file that is wrong changes nothing."""
    alice = new_key(keys, "alice", admin=False)
    access = Access(api_keys=ApiKeys(keys))

    async def allowed(it: Stand, key: str, expected: int) -> bool:
        for _ in range(200):
            if how == "when told":
                access.reload()
            if await status_of(it, "GET", "/v1/models", bearer(key)) == expected:
                return True
            await asyncio.sleep(0.02)
        return False

    async def run() -> None:
        async with stand("unified", access=access) as it:
            bob = new_key(keys, "bob", admin=False)
            assert await allowed(it, bob, 200)
            assert await allowed(it, alice, 200)
            keys.write_text("".join(line for line in keys.open() if "alice" not in line))
            assert await allowed(it, alice, 401)
            assert await allowed(it, bob, 200)
            for wrong in ("bob sha256:123\n", "\x00", "bob"):
                keys.write_text(wrong)
                await asyncio.sleep(0.1)
                assert await allowed(it, bob, 200)
            keys.unlink()
            await asyncio.sleep(0.1)
            assert await allowed(it, bob, 200)
            keys.write_text("")
            assert await allowed(it, bob, 401)

    asyncio.run(run())


def test_the_file_holds_hashes_and_is_for_its_owner(keys: Path) -> None:
    made = {name: new_key(keys, name, admin=name == "root") for name in ("alice", "root")}
    assert len(set(made.values())) == 2
    assert all(len(key) > 40 for key in made.values())
    text = keys.read_text()
    assert not [key for key in made.values() if key in text]
    assert text.splitlines() == [
        f"alice sha256:{sha256(made['alice'].encode()).hexdigest()}",
        f"root sha256:{sha256(made['root'].encode()).hexdigest()} admin",
    ]
    assert keys.stat().st_mode & 0o777 == 0o600


def test_a_comment_in_another_encoding_stays(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"# caf\xe9\n")
    new_key(tmp_path / "keys", "alice", admin=False)
    new_key(tmp_path / "keys", "bob", admin=True)
    assert (tmp_path / "keys").read_bytes().startswith(b"# caf\xe9\nalice sha256:")
    assert [key.name for key in read_keys(tmp_path / "keys")] == ["alice", "bob"]


def test_what_a_person_wrote_in_the_file_stays(keys: Path) -> None:
    keys.write_text("# of the team\n\nold sha256:" + "0" * 64)
    new_key(keys, "new", admin=False)
    assert keys.read_text().splitlines()[:3] == ["# of the team", "", "old sha256:" + "0" * 64]
    assert [key.name for key in read_keys(keys)] == ["old", "new"]


@pytest.mark.parametrize("name", ["alice", "a b", "a\nb", "", "x" * 65, "sha256:0"])
def test_a_name_is_a_word_and_used_once(keys: Path, name: str) -> None:
    new_key(keys, "alice", admin=False)
    before = keys.read_text()
    with pytest.raises(ConfigError, match=r"^gateway-key: .*(has a key called alice|is no name)") as caught:
        new_key(keys, name, admin=False)
    assert str(caught.value).isprintable()
    assert keys.read_text() == before


def test_workers_do_not_see_the_keys_of_clients(keys: Path) -> None:
    """Without keys of its own, a gateway passes on what clients send, for workers behind a proxy that checks it."""
    key = new_key(keys, "alice", admin=False)

    async def given(access: Access | None) -> set[str | None]:
        async with stand("unified", access=access) as it:
            it.workers[0].given.clear()
            assert await status_of(it, "POST", "/generate", bearer(key), ask()) == 200
            assert await status_of(it, "GET", "/v1/models", bearer(key)) == 200
            return set(it.workers[0].given)

    assert asyncio.run(given(Access(api_keys=ApiKeys(keys)))) == {None}
    assert f"Bearer {key}" in asyncio.run(given(None))
    assert asyncio.run(given(with_key())) == {f"Bearer {KEY}"}


KEY_LINES = st.sampled_from(
    [
        b"steady sha256:" + b"0" * 64,
        b"x sha256:" + b"g" * 64,
        b"http://127.0.0.1:1 key-of-eight",
        b"#",
        b"a b c d",
        b"\xff",
    ]
)


def test_a_pipe_in_place_of_the_file_is_refused_at_once(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody may ever write to it, and the gateway would wait."""
    key = new_key(keys, "alice", admin=False)
    known = ApiKeys(keys)
    keys.unlink()
    os.mkfifo(keys)
    known.reload()
    assert "a pipe or a device; write it to a file first; the keys before hold" in caplog.text
    assert known.find(f"Bearer {key}") is not None


@pytest.mark.moderate
@given(st.lists(KEY_LINES | st.binary(max_size=30), max_size=4).map(b"\n".join))
def test_any_file_of_keys_is_read_or_an_error_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-keys"
    path.write_bytes(content)
    for read in (read_keys, read_worker_keys):
        assert "\n" not in refusal(partial(read, path))


def test_keys_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    code = "import sys; from pathlib import Path; from pdplugins.gateway.access.api_keys import new_key; "
    code += "[new_key(Path(sys.argv[1]), f'{sys.argv[2]}-{i}', admin=False) for i in range(20)]"
    makers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b", "c")]
    assert [maker.wait(60) for maker in makers] == [0, 0, 0]
    assert {key.name for key in read_keys(path)} == {f"{name}-{i}" for name in "abc" for i in range(20)}
