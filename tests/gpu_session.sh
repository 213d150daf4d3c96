#!/usr/bin/env bash
# Runs the GPU suite, compute-sanitizer and the benchmarks: tests/gpu_session.sh OUT [suite] [sanitize] [bench]
#
# Logs go to the folder OUT, a summary to standard output; without names it runs all three. The exit status is 1 if anything failed.
# Most of the time is compile time unless the kernels are there: `python -m gdn_cuda compile --arch sm_90a --out .pre` takes three
# minutes on two cores, and .pre is used if it exists. One process at a time: kernels this small take many times longer when
# several processes share the GPU by time slices.
set -uo pipefail
[ $# -gt 0 ] || { echo "gpu_session.sh: expected a folder for the logs" >&2 && exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- suite sanitize bench
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
[ -d .pre ] && export GDN_JIT_PREBUILT_DIR=$PWD/.pre
python=${PYTHON:-python3}
sanitizer="compute-sanitizer --kernel-name kernel_substring=gdn_cuda"
failed=0

logged() { # NAME COMMAND...: its exit status, and the lines of its log that sum it up
    local name=$1 status
    shift
    "$@" >"$out/$name.log" 2>&1
    status=$?
    [ $status -eq 0 ] || failed=1
    echo "$name: exit status $status"
    grep -aE '^(FAILED|ERROR )|passed|failed|ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 20
}

suite() { logged suite "$python" -m pytest tests/gpu tests/*/gpu -v --tb=short -p no:xdist -p no:cacheprovider --durations=10; }
sanitize() {
    logged memcheck $sanitizer --tool memcheck --error-exitcode 1 "$python" tests/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 logged memcheck_fuzz $sanitizer --tool memcheck --error-exitcode 1 \
        "$python" -m pytest -q -p no:xdist -p no:cacheprovider tests/gdn/gpu/test_fuzz.py
    # Its reports have to be read: tests/sanitize.py says which are none.
    logged racecheck $sanitizer --tool racecheck "$python" tests/sanitize.py
}
bench() {
    logged prefill_gates "$python" benchmarks/prefill_gates.py --json "$out/prefill_gates.json"
    logged prefill_resets "$python" benchmarks/prefill_resets.py
    logged host_times "$python" benchmarks/host_times.py
    logged bench "$python" -m gdn_cuda bench all --quick --json "$out/bench.json"
    cat "$out"/{prefill_gates,prefill_resets,host_times}.log
    tail -n 60 "$out/bench.log"
}

for phase; do
    case $phase in
    suite | sanitize | bench) "$phase" ;;
    *) echo "gpu_session.sh: expected suite, sanitize or bench, got '$phase'" >&2 && exit 2 ;;
    esac
done
exit $failed
