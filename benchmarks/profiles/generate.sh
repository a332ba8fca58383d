#!/bin/sh
# Writes every shipped profile that is computed (profiles/README.md). From the repository root:
#
#     python3.11 -m venv aic && aic/bin/pip install aiconfigurator==0.7.0
#     benchmarks/profiles/generate.sh aic/bin/python
#
# About four minutes of CPU time. Two are measured: h100/llama-70b-fp8-dopd-table-1 was typed
# from the paper, and h100-measured/llama-3.1-8b is made by benchmarks/mixed_steps_profile.py.
set -eu
python=$1

# from_tables OUT GPU MODEL TP [OPTION...]
from_tables() {
    out=profiles/$1.json gpu=$2 model=$3 tp=$4
    shift 4
    pdplugins profile from-aiconfigurator --gpu "$gpu" --model "$model" --tp "$tp" --out "$out" "$@" --python "$python" --force
}

dopd="--reference profiles/h100/llama-70b-fp8-dopd-table-1.json --shortest 64 --power benchmarks/profiles/h100-power.json"
# shellcheck disable=SC2086
from_tables h100/llama-3.1-70b-fp8 h100 nvidia/Llama-3.1-70B-Instruct-FP8 1,2,4 $dopd \
    --note "aiconfigurator has FP8 KV cache; kv_bytes_per_token is BF16, which gives the paper's concurrency." \
    --note "The factors were found at prefill TP 1 and decode TP 2; at other sizes they are an assumption."

# The newest H100 tables, sglang 0.5.8.post1, have a broken attention of 32 heads (profiles/README.md): the ones before.
h100="--tables 0.5.6.post2"
watts="--power benchmarks/profiles/h100-power.json"
# shellcheck disable=SC2086
{
from_tables h100/llama-3.1-8b h100 meta-llama/Llama-3.1-8B 1,2,4 $h100 $watts
from_tables h100/qwen3-32b h100 Qwen/Qwen3-32B 1,2,4 $h100 $watts
from_tables h100/opt-30b h100 facebook/opt-30b 1,2,4 $h100 $watts \
    --note "aiconfigurator has no OPT: a Llama of the same width, with a gated feed-forward part of as many weights." \
    --note "No grouped queries: every head has a KV head, so a token takes 1.3 MiB of KV cache."
from_tables h200/llama-3.1-8b h200 meta-llama/Llama-3.1-8B 1,2,4 $watts
}
from_tables a100/llama-3.1-8b a100 meta-llama/Llama-3.1-8B 1,2 --backend vllm --power benchmarks/profiles/a100-power.json --transfer-gb-per-s 25 \
    --transfer-source "DynaServe, Testbed: 4x200 Gbps RoCE for four GPUs, so 25 GB/s for one; 1 ms is assumed"
from_tables a100/qwen2.5-14b a100 Qwen/Qwen2.5-14B 1,2 --backend vllm --power benchmarks/profiles/a100-power.json --transfer-gb-per-s 25 \
    --transfer-source "DynaServe, Testbed: 4x200 Gbps RoCE for four GPUs, so 25 GB/s for TP 1; 1 ms is assumed"
from_tables a100/qwen2.5-32b a100 Qwen/Qwen2.5-32B 1,2,4 --backend vllm --power benchmarks/profiles/a100-power.json --transfer-gb-per-s 50 \
    --transfer-source "DynaServe, Testbed: 4x200 Gbps RoCE for four GPUs, so 50 GB/s for TP 2; 1 ms is assumed"
from_tables a100/qwen2.5-72b a100 Qwen/Qwen2.5-72B 4,8 --backend vllm --power benchmarks/profiles/a100-power.json --transfer-gb-per-s 100 \
    --transfer-source "DynaServe, Testbed: 4x200 Gbps RoCE for four GPUs, so 100 GB/s for TP 4; 1 ms is assumed"

# shellcheck disable=SC2086
{
from_tables h800/llama-3.1-8b h800 meta-llama/Llama-3.1-8B 1,2,4,8 --like h100 $h100 $watts --transfer-gb-per-s 200 \
    --transfer-source "Arrow, Testbed: NVLink of 400 GB/s between two GPUs, half of it each way; 1 ms is assumed" \
    --note "Compute and memory are the H100's; only all-reduces differ, so TP 1 is aiconfigurator's H100."

ampd="AMPD, section 7.1: InfiniBand of 200 GB/s for eight GPUs, so 100 GB/s for TP 4; 1 ms is assumed"
from_tables h20/llama-3.1-70b h20 meta-llama/Llama-3.1-70B 2,4,8 --like h100 $h100 --transfer-gb-per-s 100 --transfer-source "$ampd"
from_tables h20/qwen3-32b h20 Qwen/Qwen3-32B 1,2,4,8 --like h100 $h100 --transfer-gb-per-s 100 --transfer-source "$ampd"
# Only the newest tables have experts of Mixtral's size; their attention of 16 heads is sound.
from_tables h20/mixtral-8x7b h20 mistralai/Mixtral-8x7B-v0.1 2,4,8 --like h100 --transfer-gb-per-s 100 --transfer-source "$ampd"
}

from_tables mi300x/llama-3.1-8b mi300x meta-llama/Llama-3.1-8B 1 --like h200 --backend vllm \
    --power benchmarks/profiles/mi300x-power.json --transfer-gb-per-s 64 \
    --scale-prefill 1.35 \
    --scale-source "prefill: RAPID, section 5.2, Figure 9: 16 prompts/s of 8K tokens are too many for 4 GPUs at 750 W and enough for 6 at 600 W (15 % slower), so one takes 0.25 to 0.33 s at 750 W; 0.29 s is taken, aiconfigurator says 0.215 s. decode: none" \
    --note "RAPID's decode (vLLM 0.8.4) is slower than this: 4 GPUs miss a TPOT of 20 ms at 8,000 tokens/s together." \
    --transfer-source "one XGMI link between two GPUs of a server, data sheet; 1 ms is assumed"
