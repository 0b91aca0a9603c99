#!/usr/bin/env bash
# SIGSTOP in full traffic. Shorter than the retry limit: the transfer goes on. Longer: the peer
# gets its error within the limit, and the one that is continued gets its own; both end clean.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ss timeout

traffic=("$softhca" run -- "$build/tests/apps/traffic_main")

is_stopped() { [ "$(sed 's/.*) //; s/ .*//' "/proc/$1/stat")" = T ]; }

# lost WHAT SIDE: it ended with the error of a lost connection, and said why.
lost() {
  local status=0
  finish "$2" || status=$?
  if [ "$status" = 3 ] && grep -q '^softhca: .*retries_spent.*Remedy: ' "$work/$2.err" &&
    [ "$(grep -c '^softhca: .*peer_silent.* last heard .*Remedy: ' "$work/$2.err")" = 1 ]; then
    pass "$1: the $2 ends: $(tail -n 1 "$work/$2.err")"
  else
    flunk "$1: the $2 ended with $status, expected 3" "$work/$2.out" "$work/$2.err"
  fi
}

# for_long WHO OTHER OPTION...: stopped until the other side has given up.
for_long() {
  local stopped
  flowing '' -t 13 -r 2 "${@:3}" || return 0
  stopped=$(holder "$1")
  kill -STOP "$stopped"
  lost "$1 stopped for long ${*:3}" "$2"
  kill -CONT "$stopped"
  lost "$1 stopped for long ${*:3}" "$1"
}

# for_short WHO OPTION...: the limit is 8 seconds at least.
for_short() {
  local stopped
  flowing '' -t 18 -r 7 "${@:2}" || return 0
  stopped=$(holder "$1")
  kill -STOP "$stopped"
  await 10 is_stopped "$stopped" || flunk "$1 does not stop"
  sleep 0.3  # what is being tested: traffic meets a stopped peer
  kill -CONT "$stopped"
  all_as_sent "$1 stopped for a moment ${*:2}"
}

for_long server client
for_long client server -e
for_short server -e
if [ "$full" = 1 ]; then
  for _ in $(seq 10); do
    for_long client server
    for_long server client -e
    for_short client
    for_short server
    for_short client -e
  done
fi
conclude
