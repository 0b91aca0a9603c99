#!/usr/bin/env bash
# Stock programs with plans of faults (docs/faults.md): what the transport repairs they do not notice,
# and what it cannot repair they are told, with the status of the plan and the number of its reason.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_devinfo ibv_rc_pingpong ib_write_bw ib_send_bw ss timeout

# plan NAME LINE...: sets $plan to a file of these lines.
plan() {
  plan=$work/$1.toml
  printf '%s\n' "${@:2}" >"$plan"
}

# both COMMAND...: as server and client, with the plan at both; sets $status to the client's.
both() {
  local command=("$softhca" run --faults "$plan" -- "$@")
  status=0
  new_port
  start server "${command[@]}" -p "$port"
  await 15 listening_or_gone server "$port" || true
  start client "${command[@]}" -p "$port" 127.0.0.1
  finish client || status=$?
}

# expect WHAT PATTERN: the client has failed and said so.
expect() {
  if [ "$status" = 0 ] || [ "$status" = 124 ]; then
    flunk "$1: the client ended with $status" "$work/client.out" "$work/client.err"
  elif ! grep -q -- "$2" "$work/client.out" "$work/client.err"; then
    flunk "$1: the client does not say: $2" "$work/client.out" "$work/client.err"
  else
    pass "$1: $2"
  fi
}

plan loss 'seed = 7' '[[fault]]' 'what = "drop"' 'ratio = 0.01'
what="WRITE bandwidth with one packet in a hundred lost"
if pair "$what" "$softhca" run --faults "$plan" --ledger "$work/loss.ledger" -- \
  ib_write_bw -F -x 0 -s 65536 -n 200; then
  if grep -q '"packets_faulted":[1-9]' "$work/loss.ledger"; then
    pass "$what: $(grep -E '^ 65536' "$work/client.out" | tr -s ' \t' ' ')"
  else
    flunk "$what: nothing was lost" "$work/loss.ledger"
  fi
fi
plan mixed '[[fault]]' 'what = "duplicate"' 'ratio = 0.05' '[[fault]]' 'what = "reorder"' \
  'ratio = 0.05' '[[fault]]' 'what = "corrupt"' 'ratio = 0.01'
what="a pingpong with packets doubled, out of order and damaged"
lossy=1
if pair "$what" "$softhca" run --faults "$plan" -- ibv_rc_pingpong -g 0 -c -s 65536 -n 30; then
  judge_pingpong "$what" 30
fi
lossy=0

plan fail '[[fault]]' 'what = "fail_work"' 'operation = "SEND"' 'nth = 3' \
  'status = "IBV_WC_REM_OP_ERR"'
both ib_send_bw -F -x 0 -n 100
stop server
expect "work that fails by plan" 'Failed status 11: wr_id 0 syndrom 0xbe'
expect "its line on stderr" 'Injected by fault 1 of fail.toml, line 1\.'

plan sever '[[fault]]' 'what = "sever"' 'nth = 100'
both ibv_rc_pingpong -g 0 -c -n 1000
stop server
expect "a peer that is cut off" 'transport retry counter exceeded (12)'

plan wrong '[[fault]]' 'what = "drop"' 'ratoi = 0.01'
status=0
"$softhca" run --faults "$plan" -- touch "$work/started" 2>"$work/client.err" >"$work/client.out" ||
  status=$?
expect "a wrong plan" 'wrong.toml:3: drop has no key ratoi; it may have'
if [ "$status" = 2 ] && [ ! -e "$work/started" ]; then
  pass "nothing is started with a wrong plan"
else
  flunk "run ended with $status for a wrong plan" "$work/client.err"
fi
status=0
SOFTHCA_FAULTS=$plan on_device ibv_devinfo 2>"$work/client.err" >"$work/client.out" || status=$?
expect "a wrong plan in the environment" 'is not opened: .*wrong.toml:3: '
conclude
