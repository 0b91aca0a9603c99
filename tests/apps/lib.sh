# What the application tests share: the product's place, bounded waits, and an end for all that
# was started. Sourced, not run.
#
# A test ends with 0, with 77 (skipped, with the reason), or with anything else (failed).
# shellcheck shell=bash
set -euo pipefail

apps=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${SOFTHCA_BUILD:-$apps/../../build}
build=$(cd "$build" && pwd)
softhca=$build/softhca
full=${SOFTHCA_APPS_FULL:-0}
limit=$([ "$full" = 1 ] && echo 180 || echo 40)  # seconds that one program may take
work=$(mktemp -d "${TMPDIR:-/tmp}/softhca-apps.XXXXXX")
export SOFTHCA_NETDEV=${SOFTHCA_NETDEV-lo}

declare -A pid_of=()  # name -> process that this test started and has not waited for
failures=0
checks=0
next_port=$((10000 + $$ % 20000))  # below the ports that the kernel hands out

finish_all() {
  local name
  for name in "${!pid_of[@]}"; do
    kill "${pid_of[$name]}" 2>/dev/null || true
  done
  for name in "${!pid_of[@]}"; do
    wait "${pid_of[$name]}" 2>/dev/null || true
  done
  chmod -R u+w "$work" 2>/dev/null || true
  rm -rf "$work"
}
trap finish_all EXIT
trap 'exit 130' INT TERM

skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}

pass() {
  checks=$((checks + 1))
  printf 'ok    %s\n' "$*"
}

# flunk WHAT [FILE...]: counts a failure and shows the end of the files.
flunk() {
  local file
  checks=$((checks + 1))
  failures=$((failures + 1))
  printf 'FAIL  %s\n' "$1"
  for file in "${@:2}"; do
    printf '  --- %s\n' "$(basename "$file")"
    tail -n 15 "$file" 2>/dev/null | sed 's/^/  /' || true
  done
}

# says NAME PATTERN: a program that was started has printed it.
says() { grep -q "$2" "$work/$1.out"; }

traffic=()
# flowing PREFIX OPTION...: traffic (`traffic`, tests/apps/traffic_main) between PREFIXserver, which
# opens the device first, and PREFIXclient.
flowing() {
  local name=$1 side
  new_port
  start "${name}server" "${traffic[@]}" -p "$port" "${@:2}"
  await 15 listening_or_gone "${name}server" "$port" "${at_server[@]}" || true
  start "${name}client" "${traffic[@]}" -p "$port" "${@:2}" 127.0.0.1
  for side in server client; do
    await 20 says "$name$side" flowing || {
      flunk "no traffic at $name$side" "$work/$name$side.out" "$work/$name$side.err"
      return 1
    }
  done
}

# all_as_sent WHAT: what `flowing ''` began ends as asked, and both sides have what was sent.
all_as_sent() {
  local side status
  kill "$(holder client)"
  for side in client server; do
    status=0
    finish "$side" || status=$?
    if [ "$status" = 0 ] && says "$side" 'all as sent'; then
      pass "$1: $(tail -n 1 "$work/$side.out")"
    else
      flunk "$1: the $side ended with $status" "$work/$side.out" "$work/$side.err"
    fi
  done
}

# left_early STATUS STATUS: packets are lost, and the side that was through first was gone before
# its last acknowledgement came; the other one sent its last message to nobody, as with any device.
lossy=0
left_early() {
  [ "$lossy" = 1 ] && [ "$1" != "$2" ] && { [ "$1" = 0 ] || [ "$2" = 0 ]; } &&
    grep -q 'transport retry counter exceeded' "$work"/{client,server}.err
}

# judge_pingpong WHAT ITERATIONS: whether both sides of the pair that has ended went through all of
# them and found the bytes that were sent.
judge_pingpong() {
  local what=$1 iterations=$2 side
  if left_early 0 1 && ! grep -q 'invalid data' "$work"/{client,server}.{out,err}; then
    pass "$what: through; the last acknowledgement was lost when one side had gone"
    return 0
  fi
  for side in server client; do
    if ! grep -q "^$iterations iters in " "$work/$side.out"; then
      flunk "$what: the $side printed no result" "$work/$side.out" "$work/$side.err"
      return 0
    elif grep -q 'invalid data' "$work/$side.out" "$work/$side.err"; then
      flunk "$what: the $side received other bytes" "$work/$side.out" "$work/$side.err"
      return 0
    fi
  done
  pass "$what: $(grep -o '= .*/iter' "$work/client.out")"
}

# conclude: the last line of every test.
conclude() {
  printf '%d checks, %d failed\n' "$checks" "$failures"
  [ "$checks" -gt 0 ] && [ "$failures" = 0 ]
}

need_programs() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || skip "$program is not installed"
  done
}

