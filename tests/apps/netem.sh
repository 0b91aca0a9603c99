#!/usr/bin/env bash
# Stock programs between two network namespaces whose cable the kernel makes bad, at both ends
# (`tc netem`): packets are lost, doubled, and late, so that others overtake them. Everything is
# through, and what can be compared is as it was sent.
#
# Runs wherever the kernel has sch_netem; docs/interop.md says how in a virtual machine.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ib_send_bw ib_write_bw ib_read_bw ip nsenter python3 ss tc timeout \
  unshare
need_root_in_namespace "$@"
modprobe -q sch_netem 2>/dev/null || true
unshare -n sh -c 'ip link set lo up && tc qdisc add dev lo root netem loss 1%' 2>/dev/null ||
  skip "the kernel has no sch_netem"

limit=$((limit * 8))  # seconds; a hang is told from an interpreted machine
# Bursts are cut into packets before they meet their fate.
two_hosts $((limit * 20)) 10.79.0 gso_max_segs 1
for side in server client; do
  declare -n at=at_$side
  # Those that are `reordered` leave at once, the others 1 ms later.
  "${at[@]}" tc qdisc add dev cable root netem limit 10000 delay 1ms reorder 1% loss 5% duplicate 1%
done
lossy=1
[ "$full" = 1 ] && rounds=5 || rounds=1

bandwidth() {
  local what="$1, $2 bytes" program=(-F -x 0 -s "$2" -n 100)
  case $1 in ib_read_*) program+=(-o 16) ;; esac
  pair "$what" "$softhca" run -- "$1" "${program[@]}" || return 0
  if grep -qE "^ *$2 +100 +[0-9]" "$work/client.out"; then
    pass "$what:$(grep -E "^ *$2 +100 " "$work/client.out" | tr -s ' \t' ' ')"
  else
    flunk "$what: no line of results" "$work/client.out" "$work/client.err"
  fi
}

# What netem has dropped at an end, of what left there.
dropped() {
  "$@" tc -s qdisc show dev cable | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'
}

for ((round = 0; round < rounds; round++)); do
  for program in ib_write_bw ib_send_bw ib_read_bw; do
    bandwidth $program 65536
  done
  for size in 4096 65536; do
    what="ibv_rc_pingpong -c, $size bytes"
    if pair "$what" "$softhca" run -- ibv_rc_pingpong -g 0 -c -s $size -n 200; then
      judge_pingpong "$what" 200
    fi
  done
done

if /usr/bin/python3 -c 'import pyverbs' 2>/dev/null; then
  operations=("$softhca" run -- /usr/bin/python3 -B "$apps/rxe_ops.py" -g 0 -m 1024)
  new_port
  start server "${at_server[@]}" "${operations[@]}" -p "$port" serve
  await "$limit" listening_or_gone server "$port" "${at_server[@]}" || true
  start client "${at_client[@]}" "${operations[@]}" -p "$port" \
    --scenes send,write,read,atomics,pipeline drive "$server_address"
  finish client || true
  finish server || true
  if [ "$(tail -n 1 "$work/client.out")" = through ] && ! grep -q '^FAIL' "$work/client.out"; then
    pass "$(grep -c '^ok' "$work/client.out") single operations with their bytes compared"
  else
    flunk "single operations" "$work/client.out" "$work/client.err" "$work/server.err"
  fi
else
  echo "without python3-pyverbs: no single operations"
fi

lost="$(dropped "${at_server[@]}") $(dropped "${at_client[@]}")"
if [[ " $lost" =~ \ 0 ]]; then
  flunk "netem lost nothing: $lost"
else
  pass "packets lost by netem, from the server's end and from the client's: $lost"
fi
conclude
