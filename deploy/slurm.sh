#!/bin/bash
# A batch over the GPUs of several machines: sbatch deploy/slurm.sh REQUESTS ANSWERS [options of manyhands batch]
# Started again with the same files it goes on, so --requeue loses nothing but the requests under way.
#SBATCH --job-name=manyhands
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail
port=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):$port

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port="$port" --include-dashboard=false --block &
sleep 15
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
    srun --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address="$address" --block &
    sleep 15
fi
# The driver runs on the head, which this script does too.
manyhands batch "$@" --ray "$address" --replicas $((SLURM_JOB_NUM_NODES * 8))
