#!/bin/bash
# Train on several nodes of eight GPUs under Slurm. Each node has one task, whose `accelerate launch` starts the node's processes.
#   sbatch recipes/slurm.sh                                          # SFT of Qwen3.5-2B on two nodes
#   sbatch --nodes 4 recipes/slurm.sh train/grpo.py recipes/qwen2b_grpo.yaml
#SBATCH --job-name=nextturn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
# Use all memory of the node: each rank copies the weights when a checkpoint is saved.
#SBATCH --mem=0
#SBATCH --time=12:00:00
# Slurm opens the log before this script runs and creates no folder for it, so the log is in the folder of submission.
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
# Five minutes before the time limit, this script gets SIGTERM and passes it on. Training ends after the current step with a
# checkpoint, and the job is queued again unless training has finished. A job that was preempted or whose node failed is queued
# again, too, and loses at most train.save_steps steps. A job that fails by itself is not queued again. The same command resumes
# from the newest complete checkpoint (--resume auto is the default). On another number of GPUs the ZeRO optimizer cannot resume,
# and the job ends with one line.
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
set -euo pipefail

# Submit from the repository's folder. All nodes share this folder, the run directory, $HF_HOME and $NEXTTURN_CACHE.
cd "${SLURM_SUBMIT_DIR}"
# shellcheck source=/dev/null
. .venv/bin/activate

SCRIPT="${1:-train/sft.py}"
RECIPE="${2:-recipes/qwen2b_sft.yaml}"
shift $(($# < 2 ? $# : 2))

GPUS="${SLURM_GPUS_ON_NODE:-8}"
NODES=$(scontrol show hostnames "${SLURM_JOB_NODELIST}")
MASTER="${NODES%%$'\n'*}"   # without `head`, which could end scontrol early, and this job with it
PORT=$((20000 + SLURM_JOB_ID % 20000))   # jobs that share a node get different ports
export MASTER PORT OMP_NUM_THREADS=8
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240   # seconds from SIGTERM to SIGKILL; torch's default is 30
# Since Slurm 22.05 srun ignores the job's --cpus-per-task, and all processes would share one core.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK}"
# Nodes without internet access use the caches that the login node filled: export HF_HUB_OFFLINE=1

# scancel sends the signal to the processes of srun's tasks. srun itself would kill them.
STOPPED=""
trap 'STOPPED=1; scancel --signal=TERM "${SLURM_JOB_ID}"' TERM

# SLURM_NODEID differs between tasks, so the task reads it.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  exec accelerate launch --config_file recipes/accelerate/many_nodes.yaml \
    --num_machines "$0" --num_processes "$1" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MASTER" --main_process_port "$PORT" "${@:2}"
' "${SLURM_NNODES}" "$((SLURM_NNODES * GPUS))" "${SCRIPT}" "${RECIPE}" "$@" &
STEP=$!
CODE=0
wait "${STEP}" || CODE=$?
if [ -n "${STOPPED}" ]; then   # the signal ended `wait`, not the step
  CODE=0
  wait "${STEP}" || CODE=$?
  if [ "${CODE}" -ne 0 ]; then
    scontrol requeue "${SLURM_JOB_ID}"
  fi
fi
exit "${CODE}"
