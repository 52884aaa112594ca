#!/usr/bin/env bash
# The runs on Qwen2.5-Coder-0.5B of docs/results.md. Each call goes on with the next unfinished run; a killed call loses at most 15 steps.
#   bash recipes/results/both.sh [RUN ...]     # RUN is ARM-SEED, such as control-0; without a name: all, in the order below
#   bash recipes/results/both.sh keep          # copy finished runs to recipes/results/RUN, with ids in place of questions
# It works in WORK, in a clone of the last commit, at the lowest priority. A run that stands in recipes/results is finished.
# Variables:
#   MODEL     Qwen2.5-Coder-0.5B-Instruct: a hub id, or a folder
#   DATA      a folder with gsm8k/train.jsonl, gsm8k/test.jsonl, math/train.jsonl and mt_bench/mt_bench_questions.jsonl
#   WORK      a folder outside the repository
#   labels    WORK/labels.jsonl, and second.jsonl to eleventh.jsonl (other readers' of the same turns), are kept with the runs that they label
#   MEASURE   1: also measure. Runs are comparable only if one commit measures them all; it is written to WORK/measured-by
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
model=${MODEL:-Qwen/Qwen2.5-Coder-0.5B-Instruct} data=${DATA:?the folder of the question sets} measure=${MEASURE:-1}
work=${WORK:-$HOME/nextturn-both}
python=$repository/.venv/bin/python vllm_python=$repository/.venv-vllm/bin/python
runs=(base control-0 P-0 P_varied-0 P_one-0 P_varied-1 control-1 P-1 P_plus-0 P_none-0 MATH-0)
mkdir -p "$work"
renice -n 19 $$ > /dev/null

code() { # COMMIT: print the folder of a clone at this commit
  local folder=$work/code-$1
  if [ ! -d "$folder/.types" ]; then
    git clone --quiet "$repository" "$folder.new"
    git -C "$folder.new" checkout --quiet "$1"
    mkdir -p "$folder.new/.types/nextturn"
    for package in probe data_builders train; do ln -s "../../$package" "$folder.new/.types/nextturn/$package"; done
    mv "$folder.new" "$folder"
  fi
  echo "$folder"
}

nextturn() { # PYTHON COMMIT WORD...: the command `nextturn` of this commit
  PYTHONPATH=$(code "$2")/.types "$1" -c 'from nextturn.train.cli import console; console()' "${@:3}"
}

commit_of() { # FILE: the commit that a file names; the first caller writes the present one
  [ -f "$1" ] || git -C "$repository" rev-parse HEAD > "$1"
  cat "$1"
}

train() { # RUN ARM SEED
  local run=$work/$1 commit folder options=() problems=$data/gsm8k/train.jsonl
  mkdir -p "$run"
  commit=$(commit_of "$run/trained-by") folder=$(code "$commit")
  case $2 in
    control) ;;
    P) options=(--pieces) ;;
    P_varied) options=(--pieces --replies varied) ;;
    P_one) options=(--pieces --loss one) ;;
    P_none) options=(--pieces --loss none) ;;
    P_plus) options=(--pieces --replies varied --after 0.5) ;;
    MATH) options=(--own "$folder/recipes/results/both/own_math.jsonl.gz" --pieces --replies varied) problems=$data/math/train.jsonl ;;
    *) echo "run $1: no such arm" >&2; exit 2 ;;
  esac
  [ -f "$run/rows.jsonl" ] || PYTHONPATH=$folder/.types "$python" "$folder/recipes/results/both/rows.py" \
    "$problems" "$run/rows.jsonl" "${options[@]}"
  (cd "$run" && PYTHONPATH=$folder/.types "$python" -m accelerate.commands.launch --config_file "$folder/recipes/accelerate/cpu.yaml" \
    "$folder/train/sft.py" "$folder/recipes/results/both/sft.yaml" --model.name "$model" --data.path rows.jsonl \
    --train.output_dir sft --train.seed "$3")
}

measure() { # RUN MODEL
  local run=$work/$1 commit folder
  commit=$(commit_of "$work/measured-by") folder=$(code "$commit")
  mkdir -p "$run"
  [ -f "$work/questions/final.jsonl" ] || PYTHONPATH=$folder/.types "$python" "$folder/recipes/results/both/questions.py" \
    "$data/gsm8k/test.jsonl" "$data/mt_bench/mt_bench_questions.jsonl" "$work/questions"
  for recipe in probe cut; do
    (cd "$work" && nextturn "$vllm_python" "$commit" probe run "$2" "$folder/recipes/results/both/$recipe.yaml" \
      --out "$run/$recipe" --label "$1")
  done
}

if [ "${1:-}" = keep ]; then
  for run in "${runs[@]}"; do
    [ -f "$work/$run/cut/results.json" ] || continue
    for part in probe cut; do
      labels=()
      if [ $part = probe ] && [ -f "$work/labels.jsonl" ]; then labels+=(--labels "$work/labels.jsonl"); fi
      for other in second third fourth fifth sixth seventh eighth ninth tenth eleventh; do
        if [ $part = probe ] && [ -f "$work/$other.jsonl" ]; then labels+=(--other-labels "$work/$other.jsonl"); fi
      done
      # Graded by the rules of the last commit, in a copy: the run itself stays as its commit measured it.
      graded=$work/graded/$run/$part
      rm -rf "$graded" && mkdir -p "${graded%/*}" && cp -r "$work/$run/$part" "$graded"
      "$repository/.venv/bin/nextturn" probe judge "$graded" > /dev/null
      "$python" "$repository/recipes/results/keep.py" "$graded" --out "$repository/recipes/results/$run/$part" \
        --questions "$work/questions/choice.jsonl" --questions "$work/questions/mt_bench.jsonl" "${labels[@]}"
    done
    cp "$work/$run/trained-by" "$work/measured-by" "$repository/recipes/results/$run/" 2> /dev/null || true
  done
  exit
fi

[ $# -eq 0 ] || runs=("$@")
for run in "${runs[@]}"; do
  [ ! -d "$repository/recipes/results/$run/probe" ] || continue
  trained=$work/$run/sft
  if [ "$run" = base ]; then trained=$model; else train "$run" "${run%-*}" "${run##*-}"; fi
  if [ "$measure" = 1 ]; then measure "$run" "$trained"; fi
done
