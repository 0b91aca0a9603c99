#!/usr/bin/env bash
# run.sh TREE [CTEST OPTION...]: the tests of a sanitizer tree that were built there.
set -euo pipefail
tree=$1
shift
if [ ! -e "$tree/CTestTestfile.cmake" ]; then
  echo "skipped: $tree is not built"
  exit 77
fi
# Sanitizers of this age do not know every layout that address randomisation may give them.
unrandomised=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  unrandomised=(setarch "$(uname -m)" -R)
fi
export SOFTHCA_SEEDS="${SOFTHCA_SEEDS:-10}"  # a world takes seconds here
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1"
not_built='_NOT_BUILT$'
if [ -z "$(find "$tree/tests/fuzz" -maxdepth 1 -name 'fuzz_*' -type f -print -quit 2>/dev/null)" ]; then
  not_built+='|^Fuzz\.'
fi
exec "${unrandomised[@]}" ctest --test-dir "$tree" -E "$not_built" --no-tests=error \
  --timeout 300 --output-on-failure "$@"
