"""Measures steps of real SGLang on a GPU: prefill alone, decodes alone, and both in one batch.

    python benchmarks/mixed_steps_gpu.py --out steps.json      with SGLang 0.5.16 and a GPU of 80 GB
    python benchmarks/mixed_steps_gpu.py --publish steps.json  in a checkout: write it as the result mixed-steps-gpu

It needs SGLang, and of this repository only this file. The model has the shape of Llama-3.1-8B and random weights; no
file of it is needed. SGLang runs in this process, without a server, as in its own ``bench_one_batch``: its batches
(`ScheduleBatch`, `mix_with_running`), its model runner, its CUDA graphs, its attention kernels, and its defaults.

Five kinds of steps are timed, each at many sizes:

    prefill  `tokens` new tokens of one prompt, after `earlier` tokens of it that are in the KV cache
    decode   one token of each of `batch` requests, each with `context` tokens in the KV cache
    mixed    both in one batch, as SGLang does with --enable-mixed-chunk
    dense    a prefill step in which attention does nothing; the KV cache is still written

Every round times each step once, in an order of its own (`--seed`), so that a drift of the GPU's clock falls on all
kinds alike. Of each step two times are kept, over all rounds:

    gpu_ms   on the GPU, from the first kernel to the sampled tokens, when the CPU has launched them ahead of the GPU,
             as SGLang's overlapped scheduler does
    wall_ms  of the whole step from an idle GPU: scheduling, launching, computing, and the wait for the end

`launch_ms` and `prepare_ms` are parts of it. `ahead` says that the CPU was ahead in every round, `graph` that a CUDA
graph ran, `sm_mhz` the clock right after the step, `held_back` (NVML's bits) why clocks were lower than they can be,
and `check` how far the logits of a mixed step were from those of its prompt and its decodes alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}  # fmt: skip
"""The shape of Llama-3.1-8B."""
TINY = {
    **LLAMA_8B, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""A model for trying this script without a GPU."""
PROMPTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
EARLIER = (0, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 1024, 4096, 16384)
MIXED_PROMPTS = (128, 256, 512, 1024, 2048, 4096)
MIXED_BATCHES = (1, 8, 32, 64, 128, 256)
MIXED_EARLIER = ((512, 8, 4096), (512, 64, 1024), (2048, 8, 4096), (2048, 64, 1024))
"""(tokens, batch, context) of mixed steps that are timed again with each of EARLIER."""
DENSE = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
LOST = 12
"""Steps that may fail; after more of them something is wrong with the engine."""
MEASURED = ("gpu_ms", "wall_ms", "launch_ms", "prepare_ms")
PACKAGES = ("torch", "sglang", "sglang-kernel", "triton", "transformers", "apache-tvm-ffi")


class Step(NamedTuple):
    """What one step computes, in tokens and requests. `context` and `earlier` are tokens in the KV cache before it."""

    kind: str
    tokens: int = 0
    earlier: int = 0
    batch: int = 0
    context: int = 0

    @property
    def held(self) -> int:
        """Tokens of KV cache after the step."""
        return self.tokens + self.earlier + self.batch * (self.context + 1)


def steps(capacity: int) -> list[Step]:
    """Return the steps to time: those that fit into `capacity` tokens of KV cache."""
    found = [Step("prefill", tokens, earlier) for earlier in EARLIER for tokens in PROMPTS]
    found += [Step("dense", tokens) for tokens in DENSE]
    found += [Step("decode", 0, 0, batch, context) for batch in BATCHES for context in CONTEXTS]
    grid = ((batch, context) for batch in MIXED_BATCHES for context in CONTEXTS)
    found += [Step("mixed", tokens, 0, batch, context) for batch, context in grid for tokens in MIXED_PROMPTS]
    found += [Step("mixed", tokens, EARLIER[-1], batch, context) for tokens, batch, context in MIXED_EARLIER]
    return [step for step in found if step.held < capacity]


