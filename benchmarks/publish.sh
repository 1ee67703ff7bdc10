#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure what docs/benchmarks.md shows, on a machine with one GPU and the packages installed (with
# two GPUs or more for exchange, ranks and capture-ranks):
#
#     benchmarks/publish.sh OUT [NAME...]     writes OUT/NAME.json and OUT/NAME.log
#     benchmarks/publish.sh --list            names, most seconds, and commands
#
# Without names: all down to the empty line of the list, in at most PUBLISH_SECONDS (480), one after
# another, the headline first. A benchmark that the time does not suffice for is ended and named, and
# the exit status is 1. Where this is no git checkout, GS_COMMIT must be set. CAPTURE names the folder
# of the photographs (.gpu/scenes/caliterra), beside which boruszyn lies; CAPTURE_OPTIONS holds more
# options of their benchmark: --seeds 0 1 2 3 4 --faster-gs --before SITE --before-commit COMMIT.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

capture=${CAPTURE:-.gpu/scenes/caliterra}
captures=$(dirname "$capture")
peers=${CAPTURE_OPTIONS:-}
engine="train/bench_engine.py --seconds 1 --trace /tmp/engine"
presets='--only none "none, no optimizer" naive clm best'
presets+=" \"torch's fused Adam\" \"gsplat's SelectiveAdam\""

# name | most seconds | command. By default down to the empty line.
parts() {
  cat <<END
engine-20m|300|$engine --n 20_000_000 --order shuffle tiles path --batch 1 4 8 $presets
capture|590|train/bench_real_capture.py "$capture" $peers
engine-5m|240|$engine --n 5_000_000 --order shuffle tiles --batch 1 4 8 $presets
refine-20m|180|train/bench_refine.py --n 20_000_000 --batch 8
cull|60|cull/bench_cull.py --n 20_000_000
pinned|60|pinned/bench_transfer.py --rows 10_000_000 --host-rows 0
adam-device|60|adam/bench_device.py --rows 20_000_000
adam-host|90|adam/bench_host.py --rows 4_000_000 --samples 5 --cases peers dense deferred
order|90|order/bench_ablation.py --n 1_000_000 --views 64 --batches 2

engine-64|200|$engine --n 20_000_000 --order shuffle tiles --batch 64 --only none "none, no optimizer" "torch's fused Adam" best
capture-boruszyn|590|train/bench_real_capture.py "$captures/boruszyn" $peers
capture-mcmc|590|train/bench_real_capture.py "$capture" --strategy mcmc $peers
photographs|400|train/bench_photographs.py --train
init|240|train/bench_init.py --n 50_000_000 --folder /tmp
largest|480|train/bench_largest.py none:20M:24 best:20M:24 best:100M:24:16 none:6M:8 best:34M:8
whole-20m|480|train/bench_whole_run.py --n 20_000_000 --folder /tmp
exchange|90|ranks/bench_exchange.py
ranks|300|ranks/bench_ranks.py --limit 250
ranks-40m|140|ranks/bench_ranks.py --rows 40_000_000 --batch 8 --peer-batch --limit 70
ranks-4gpu|340|ranks/bench_ranks.py --ranks 1 2 4 --batch 8 64 16 4 1 --peer-batch 8 64 --limit 290
ranks-40m-4gpu|140|ranks/bench_ranks.py --rows 40_000_000 --ranks 1 4 --batch 8 64 --peer-batch --limit 110
ranks-4k|140|ranks/bench_ranks.py --size 3840 2160 --views 220 --batch 8 --peer-batch --limit 70
capture-ranks|400|ranks/bench_capture_ranks.py "$capture"
END
}

if [ "${1:-}" = --list ]; then
  parts | grep '|'
  exit
fi
out=${1:?usage: benchmarks/publish.sh OUT [NAME...]}
shift
if [ $# -eq 0 ]; then
  read -ra names <<<"$(parts | sed '/^$/,$d' | cut -d'|' -f1 | tr '\n' ' ')"
else
  names=("$@")
fi
for name in "${names[@]}"; do
  parts | grep -q "^$name|" || {
    echo "NAME must be one of those that --list prints, got $name" >&2
    exit 2
  }
done
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
export GS_DATA=${GS_DATA:-$captures}
export PYTHONPATH=benchmarks${PYTHONPATH:+:$PYTHONPATH}
"$python" -c "import harness; harness.current_commit()" 2>&1 | tail -1 | grep . && exit 2

end=$((SECONDS + ${PUBLISH_SECONDS:-480}))
missing=()
for name in "${names[@]}"; do
  IFS='|' read -r _ most command < <(parts | grep "^$name|")
  left=$((end - SECONDS))
  [ "$left" -lt "$most" ] && most=$left
  started=$SECONDS
  if [ "$most" -gt 0 ]; then
    eval "timeout -k 5 $most \"\$python\" benchmarks/$command --json \"\$out/$name.json\"" >"$out/$name.log" 2>&1
    status=$?
  else
    status=124
  fi
  echo "$name: $((SECONDS - started)) s, status $status"
  if [ $status -ne 0 ]; then
    missing+=("$name")
    [ -e "$out/$name.log" ] && tail -3 "$out/$name.log"
  fi
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "not complete: ${missing[*]}" >&2
  exit 1
fi
