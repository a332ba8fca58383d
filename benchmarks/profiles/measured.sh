#!/bin/sh
# Writes the step times of the engines whose measured rows `pdplugins validate measured` simulates. From the repository
# root, with aiconfigurator 0.7.0 (see large.sh) and 0.12.0, each in an environment of its own:
# benchmarks/profiles/measured.sh aic/bin/python aic12/bin/python
set -eu
python=$1 newer=$2

# engine GPU MODEL ENGINE BACKEND TABLES HUGGING_FACE LAYOUTS [OPTION...]: the step times of each layout, under $root.
# Where $decode is set, decode steps are those of the profiles under it.
root=profiles/measured decode=
engine() {
    folder=$1/$2-$3 gpu=$1 backend=$4 tables=$5 model=$6 layouts=$7
    shift 7
    for layout in $layouts; do
        pdplugins profile from-kernels --gpu "$gpu" --model "$model" --layout "$layout" --backend "$backend" \
            --tables "$tables" --out "$root/$folder/$layout.json" "$@" \
            ${decode:+--decode-of "$decode/$folder/$layout.json"} --python "$python" --force ||
            echo "not written: $root/$folder/$layout.json" >&2
    done
}

# On Hopper TensorRT-LLM and SGLang compute DeepSeek's shared expert on a stream of its own in CUDA graphs, that is in
# decode steps. NCCL's rings over two servers use all eight adapters of each; the tables count one.
# SGLang's default KV cache of DeepSeek is BF16, and the others' of these rows what the model says.
deepseek=deepseek-ai/DeepSeek-V3
qwen=Qwen/Qwen3-235B-A22B-FP8
gpt=openai/gpt-oss-120b
engine h200 deepseek-r1 trtllm trtllm 1.2.0rc5 $deepseek "tp8 tp8+ep8 dp8+ep8" --shared-beside
engine h100 deepseek-r1 trtllm trtllm 1.2.0rc5 $deepseek "tp16+ep16 dp16+ep16" --shared-beside --rails 8
engine h100 qwen3-235b-a22b-fp8 trtllm trtllm 1.0.0rc3 $qwen "tp4+ep4 tp4+ep2 tp8+ep8"
engine h200 qwen3-235b-a22b-fp8 sglang sglang 0.5.6.post2 $qwen "tp2 tp4"
engine h200 gpt-oss-120b trtllm trtllm 1.2.0rc5 $gpt "tp1 tp2 tp4 tp8 tp2+ep2 tp4+ep4 tp8+ep8"

# The newer aiconfigurator has vLLM's kernels of gpt-oss-120b, and SGLang's decode steps of DeepSeek after 0.5.6.
python=$newer
engine h200 qwen3-235b-a22b-fp8 vllm vllm 0.24.0 $qwen "dp2 dp4 tp2+ep2 tp2 tp2+dp2 tp4+ep4 tp4"
root=decode
engine h200 deepseek-r1 sglang sglang 0.5.14 $deepseek tp8 --precision kvcache=bfloat16 --precision fmha=bfloat16
engine h100 gpt-oss-120b vllm vllm 0.24.0 $gpt "tp2 tp4 tp8"
engine h200 gpt-oss-120b vllm vllm 0.24.0 $gpt "tp1 tp2 tp4 tp8"

# Prompts stay with the older tables there. The newer ones have DeepSeek's attention in one block with its matrices, for
# one prompt alone. vLLM's experts were measured with Triton's kernels, and InferenceMAX sets VLLM_MXFP4_USE_MARLIN=1.
python=$1 root=profiles/measured decode=decode
note="prompts take TensorRT-LLM's kernels on the same GPU: vLLM's tables have other kernels of experts than the rows"
engine h200 deepseek-r1 sglang sglang 0.5.6.post2 $deepseek tp8 --precision kvcache=float16 --shared-beside
engine h100 gpt-oss-120b vllm trtllm 1.2.0rc5 $gpt "tp2 tp4 tp8" --note "$note"
engine h200 gpt-oss-120b vllm trtllm 1.2.0rc5 $gpt "tp1 tp2 tp4 tp8" --note "$note"
rm -r decode
