#!/usr/bin/env bash
# Marked packets: traffic between two processes; packets with CE come from a plain socket, are
# answered with CNPs to the peer, and show in `softhca stat` of both; the peer obeys if it is told to.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs python3 ss timeout

limit=$((limit * 4))  # of one pair, which is looked at while it runs
count=20

# of PROCESS PATH...: a number from `softhca stat --json` of it.
of() {
  "$softhca" stat --json "$(holder "$1")" | python3 -c '
import json, sys
at = json.load(sys.stdin)[0]
for key in sys.argv[1:]:
    at = at[int(key) if key.isdigit() else key]
print(at)' "${@:2}"
}
counted() { of "$1" counters "$2"; }
counted_by_pair() { of "$1" queue_pairs 0 counters "$2"; }
is_at_least() { [ "$(counted "$1" "$2")" -ge "$3" ]; }

# expect WHAT PROCESS COUNTER VALUE: of the device and of its queue pair.
expect() {
  local value
  await 10 is_at_least "$2" "$3" "$4" || true
  value=$(counted "$2" "$3")
  if [ "$value" -ge "$4" ] && [ "$(counted_by_pair "$2" "$3")" -ge "$4" ]; then
    pass "$1: $3 of the $2 is $value"
  else
    flunk "$1: $3 of the $2 is $value, expected $4"
  fi
}

# with MODE COUNTER OPTION...: what the peer counts a CNP as.
with() {
  local mode=$1 side status
  traffic=("$softhca" run --ecn "$mode" "${@:3}" -- "$build/tests/apps/traffic_main")
  flowing '' || return 0
  python3 -B "$apps/marked.py" send 127.0.0.1 "$(of server queue_pairs 0 qpn)" $count
  expect "$mode" server np_ecn_marked_roce_packets $count
  [ "$mode" = off ] || expect "$mode" server np_cnp_sent 1
  [ "$mode" = off ] || expect "$mode" client "$2" 1
  kill "$(holder client)"
  for side in client server; do
    status=0
    finish "$side" || status=$?
    if [ "$status" = 0 ] && says "$side" 'all as sent'; then
      pass "$mode: $(tail -n 1 "$work/$side.out")"
    else
      flunk "$mode: the $side ended with $status" "$work/$side.out" "$work/$side.err"
    fi
  done
}

# judge_capture FILE: all that connections send may be marked, and CNPs may not.
judge_capture() {
  python3 -B "$apps/marked.py" classes "$1" >"$work/classes"
  if [ "$(grep -v '^0x81' "$work/classes" | grep -cv ' 0x02 \|^0x12 0x03 ')" = 0 ] &&
    grep -q '^0x04 0x02 ' "$work/classes" && grep -q '^0x81 0x00 ' "$work/classes" &&
    ! grep '^0x81' "$work/classes" | grep -qv ' 0x00 '; then
    pass "captured: $(grep '^0x81' "$work/classes")"
  else
    flunk "captured: opcodes, traffic classes and how many" "$work/classes"
  fi
}

with off rp_cnp_ignored
with notify rp_cnp_ignored
with control rp_cnp_handled --pcap "$work/control.pcap"
judge_capture "$work/control.pcap"
conclude
