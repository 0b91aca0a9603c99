#!/usr/bin/env bash
# What a recorded run says afterwards: of a program whose peer was killed, of the one that was
# killed, and of one that went well.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ib_write_bw ibv_rc_pingpong ss timeout

traffic=("$softhca" run --trace "$work/traffic" -- "$build/tests/apps/traffic_main")

# explains WHAT FILE PATTERN...: the command tells all of it.
explains() {
  local pattern what=$1 file=$2
  if ! "$softhca" explain "$file" >"$work/told" 2>&1; then
    flunk "$what: softhca explain fails" "$work/told"
    return 0
  fi
  for pattern in "${@:3}"; do
    grep -qE "$pattern" "$work/told" || {
      flunk "$what: does not tell $pattern" "$work/told"
      return 0
    }
  done
  pass "$what"
}

peer_was_killed() {
  local victim survivor
  flowing '' -t 12 -r 2 || return 0
  victim=$(holder server)
  survivor=$(holder client)
  kill -KILL "$victim"
  finish server 2>/dev/null || true  # bash would tell of the death
  finish client || true
  explains "a program whose peer was killed" "$work/traffic.$survivor" \
    'traffic_main \(pid' ' ms  queue pair 0x[0-9a-f]+' 'retries_spent \(reason 63' 'Remedy: ' \
    '^  0x[0-9a-f]+ +[1-9][0-9]* +[1-9]'
  explains "a program that was killed" "$work/traffic.$victim" 'was not closed' \
    'Nothing was refused'
}

perftest_whose_server_was_killed() {
  local client
  new_port
  start server "$softhca" run -- ib_write_bw -F -x 0 -s 65536 -D 60 -p "$port"
  await 15 listening_or_gone server "$port" || true
  start client "$softhca" run --trace "$work/perftest" -- ib_write_bw -F -x 0 -s 65536 -D 60 \
    -p "$port" 127.0.0.1
  await 15 has_recorded "$work/perftest" || flunk "ib_write_bw records nothing" "$work/client.err"
  client=$(holder client)
  kill -KILL "$(holder server)"
  finish server 2>/dev/null || true
  finish client || true
  explains "ib_write_bw whose server was killed" "$work/perftest.$client" \
    'ib_write_bw \(pid' 'retries_spent \(reason 63'
}
# More than a megabyte of events.
has_recorded() { [ -n "$(find "$work" -path "$1.*" -size +8M)" ]; }

# Both name queue pairs that the other does not have, so neither hears anything.
peer_that_is_not_there() {
  local side patience=(-t 14 -r 1) status
  new_port
  start server "${traffic[@]}" -p "$port" "${patience[@]}" -x
  await 15 listening_or_gone server "$port" || true
  start client "${traffic[@]}" -p "$port" "${patience[@]}" -x 127.0.0.1
  for side in server client; do
    status=0
    finish "$side" || status=$?
    if [ "$status" != 3 ] ||
      [ "$(grep -c 'peer_silent (reason 189.* by lo; .*Nothing was ever heard.*Remedy: ' \
        "$work/$side.err")" != 1 ]; then
      flunk "a peer that is not there: the $side ended with $status" "$work/$side.err"
    else
      pass "a peer that is not there: one line at the $side"
    fi
  done
}

run_that_went_well() {
  pair "a recorded pingpong" "$softhca" run --trace "$work/pingpong" -- \
    ibv_rc_pingpong -g 0 -n 100 || return 0
  local file
  for file in "$work"/pingpong.*; do
    explains "a run that went well" "$file" 'Nothing was refused'
    ! grep -q 'was not closed' "$work/told" || flunk "its recording was not closed" "$work/told"
  done
}

peer_was_killed
perftest_whose_server_was_killed
peer_that_is_not_there
run_that_went_well
conclude
