#!/usr/bin/env bash
# Programs of different users on one interface at once: one user has the port, the others lodge,
# and take it when the first is gone.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ss timeout setpriv unshare ip
[ "$(id -u)" = 0 ] || skip "only root can become other users"

# A namespace of its own: nobody else has a port on its loopback interface.
if [ "${SOFTHCA_USERS_INSIDE:-}" != 1 ]; then
  unshare -n true 2>/dev/null || skip "no permission to make network namespaces"
  rm -rf "$work"
  export SOFTHCA_USERS_INSIDE=1
  exec unshare -n bash "$0" "$@"
fi
ip link set dev lo up

first=65534
second=65533
third=65532
iterations=$([ "$full" = 1 ] && echo 20000 || echo 500)
how=(-e)  # they sleep on events: programs that spin, two for each pair, would wait for processors

# The product where every user can read it.
product=$work/product
mkdir -p "$product/lib"
chmod 755 "$work" "$product" "$product/lib"
cp "$softhca" "$product/"
cp -a "$build"/lib/. "$product/lib/"
chmod -R a+rX "$product"

# as UID PROGRAM...: on the device, as that user and with nobody's privileges, in this process.
as() {
  local uid=$1
  shift
  exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs \
    "$product/softhca" run -- "$@"
}

# begin_pair NAME SERVER_UID CLIENT_UID ITERATIONS: a pingpong with the options ${how[@]} on a new
# port; both ends run when this returns. True unless the server never listened.
begin_pair() {
  local name=$1 server_uid=$2 client_uid=$3
  local command=(ibv_rc_pingpong -g 0 -c -s 4096 -n "$4" "${how[@]}")
  new_port
  start_as "$server_uid" "$name-server" "${command[@]}" -p "$port"
  if ! await 15 listening_or_gone "$name-server" "$port" || ! is_running "$name-server"; then
    stop "$name-server"
    flunk "$name: the server does not listen" "$work/$name-server.out" "$work/$name-server.err"
    return 1
  fi
  start_as "$client_uid" "$name-client" "${command[@]}" -p "$port" 127.0.0.1
}

# start_as UID NAME PROGRAM...: like start, but the process that is noted is the program's own, so
# that a signal reaches it.
start_as() {
  local uid=$1 name=$2
  shift 2
  as "$uid" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null &
  pid_of[$name]=$!
}

# ends NAME: waits for both ends of a pair, with a bound; true if both were right to the last byte.
ends() {
  local name=$1 side wrong=0 status
  for side in client server; do
    await "$limit" is_over "$name-$side" || stop "$name-$side" KILL
    status=0
    if [ -n "${pid_of[$name-$side]:-}" ]; then finish "$name-$side" || status=$?; else status=124; fi
    if [ "$status" != 0 ] || ! grep -q ' iters in ' "$work/$name-$side.out" ||
      grep -q 'invalid data' "$work/$name-$side.out" "$work/$name-$side.err"; then
      flunk "$name: the $side ended with $status" "$work/$name-$side.out" "$work/$name-$side.err"
      wrong=1
    fi
  done
  return "$wrong"
}
is_over() { ! is_running "$1"; }

# who_has: the uids that have UDP 4791 on 127.0.0.1.
who_has() {
  awk '$2 == "0100007F:12B7" { print $8 }' /proc/net/udp | sort -u | tr '\n' ' '
}
port_is_of() { [ "$(who_has)" = "$1 " ]; }

# Two pairs of two users at once; at length, also while they spin.
at_once() {
  begin_pair one "$first" "$first" "$iterations" || return 0
  begin_pair two "$second" "$second" "$iterations" || return 0
  ends one || return 0
  ends two || return 0
  pass "two users at once, $1, $iterations iterations each"
}
at_once events
if [ "$full" = 1 ]; then
  how=()
  at_once polling
  how=(-e)
fi

# A pair whose ends belong to two users.
if begin_pair mixed "$first" "$second" "$iterations" && ends mixed; then
  pass "a pair of two users, $iterations iterations"
fi

# The user who has the port is killed in the middle of traffic; the others go on, and one of them
# has the port then.
endless=1000000000
is_moving() { [ "$(counter_of "$1" packets_received)" -gt 100 ] ||
  [ "$(counter_of "$1" messages_placed)" -gt 100 ] || is_over "$1"; }
counter_of() {
  "$product/softhca" stat --json "${pid_of[$1]}" 2>/dev/null |
    sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" | head -n 1 | grep . || echo 0
}
port_has_passed() { ! port_is_of "$first" && [ -n "$(who_has)" ]; }

# change_hands ITERATIONS: false if they were too few: a pair had ended before the port was free.
change_hands() {
  local name early=0 heir=nobody
  begin_pair owner "$first" "$first" "$endless" || return 0
  await 15 port_is_of "$first" || flunk "the first user has no port" "$work/owner-server.err"
  begin_pair lodger "$second" "$second" "$1" || return 0
  begin_pair other "$third" "$second" "$1" || return 0
  for name in owner lodger other; do
    await 15 is_moving "$name-client" || flunk "$name never began" "$work/$name-client.err"
  done
  {
    stop owner-server KILL
    stop owner-client KILL
  } 2>/dev/null
  for name in lodger other; do
    if is_over "$name-client" || is_over "$name-server"; then early=1; fi
  done
  if [ "$early" = 0 ] && await 15 port_has_passed; then heir=$(who_has); fi
  ends lodger || return 0
  ends other || return 0
  [ "$early" = 0 ] || return 1
  if [ "$heir" = nobody ]; then
    flunk "nobody took the port over"
  else
    pass "the port passed from $first to ${heir% }, and two pairs went on to the end, $1 iterations"
  fi
}
settled=0
for more in $((iterations * 4)) $((iterations * 40)) $((iterations * 400)); do
  if change_hands "$more"; then
    settled=1
    break
  fi
done
[ "$settled" = 1 ] || flunk "the pairs ended before the port was free, however long they were"
conclude
