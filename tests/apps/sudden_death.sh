#!/usr/bin/env bash
# kill -9 in full traffic, of either side and of the process that was first on the port: the peer
# gets its error and ends, others on the same port go on, and nothing is left to clean.
# In a network namespace of its own, so that what is left there was left by these processes.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ib_write_bw ip nsenter unshare ss timeout
need_root_in_namespace "$@"

limit=$((limit * 20)) namespace host
at_server=(nsenter -t "$(holder host)" -n)
at_client=("${at_server[@]}")
traffic=("${at_server[@]}" "$softhca" run -- "$build/tests/apps/traffic_main")
# Where a program might leave files.
mkdir "$work/home" "$work/tmp"
export HOME=$work/home TMPDIR=$work/tmp

# What the namespace still holds of the device: names, and sockets on the port of RoCEv2.
left_over() {
  "${at_server[@]}" cat /proc/net/unix | grep softhca || true
  "${at_server[@]}" ss -Huan 'sport = :4791'
  find "$work/home" "$work/tmp" -mindepth 1
  find /dev/shm -maxdepth 1 -iname '*softhca*' 2>/dev/null || true
}
is_empty() { [ -z "$(left_over)" ]; }

# Only what belongs to the pair that goes on: its two processes, two sockets.
has_two_sockets() { [ "$("${at_server[@]}" ss -Huan 'sport = :4791' | wc -l)" = 2 ]; }

# killed WHAT VICTIM SURVIVOR
killed() {
  local status=0
  kill -KILL "$(holder "$2")"
  finish "$2" 2>/dev/null || true  # bash would tell of the death
  finish "$3" || status=$?
  if [ "$status" != 3 ]; then
    flunk "$1: the survivor ended with $status, expected 3" "$work/$3.out" "$work/$3.err"
  elif [ "$(grep -c '^softhca: softhca0: .*retries_spent.*Remedy: ' "$work/$3.err")" != 1 ]; then
    flunk "$1: the survivor did not say why on one line" "$work/$3.err"
  elif await 10 has_two_sockets; then
    pass "$1: $(grep '^lost' "$work/$3.err")"
  else
    left_over >"$work/left"
    flunk "$1: others than the pair that goes on are left" "$work/left"
  fi
}

# ended NAME WHAT: the pair ends as asked, with all messages as they were sent.
ended() {
  local side status
  kill "$(holder "$1-client")"
  for side in client server; do
    status=0
    finish "$1-$side" || status=$?
    # That packets were sent again, because somebody died in between, it may say.
    if [ "$status" != 0 ] || ! says "$1-$side" 'all as sent' ||
      grep -qv ' peer_silent (reason' "$work/$1-$side.err"; then
      flunk "$2: the $side ended with $status" "$work/$1-$side.out" "$work/$1-$side.err"
    else
      pass "$2, $side: $(tail -n 1 "$work/$1-$side.out")"
    fi
  done
}

# Stock perftest: the client of a server that was killed has a write outstanding.
perftest() {
  local status=0
  new_port
  start server "${at_server[@]}" "$softhca" run -- ib_write_bw -F -x 0 -s 65536 -D 60 -p "$port"
  await 15 listening_or_gone server "$port" "${at_server[@]}" || true
  start client "${at_server[@]}" "$softhca" run -- ib_write_bw -F -x 0 -s 65536 -D 60 -p "$port" \
    127.0.0.1
  await 15 is_busy || flunk "ib_write_bw does not start" "$work/client.err" "$work/server.err"
  kill -KILL "$(holder server)"
  finish server 2>/dev/null || true
  finish client || status=$?
  if [ "$status" = 0 ] || [ "$status" = 124 ] || ! grep -q retries_spent "$work/client.err"; then
    flunk "ib_write_bw ended with $status after its server's death" "$work/client.out" \
      "$work/client.err"
  else
    pass "ib_write_bw ends with $status and says retries_spent"
  fi
}
# Hundreds of WRITEs have been executed in the memory of the server.
is_busy() { "$softhca" stat --json "$(holder client)" | grep -Eq '"direct_requests": [0-9]{3}'; }

# One world: who was first on the port dies, then others, while one pair goes on.
world() {
  local round how
  local patience=(-t 12 -r 3)
  flowing first- "${patience[@]}" || return 0
  flowing steady- -t 16 -r 7 -e || return 0
  if [ $(($1 % 2)) = 0 ]; then
    killed first first-server first-client
  else
    killed first first-client first-server
  fi
  for round in $(seq "$2"); do
    how=()
    [ $((($1 + round) % 2)) = 0 ] || how=(-e)
    flowing pair- "${patience[@]}" "${how[@]}" || return 0
    if [ $((round % 2)) = 0 ]; then
      killed "client, world $1, round $round" pair-client pair-server
    else
      killed "server, world $1, round $round" pair-server pair-client
    fi
  done
  ended steady "world $1, the pair that goes on"
  if await 10 is_empty; then
    pass "world $1: nothing is left"
  else
    left_over >"$work/left"
    flunk "world $1: something is left" "$work/left"
  fi
}

# The kernel may give a dead member's packets, and those of whoever moves into its place, to any
# member; also to one that is stopped and forwards nothing.
death_beside_a_stopped_pair() {
  local side what="a death beside a stopped pair"
  flowing stopped- -t 20 -r 7 || return 0
  flowing victim- || return 0
  flowing steady- -t 16 -r 7 -e || return 0
  for side in server client; do kill -STOP "$(holder "stopped-$side")"; done
  for side in server client; do kill -KILL "$(holder "victim-$side")"; done
  for side in server client; do finish "victim-$side" 2>/dev/null || true; done
  sleep 0.5  # what is being tested: traffic meanwhile
  ended steady "$what, the pair that goes on"
  for side in server client; do kill -CONT "$(holder "stopped-$side")"; done
  ended stopped "$what, the stopped one"
}

perftest
for _ in $(seq "$([ "$full" = 1 ] && echo 20 || echo 1)"); do death_beside_a_stopped_pair; done
if [ "$full" = 1 ]; then
  for number in $(seq 40); do world "$number" 4; done
else
  for number in 1 2; do world "$number" 2; done
fi
conclude
