#!/bin/bash
# Day one on a GPU: run the real commands on a small random Qwen3.5 model, without the hub, and say of each promise of the README
# whether it held on this machine, did not hold, or was not tried. About ten minutes; the first run compiles kernels.
#   bash recipes/gpu_check.sh                  # writes runs/gpu_check/verdict.txt, which can be pasted into an issue
#   bash recipes/gpu_check.sh --tiny           # the same stages on a CPU, two processes over gloo, without vLLM: runs/gpu_check_tiny
#   bash recipes/gpu_check.sh data sft         # some stages; $OUT names another directory
# A stage that crashes or hangs does not stop the others. Exit code 1: a promise did not hold.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=${OUT:-runs/gpu_check$([ "${1:-}" = --tiny ] && echo _tiny)}
mkdir -p "$out"
NEXTTURN_CACHE=$(realpath "$out")/cache
export HF_HUB_OFFLINE=1 WANDB_MODE=disabled NEXTTURN_CACHE

if [ "${1:-}" = --tiny ]; then
  shift
  gpus=0
  export CUDA_VISIBLE_DEVICES=
else
  gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
fi
[ "$gpus" -gt 0 ] || export DS_ACCELERATOR=cpu
stages=" ${*:-doctor kernels data sft grpo probe vllm zero2 full} "
lacks() { # MODULE: print why a stage that needs it on a GPU cannot run
  [ "$gpus" -gt 0 ] || { echo "no GPU"; return; }
  python -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" || echo "$1 is not installed"
}
no_vllm=$(lacks vllm) no_fla=$(lacks fla)

failed=0
stage() { # NAME, what is promised, why it is not tried or nothing, the file that it writes last, COMMAND ...
  local name=$1 promise=$2 skip=$3 result=$out/$4 log=$out/$1.log code=0
  shift 4
  [[ $stages == *" $name "* ]] || return 0
  [ -z "$skip" ] || { echo "not tried     $name: $promise ($skip)"; return; }
  rm -rf "${out:?}/$name"
  # The first run on a machine compiles kernels and CUDA graphs.
  timeout --kill-after 60 1800 "$@" > "$log" 2>&1 || code=$?
  [ -e "$result" ] || code="$code, and $result is missing"
  if [ "$code" = 0 ]; then
    echo "held          $name: $promise ($(tail -n 1 "$log"); ${SECONDS} s since the start)"
  else
    echo "did not hold  $name: $promise; exit code $code; the end of $log:"
    tail -n 20 "$log" | sed 's/^/    /'
    failed=1
  fi
}

probe=(--probe.sets '{written_pairs: {n: 2}}' --probe.max_answer_tokens 16 --probe.max_user_tokens 16)
train=("${probe[@]}" --data.recipe null --data.path "$out/data" --train.max_steps 2 --train.save_steps 2 --train.logging_steps 1
       --train.warmup_steps 0 --train.per_device_train_batch_size 4 --tracking.to none)
grpo=(--data.held_out 4 --train.eval_steps 2 --rollout.window 1 --rollout.max_turn_tokens 16
      --train.max_completion_length 16 --train.num_generations 4 --train.vllm_max_model_length 2048
      --train.use_vllm "$([ -z "$no_vllm" ] && echo true || echo false)" --probe.engine "$([ -z "$no_vllm" ] && echo vllm || echo hf)")
one=(accelerate launch --main_process_port 0 --config_file "recipes/accelerate/$([ "$gpus" -gt 0 ] && echo one_gpu || echo cpu).yaml")
many=(accelerate launch --main_process_port 0 --config_file)
case $gpus in
  0) many+=(recipes/accelerate/cpu2_zero2.yaml) processes=2 ;;
  1) many+=(recipes/accelerate/one_gpu.yaml) processes=1 ;;
  *) many+=(recipes/accelerate/many_gpus.yaml --num_processes "$gpus") processes=$gpus ;;
esac
measure=(python -m nextturn.probe run "$out/model" recipes/probe.yaml "${probe[@]}" --out)

run_stages() {
  echo "gpu_check of $(date '+%Y-%m-%d %H:%M'), $gpus GPUs"
  stage doctor "versions, driver and compilers fit" "" doctor.log python -m nextturn.train.doctor
  stage kernels "the kernels of linear attention have the gradients of plain torch" "$no_fla" kernels.log \
    python -m nextturn.train.gpu_check kernels
  stage data "conversations are built" "" data/manifest.json \
    python -m nextturn.data_builders recipes/written.yaml --source.n 100 --out "$out/data"
  stage sft "one process trains, and probes before and after" "" sft/probe/step-2/results.json \
    "${one[@]}" train/sft.py recipes/qwen2b_sft.yaml "${train[@]}" \
    --model.name "$out/model" --train.output_dir "$out/sft" --data.rows_per_step 2
  stage grpo "GRPO goes on from the SFT checkpoint, in one process" "" grpo/probe/step-2/results.json \
    "${one[@]}" train/grpo.py recipes/qwen2b_grpo_1gpu.yaml "${train[@]}" \
    --model.name "$out/sft/checkpoint-2" --train.output_dir "$out/grpo" "${grpo[@]}" --rollout.samples_per_step 4
  stage probe "the probe measures with transformers" "" probe/results.json "${measure[@]}" "$out/probe"
  stage vllm "the probe measures with vLLM" "$no_vllm" vllm/results.json "${measure[@]}" "$out/vllm" --probe.engine vllm
  stage zero2 "the main job trains on several processes under ZeRO-2" "$([ "$gpus" = 1 ] && echo "needs two GPUs")" \
    zero2/probe/step-2/results.json "${many[@]}" train/sft.py recipes/qwen2b_sft.yaml "${train[@]}" \
    --model.name "$out/model" --train.output_dir "$out/zero2" --data.rows_per_step $((2 * processes))
  stage full "GRPO trains all weights$([ -z "$no_vllm" ] && echo " with vLLM")" "" full/probe/step-2/results.json \
    "${many[@]}" train/grpo.py recipes/qwen2b_grpo.yaml "${train[@]}" --model.name "$out/model" \
    --train.output_dir "$out/full" "${grpo[@]}" --rollout.samples_per_step $((4 * processes))
  cat "$out/doctor.log" 2> /dev/null
  return $failed
}

python -m nextturn.train.gpu_check model "$out/model" && run_stages | tee "$out/verdict.txt"
