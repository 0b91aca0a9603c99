#!/usr/bin/env bash
# Several interfaces are several devices: which ones, in which order, under which names; and
# traffic between two of them. In a network namespace of its own.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ibv_devinfo ibv_devices ip nsenter unshare ss timeout
need_root_in_namespace "$@"

limit=$((limit * 4)) namespace host
inside=(nsenter -t "$(holder host)" -n)
on_host() { "${inside[@]}" "$@"; }
on_host ip link add beta type veth peer name beta-end
on_host ip link add alpha type veth peer name alpha-end
on_host ip link add bridge0 type bridge
for name in alpha alpha-end beta beta-end bridge0; do on_host ip link set "$name" up; done
on_host ip address add 10.88.1.1/24 dev beta
on_host ip address add 10.88.2.1/24 dev alpha
on_host ip address add 10.88.3.1/24 dev bridge0
on_host ip route add default via 10.88.2.2 dev alpha
unset SOFTHCA_NETDEV

# "DEVICE=INTERFACE ..." as `softhca devices` has them, then as programs do.
devices() {
  on_host "$softhca" devices | awk 'NR > 1 && NF == 0 { exit } NR > 1 { printf "%s=%s ", $1, $2 }'
}
names() { on_host "$softhca" run -- ibv_devices | awk 'NR > 2 { printf "%s ", $1 }'; }

# expect WHAT WANTED GOT
expect() {
  if [ "$3" = "$2" ]; then
    pass "$1: $3"
  else
    flunk "$1: expected '$2', got '$3'"
  fi
}

# The first GID of a device, in the text that ibv_devinfo has.
first_gid() {
  on_host "$softhca" run -- ibv_devinfo -v -d "$1" | sed -n 's/.*GID\[ *0\]:[ \t]*\([^ ,]*\),.*/\1/p'
}

expect "the default route's first, no bridge, no loopback, none without an address" \
  "softhca0=alpha softhca1=beta " "$(devices)"
expect "programs see the same" "softhca0 softhca1 " "$(names)"
# CASES C81: no GUID is 0, and no two are equal.
expect "two GUIDs, none of them 0" 2 \
  "$(on_host "$softhca" run -- ibv_devices | awk 'NR > 2 && $2 !~ /^0+$/ { print $2 }' | sort -u | wc -l)"
expect "GID of softhca0" ::ffff:10.88.2.1 "$(first_gid softhca0)"
expect "GID of softhca1" ::ffff:10.88.1.1 "$(first_gid softhca1)"

for choice in "beta:softhca0=beta " "bridge0:softhca0=bridge0 " "lo:softhca0=lo " \
  "beta,bridge0:softhca0=beta softhca1=bridge0 "; do
  SOFTHCA_NETDEV=${choice%%:*}
  export SOFTHCA_NETDEV
  expect "SOFTHCA_NETDEV=$SOFTHCA_NETDEV" "${choice#*:}" "$(devices)"
done
export SOFTHCA_NETDEV=nosuch
status=0
on_host "$softhca" devices >"$work/none.out" 2>"$work/none.err" || status=$?
if [ "$status" = 1 ] && grep -q 'SOFTHCA_NETDEV=nosuch .*alpha' "$work/none.err"; then
  pass "an interface that is not there: $(cat "$work/none.err")"
else
  flunk "an interface that is not there: ended with $status" "$work/none.err" "$work/none.out"
fi
unset SOFTHCA_NETDEV

# between SERVER CLIENT ITERATIONS: a transfer from one device to another one of the same host.
between() {
  local status_client=0 status_server=0
  local command=("$softhca" run -- ibv_rc_pingpong -g 0 -c -e -s 20000 -n "$3")
  new_port
  start server "${inside[@]}" "${command[@]}" -p "$port" -d "$1"
  await 15 listening_or_gone server "$port" "${inside[@]}" || true
  start client "${inside[@]}" "${command[@]}" -p "$port" -d "$2" 127.0.0.1
  finish client || status_client=$?
  finish server || status_server=$?
  if [ "$status_client/$status_server" = 0/0 ] &&
    ! grep -q 'invalid data' "$work/client.out" "$work/server.out"; then
    pass "$2 to $1: $(grep -o '= .*/iter' "$work/client.out")"
  else
    flunk "$2 to $1: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
  fi
}
between softhca0 softhca0 100
between softhca1 softhca1 100
between softhca0 softhca1 100
between softhca1 softhca0 100

on_host ip route del default
expect "without a default route, by the interface's index" \
  "$(on_host ip -o link | sed -n 's/^[0-9]*: \(alpha\|beta\)@.*/\1/p' |
    awk '{ printf "softhca%d=%s ", NR - 1, $1 }')" "$(devices)"
on_host ip link set alpha down
expect "one that is down is none" "softhca0=beta " "$(devices)"
on_host ip link set beta down
on_host ip link set alpha-end down
expect "loopback only when nothing else qualifies" "softhca0=lo " "$(devices)"
conclude