need_product() {
  [ -x "$softhca" ] || {
    echo "no $softhca; run ./dev build" >&2
    exit 1
  }
}

# Network namespaces need root; a user namespace gives one, where that is allowed.
need_root_in_namespace() {
  if [ "$(id -u)" != 0 ]; then
    unshare -Ur true 2>/dev/null || skip "neither root nor user namespaces"
    rm -rf "$work"
    exec unshare -Ur bash "$0" "$@"
  fi
  unshare -n true 2>/dev/null || skip "no permission to make network namespaces"
}

# on_device PROGRAM...: runs a stock program on the device, in this process.
on_device() {
  "$softhca" run -- "$@"
}

# start NAME COMMAND...: in the background, ended after $limit seconds; output in
# $work/NAME.out and NAME.err.
start() {
  local name=$1
  shift
  timeout -k 5 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null &
  pid_of[$name]=$!
}

# finish NAME: waits for it; its exit status (124: it did not end in time).
finish() {
  local status=0
  wait "${pid_of[$1]}" || status=$?
  unset "pid_of[$1]"
  return "$status"
}

# stop NAME [SIGNAL]: asks it to end, and waits until it has.
stop() {
  kill -s "${2:-TERM}" "${pid_of[$1]}" 2>/dev/null || true
  finish "$1" || true
}

# new_port: sets $port to a TCP port on which nobody listens.
new_port() {
  while :; do
    next_port=$((next_port + 1))
    port=$next_port
    [ -n "$(ss -Hltn "sport = :$port")" ] || return 0
  done
}

# await SECONDS COMMAND...: until the command succeeds; false when it never did.
await() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.05
  done
}

is_running() { kill -0 "${pid_of[$1]}" 2>/dev/null; }

# listening_or_gone NAME PORT [PREFIX...]: the server listens, or has ended.
listening_or_gone() {
  ! is_running "$1" || [ -n "$("${@:3}" ss -Hltn "sport = :$2")" ]
}

# namespace NAME: a process that holds a new network namespace, with `lo` up; both end with the
# test. `holder NAME` is its pid, for nsenter.
namespace() {
  start "$1" unshare -n sh -c "ip link set lo up && exec sleep $limit"
  await 10 has_own_namespace "$1" || {
    flunk "no namespace for $1" "$work/$1.err"
    conclude
  }
}
has_own_namespace() {
  local inside
  inside=$(holder "$1") && [ -n "$inside" ] &&
    [ "$(readlink "/proc/$inside/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}
# The process below `timeout` (which stays outside) that is in the namespace.
holder() { tr ' ' '\n' <"/proc/${pid_of[$1]}/task/${pid_of[$1]}/children" | head -n 1; }

# Where pair() runs the two: a prefix for each command, and where the client finds the server.
at_server=() at_client=() server_address=127.0.0.1

# two_hosts SECONDS SUBNET [OPTION...]: two namespaces for that long, whose interfaces `cable` are one
# cable, with SUBNET.1 where pair() has the server and SUBNET.2; the options are of both ends.
two_hosts() {
  local left right
  limit=$1 namespace left
  limit=$1 namespace right
  left=$(holder left)
  right=$(holder right)
  at_server=(nsenter -t "$left" -n)
  at_client=(nsenter -t "$right" -n)
  server_address=$2.1
  export SOFTHCA_NETDEV=cable
  "${at_server[@]}" ip link add cable type veth peer name cable netns "$right"
  "${at_server[@]}" ip address add "$2.1/24" dev cable
  "${at_client[@]}" ip address add "$2.2/24" dev cable
  "${at_server[@]}" ip link set cable "${@:3}" up
  "${at_client[@]}" ip link set cable "${@:3}" up
}

# pair WHAT COMMAND...: the command as a server on a new port ($port), then as its client; true
# when both end with 0. It gets `-p $port`; the client also gets the server's address.
pair() {
  local what=$1 command=("${@:2}") status_server=0 status_client=0
  new_port
  start server "${at_server[@]}" "${command[@]}" -p "$port"
  if ! await "$limit" listening_or_gone server "$port" "${at_server[@]}" || ! is_running server; then
    stop server
    flunk "$what: the server does not listen" "$work/server.out" "$work/server.err"
    return 1
  fi
  start client "${at_client[@]}" "${command[@]}" -p "$port" "$server_address"
  finish client || status_client=$?
  [ "$status_client" = 0 ] || sleep 0.5
  if [ "$status_client" != 0 ] && is_running server; then kill "${pid_of[server]}" || true; fi
  finish server || status_server=$?
  ! left_early "$status_client" "$status_server" || return 0
  if [ "$status_client" != 0 ] || [ "$status_server" != 0 ]; then
    flunk "$what: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
    return 1
  fi
}
