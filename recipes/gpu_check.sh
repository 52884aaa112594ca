#!/bin/bash
# Runs the real commands on a small random model of the Qwen3.5 family, without the hub: doctor, kernels, SFT and GRPO with
# their probes, `probe run` with transformers and with vLLM; with two GPUs or more also SFT under ZeRO-2.
#   bash recipes/gpu_check.sh                  # writes runs/gpu_check/verdict.txt: a page for an issue
#   bash recipes/gpu_check.sh --stages sft     # that alone; also: doctor kernels grpo probe vllm zero2
# The first run compiles kernels and CUDA graphs; each stage has a limit that leaves room for that (train/gpu_check.py).
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 WANDB_MODE=disabled
exec python -m nextturn.train.gpu_check "$@"
