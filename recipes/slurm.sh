#!/bin/bash
# Several nodes of eight GPUs under Slurm; one task a node, whose `accelerate launch` starts that node's processes.
#   sbatch recipes/slurm.sh                                          # SFT of Qwen3.5-2B on two nodes
#   sbatch --nodes 4 recipes/slurm.sh train/grpo.py recipes/qwen2b_grpo.yaml
#SBATCH --job-name=nextturn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
# All memory of the node: each rank copies the weights when a checkpoint is saved.
#SBATCH --mem=0
#SBATCH --time=12:00:00
# Slurm opens the log before this script runs and makes no folder for it, so it lies where the job was submitted.
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
# Five minutes before its time is over this script gets SIGTERM and passes it on: training ends after its step, with a
# checkpoint, and the job is queued again unless training had finished. So is a job that was preempted or whose node failed;
# then train.save_steps steps are lost at most. A job that fails by itself is not queued again. The same command goes on from
# the newest complete checkpoint (--resume auto is the default). On another number of GPUs ZeRO's optimizer cannot go on: the
# job then ends with one line, and --resume weights begins it anew.
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
set -euo pipefail

# Submit from the repository's folder, which all nodes share, as they share the run folder, $HF_HOME and $NEXTTURN_CACHE.
cd "${SLURM_SUBMIT_DIR}"
# shellcheck source=/dev/null
. .venv/bin/activate

SCRIPT="${1:-train/sft.py}"
RECIPE="${2:-recipes/qwen2b_sft.yaml}"
shift $(($# < 2 ? $# : 2))

GPUS="${SLURM_GPUS_ON_NODE:-8}"
NODES=$(scontrol show hostnames "${SLURM_JOB_NODELIST}")
MASTER="${NODES%%$'\n'*}"   # not by `head`, which could end scontrol before it has said all, and with it this job
PORT=$((20000 + SLURM_JOB_ID % 20000))   # jobs that share a node get different ones
export MASTER PORT OMP_NUM_THREADS=8
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240   # seconds that a node's launcher waits for its processes after SIGTERM; torch has 30
# Since Slurm 22.05 srun does not take the job's --cpus-per-task over, and every process would share one core.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK}"
# Nodes without a way out find everything in the caches once it was fetched on the login node: export HF_HUB_OFFLINE=1

# scancel sends the signal to the processes of srun's tasks; srun itself would kill them.
STOPPED=""
trap 'STOPPED=1; scancel --signal=TERM "${SLURM_JOB_ID}"' TERM

# SLURM_NODEID differs from task to task, so it is read inside the task and not here.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  exec accelerate launch --config_file recipes/accelerate/many_nodes.yaml \
    --num_machines "$0" --num_processes "$1" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MASTER" --main_process_port "$PORT" "${@:2}"
' "${SLURM_NNODES}" "$((SLURM_NNODES * GPUS))" "${SCRIPT}" "${RECIPE}" "$@" &
STEP=$!
CODE=0
wait "${STEP}" || CODE=$?
if [ -n "${STOPPED}" ]; then   # the signal ended that `wait`, and not the step
  CODE=0
  wait "${STEP}" || CODE=$?
  if [ "${CODE}" -ne 0 ]; then
    scontrol requeue "${SLURM_JOB_ID}"
  fi
fi
exit "${CODE}"
