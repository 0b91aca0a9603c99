#!/usr/bin/env bash
# The injected library is a guest in another's process: what it exports, what it needs, what it
# prints and what it leaves behind.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs nm readelf ldd timeout
library=$build/lib/libibverbs.so.1

# none WHAT TEXT: passes when the text is empty.
none() {
  if [ -z "$2" ]; then
    pass "$1"
  else
    printf '%s\n' "$2" >"$work/offenders"
    flunk "$1" "$work/offenders"
  fi
}

# A program that opens libibverbs.so by its link name finds the same library.
if [ "$(readlink -f "$build/lib/libibverbs.so")" = "$(readlink -f "$library")" ]; then
  pass "libibverbs.so is libibverbs.so.1"
else
  flunk "libibverbs.so is not libibverbs.so.1"
fi

inspect() {
  local file=$1 soname=$2 symbols=$3
  nm -D --defined-only --with-symbol-versions "$file" | awk '$2 != "A" { print $3 }' \
    >"$work/exported"
  none "$soname exports versioned symbols of its interface only" \
    "$(grep -vE "^($symbols)@@?(IBVERBS|RDMACM)_[A-Z0-9_.]+\$" "$work/exported" || true)"
  [ -s "$work/exported" ] || flunk "$soname exports nothing"
  readelf -dW "$file" >"$work/dynamic"
  if grep -q "SONAME.*\[$soname\]" "$work/dynamic"; then
    pass "$soname is its SONAME"
  else
    flunk "$soname is not its SONAME" "$work/dynamic"
  fi
  if grep -q 'FLAGS_1.*NODELETE' "$work/dynamic"; then
    pass "$soname stays loaded (NODELETE)"
  else
    flunk "$soname may be unloaded under its threads (no NODELETE)" "$work/dynamic"
  fi
  none "$soname needs no C++ runtime and no third-party library" "$(grep NEEDED "$work/dynamic" |
    grep -vE '\[(libc\.so\.6|libm\.so\.6|ld-linux[^]]*|libibverbs\.so\.1)\]' || true)"
  none "$soname has no text relocations" "$(grep -E 'TEXTREL' "$work/dynamic" || true)"
  none "$soname has no segment that is writable and executable" "$(readelf -lW "$file" |
    grep -E ' RWE ' || true)"
}

verbs='_?ibv_[a-z0-9_]+|_?verbs_[a-z0-9_]+|__verbs_log|execute_ioctl|__ioctl_final_num_attrs'
inspect "$library" libibverbs.so.1 "$verbs|mult_to_ibv_rate|mbps_to_ibv_rate"
if [ -e "$build/lib/librdmacm.so.1" ]; then
  inspect "$build/lib/librdmacm.so.1" librdmacm.so.1 'rdma_[a-z_]+|r[a-z0-9]+'
fi

# What `run` preloads stands in front of functions of libc, and needs nothing else.
sysfs=$build/lib/softhca-sysfs.so
libc=$(ldd "$sysfs" | awk '$1 == "libc.so.6" { print $3 }')
names_of() { nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u; }
none "softhca-sysfs.so exports names of libc only" \
  "$(comm -23 <(names_of "$sysfs") <(names_of "$libc"))"
none "softhca-sysfs.so needs libc only" "$(readelf -dW "$sysfs" | grep NEEDED |
  grep -vE '\[(libc\.so\.6|ld-linux[^]]*)\]' || true)"

# Every verbs program that is installed here finds all its symbols.
missing='version .* not found|=> not found'
missing+='|undefined symbol: *(_*ibv_|_*verbs_|rdma_|execute_ioctl|mbps_|mult_)'
shopt -s nullglob
linked=0
unresolved=
while read -r program; do
  said=$(LD_LIBRARY_PATH=$build/lib timeout 20 ldd -r "$program" 2>&1 || true)
  grep -q "=> $build/lib/libibverbs.so.1" <<<"$said" || continue
  linked=$((linked + 1))
  bad=$(grep -E "$missing" <<<"$said" || true)
  [ -z "$bad" ] || unresolved+="$program: $bad"$'\n'
done < <(
  printf '%s\n' /usr/bin/ibv_* /usr/bin/ib_* /usr/bin/rping /usr/bin/ucmatose /usr/bin/udaddy \
    /usr/bin/mckey /usr/bin/rdma_* /usr/bin/qperf /usr/bin/fio
  find /usr/lib/python3 -path '*pyverbs*' -name '*.so' 2>/dev/null || true
  find /usr/lib -name 'libuct_ib.so*' -o -name 'libfabric.so*' -o -name 'libmlx5.so*' \
    -o -name 'libefa.so*' 2>/dev/null || true
)
none "$linked installed programs and libraries find every symbol" "$unresolved"
[ "$linked" -gt 0 ] || flunk "no installed program uses the library"

# stdout belongs to the program.
start echo "$softhca" run -- echo hello
finish echo || flunk "softhca run -- echo" "$work/echo.err"
if [ "$(cat "$work/echo.out")" = hello ]; then
  pass "run adds nothing to stdout"
else
  flunk "run adds to stdout" "$work/echo.out"
fi
start main "$softhca" run -- "$build/tests/apps/hygiene_main"
if finish main; then
  pass "a hundred opens leave nothing behind: $(grep descriptors "$work/main.err" || true)"
else
  flunk "a hundred opens leave something behind" "$work/main.err"
fi
none "the library prints nothing on stdout" "$(cat "$work/main.out")"

# The library works without `run`, by its path alone.
start path env LD_LIBRARY_PATH="$build/lib" "$build/tests/apps/hygiene_main"
if finish path; then
  pass "LD_LIBRARY_PATH alone is enough"
else
  flunk "LD_LIBRARY_PATH alone is not enough" "$work/path.err"
fi

# Exit statuses of `run` are the program's own.
status=0
on_device sh -c 'exit 37' || status=$?
if [ "$status" = 37 ]; then
  pass "run ends with the program's status"
else
  flunk "run ended with $status, the program with 37"
fi
conclude
