#!/usr/bin/env bash
# What a GPU has to say of a commit, in as little device time as it takes: tests/gpu_session.sh OUT [suite | sanitize | bench ...]
#
# Logs go to the folder OUT, a summary to standard output. Kernels compiled beforehand (`python -m gdn_cuda compile --arch sm_90a
# --out .pre`, three minutes on two cores) save most of the time: the script takes them from .pre if that is there. One process at a
# time: several that share a GPU by time slices take many times longer for kernels this small.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$1
shift
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
[ -d .pre ] && export GDN_JIT_PREBUILT_DIR=$PWD/.pre
python=${PYTHON:-python3}
sanitizer="compute-sanitizer --kernel-name kernel_substring=gdn_cuda"

logged() { # NAME COMMAND...: its log, its status and its last lines that matter
    local name=$1
    shift
    "$@" >"$out/$name.log" 2>&1
    echo "$name: exit status $?"
    grep -aE '^(FAILED|ERROR )|passed|failed|ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 20
}

suite() { logged suite "$python" -m pytest tests/gpu -v --tb=short -p no:xdist -p no:cacheprovider --durations=10; }
sanitize() {
    logged memcheck $sanitizer --tool memcheck "$python" tests/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 logged memcheck_fuzz $sanitizer --tool memcheck \
        "$python" -m pytest -q -p no:xdist -p no:cacheprovider tests/gpu/test_gpu_fuzz.py
    logged racecheck $sanitizer --tool racecheck "$python" tests/sanitize.py
}
bench() {
    "$python" benchmarks/prefill_gates.py --json "$out/prefill_gates.json" | tee "$out/prefill_gates.txt"
    "$python" benchmarks/prefill_resets.py | tee "$out/prefill_resets.txt"
    "$python" -m gdn_cuda bench all --quick --json "$out/bench.json" >"$out/bench.txt" 2>&1
    tail -n 60 "$out/bench.txt"
}

for phase in "${@:-suite sanitize bench}"; do
    for each in $phase; do
        case $each in
        suite | sanitize | bench) "$each" ;;
        *) echo "gpu_session.sh: expected suite, sanitize or bench, got '$each'" >&2 && exit 2 ;;
        esac
    done
done
