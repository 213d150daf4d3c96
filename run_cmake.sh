#!/usr/bin/env bash
# ./run_cmake.sh [build folder]
# Builds and runs the C++ tests alone, with address and undefined-behaviour sanitizers. Needs g++ 12, cmake, GoogleTest and, for headers
# only, a Python that has torch: PYTHON, else .venv/bin/python, else python3. GDN_SANITIZE=OFF leaves the sanitizers out.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:-$here/build-cpp}

fail() {
    printf 'run_cmake.sh: %s\n' "$*" >&2
    exit 1
}

have_gtest() {
    local folder
    folder=$(mktemp -d)
    printf 'cmake_minimum_required(VERSION 3.22)\nproject(probe CXX)\nfind_package(GTest REQUIRED)\n' >"$folder/CMakeLists.txt"
    cmake -S "$folder" -B "$folder/build" >/dev/null 2>&1 && rm -rf "$folder" && return
    rm -rf "$folder"
    return 1
}

# cmake and ninja may be wheels beside the interpreter
python=${PYTHON:-}
[ -n "$python" ] || { [ -x "$here/.venv/bin/python" ] && python=$here/.venv/bin/python; } || python=python3
python=$(command -v "$python") || fail "no Python: '${PYTHON:-python3}' does not run; set PYTHON, or run ./develop.sh first"
PATH=$PATH:$(dirname "$python")
"$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
    fail "$python has no torch, whose bundled fmt headers are needed; run ./develop.sh first, or set PYTHON to one that has it"
command -v cmake >/dev/null || fail "no cmake: install it (Debian: apt-get install cmake; or pip install cmake)"
command -v "${CXX:-g++}" >/dev/null || fail "no C++ compiler: install g++ 12 or newer (Debian: apt-get install g++), or set CXX"

if ! have_gtest; then
    advice="GoogleTest is missing: install it (Debian, Ubuntu: apt-get install libgtest-dev; Fedora: dnf install gtest-devel)"
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || fail "$advice"
    echo "run_cmake.sh: installing GoogleTest (libgtest-dev)"
    apt-get install -y -qq libgtest-dev >/dev/null 2>&1 ||
        { apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq libgtest-dev >/dev/null; } || fail "$advice"
    have_gtest || fail "$advice"
fi

generator=()
command -v ninja >/dev/null && ! [ -f "$build/CMakeCache.txt" ] && generator=(-G Ninja)
cmake -S "$here" -B "$build" "${generator[@]}" -DPython_EXECUTABLE="$python" -DGDN_BUILD_LIBRARY=OFF -DGDN_BUILD_TESTS=ON \
    -DGDN_SANITIZE="${GDN_SANITIZE:-ON}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1
cmake --build "$build" --parallel 2
ctest --test-dir "$build" --output-on-failure --parallel 6  # most of the time tests wait, for files to age or for children
