#!/usr/bin/env bash
# Makes the runs behind recipes/results/RESULTS.md, each probed alike, and compares them:
#   bash recipes/results/run.sh ARM...     # base sft-written-4 sft-own sft-own-2 grpo-asks; all without a name
# Every step goes on where a killed one stopped, and is over at once where it was done. Variables:
#   MODEL   the base model: a hub id, or a folder
#   PROBE   options of every probe, such as "--probe.engine hf --probe.sets.gsm8k.path test.jsonl"
#   TRAIN   options of every training, such as "--train.seed 1"
#   DATA    options of the data that the model answers itself, such as "--replay.path train.jsonl --replay.model.engine hf"
#   FIRST   options of recipes/results/first_replies.py; without a GPU "--engine vllm --dtype float32"
#   RUNS    where runs are written; another seed needs another folder
# grpo-asks starts from sft-own.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${MODEL:-Qwen/Qwen2.5-Coder-0.5B-Instruct} runs=${RUNS:-runs/results}
read -ra probe_options <<< "${PROBE:-}"
read -ra train_options <<< "${TRAIN:-}"
read -ra data_options <<< "${DATA:-}"
read -ra first_options <<< "${FIRST:-}"

train() { # PROGRAM RECIPE ARM MODEL OPTION...
  accelerate launch --config_file recipes/accelerate/cpu.yaml "train/$1.py" "recipes/results/$2.yaml" \
    --train.output_dir "$runs/$3" --model.name "$4" "${@:5}" "${train_options[@]}"
}

own() { # ARM SEED: SFT in which solutions stay the model's own
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
    grpo-asks)   # SFT on first replies of which half ask, then GRPO paid for asking where it is needed, and only there
      [ -f "$runs/first_replies.jsonl" ] ||
        python recipes/results/first_replies.py "$runs/sft-own" "$runs/first_replies.jsonl" "${first_options[@]}"
      train sft sft_written sft-asks "$runs/sft-own" --data.path "$runs/first_replies.jsonl" --data.recipe null --train.num_train_epochs 2
      train grpo grpo "$arm" "$runs/sft-asks"
      ;;
    *)
      echo "no arm is called $arm: base, sft-written-4, sft-own, sft-own-2, grpo-asks" >&2
      exit 2
      ;;
  esac
  nextturn probe run "$trained" recipes/results/probe.yaml --out "$runs/probe/$arm" --label "$arm" "${probe_options[@]}"
done
nextturn probe compare "$runs"/probe/* --out "$runs/comparison"
