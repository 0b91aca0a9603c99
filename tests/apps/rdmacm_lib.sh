# What the tests of stock programs that connect by librdmacm share: their own network, a server that
# listens, and each program with what it has to print. Sourced instead of lib.sh, not run.
#
# `on` runs a program on the device; `address` is where clients find the server, whose own host is
# behind `at_server` (lib.sh).
# shellcheck shell=bash source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# Their lines are seen when they are printed; some are killed.
on=(stdbuf -oL "$softhca" run --)
client_on=()  # if the client is somebody else
bound=()      # where the two members of a group are
address=127.0.0.1

# as_user UID: from now on programs are that user's, without privileges, and the product lies where
# everybody can read it.
as_user() {
  local product=$work/product
  mkdir -p "$product/lib"
  cp "$softhca" "$product/"
  cp -a "$build"/lib/. "$product/lib/"
  chmod 755 "$work"
  chmod -R a+rX "$product"
  softhca=$product/softhca
  on=(setpriv --reuid "$1" --regid "$1" --clear-groups --no-new-privs stdbuf -oL
    "$softhca" run --)
}

need_rdmacm() {
  need_programs rping ucmatose udaddy mckey cmtime rdma_server rdma_xserver ip ss unshare timeout
  [ -e "$build/lib/librdmacm.so.1" ] || skip "this build has no librdmacm.so.1"
  "${on[@]}" rping 2>&1 | grep -q 'symbol lookup error' && skip "its librdmacm.so.1 has no rsockets"
  return 0
}

# in_own_network ARGUMENT...: runs the test again in a network of its own, since udaddy and mckey
# have no option for their port: loopback, and an interface `cable` with addresses, whose other end
# `far` has one of another network.
in_own_network() {
  need_root_in_namespace "$@"
  if [ "${SOFTHCA_RDMACM_INSIDE:-}" != 1 ]; then
    rm -rf "$work"
    export SOFTHCA_RDMACM_INSIDE=1
    exec unshare -n bash "$0" "$@"
  fi
  ip link set lo up
  ip link add cable type veth peer name far
  ip link set far up
  ip address add 10.77.0.1/24 dev cable
  ip address add 198.51.100.1/24 dev far
  ip link set cable up
  ip address add fd77::1/64 dev cable nodad
}

# serves NAME PORT: the server listens to the port of a port space, or has ended.
serves() {
  local service
  ! is_running "$1" ||
    { service=$(printf '%04x' "$2") &&
      "${at_server[@]}" grep -q "@softhca/1/service/[0-9]*/[0-9a-f]*$service/" /proc/net/unix; }
}

is_over() { ! is_running "$1"; }
said() { grep -qs "$2" "$work/$1.out"; }

# The process below `timeout` and what runs it.
program_of() {
  local at=${pid_of[$1]} below
  while below=$(tr ' ' '\n' <"/proc/$at/task/$at/children" | head -n 1) && [ -n "$below" ]; do
    at=$below
  done
  echo "$at"
}

# serve WHAT PORT COMMAND...: starts it, and waits until it serves.
serve() {
  start server "${at_server[@]}" "${on[@]}" "${@:3}"
  await 15 serves server "$2" && is_running server && return 0
  stop server
  flunk "$1: the server does not listen" "$work/server.out" "$work/server.err"
  return 1
}

# complaints FILE...: what was refused. fio and cmtime destroy a completion queue too early, and a
# slow peer is no refusal.
complaints() {
  grep -h '^softhca: ' "$@" | grep -vE 'destroying a completion queue: object_busy|: peer_silent '
}

# both_end WHAT: client and server end with 0, and nothing was refused.
both_end() {
  local status_client=0 status_server=0
  finish client || status_client=$?
  if [ "$status_client" != 0 ]; then
    sleep 0.5
    kill "${pid_of[server]}" 2>/dev/null || true
  fi
  finish server || status_server=$?
  if [ "$status_client" != 0 ] || [ "$status_server" != 0 ]; then
    flunk "$1: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
  elif complaints "$work/client.err" "$work/server.err" >/dev/null; then
    flunk "$1: something was refused" "$work/client.err" "$work/server.err"
  else
    return 0
  fi
  return 1
}