class Engine:
    """SGLang's model runner in this process, and the steps that it is given.

    :param config: what the model's ``config.json`` holds.
    :param options: settings of SGLang's `ServerArgs` that differ from its defaults.
    """

    def __init__(self, config: dict[str, Any], options: dict[str, Any], seed: int) -> None:
        import numpy  # noqa: PLC0415 - with SGLang only
        import torch  # noqa: PLC0415
        from sglang.benchmark import one_batch  # noqa: PLC0415
        from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: PLC0415

        self.torch, self.cuda = torch, torch.cuda.is_available()
        self._random, self._tokens = numpy.random.default_rng(seed), config["vocab_size"]
        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(config))
        given = {"load_format": "dummy", "skip_tokenizer_init": True, "random_seed": seed, **options}
        self.arguments = ServerArgs(model_path=str(folder), **given)
        one_batch._set_envs_and_config(self.arguments)
        one_batch.get_tokenizer = lambda *_, **__: None
        model, _ = one_batch.load_model(self.arguments, PortArgs.init_new(self.arguments), 0, 0)
        self.runner: Any = model.torch_runner
        self.capacity = int(self.runner.max_total_num_tokens)
        self._tree = one_batch.TreeCacheNamespace(
            page_size=self.arguments.page_size,
            device=self.runner.device,
            token_to_kv_pool_allocator=self.runner.token_to_kv_pool_allocator,
        )
        pool = self.runner.token_to_kv_pool
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer.normal_()

    def ready(self, step: Step) -> Callable[[], Any]:
        """Take the requests of a step in; return what schedules their next step and returns its batch."""
        self.runner.req_to_token_pool.clear()
        self.runner.token_to_kv_pool_allocator.clear()
        running: Any = self._running(step.batch, step.context) if step.batch else None
        request = self._begun(step.tokens, step.earlier) if step.tokens else None

        def schedule() -> Any:
            if request is None:
                running.prepare_for_decode()
                return running
            batch = self._batch([request])
            batch.prepare_for_extend()
            found = batch.prefill_input_ids_cpu.to(batch.device, non_blocking=True)
            if running is not None:
                running.prepare_for_decode()
                batch.mix_with_running(running)
                found = self.torch.cat([found, running.input_ids])
            batch.input_ids, batch.prefill_input_ids_cpu, batch.mix_running_indices = found, None, None
            return batch

        return schedule

    def _batch(self, requests: list[Any]) -> Any:
        from sglang.srt.managers.schedule_batch import ScheduleBatch  # noqa: PLC0415
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: PLC0415

        return ScheduleBatch.init_new(
            reqs=requests,
            req_to_token_pool=self.runner.req_to_token_pool,
            token_to_kv_pool_allocator=self.runner.token_to_kv_pool_allocator,
            tree_cache=self._tree,
            model_config=self.runner.model_config,
            enable_overlap=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )

    def _request(self, tokens: int, name: str) -> Any:
        from sglang.srt.managers.schedule_batch import Req  # noqa: PLC0415
        from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: PLC0415

        greedy = SamplingParams(temperature=0, max_new_tokens=16)
        ids = array("q", self._random.integers(0, self._tokens, tokens).astype("int64").tobytes())
        request = Req(rid=name, origin_input_text="", origin_input_ids=ids, sampling_params=greedy)
        request.full_untruncated_fill_ids = array("q", ids)
        request.logprob_start_len = -1
        request.set_extend_range(0, tokens)
        return request

    def _drawn(self, size: int, context: int) -> list[Any]:
        requests = [self._request(context, f"d{index}") for index in range(size)]
        for request in requests:
            request.output_ids.append(int(self._random.integers(self._tokens)))
        return requests

    def _running(self, size: int, context: int) -> Any:
        """Return a batch of requests whose prompts are in the KV cache and whose first tokens are known."""
        requests = self._drawn(size, context)
        batch = self._batch(requests)
        batch.prepare_for_extend()
        first = [request.output_ids[-1] for request in requests]
        batch.input_ids = self.torch.tensor(first, dtype=self.torch.int64, device=self.runner.device)
        batch.prefill_input_ids_cpu = None
        return batch

    def _begun(self, tokens: int, earlier: int) -> Any:
        """Return a request whose first `earlier` tokens are in the KV cache, and whose next chunk has `tokens`."""
        request = self._request(earlier + tokens, "p")
        if earlier:
            request.set_extend_range(0, earlier)
            self._batch([request]).prepare_for_extend()
            row = self.runner.req_to_token_pool.req_to_token[request.req_pool_idx, :earlier]
            request.prefix_indices = row.to(request.prefix_indices.dtype)
            request.set_extend_range(earlier, earlier + tokens)
        return request

    def forward(self, batch: Any) -> Any:
        """Launch a step of `batch` with the sampling of its tokens; return the model's output."""
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch  # noqa: PLC0415

        step = ForwardBatch.init_new(batch, self.runner, return_hidden_states_before_norm=False)
        output = self.runner.forward(step)
        self.runner.sample(output.logits_output, step)
        return output

    def without_attention(self) -> Callable[[], None]:
        """Let attention do nothing in prefill steps, but write the KV cache; return what ends that."""
        backend, pool = self.runner.attn_backend, self.runner.token_to_kv_pool
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc  # noqa: PLC0415

        def nothing(q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, **_: Any) -> Any:
            if save_kv_cache:
                pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, None), k, v)
            output = getattr(batch, "_attn_output", None)
            return q if output is None else output

        backend.forward_extend = nothing
        return lambda: delattr(backend, "forward_extend")

    def wait(self) -> None:
        """Wait until the GPU has nothing to do."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def time(self, step: Step) -> dict[str, Any]:
        """Time a step twice: from an idle GPU, and launched ahead of the GPU. Milliseconds."""
        schedule = self.ready(step)
        restore = self.without_attention() if step.kind == "dense" else lambda: None
        try:
            self.wait()
            times = [time.perf_counter()]
            batch = schedule()
            times.append(time.perf_counter())
            output = self.forward(batch)
            times.append(time.perf_counter())
            self.wait()
            times.append(time.perf_counter())
            prepare, launch, rest = ((b - a) * 1e3 for a, b in pairwise(times))
            found = {"wall_ms": prepare + launch + rest, "launch_ms": launch, "prepare_ms": prepare}
            gpu_ms, ahead = self._ahead(batch, launch) if self.cuda else (launch + rest, False)
            return {**found, "gpu_ms": gpu_ms, "ahead": ahead, "graph": bool(output.can_run_graph)}
        finally:
            restore()

    def _ahead(self, batch: Any, launch_ms: float) -> tuple[float, bool]:
        """Time a step on a GPU that is kept busy until it is launched; tell whether that was long enough."""
        cuda = self.torch.cuda
        marks = [cuda.Event(enable_timing=True) for _ in range(3)]
        began = time.perf_counter()
        marks[0].record()
        cuda._sleep(int((1.5 * launch_ms + 1) * 2e6))  # cycles, at about 2 GHz
        marks[1].record()
        self.forward(batch)
        marks[2].record()
        launched_ms = (time.perf_counter() - began) * 1e3
        cuda.synchronize()
        return marks[1].elapsed_time(marks[2]), launched_ms < marks[0].elapsed_time(marks[1])

    def check(self, step: Step) -> float:
        """Return how far the logits of a mixed step are from those of its two parts alone: a relative norm."""
        state, found = self._random.bit_generator.state, []
        parts = (step, step._replace(tokens=0, earlier=0), step._replace(batch=0))
        for part in parts:
            self._random.bit_generator.state = state
            if not part.batch:  # draw the tokens of the decodes, so that the prompt is the same
                self._drawn(step.batch, step.context)
            logits = self.forward(self.ready(part)()).logits_output.next_token_logits
            found.append(logits.float().clone())
        together, alone = found[0], self.torch.cat([found[2], found[1]])
        return float((together - alone).norm() / alone.norm())


class Watch:
    """What NVML says of the GPU; nothing where there is none."""

    def __init__(self, cuda: bool) -> None:
        self._nvml: Any = None
        if cuda:
            import pynvml  # noqa: PLC0415

            pynvml.nvmlInit()
            self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self) -> dict[str, Any]:
        """Return name, driver, clocks (MHz), draw and limit (W), temperature (C) and why clocks are held back."""
        if (nvml := self._nvml) is None:
            return {}
        gpu = self._gpu
        return {
            "name": nvml.nvmlDeviceGetName(gpu),
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(gpu).total,
            "sm_mhz": self.clock_mhz(),
            "sm_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "memory_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            "draw_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "limit_w": nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3,
            "temperature_c": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "held_back": self.held_back(),
        }

    def clock_mhz(self) -> int:
        """Return the clock of the multiprocessors now."""
        return 0 if self._nvml is None else self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_SM)

    def held_back(self) -> int:
        """Return the reasons for which clocks are held back now, as NVML's bits."""
        return 0 if self._nvml is None else self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._gpu)


