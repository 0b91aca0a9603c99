#!/usr/bin/env bash
# Stock perftest on loopback, over reliable, extended and unreliable connections and with datagrams:
# every program ends with 0 and prints its
# result line.
# The numbers are printed, not judged: this is no benchmark.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ib_send_bw ss timeout

# one PROGRAM SIZE ITERATIONS [OPTION...]
one() {
  local program=$1 size=$2 iterations=$3 total=$3 result
  local what="$program, $size bytes, $iterations iterations ${*:4}"
  local command=("$softhca" run -- "$program" -F -x 0 -n "$iterations" "${@:4}")
  [[ $program == ib_atomic_* ]] || command+=(-s "$size")  # an atomic has no other size than eight
  [[ "${*:4}" =~ -q\ ([0-9]+) ]] && total=$((BASH_REMATCH[1] * iterations))  # of all queue pairs
  pair "$what" "${command[@]}" || return 0
  result=$(grep -E "^ *$size +$total +[0-9]" "$work/client.out" | tr -s ' \t' ' ' || true)
  if [ -z "$result" ]; then
    flunk "$what: no result line" "$work/client.out" "$work/client.err"
  else
    pass "$what:$result"
  fi
}

programs=(ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat)
for program in "${programs[@]}"; do
  if [ "$full" = 1 ]; then
    for size in 1 64 4096 65536 1048576; do
      one "$program" "$size" 1000
    done
    one "$program" 65536 1000 -m 256
    one "$program" 4096 1000 -e
  else
    one "$program" 64 200
    one "$program" 65536 50
  fi
done

for program in ib_atomic_bw ib_atomic_lat; do
  for kind in FETCH_AND_ADD CMP_AND_SWAP; do
    one "$program" 8 "$([ "$full" = 1 ] && echo 1000 || echo 200)" -A "$kind"
  done
done

# One queue of receives for all, and XRC, which names it in every request.
for program in ib_send_bw ib_send_lat; do
  one "$program" 4096 100 --use-srq
done
one ib_send_bw 4096 100 --use-srq -q 4
for program in "${programs[@]}"; do
  one "$program" 4096 "$([ "$full" = 1 ] && echo 1000 || echo 100)" -c XRC
done
for program in ib_atomic_bw ib_atomic_lat; do
  one "$program" 8 100 -c XRC
done

# Requests posted as lists, and small messages within the request (perftest asks for that of parts
# that it knows only).
one ib_write_bw 64 640 -l 64 -q 2
one ib_send_bw 4096 160 -l 16 -e
export SOFTHCA_PART_ID=4119
for program in ib_send_lat ib_write_lat; do
  one "$program" 64 200 -I 128
done
one ib_write_bw 8 6400 -l 64 -I 32
unset SOFTHCA_PART_ID

# The rules of devices that free a slot of a queue when its completion is polled.
for profile in strict mlx5; do
  export SOFTHCA_PROFILE=$profile
  one ib_send_bw 4096 500
  one ib_write_bw 4096 500 -q 2
done
unset SOFTHCA_PROFILE

# reported NAME LINES: it has printed so many results.
reported() { [ "$(grep -cE '^ *65536 +[0-9]+ ' "$work/$1.out")" -ge "$2" ]; }

# for_ever SECONDS PROGRAM [OPTION...]: a result each second, until it is stopped, and no complaint.
for_ever() {
  local seconds=$1 command=("$softhca" run -- "$2" -F -x 0 -s 65536 -D 1 --run_infinitely "${@:3}")
  local what="${*:2}, --run_infinitely for $seconds s"
  new_port
  start server "${command[@]}" -p "$port"
  await 15 listening_or_gone server "$port" || true
  start client "${command[@]}" -p "$port" "$server_address"
  if await $((2 * seconds + 20)) reported client "$seconds" && is_running server &&
    ! grep -vE 'inline feature' "$work/client.err" "$work/server.err"; then
    pass "$what: $(grep -E '^ *65536 ' "$work/client.out" | tail -n 1 | tr -s ' \t' ' ')"
  else
    flunk "$what" "$work/client.out" "$work/client.err" "$work/server.err"
  fi
  stop client
  stop server
}
for program in ib_write_bw ib_send_bw ib_read_bw; do
  for_ever "$([ "$full" = 1 ] && echo 10 || echo 2)" "$program"
done

# Nothing is sent again here either: as much as its socket holds at once.
one ib_send_bw 64 200 -c UC
one ib_write_bw 64 200 -c UC
one ib_send_bw 4096 50 -c UC
one ib_write_bw 4096 50 -c UC
for size in 2 4096; do
  for program in ib_send_lat ib_write_lat; do
    one "$program" "$size" "$([ "$full" = 1 ] && echo 1000 || echo 100)" -c UC
  done
done

# Datagrams that are lost are not sent again, and the receiver would wait for ever: there are as many
# as its receives and its socket hold at once.
one ib_send_bw 64 200 -c UD
one ib_send_bw 4096 50 -c UD
# Both ends hear the group, each also itself.
one ib_send_lat 64 100 -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:0:2
for size in 2 1024 4096; do
  one ib_send_lat "$size" "$([ "$full" = 1 ] && echo 1000 || echo 100)" -c UD
done
conclude