# printed WHAT SIDE COUNT PATTERN: on exactly so many lines.
printed() {
  local found
  found=$(grep -cE "$4" "$work/$2.out" || true)
  [ "$found" = "$3" ] && return 0
  flunk "$1: the $2 printed $found times '$4', expected $3" "$work/$2.out" "$work/$2.err"
  return 1
}

# client COMMAND...
client() {
  local how=("${client_on[@]}")
  [ "${#how[@]}" -gt 0 ] || how=("${on[@]}")
  start client "${at_client[@]}" "${how[@]}" "$@"
}

# ping COUNT SERVER_ADDRESS OPTION...: rping, whose both sides look at the bytes (-V) and show them.
ping() {
  local what="rping -C $1, server at $2 ${*:3}"
  new_port
  serve "$what" "$port" rping -s -v -V -C "$1" -a "$2" -p "$port" "${@:3}" || return 0
  client rping -c -v -V -C "$1" -a "$address" -p "$port" "${@:3}"
  both_end "$what" || return 0
  printed "$what" client "$1" '^ping data: rdma-ping-[0-9]+: ' || return 0
  printed "$what" server "$1" '^server ping data: rdma-ping-[0-9]+: ' || return 0
  pass "$what"
}

# pings_at_once CLIENTS OPTION...: with one server, which stays. It loses one of two requests that
# come at once, so each client begins when the one before is connected.
pings_at_once() {
  local what="rping -P with $1 clients ${*:2}" i wrong=0
  new_port
  serve "$what" "$port" rping -s -P -v -V -a "$address" -p "$port" "${@:2}" || return 0
  for ((i = 0; i < $1; i++)); do
    start "client$i" "${at_client[@]}" "${on[@]}" rping -c -v -V -C 200 -a "$address" -p "$port" \
      "${@:2}"
    await "$limit" said "client$i" '^ping data: ' || true
  done
  for ((i = 0; i < $1; i++)); do
    finish "client$i" || wrong=$?
    printed "$what" "client$i" 200 '^ping data: rdma-ping-[0-9]+: ' || wrong=1
  done
  if [ "$wrong" != 0 ] || ! is_running server || complaints "$work/server.err" >/dev/null ||
    grep -qE 'fail|mismatch' "$work/server.err"; then
    flunk "$what: a client ended with $wrong" "$work"/client?.err "$work/server.err"
  elif printed "$what" server $((200 * $1)) '^server ping data: rdma-ping-[0-9]+: '; then
    pass "$what"
  fi
  stop server
}

# transfers PROGRAM COUNT SERVER_ADDRESS OPTION...: ucmatose or udaddy, which look at every byte
# themselves: both say that they were through.
transfers() {
  local what="$1 -C $2, server at $3 ${*:4}" side place=()
  port=7174  # udaddy has no option for it
  [ "$1" != ucmatose ] || { new_port && place=(-p "$port"); }
  serve "$what" "$port" "$1" -C "$2" -b "$3" "${place[@]}" "${@:4}" || return 0
  client "$1" -s "$address" -C "$2" "${place[@]}" "${@:4}"
  both_end "$what" || return 0
  for side in client server; do
    printed "$what" "$side" 1 'data transfers complete' || return 0
    printed "$what" "$side" 1 '^return status 0$' || return 0
    printed "$what" "$side" 0 'verification failed|error' || return 0
  done
  pass "$what"
}

# messages SERVER CLIENT OPTION...: the four examples for synchronous ids.
messages() {
  local what="$1 and $2 ${*:3}"
  new_port
  serve "$what" "$port" "$1" -p "$port" "${@:3}" || return 0
  client "$2" -s "$address" -p "$port" "${@:3}"
  both_end "$what" || return 0
  printed "$what" client 1 'end 0$' && printed "$what" server 1 'end 0$' && pass "$what"
  return 0
}

# times CONNECTIONS: each is made and ended, and how long each step took is printed. The server
# stays.
times() {
  local what="cmtime -c $1" status=0
  new_port
  serve "$what" "$port" cmtime -c "$1" -p "$port" || return 0
  client cmtime -c "$1" -p "$port" -s "$address"
  finish client || status=$?
  if [ "$status" != 0 ] || ! is_running server ||
    complaints "$work/client.err" "$work/server.err" >/dev/null; then
    flunk "$what: client ended with $status" "$work/client.out" "$work/client.err" \
      "$work/server.err"
  elif printed "$what" client 1 '^destroy +:'; then
    pass "$what: $(grep -E '^connect ' "$work/client.out" | tr -s ' ')"
  fi
  stop server
}

