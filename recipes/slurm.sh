#!/bin/bash
# Several nodes of eight GPUs under Slurm; one task a node, whose `accelerate launch` starts that node's processes.
#   sbatch recipes/slurm.sh                                          # SFT of Qwen3.5-2B on two nodes
#   sbatch --nodes 4 recipes/slurm.sh train/grpo.py recipes/qwen2b_grpo.yaml
#SBATCH --job-name=nextturn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
# Slurm opens the log before this script runs and makes no folder for it, so it lies where the job was submitted.
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
# Five minutes before its time is over the job gets SIGTERM, on which training ends after its step, with a checkpoint.
#SBATCH --signal=TERM@300
# A job that was preempted or whose node failed is queued again. The same command then goes on from the newest whole
# checkpoint (--resume auto is the default), so where no SIGTERM came first train.save_steps steps are lost at most. On another
# number of GPUs ZeRO's optimizer cannot go on: the job then ends with one line, and --resume weights begins it anew.
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

# SLURM_NODEID differs from task to task, so it is read inside the task and not here.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  exec accelerate launch --config_file recipes/accelerate/many_nodes.yaml \
    --num_machines "$0" --num_processes "$1" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MASTER" --main_process_port "$PORT" "${@:2}"
' "${SLURM_NNODES}" "$((SLURM_NNODES * GPUS))" "${SCRIPT}" "${RECIPE}" "$@"