def measure(engine: Engine, options: argparse.Namespace, begun: float) -> dict[str, Any]:
    """Return all that was measured; writes it to `options.out` after each round."""
    watch = Watch(engine.cuda)
    todo = steps(engine.capacity)[:: options.every]
    record: dict[str, Any] = {
        "seed": options.seed, "versions": versions(), "model": options.config, "kv_tokens": engine.capacity,
        "engine": {name: str(getattr(engine.arguments, name)) for name in SHOWN}, "gpu_before": watch.read(),
    }  # fmt: skip
    mixed = [step for step in todo if step.kind == "mixed"]
    record["check"] = engine.check(mixed[len(mixed) // 2]) if mixed else None
    print(f"{len(todo)} steps, {engine.capacity} tokens of KV cache, mixed from alone {record['check']}", flush=True)
    failed: dict[Step, str] = {}
    for step in todo:  # once without looking, for what is compiled or chosen at first use
        try:
            engine.time(step)
        except Exception as error:
            failed[step] = f"{type(error).__name__}: {error}"[:300]
            print(step, failed[step], flush=True)
            if len(failed) > LOST:
                raise
    found: dict[Step, list[dict[str, Any]]] = defaultdict(list)
    last, held_back, order = begun, 0, random.Random(options.seed)  # noqa: S311 - an order, no secret
    gc.collect()
    gc.disable()
    for done in range(options.rounds):
        began = time.monotonic()
        if done and 2 * began - last > begun + options.limit_s:
            break  # another round would not end in time
        last = began
        order.shuffle(todo)
        for step in todo:
            if step not in failed:
                found[step].append({**engine.time(step), "sm_mhz": watch.clock_mhz()})
                held_back |= watch.held_back()
        gc.collect()
        print(f"round {done + 1}: {time.monotonic() - begun:.0f} s", flush=True)
        rows = [row(step, found[step]) for step in sorted(found)]
        after = {"gpu_after": watch.read(), "held_back": held_back, "seconds": time.monotonic() - begun}
        failures = [{**step._asdict(), "error": error} for step, error in failed.items()]
        options.out.write_text(json.dumps({**record, **after, "failed": failures, "rows": rows}, indent=1))
    return record


SHOWN = (
    "attention_backend", "sampling_backend", "dtype", "kv_cache_dtype", "page_size", "chunked_prefill_size",
    "mem_fraction_static", "cuda_graph_config", "disable_radix_cache",
)  # fmt: skip
"""Settings of SGLang that a reader needs."""


def row(step: Step, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all rounds say of a step: the median, least and most of each time."""
    times: dict[str, float] = {}
    for name in MEASURED:
        values = [one[name] for one in found]
        times[name] = round(statistics.median(values), 4)
        if name in {"gpu_ms", "wall_ms"}:
            times |= {f"{name}_min": round(min(values), 4), f"{name}_max": round(max(values), 4)}
    told = {name: all(one[name] for one in found) for name in ("ahead", "graph")}
    clock = statistics.median(one["sm_mhz"] for one in found)
    return {**step._asdict(), "rounds": len(found), **times, **told, "sm_mhz": clock}


def versions() -> dict[str, str]:
    """Return the versions of what computes the steps."""
    return {"python": sys.version.split()[0], **dict(_versions())}


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def arguments(doc: str | None, result: str) -> argparse.ArgumentParser:
    """Return the options of a script that measures steps on a GPU, and publishes them as `result`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("steps.json"), help="file to write, again and again")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="end after about so long")
    parser.add_argument("--seed", type=int, default=0, help="of tokens, weights and the order of what is measured")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th only, to try it out")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, which also runs on a CPU")
    parser.add_argument("--set", default="{}", type=json.loads, help="more of SGLang's ServerArgs, as JSON")
    parser.add_argument("--publish", type=Path, metavar="FILE", help=f"write FILE as the result {result}")
    parser.add_argument("--note", action="append", default=[], help="what a reader of the result must know")
    return parser


