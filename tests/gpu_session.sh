#!/usr/bin/env bash
# Runs the GPU suite, compute-sanitizer and the benchmarks: tests/gpu_session.sh OUT [PHASE...]
#
#   suite[=PATH,...]        pytest: tests/gpu and tests/*/gpu, or the named ones
#   memcheck                of every kernel, and of GDN's fuzz tests
#   racecheck[=KERNEL,...]  of every kernel; named ones are faster, each in a process in which the tool checks only this kernel
#   bench[=OPERATOR,...]    every benchmark, or `bench OPERATOR --json` of the named ones
#   peers[=LIBRARY,...]     other libraries' tests on gdn_cuda, which tests/peers/pack.py has packed: fla, fla_cp, fla_kda, flashqla,
#                           flashkda, flashinfer, flashinfer_kda, flashinfer_mamba, vllm, vllm_kda, sglang, sglang_kda, sglang_mamba,
#                           causal_conv1d, mamba_ssm
#
# Without phases: suite, memcheck, racecheck, bench. Logs go to the folder OUT, a summary to standard output; the exit status is 1
# if anything failed. LIMIT: seconds that a step may take (600). WORKERS: processes that share the suite (1) or the peers
# (12). Eight halve the suite's time, which is mostly the oracles' on the CPU; tests/gpu times calls and wants the GPU for itself.
# GPUS: how many GPUs the suite's processes share (1).
#
# Most of the time would be compile time: `tests/gpu_pack.sh` makes .carry/ beforehand, on any machine, with the compiled kernels and
# the headers, which a GPU machine without network lacks. tests/gpu_env.sh unpacks it here, if it is there. A machine that returns
# few files may get them in one: `tests/gpu_session.sh /tmp/logs suite; tar czf $OUT/logs.tar.gz -C /tmp logs`.
set -uo pipefail
fail() { echo "gpu_session.sh: $*" >&2 && exit 2; }
[ $# -gt 0 ] || fail "expected a folder for the logs"
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- suite memcheck racecheck bench
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
sanitizer="compute-sanitizer --kernel-name kernel_substring"
failed=0

source tests/gpu_env.sh
export COLUMNS=250  # of tables in the logs

logged() { # NAME COMMAND...: its exit status, and the lines of its log that sum it up
    local name=${1//\//_} status
    shift
    timeout --signal INT --kill-after 8 "${LIMIT:-600}" "$@" >"$out/$name.log" 2>&1
    status=$?
    [ $status -eq 0 ] || failed=1
    echo "$name: exit status $status, $SECONDS s since the start"
    grep -aE '^(FAILED|ERROR )|passed|failed|ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 20
}

suite() { # PATH...
    local workers=(-p no:xdist)
    if [ "${WORKERS:-1}" -gt 1 ]; then
        workers=(-n "$WORKERS" --dist worksteal)
        export OMP_NUM_THREADS=1  # of the oracles: threads of many processes wait for each other
    fi
    [ $# -gt 0 ] || set -- tests/gpu tests/*/gpu
    logged suite "$python" -m pytest "$@" "${workers[@]}" -v --tb=short -p no:cacheprovider --durations=10
}
memcheck() {
    logged memcheck $sanitizer=gdn_cuda --tool memcheck --error-exitcode 1 "$python" tests/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 logged memcheck_fuzz $sanitizer=gdn_cuda --tool memcheck --error-exitcode 1 \
        "$python" -m pytest -q -p no:xdist -p no:cacheprovider tests/gdn/gpu/test_fuzz.py \
        tests/gdn/gpu/test_engine_calls.py::test_invalid_indices tests/gdn/gpu/test_engine_calls.py::test_invalid_offsets
}
racecheck() { # KERNEL...; its reports have to be read: tests/sanitize.py lists the false ones.
    local kernel
    [ $# -gt 0 ] || logged racecheck $sanitizer=gdn_cuda --tool racecheck "$python" tests/sanitize.py
    for kernel; do
        logged "racecheck_${kernel//\//_}" $sanitizer="${kernel##*/}" --tool racecheck "$python" tests/sanitize.py "$kernel"
    done
}
bench() { # OPERATOR...
    local operator
    for operator; do
        logged "bench_$operator" "$python" -m gdn_cuda bench "$operator" --quick --json "$out/$operator.json"
        cat "$out/bench_$operator.log"
    done
    [ $# -eq 0 ] || return 0
    logged prefill_resets "$python" benchmarks/prefill_resets.py
    logged host_times "$python" benchmarks/host_times.py --json "$out/host_times.json"
    logged bench "$python" -m gdn_cuda bench all --quick --json "$out/bench.json"
    cat "$out"/{prefill_resets,host_times}.log
    tail -n 60 "$out/bench.log"
}
peers() { # LIBRARY...
    local to=${TMPDIR:-/tmp}/gdn_cuda_peers
    [ -f .carry/peers.tar.xz ] || fail ".carry/peers.tar.xz: expected what tests/peers/pack.py makes, got none"
    mkdir -p "$to" && tar xJf .carry/peers.tar.xz -C "$to"
    local tests=("$to/tests")
    [ $# -eq 0 ] || tests=("${@/#/$to/tests/peer_}")
    PYTHONPATH=$PWD/tests/peers:$to/site:$PYTHONPATH OMP_NUM_THREADS=1 logged peers "$python" -m pytest -c tests/peers/pytest.ini \
        --rootdir "$to/tests" "${tests[@]}" -q -n "${WORKERS:-12}" --dist worksteal --durations=10
    sed -n '/^=* peers =/,/^=* slowest/p' "$out/peers.log"
}

for phase; do
    name=${phase%%=*} names=()
    [ "$name" = "$phase" ] || IFS=, read -ra names <<<"${phase#*=}"
    case $name in
    suite | racecheck | bench | peers) "$name" "${names[@]}" ;;
    memcheck) memcheck ;;
    *) fail "expected suite, memcheck, racecheck, bench or peers, got '$name'" ;;
    esac
done
exit $failed
