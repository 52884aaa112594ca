#!/usr/bin/env bash
# Train, probe and compare the runs on Qwen2.5-Coder-0.5B in docs/archive.md:
#   bash recipes/results/run.sh RUN...     # base sft-written-4 sft-own sft-own-2 grpo-asks; without a name: all
# A killed run resumes, and a finished one ends at once. Variables:
#   MODEL   the base model: a hub id, or a folder
#   PROBE   options for every probe, such as "--probe.engine hf --probe.sets.gsm8k.path test.jsonl"
#   TRAIN   options for every training, such as "--train.seed 1"
#   DATA    options for the data with the model's own answers, such as "--replay.path train.jsonl --replay.model.engine hf"
#   FIRST   options for recipes/results/first_replies.py; without a GPU "--engine vllm --dtype float32"
#   RUNS    the folder of the runs; another seed needs another folder
# grpo-asks starts from sft-own.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${MODEL:-Qwen/Qwen2.5-Coder-0.5B-Instruct} runs=${RUNS:-runs/results}
read -ra probe_options <<< "${PROBE:-}"
read -ra train_options <<< "${TRAIN:-}"
read -ra data_options <<< "${DATA:-}"
read -ra first_options <<< "${FIRST:-}"

train() { # PROGRAM RECIPE RUN MODEL OPTION...
  accelerate launch --config_file recipes/accelerate/cpu.yaml "train/$1.py" "recipes/results/$2.yaml" \
    --train.output_dir "$runs/$3" --model.name "$4" "${@:5}" "${train_options[@]}"
}

own() { # RUN SEED: SFT on written conversations and the model's own right answers
  nextturn data recipes/results/own.yaml --replay.model.model "$model" --output.path "$runs/data/$1" --seed $((7 + $2)) \
    "${data_options[@]}"
  train sft sft_written "$1" "$model" --data.loss_on talk --data.path "$runs/data/$1" --data.recipe null --train.seed "$2"
}

[ $# -gt 0 ] || set -- base sft-written-4 sft-own sft-own-2 grpo-asks
for arm in "$@"; do
  trained=$runs/$arm
  case $arm in
    base) trained=$model ;;
    sft-written-4) train sft sft_written "$arm" "$model" ;;
    sft-own) own "$arm" 0 ;;
    sft-own-2) own "$arm" 1 ;;
    grpo-asks)   # SFT on first replies, half of which ask, then GRPO that rewards asking only when it is needed
      [ -f "$runs/first_replies.jsonl" ] ||
        python recipes/results/first_replies.py "$runs/sft-own" "$runs/first_replies.jsonl" "${first_options[@]}"
      train sft sft_written sft-asks "$runs/sft-own" --data.path "$runs/first_replies.jsonl" --data.recipe null --train.num_train_epochs 2
      train grpo grpo "$arm" "$runs/sft-asks"
      ;;
    *)
      echo "run $arm: expected base, sft-written-4, sft-own, sft-own-2 or grpo-asks" >&2
      exit 2
      ;;
  esac
  nextturn probe run "$trained" recipes/results/probe.yaml --out "$runs/probe/$arm" --label "$arm" "${probe_options[@]}"
done
nextturn probe compare "$runs"/probe/* --out "$runs/comparison"
