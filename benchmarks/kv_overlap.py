"""How much of a prefix push hides behind the compute of the next chunk, on two real SGLang servers.

    python benchmarks/kv_overlap.py TREE [--rounds 7] [--save]

TREE holds an SGLang as `make test-sglang` installs it; run it with that environment's Python. Two dual-role instances
start on this machine. In each round, for each number K of chunks and in random order, one prompt is prefilled on the
first alone (the compute), and one is pushed to the second by each sender of `kv_overlap_plugin.py`: pdplugins as it is,
the same without its pauses between polls, and the control, which can hide nothing. All of it is the client's wall time:

    exposed(K) = median push(K) - median compute(K)
    hidden(K) = 1 - exposed(K) / exposed(1)

with the same sender; at most 1 - 1/K with equal chunks. All of it runs in a network namespace of its own (Linux, `tc`),
whose loopback has the speed of `--link-mbit`; NIXL crosses it by TCP. So what carries the bytes is a link, as
it would be between two machines, and not one more core of this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import manifest  # noqa: E402

from benchmarks.rig import servers, tiny_model  # noqa: E402
from pdplugins.provenance import command_line, record  # noqa: E402

RESULT = "kv-overlap"
PUSHES, CONTROL = ("paused", "spinning"), "scheduler"
"""Senders, see `kv_overlap_plugin.py`."""
INSIDE = "KV_OVERLAP_INSIDE"
"""Set in the process that has its own network."""
LINK_ENV = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "SGLANG_HOST_IP": "127.0.0.1"}
SHORT = 16
"""Tokens of the prompt whose push shows what a push costs besides its bytes."""


@dataclass(frozen=True)
class Shape:
    """The size of a random-weight Llama."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """KV cache of one token, in bytes (float32, as many KV heads as heads)."""
        return self.layers * 2 * self.heads * self.head_dim * 4


SHAPE = Shape(hidden=512, intermediate=2048, layers=2, heads=4, head_dim=64)
"""Most compute is in matrix products, which do not grow with K as attention does here."""


def make_model(folder: Path, shape: Shape) -> Path:
    """Write a model of that shape with random weights, and the tokenizer of the tests' model."""
    import torch  # noqa: PLC0415 - comes with SGLang
    from safetensors.torch import save_file  # noqa: PLC0415

    tiny_model.make(folder)
    inner, vocabulary = shape.heads * shape.head_dim, tiny_model.VOCABULARY
    sizes = {
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads, "head_dim": shape.head_dim,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(tiny_model.CONFIG | sizes))
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int, gain: float = 1) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(gain / columns**0.5)

    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, shape.hidden, 8),
        "lm_head.weight": matrix(vocabulary, shape.hidden, 4),
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        for part in ("q", "k", "v"):
            weights[f"{name}self_attn.{part}_proj.weight"] = matrix(inner, shape.hidden, 2)
        weights[f"{name}self_attn.o_proj.weight"] = matrix(shape.hidden, inner, 3)
        for part in ("gate", "up"):
            weights[f"{name}mlp.{part}_proj.weight"] = matrix(shape.intermediate, shape.hidden)
        weights[f"{name}mlp.down_proj.weight"] = matrix(shape.hidden, shape.intermediate)
        for part in ("input", "post_attention"):
            weights[f"{name}{part}_layernorm.weight"] = torch.ones(shape.hidden)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


# --- the servers ------------------------------------------------------------------------------------------------------


