#!/bin/sh
# Writes the profiles of large models, mixtures of experts among them (profiles/README.md). From the repository root:
#
#     python3.11 -m venv aic && aic/bin/pip install aiconfigurator==0.7.0
#     benchmarks/profiles/large.sh aic/bin/python
#
# "-dep" in a name: data-parallel attention and expert parallelism. Others split attention too, and spread experts.
set -eu
python=$1

# from_kernels OUT MODEL LAYOUTS [OPTION...]: the GPU is the folder of OUT
from_kernels() {
    out=profiles/$1.json gpu=${1%%/*} model=$2 layouts=$3
    shift 3
    # shellcheck disable=SC2046,SC2086
    pdplugins profile from-kernels --gpu "$gpu" --model "$model" $(printf -- '--layout %s ' $layouts) --out "$out" "$@" \
        --python "$python" --force || echo "not written: $out" >&2
}

fp8="--precision gemm=fp8_block --precision moe=fp8_block --precision kvcache=fp8"
dense_fp8="--precision gemm=fp8 --precision kvcache=fp8"

# Hopper: FP8 in blocks, as the models are published. An H100 needs sixteen GPUs for DeepSeek.
from_kernels h100/deepseek-r1 deepseek-ai/DeepSeek-V3 tp16+ep16
from_kernels h100/deepseek-r1-dep deepseek-ai/DeepSeek-V3 "dp16+ep16 dp32+ep32"
from_kernels h200/deepseek-r1 deepseek-ai/DeepSeek-V3 "tp8+ep8 tp16+ep16"
from_kernels h200/deepseek-r1-dep deepseek-ai/DeepSeek-V3 "dp8+ep8 dp16+ep16 dp32+ep32"
# shellcheck disable=SC2086
for gpu in h100 h200; do
    from_kernels $gpu/qwen3-235b-a22b-fp8 Qwen/Qwen3-235B-A22B-FP8 "tp4+ep4 tp8+ep8"
    from_kernels $gpu/qwen3-coder-480b-fp8 Qwen/Qwen3-Coder-480B-A35B-Instruct tp8+ep8 $fp8
    from_kernels $gpu/gpt-oss-120b openai/gpt-oss-120b "tp1 tp2 tp4 tp8"
    from_kernels $gpu/llama-3.1-405b-fp8 meta-llama/Meta-Llama-3.1-405B "tp8 tp16" $dense_fp8
done

# Blackwell: NVFP4, as NVIDIA publishes them. The tables have no experts of gpt-oss-120b there, and all-reduces of at
# most four GPUs on GB200.
for gpu in b200 gb200; do
    wide="tp8+ep8"
    test $gpu = b200 || wide=
    from_kernels $gpu/deepseek-r1-nvfp4 nvidia/DeepSeek-V3.1-NVFP4 "tp4+ep4 $wide"
    from_kernels $gpu/deepseek-r1-nvfp4-dep nvidia/DeepSeek-V3.1-NVFP4 "dp4+ep4 dp8+ep8 dp16+ep16 dp32+ep32"
    from_kernels $gpu/qwen3-235b-a22b-nvfp4 nvidia/Qwen3-235B-A22B-NVFP4 "tp2+ep2 tp4+ep4 $wide"
    from_kernels $gpu/qwen3-coder-480b-nvfp4 Qwen/Qwen3-Coder-480B-A35B-Instruct "tp4+ep4 $wide" \
        --precision gemm=nvfp4 --precision moe=nvfp4 --precision kvcache=fp8
    # shellcheck disable=SC2086
    from_kernels $gpu/llama-3.1-405b-fp8 meta-llama/Meta-Llama-3.1-405B "tp4 ${wide:+tp8}" $dense_fp8
done
