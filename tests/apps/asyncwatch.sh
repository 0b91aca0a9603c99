#!/usr/bin/env bash
# ibv_asyncwatch hears what happens to the interface of the device.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_root_in_namespace "$@"
need_product
need_programs ibv_asyncwatch ip timeout

# Everything in a namespace of its own, which goes with this process.
[ "${SOFTHCA_ASYNCWATCH:-}" = inside ] ||
  { rm -rf "$work" && SOFTHCA_ASYNCWATCH=inside exec unshare -n bash "$0" "$@"; }
ip link set lo up
ip link add port0 type veth peer name port1
ip addr add 192.0.2.1/24 dev port0
ip link set port1 up
ip link set port0 up

export SOFTHCA_NETDEV=port0
start watch stdbuf -oL "$softhca" run -- ibv_asyncwatch
await 15 says watch 'async event FD' || flunk "it does not start" "$work/watch.out" "$work/watch.err"

# told EVENT COUNT: the watcher has printed the event so often.
told() { [ "$(grep -c "IBV_EVENT_$1 " "$work/watch.out")" -ge "$2" ]; }

# hears WHAT EVENT COMMAND...: the command makes the watcher print the event once more.
hears() {
  local before
  before=$(grep -c "IBV_EVENT_$2 " "$work/watch.out" || true)
  "${@:3}"
  if await 10 told "$2" $((before + 1)); then
    pass "$1: IBV_EVENT_$2"
  else
    flunk "$1: no IBV_EVENT_$2" "$work/watch.out" "$work/watch.err"
  fi
}
hears "the cable is pulled" PORT_ERR ip link set port1 down
hears "the cable is back" PORT_ACTIVE ip link set port1 up
hears "an address comes" GID_CHANGE ip addr add 192.0.2.7/24 dev port0
hears "the address goes" GID_CHANGE ip addr del 192.0.2.7/24 dev port0
if is_running watch; then pass "it watches on"; else flunk "it ended" "$work/watch.err"; fi
stop watch
conclude
