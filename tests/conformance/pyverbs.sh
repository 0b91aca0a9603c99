#!/usr/bin/env bash
# rdma-core's own test suite on the device, as root and as an ordinary user.
# shellcheck source=../apps/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../apps/lib.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
need_product
need_programs python3 timeout setpriv unshare gunzip
python=/usr/bin/python3  # the one that Debian's modules are built for
"$python" -c 'import pyverbs.device' 2>/dev/null || skip "python3-pyverbs is not installed"

# Everything where every user can read it. The suite comes with Debian's package as documentation,
# which some images leave out.
chmod 755 "$work"
mkdir -p "$work/lib" "$work/tests"
cp "$softhca" "$here/run_pyverbs.py" "$here/deviations" "$work/"
cp -a "$build"/lib/. "$work/lib/"
suite=/usr/share/doc/rdma-core/tests
if [ ! -e "$suite/run_tests.py.gz" ] && [ ! -e "$suite/run_tests.py" ]; then
  (cd "$work" && apt-get -qq download python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb deb) ||
    skip "the suite is not installed and cannot be downloaded"
  suite=$work/deb$suite
fi
cp -r "$suite"/. "$work/tests/"
gunzip -f "$work"/tests/*.gz 2>/dev/null || true
chmod -R a+rX "$work"

# judge WHO MINIMUM COMMAND...: the suite under COMMAND, as root of a user namespace or as a user.
judge() {
  local who=$1 minimum=$2
  shift 2
  if timeout 600 "$@" "$python" -B "$work/run_pyverbs.py" --suite "$work/tests" \
    --softhca "$work/softhca" --deviations "$work/deviations" --as "$who" --minimum "$minimum" \
    >"$work/$who.out" 2>"$work/$who.err" </dev/null; then
    pass "$(tail -n 1 "$work/$who.out")"
  else
    flunk "$(tail -n 1 "$work/$who.out")"
    cat "$work/$who.out" "$work/$who.err"
  fi
}

if [ "$(id -u)" = 0 ]; then
  judge root 159
  judge user 147 setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs
else
  judge user 147
  if unshare -Ur true 2>/dev/null; then
    judge root 159 unshare -Ur
  fi
fi
conclude
