#!/usr/bin/env bash
# Makes the runs behind recipes/results/RESULTS.md, each probed alike, and compares them:
#   bash recipes/results/run.sh ARM...     # base sft-written sft-written-4 sft-own dpo sft-asks grpo-asks; all without a name
# Every step goes on where a killed one stopped, and is over at once where it was done. Variables:
#   MODEL   the base model: a hub id, or a folder
#   PROBE   options of every probe, such as "--probe.engine hf --probe.sets.gsm8k.path test.jsonl"
#   TRAIN   options of every training, such as "--train.seed 1"
#   DATA    options of the data that the model answers itself, such as "--replay.path train.jsonl --replay.model.engine hf"
#   FIRST   options of recipes/results/first_replies.py; without a GPU "--engine vllm --dtype float32"
#   RUNS    where runs are written; another seed needs another folder
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
probe() { # MODEL ARM
  python -m probe run "$1" recipes/results/probe.yaml --out "$runs/probe/$2" --label "$2" "${probe_options[@]}"
}

[ $# -gt 0 ] || set -- base sft-written sft-written-4 sft-own dpo sft-asks grpo-asks
for arm in "$@"; do
  case $arm in
    base) probe "$model" base ;;
    sft-written)
      train sft sft_written "$arm" "$model"
      probe "$runs/$arm" "$arm"
      ;;
    sft-written-4)   # the same tokens in four times as many steps
      train sft sft_written "$arm" "$model" --data.rows_per_step 4
      probe "$runs/$arm" "$arm"
      ;;
    sft-own)   # solutions stay the model's own
      python -m data_builders recipes/results/own.yaml --replay.model.model "$model" --output.path "$runs/own" "${data_options[@]}"
      train sft sft_written "$arm" "$model" --data.rows_per_step 4 --data.loss_on talk --data.path "$runs/own" --data.recipe null
      probe "$runs/$arm" "$arm"
      ;;
    dpo)
      train dpo dpo "$arm" "$runs/sft-written"
      probe "$runs/$arm" "$arm"
      ;;
    sft-asks)   # half of the first replies ask
      [ -f "$runs/first_replies.jsonl" ] ||
        python recipes/results/first_replies.py "$runs/sft-own" "$runs/first_replies.jsonl" "${first_options[@]}"
      train sft sft_written "$arm" "$runs/sft-own" --data.rows_per_step 4 --data.path "$runs/first_replies.jsonl" --data.recipe null \
        --train.num_train_epochs 2
      probe "$runs/$arm" "$arm"
      ;;
    grpo-asks)   # paid for asking where it is needed, and only there
      train grpo grpo "$arm" "$runs/sft-asks"
      probe "$runs/$arm" "$arm"
      ;;
    *)
      echo "no arm is called $arm: base, sft-written, sft-written-4, sft-own, dpo, sft-asks, grpo-asks" >&2
      exit 2
      ;;
  esac
done
python -m probe compare "$runs"/probe/* --out "$runs/comparison"
