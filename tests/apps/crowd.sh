#!/usr/bin/env bash
# Many at once on one host: four pairs of stock ibv_rc_pingpong, and sixteen processes of which
# each talks to all others, spinning and sleeping; contents are checked.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ss timeout

# four_pairs POLLING ITERATIONS: all run at the same time.
four_pairs() {
  local polling=$1 iterations=$2 name side status good=0
  local program=(ibv_rc_pingpong -g 0 -c -s 8192 -m 1024 -n "$iterations")
  [ "$polling" = poll ] || program+=(-e)
  declare -A port_of=()
  for name in a b c d; do
    new_port
    port_of[$name]=$port
    start "server-$name" "$softhca" run -- "${program[@]}" -p "$port"
  done
  for name in a b c d; do
    await 15 listening_or_gone "server-$name" "${port_of[$name]}" || true
    start "client-$name" "$softhca" run -- "${program[@]}" -p "${port_of[$name]}" 127.0.0.1
  done
  for name in a b c d; do
    for side in client server; do
      status=0
      finish "$side-$name" || status=$?
      if [ "$status" != 0 ] || ! grep -q "^$iterations iters in " "$work/$side-$name.out" ||
        grep -q 'invalid data' "$work/$side-$name".*; then
        flunk "four pairs, $polling: $side $name ended with $status" "$work/$side-$name.out" \
          "$work/$side-$name.err"
      else
        good=$((good + 1))
      fi
    done
  done
  [ "$good" != 8 ] || pass "four pairs, $polling, $iterations round trips each"
}

# all_to_all COUNT ROUNDS poll|events
all_to_all() {
  start crowd "$softhca" run -- "$build/tests/apps/crowd_main" "$@"
  if finish crowd; then
    pass "all to all, $3: $(cat "$work/crowd.out")"
  else
    flunk "all to all, $*" "$work/crowd.out" "$work/crowd.err"
  fi
}

for how in poll events; do
  if [ "$full" = 1 ]; then
    four_pairs "$how" 5000
    all_to_all 16 300 "$how"
    all_to_all 48 10 "$how"
  else
    four_pairs "$how" 100
    all_to_all 16 12 "$how"
  fi
done
conclude