class Pair:
    """Two dual-role instances; A pushes to B."""

    def __init__(self, tree: Path, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.tokens = folder, args.tokens
        self.settings, self.sends = folder / "settings.json", folder / "sends.jsonl"
        self.set(args.tokens, PUSHES[0])
        model = make_model(folder / "model", SHAPE)
        config = folder / "dual.yaml"
        config.write_text(yaml.safe_dump({"sglang": {"dual_role": True}}))
        options = [*servers.DUAL, "--chunked-prefill-size", str(args.tokens), "--max-running-requests", "8"]
        options += [] if args.overlap_schedule else ["--disable-overlap-schedule"]
        path = [servers.HERE / "stubs", tree, self._plugin(), HERE.parent]
        env = {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "KV_OVERLAP_SETTINGS": str(self.settings),
            "KV_OVERLAP_SENDS": str(self.sends),
        }
        env |= LINK_ENV
        room = args.tokens * 2 + 1024
        self.a, self.b = (
            servers.Server(tree, model, folder / f"{name}.log", options, config, env, room) for name in ("a", "b")
        )

    def set(self, chunk: int, sender: str) -> None:
        """Tell both how to prefill and to send from now on."""
        new = self.settings.with_suffix(".new")
        new.write_text(json.dumps({"chunk": chunk, "sender": sender}))
        new.replace(self.settings)

    def sent(self) -> list[dict[str, Any]]:
        """Return the sends since the last call."""
        lines = self.sends.read_text().splitlines() if self.sends.exists() else []
        self.sends.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def _plugin(self) -> Path:
        """Make the plugin of this benchmark known to SGLang, and return the folder to import it from."""
        folder = self.folder / "plugin"
        about = folder / "kv_overlap_plugin-0.dist-info"
        about.mkdir(parents=True)
        (folder / "kv_overlap_plugin.py").symlink_to(HERE / "kv_overlap_plugin.py")
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kv-overlap-plugin\nVersion: 0\n")
        (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nkv_overlap = kv_overlap_plugin:register\n")
        return folder


# --- one measurement --------------------------------------------------------------------------------------------------


class Measure:
    """Times prefills and pushes of fresh prompts."""

    def __init__(self, pair: Pair, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self.pair, self.session, self.rng = pair, session, rng

    async def case(self, tokens: int, chunks: int, kind: str) -> tuple[float, list[dict[str, Any]]]:
        """Return the seconds of a prefill on A alone, or of a push from A to B, and the sends."""
        self.pair.set(tokens // chunks, kind)
        prompt = await self._fresh(tokens)
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        await (self._generate(self.pair.a, prompt, 1) if kind == "compute" else self._push(prompt))
        took_s = clock() - begun_s
        sends = self.pair.sent()
        must = 0 if kind == "compute" else chunks
        if len(sends) != must or any(send["main_thread"] is not (kind == CONTROL) for send in sends):
            raise RuntimeError(f"{chunks} chunks, {kind}: sent {sends}")
        return took_s, sends

    async def check(self, tokens: int, chunk: int, sender: str) -> None:
        """Raise unless what B got from a push gives the tokens that A gives by itself."""
        self.pair.set(chunk, sender)
        prompt = await self._fresh(tokens)
        expected = (await self._generate(self.pair.a, prompt, 8))["output_ids"]
        await self._flush(self.pair.a)
        await self._push(prompt)
        answer = await self._generate(self.pair.b, prompt, 8)
        if answer["output_ids"] != expected or answer["meta_info"]["cached_tokens"] < tokens - 1:
            raise RuntimeError(f"{chunk=} {sender=}: {answer['output_ids']} is not {expected}: {answer['meta_info']}")

    async def _push(self, prompt: list[int]) -> None:
        address = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.pair.a.bootstrap_port,
            "bootstrap_room": self.rng.getrandbits(62),
        }
        both = (self._generate(server, prompt, 1, **address) for server in (self.pair.a, self.pair.b))
        await asyncio.gather(*both)

    async def _generate(self, server: servers.Server, prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, **more}
        async with self.session.post(server.url + "/generate", json=body) as answer:
            data: dict[str, Any] = await answer.json()
            if "output_ids" not in data:
                raise RuntimeError(f"{answer.status} {server.url}: {data}")
            return data

    async def _fresh(self, tokens: int) -> list[int]:
        for server in (self.pair.a, self.pair.b):
            await self._flush(server)
        return [self.rng.randrange(4, 98) for _ in range(tokens)]

    async def _flush(self, server: servers.Server) -> None:
        for _ in range(200):
            async with self.session.post(server.url + "/flush_cache") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"{server.url} does not become idle")


# --- the comparison ---------------------------------------------------------------------------------------------------


async def compare(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(args.seed)  # noqa: S311 - prompts, not secrets
    walls: Walls = defaultdict(list)
    posts: Walls = defaultdict(list)
    moved = 0
    cases = [(chunks, kind) for chunks in args.chunks for kind in ("compute", *PUSHES)]
    cases += [(chunks, CONTROL) for chunks in args.controls]
    cases += [(0, kind) for kind in ("compute", PUSHES[0])]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        measure = Measure(pair, session, rng)
        for sender in (*PUSHES, CONTROL):
            for chunks in args.controls:
                await measure.check(args.tokens, args.tokens // chunks, sender)
        pair.sent()
        until = asyncio.get_running_loop().time() + 60 * args.minutes
        for number in range(args.rounds):
            if asyncio.get_running_loop().time() > until:
                break
            for chunks, kind in rng.sample(cases, len(cases)):
                wall_s, sends = await measure.case(args.tokens if chunks else SHORT, max(chunks, 1), kind)
                moved += sum(send["bytes"] for send in sends)
                walls[chunks, kind].append(wall_s)
                posts[chunks, kind].append(sum(send["post_s"] for send in sends))
            row = {f"{kind} {chunks}": ms(walls[chunks, kind][-1]) for chunks, kind in sorted(cases)}
            print(f"round {number + 1} of {args.rounds}: {row}", file=sys.stderr, flush=True)
    rows = [summary(walls, posts, chunks, kind) for chunks, kind in sorted(cases) if chunks and kind != "compute"]
    return {"rounds": len(walls[0, "compute"]), "bytes_moved": moved, "fixed_ms": fixed_ms(walls), "rows": rows}


Walls = dict[tuple[int, str], list[float]]
"""Seconds of each round, by number of chunks and kind."""


def exposed(walls: Walls, chunks: int, sender: str) -> float:
    return statistics.median(walls[chunks, sender]) - statistics.median(walls[chunks, "compute"])


def hidden_of_minima(walls: Walls, chunks: int, sender: str) -> float:
    """The same of the fastest rounds: other work on the machine only ever adds time."""
    many, one = (min(walls[count, sender]) - min(walls[count, "compute"]) for count in (chunks, 1))
    return round(1 - many / one, 3)


def fixed_ms(walls: Walls) -> float:
    """What a push costs besides its bytes: handshake and polling, seen with a short prompt."""
    return ms(exposed(walls, 0, PUSHES[0]))


def summary(walls: Walls, posts: Walls, chunks: int, sender: str) -> dict[str, Any]:
    """Return one row of the table."""
    one, pushes, computes = exposed(walls, 1, sender), walls[chunks, sender], walls[chunks, "compute"]
    rounds = [1 - (push - compute) / one for push, compute in zip(pushes, computes, strict=True)]
    compute_s = statistics.median(computes)
    return {
        "sender": sender,
        "chunks": chunks,
        "compute_ms": ms(compute_s),
        "compute_ms_range": [ms(min(computes)), ms(max(computes))],
        "push_ms": ms(statistics.median(pushes)),
        "push_ms_range": [ms(min(pushes)), ms(max(pushes))],
        "exposed_ms": ms(exposed(walls, chunks, sender)),
        "transfer_share_of_compute": round(one / compute_s, 3),
        "posting_ms": ms(statistics.median(posts[chunks, sender])),
        "hidden": round(1 - exposed(walls, chunks, sender) / one, 3),
        "hidden_range": [round(min(rounds), 3), round(max(rounds), 3)],
        "hidden_of_minima": hidden_of_minima(walls, chunks, sender),
        "ceiling": round(1 - 1 / chunks, 3),
    }


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


# --- the command ------------------------------------------------------------------------------------------------------


def enter_network(mbit: int) -> None:
    """Go on with a loopback of that speed: in a network namespace of our own, which ends with this process."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--map-root-user", "--net", sys.executable, *sys.argv])  # noqa: S606
    # A burst passes at once, so it must be small against a chunk; and no packet may be larger.
    subprocess.run(["ip", "link", "set", "lo", "mtu", "9000", "up"], check=True)
    shape = f"tc qdisc add dev lo root tbf rate {mbit}mbit burst 20kb latency 2s"
    subprocess.run(shape.split(), check=True)


def save(run: dict[str, Any]) -> None:
    """Put a run in place of an older one of the same setup; only runs of the same code stay."""
    setup = ("sglang", "link_mbit", "overlap_schedule")
    old = manifest.read(RESULT) if (manifest.RESULTS / f"{RESULT}.json").exists() else {"runs": []}
    same_code = not manifest.changed(manifest.experiment_of(RESULT), old)
    kept = [one for one in old["runs"] if same_code and any(one[name] != run[name] for name in setup)]
    runs = sorted([*kept, run], key=lambda each: [str(each[name]) for name in setup])
    manifest.write(RESULT, {key: run[key] for key in manifest.ORIGIN} | {"runs": runs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--link-mbit", type=int, default=200)
    parser.add_argument("--overlap-schedule", action="store_true", help="leave SGLang's overlap scheduling on")
    parser.add_argument("--tokens", type=int, default=4096, help="of the prompt")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument(
        "--controls", type=int, nargs="+", default=[1, 16], help="numbers of chunks of the control, too"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=60, help="begin no round later than that")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="put the run into results/kv-overlap.json")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers stop, too
    enter_network(args.link_mbit)
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(args.tree.resolve(), Path(folder), args)
        with pair.a, pair.b:
            pair.a.wait()
            pair.b.wait()
            measured = asyncio.run(compare(pair, args))
    words = [word if word != str(args.tree) else "TREE" for word in sys.argv[1:]]
    run = {
        **record("measured", seed=args.seed, command=command_line("python", ["benchmarks/kv_overlap.py", *words])),
        "sglang": servers.version_of(args.tree),
        "link_mbit": args.link_mbit,
        "overlap_schedule": args.overlap_schedule,
        "tokens": args.tokens,
        "model": asdict(SHAPE) | {"kv_bytes_per_token": SHAPE.kv_bytes},
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        **measured,
    }
    print(json.dumps(run, indent=1))
    if args.save:
        save(run)


if __name__ == "__main__":
    main()