def publish(result: str, script: str, options: argparse.Namespace, summed: Callable[[Any], dict[str, Any]]) -> None:
    """Write what a script has measured as a result of this repository.

    :param summed: returns what the result says beside it.
    """
    import manifest  # noqa: PLC0415 - of this repository, which the machine with the GPU need not have

    from pdplugins.provenance import record  # noqa: PLC0415

    found = json.loads(options.publish.read_text(encoding="utf-8"))
    made = record("measured", seed=found["seed"], command=f"python benchmarks/{script} --out steps.json")
    rest = {key: value for key, value in found.items() if key not in {"seed", "versions"}}
    both = {**made["versions"], **found["versions"]}
    manifest.write(result, {**made, "versions": both, "notes": options.note, **summed(found), **rest})


def main() -> None:
    """Measure, or publish what was measured."""
    begun = time.monotonic()
    parser = arguments(__doc__, "mixed-steps-gpu")
    parser.add_argument("--rounds", type=int, default=9, help="times that each step is timed")
    options = parser.parse_args()
    if options.publish is not None:
        publish("mixed-steps-gpu", "mixed_steps_gpu.py", options, lambda _: {})
        return
    options.config = TINY if options.tiny else LLAMA_8B
    measure(Engine(options.config, options.set, options.seed), options, begun)


if __name__ == "__main__":
    main()