# group WHAT OPTION...: one member of a multicast group sends to another.
group() {
  local what="mckey $*"
  start server "${at_server[@]}" "${on[@]}" mckey "$@" -b "${bound[0]}"
  if ! await 15 said server '^mckey: joined' || ! is_running server; then
    stop server
    flunk "$what: the member does not join" "$work/server.out" "$work/server.err"
    return 0
  fi
  client mckey "$@" -s -b "${bound[1]}"
  both_end "$what" || return 0
  printed "$what" server 1 '^data transfers complete$' || return 0
  printed "$what" server 1 '^return status 0$' || return 0
  pass "$what"
}

# too_early TRY: the client was refused because its server, of perftest or qperf, listens a moment
# after it has told its port; that goes wrong anywhere. False after eight tries.
too_early() { [ "$1" -lt 8 ] && grep -q 'no_listener (' "$work/client.err"; }

# bandwidth PROGRAM OPTION...: perftest, whose queue pairs rdma_cm connects; it prints one result.
bandwidth() {
  local what="$1 -R ${*:2}" result try
  for try in 1 2 3 4 5 6 7 8; do
    new_port
    serve "$what" "$port" "$1" -F -R -p "$port" "${@:2}" || return 0
    client "$1" -F -R -p "$port" "${@:2}" "$address"
    await "$limit" is_over client || true
    too_early "$try" || break
    stop client 2>/dev/null  # it crashes then, and bash would tell
    stop server
  done
  both_end "$what" || return 0
  result=$(grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+ ' "$work/client.out" | tr -s ' \t' ' ' || true)
  if [ "$(grep -c . <<<"$result")" = 1 ]; then
    pass "$what:$result"
  else
    flunk "$what: not one line of results" "$work/client.out"
  fi
}

tests_of_perftest() {
  local program
  command -v ib_send_bw >/dev/null || return 0
  for program in ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat; do
    bandwidth "$program" -s 4096 -n 100
  done
  bandwidth ib_atomic_bw -n 100
  bandwidth ib_atomic_lat -n 100
  bandwidth ib_send_bw -s 1024 -n 50 -c UD
  bandwidth ib_send_lat -s 1024 -n 50 -c UD
  bandwidth ib_write_bw -s 65536 -n 50 -q 4 -T 32
  bandwidth ib_send_bw -s 65536 -n 50 -b
}

# tests_of_qperf: without rdma_cm it gives addresses without a global route, which RoCE refuses.
tests_of_qperf() {
  local test what try ended
  command -v qperf >/dev/null || return 0
  new_port
  start server "${at_server[@]}" "${on[@]}" qperf -lp "$port"
  await 15 listening_or_gone server "$port" "${at_server[@]}" || true
  for test in rc_bw rc_lat rc_rdma_write_bw rc_rdma_read_lat; do
    what="qperf -cm1 $test"
    for try in 1 2 3 4 5 6 7 8; do
      ended=0
      client qperf "$address" -lp "$port" -t 1 -cm1 "$test"
      finish client || ended=$?
      too_early "$try" || break
    done
    if [ "$ended" = 0 ] && printed "$what" client 1 ' +(bw|latency) +='; then
      pass "$what: $(grep -E ' (bw|latency) ' "$work/client.out" | tr -s ' ')"
    else
      flunk "$what" "$work/client.out" "$work/client.err" "$work/server.err"
    fi
  done
  stop server
}

# tests_of_fio: the client moves four MiB. Its SENDs are left out: it asks for no RNR retry, and
# does not wait for the receiver.
tests_of_fio() {
  local verb what
  command -v fio >/dev/null && fio --enghelp=rdma >/dev/null 2>&1 || return 0
  for verb in write read; do
    what="fio, verb $verb"
    new_port
    serve "$what" "$port" fio --name=receiver --ioengine=rdma --port="$port" --rw=read --bs=16k \
      --size=4m --iodepth=16 || continue
    client fio --name=sender --ioengine=rdma --hostname="$address" --port="$port" --verb="$verb" \
      --rw=write --bs=16k --size=4m --iodepth=1 --iodepth_batch_complete=1
    both_end "$what" || continue
    printed "$what" client 1 'WRITE: .*io=4096KiB|WRITE: .*io=4096' && pass "$what"
  done
}
