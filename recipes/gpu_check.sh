#!/bin/bash
# Run the real commands on a small random Qwen3.5 model, without the hub: doctor, kernels, SFT and GRPO with their probes,
# `nextturn probe run` with transformers and with vLLM, and, on two or more GPUs, SFT under ZeRO-2.
#   bash recipes/gpu_check.sh                  # writes runs/gpu_check/verdict.txt, which can be pasted into an issue
#   bash recipes/gpu_check.sh --stages sft     # one stage; the others: doctor kernels grpo probe vllm zero2
# The first run compiles kernels and CUDA graphs. The time limit of each stage allows for that (train/gpu_check.py).
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 WANDB_MODE=disabled
exec python -m nextturn.train.gpu_check "$@"
