#!/usr/bin/env bash
# Marked packets: traffic between two processes; packets with CE come from a plain socket, are
# answered with CNPs to the peer, and show in `softhca stat` of both; the peer obeys if it is told to.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs /usr/bin/python3 awk ss timeout

limit=$((limit * 4))  # of one pair, which is looked at while it runs
count=20

# What `softhca stat` says of a process, of its device and of its only queue pair; a counter that is 0
# is not shown.
counted() {
  "$softhca" stat "$(holder "$1")" |
    awk -v name="$2" '$1 == name {gsub(",", ""); n = $2} END {print n + 0}'
}
counted_by_pair() {
  "$softhca" stat "$(holder "$1")" |
    awk -v name="$2" '$1 ~ /^0x/ && $2 == name {gsub(",", ""); n = $3} END {print n + 0}'
}
qpn_of() { "$softhca" stat "$(holder "$1")" | awk '!n && $1 ~ /^0x/ {print n = $1}'; }
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
  local mode=$1
  traffic=("$softhca" run --ecn "$mode" "${@:3}" -- "$build/tests/apps/traffic_main")
  flowing '' || return 0
  /usr/bin/python3 -B "$apps/marked.py" send 127.0.0.1 "$(($(qpn_of server)))" $count
  expect "$mode" server np_ecn_marked_roce_packets $count
  [ "$mode" = off ] || expect "$mode" server np_cnp_sent 1
  [ "$mode" = off ] || expect "$mode" client "$2" 1
  all_as_sent "$mode"
}

# judge_capture FILE: all that connections send may be marked, and CNPs may not.
judge_capture() {
  /usr/bin/python3 -B "$apps/marked.py" classes "$1" >"$work/classes"
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
