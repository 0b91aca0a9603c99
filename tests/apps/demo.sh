#!/usr/bin/env bash
# Two stock verbs programs on the software device, and the ledger of where their bytes went.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ib_send_lat ss timeout

export SOFTHCA_LEDGER=$work/ledger

# show TITLE PROGRAM...: server and client of a stock program, and what the client printed.
show() {
  local title=$1 command=("$softhca" run -- "${@:2}")
  printf '\n== %s\n$ softhca run -- %s\n' "$title" "${*:2}"
  pair "$title" "${command[@]}" || return 0
  if grep -q 'invalid data' "$work/server.out" "$work/client.out"; then
    flunk "$title: other bytes arrived" "$work/server.out"
    return 0
  fi
  grep -vE '^[- ]*$' "$work/client.out"
  pass "$title"
}

show "1000 round trips of 4096 bytes, contents checked" ibv_rc_pingpong -g 0 -c -s 4096 -n 1000
show "latency of 64-byte messages" ib_send_lat -F -x 0 -s 64 -n 1000

printf '\n== the ledger: what the four processes did\n'
if "$softhca" ledger "$SOFTHCA_LEDGER" | tee "$work/ledger.out" && [ -s "$work/ledger.out" ]; then
  pass "ledger"
else
  flunk "ledger" "$work/ledger.out"
fi
conclude
