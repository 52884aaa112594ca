#!/bin/bash
# Tries this machine's GPUs without the hub, on a random model of Qwen3.5-2B's shape: kernels, SFT, GRPO, the probe with
# transformers and with vLLM, once round (SFT, probe, GRPO, probe); with two GPUs or more NCCL, and SFT under ZeRO-2. Speed,
# peak memory beside the estimate, share of the chip's peak. What was found so far is kept when a later stage fails.
#   bash recipes/gpu_check.sh                  # writes runs/gpu_check/report.json, and verdict.txt: a page for an issue
#   bash recipes/gpu_check.sh --stages sft     # that alone; also: kernels grpo probe probe_vllm circle nccl zero2
#   bash recipes/gpu_check.sh --tiny           # the same with a tiny model, on any CPU, in minutes
# The first run compiles kernels and CUDA graphs; each stage has a limit that leaves room for that (train/gpu_check.py).
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 WANDB_MODE=disabled
exec python -m train.gpu_check "$@"
