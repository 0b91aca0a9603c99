#!/usr/bin/env bash
# Stock ibv_devinfo sees one Ethernet port: as root and as nobody, from a tree that cannot be
# written to; and in a namespace whose loopback is down it is told what to do.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_devinfo setpriv unshare ip timeout

# The product, moved to where anybody may read it and nobody may write.
copy=$work/product
mkdir "$copy"
cp -r "$build/softhca" "$build/lib" "$copy/"
chmod 755 "$work"
chmod -R a+rX,a-w "$copy"

# shows WHAT STATE COMMAND...: ibv_devinfo run by the command shows an Ethernet port in this state.
shows() {
  local what=$1 state=$2 status=0
  shift 2
  start devinfo "$@" "$copy/softhca" run -- ibv_devinfo -v
  finish devinfo || status=$?
  if [ "$status" != 0 ]; then
    flunk "$what: ended with $status" "$work/devinfo.out" "$work/devinfo.err"
  elif ! grep -q "state:.*$state" "$work/devinfo.out"; then
    flunk "$what: no port is $state" "$work/devinfo.out" "$work/devinfo.err"
  elif ! grep -q 'link_layer:.*Ethernet' "$work/devinfo.out"; then
    flunk "$what: the link layer is not Ethernet" "$work/devinfo.out"
  else
    pass "$what: $state"
  fi
}

shows "as uid $(id -u)" PORT_ACTIVE env
if grep -q 'GID\[ *0\]:.*127\.0\.0\.1, RoCE v2' "$work/devinfo.out"; then
  pass "GID 0 is the address of the interface"
else
  flunk "GID 0 is not that of 127.0.0.1" "$work/devinfo.out"
fi
if [ "$(id -u)" = 0 ]; then
  shows "as nobody, tree not writable" PORT_ACTIVE \
    setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent
fi

in_new_namespace=(unshare -n)
[ "$(id -u)" = 0 ] || in_new_namespace=(unshare -Urn)
if "${in_new_namespace[@]}" true 2>/dev/null; then
  shows "new namespace, lo down" PORT_DOWN "${in_new_namespace[@]}"
  if grep -q 'ip link set .*lo up' "$work/devinfo.err"; then
    pass "the remedy is printed"
  else
    flunk "lo is down and no remedy is printed" "$work/devinfo.err"
  fi
  shows "new namespace, lo up" PORT_ACTIVE "${in_new_namespace[@]}" \
    sh -c 'ip link set lo up && exec "$@"' sh
else
  echo "skipped: no permission to make network namespaces"
fi
conclude
