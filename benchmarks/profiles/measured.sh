#!/bin/sh
# Writes the step times of the engines whose measured rows `pdplugins validate measured` simulates. From the repository
# root, with aiconfigurator 0.7.0 (see large.sh): benchmarks/profiles/measured.sh aic/bin/python
set -eu
python=$1

# engine GPU MODEL ENGINE BACKEND TABLES HUGGING_FACE LAYOUTS [OPTION...]
engine() {
    folder=profiles/measured/$1/$2-$3 gpu=$1 backend=$4 tables=$5 model=$6 layouts=$7
    shift 7
    for layout in $layouts; do
        pdplugins profile from-kernels --gpu "$gpu" --model "$model" --layout "$layout" --backend "$backend" \
            --tables "$tables" --out "$folder/$layout.json" "$@" --python "$python" --force ||
            echo "not written: $folder/$layout.json" >&2
    done
}

# On Hopper TensorRT-LLM and SGLang compute DeepSeek's shared expert on a stream of its own in CUDA graphs, that is in
# decode steps. NCCL's rings over two servers use all eight adapters of each; the tables count one.
# SGLang's default KV cache of DeepSeek is BF16, and the others' of these rows what the model says.
deepseek=deepseek-ai/DeepSeek-V3
qwen=Qwen/Qwen3-235B-A22B-FP8
note="vLLM has no tables of attention with heads of 64; all kernels are TensorRT-LLM's on the same GPU"
gpt=openai/gpt-oss-120b
engine h200 deepseek-r1 trtllm trtllm 1.2.0rc5 $deepseek "tp8 tp8+ep8 dp8+ep8" --shared-beside
engine h100 deepseek-r1 trtllm trtllm 1.2.0rc5 $deepseek "tp16+ep16 dp16+ep16" --shared-beside --rails 8
engine h200 deepseek-r1 sglang sglang 0.5.6.post2 $deepseek tp8 --precision kvcache=float16 --shared-beside
engine h100 qwen3-235b-a22b-fp8 trtllm trtllm 1.0.0rc3 $qwen "tp4+ep4 tp4+ep2 tp8+ep8"
engine h200 qwen3-235b-a22b-fp8 vllm vllm 0.12.0 $qwen "dp2 dp4 tp2+ep2 tp2 tp2+dp2 tp4+ep4 tp4"
engine h200 qwen3-235b-a22b-fp8 sglang sglang 0.5.6.post2 $qwen "tp2 tp4"
engine h100 gpt-oss-120b vllm trtllm 1.2.0rc5 $gpt "tp2 tp4 tp8" --note "$note"
engine h200 gpt-oss-120b vllm trtllm 1.2.0rc5 $gpt "tp1 tp2 tp4 tp8" --note "$note"
engine h200 gpt-oss-120b trtllm trtllm 1.2.0rc5 $gpt "tp1 tp2 tp4 tp8 tp2+ep2 tp4+ep4 tp8+ep8"
