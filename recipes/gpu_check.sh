#!/bin/bash
# Tries this machine's GPU in under ten minutes, without the hub: kernels, SFT steps, GRPO steps and the probe on a random
# model of Qwen3.5-2B's shape; speed, peak memory beside the estimate, share of the chip's peak. What was found so far is
# in the JSON even when a later stage fails.
#   bash recipes/gpu_check.sh                  # writes runs/gpu_check/report.json
#   bash recipes/gpu_check.sh --tiny           # the same with a tiny model, on any CPU, in about a minute
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 WANDB_MODE=disabled
exec python -m train.gpu_check "$@"
