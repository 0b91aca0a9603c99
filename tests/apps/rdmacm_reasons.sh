#!/usr/bin/env bash
# What stock programs that connect by librdmacm are refused: they end with an error, soon, and one
# line says what to change.
# shellcheck source=rdmacm_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/rdmacm_lib.sh"
need_product
need_rdmacm
in_own_network "$@"

# refused REASON PATTERN COMMAND...: the line names the reason, and what the pattern says.
refused() {
  local what="${*:3}" status=0 lines
  client "${@:3}"
  finish client || status=$?
  lines=$(grep '^softhca: ' "$work/client.err" || true)
  if [ "$status" = 0 ] || [ "$status" = 124 ]; then
    flunk "$what: ended with $status" "$work/client.out" "$work/client.err"
  elif [ "$(grep -c . <<<"$lines")" != 1 ] ||
    ! grep -q ": $1 (reason .*$2.*Remedy: ." <<<"$lines"; then
    flunk "$what: not one line with $1, $2 and the remedy" "$work/client.err"
  else
    pass "$what: $1"
  fi
}

export SOFTHCA_NETDEV=cable
new_port
nobody=$port

# Nobody listens, or not in this port space.
refused no_listener '' rping -c -C 1 -a 10.77.0.1 -p "$nobody"
refused no_listener '' ucmatose -s fd77::1 -p "$nobody"
serve "a server of RDMA_PS_TCP" 7174 ucmatose -p 7174 || conclude
refused no_listener '' udaddy -s 10.77.0.1
refused service_taken 10.77.0.1 ucmatose -b 10.77.0.1 -p 7174
refused service_taken '' ucmatose -p 7174
stop server

# There is no way to the address, nobody has it, or it is no device's.
refused no_route 203.0.113.1 rping -c -C 1 -a 203.0.113.1 -p "$nobody"
refused neighbour_silent 10.77.0.99 rping -c -C 1 -a 10.77.0.99 -p "$nobody"
refused no_device_for_address 198.51.100.1 rping -s -a 198.51.100.1 -p "$nobody"
refused no_device_for_address 10.77.7.7 rping -s -a 10.77.7.7 -p "$nobody"
SOFTHCA_NETDEV=far refused no_device_for_address 10.77.0.1 rping -c -C 1 -a 10.77.0.1 -p "$nobody"

# The client is killed; its server, which waits for it, is told.
new_port
serve "rping" "$port" rping -s -a 10.77.0.1 -p "$port" || conclude
client rping -c -v -a 10.77.0.1 -p "$port"
await 15 said client '^ping data' || flunk "rping does not begin" "$work/client.err"
kill -KILL "$(program_of client)"
finish client 2>/dev/null || true
finish server || true
if [ "$(grep -c 'peer_ended (reason .*Remedy: .' "$work/server.err")" = 1 ]; then
  pass "rping whose client is killed: peer_ended"
else
  flunk "rping whose client is killed: not one line with peer_ended" "$work/server.err"
fi
conclude
