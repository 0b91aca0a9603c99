#!/usr/bin/env bash
# Stock ibv_rc_pingpong with validated contents, on loopback (CASES C77: the peer is 127.0.0.1): sizes
# around page and packet boundaries, the path MTUs, polling and events, scattered and plain memory. And ibv_uc_pingpong, and
# ibv_ud_pingpong: datagrams, up to what one packet holds. ibv_srq_pingpong: sixteen queue pairs take
# from one queue; ibv_xsrq_pingpong: XRC, each request names the queue of the peer.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong ibv_xsrq_pingpong \
  ss timeout

# one SIZE MTU POLLING SCATTER ITERATIONS
one() {
  local size=$1 mtu=$2 polling=$3 scatter=$4 iterations=$5
  local what="size $size, MTU $mtu, $polling, scatter $scatter, $iterations iterations"
  local command=("$softhca" run -- ibv_rc_pingpong -g 0 -c -s "$size" -m "$mtu" -n "$iterations")
  [ "$polling" = poll ] || command+=(-e)
  export SOFTHCA_SCATTER=$scatter
  pair "$what" "${command[@]}" || return 0
  judge_pingpong "$what" "$iterations"
}

# unreliable SIZE MTU POLLING SCATTER ITERATIONS
unreliable() {
  local size=$1 mtu=$2 polling=$3 scatter=$4 iterations=$5
  local what="unreliable, size $size, MTU $mtu, $polling, scatter $scatter, $iterations iterations"
  local command=("$softhca" run -- ibv_uc_pingpong -g 0 -c -s "$size" -m "$mtu" -n "$iterations")
  [ "$polling" = poll ] || command+=(-e)
  export SOFTHCA_SCATTER=$scatter
  pair "$what" "${command[@]}" || return 0
  judge_pingpong "$what" "$iterations"
}

# datagrams SIZE POLLING SCATTER ITERATIONS
datagrams() {
  local size=$1 polling=$2 scatter=$3 iterations=$4
  local what="datagrams of $size bytes, $polling, scatter $scatter, $iterations iterations"
  local command=("$softhca" run -- ibv_ud_pingpong -g 0 -c -s "$size" -n "$iterations")
  [ "$polling" = poll ] || command+=(-e)
  export SOFTHCA_SCATTER=$scatter
  pair "$what" "${command[@]}" || return 0
  judge_pingpong "$what" "$iterations"
}

# shared SIZE POLLING QUEUE-PAIRS ITERATIONS
shared() {
  local size=$1 polling=$2 pairs=$3 iterations=$4
  local what="shared receives, size $size, $polling, $pairs queue pairs, $iterations iterations"
  local command=("$softhca" run -- ibv_srq_pingpong -g 0 -c -s "$size" -q "$pairs" -n "$iterations")
  [ "$polling" = poll ] || command+=(-e)
  export SOFTHCA_SCATTER=1
  pair "$what" "${command[@]}" || return 0
  judge_pingpong "$what" "$iterations"
}

# extended SIZE POLLING ITERATIONS
extended() {
  local size=$1 polling=$2 iterations=$3 side
  local what="XRC, size $size, $polling, $iterations iterations"
  local command=("$softhca" run -- ibv_xsrq_pingpong -g 0 -c 1 -s "$size" -m 1024 -n "$iterations")
  [ "$polling" = poll ] || command+=(-e)
  export SOFTHCA_SCATTER=1
  pair "$what" "${command[@]}" || return 0
  for side in server client; do
    if ! says "$side" '^success'; then
      flunk "$what: the $side did not succeed" "$work/$side.out" "$work/$side.err"
      return 0
    fi
  done
  pass "$what"
}

iterations_of() {
  if [ "$1" -gt 1048576 ]; then
    echo 10
  elif [ "$1" -gt 65536 ]; then
    echo 100
  else
    echo 1000
  fi
}

if [ "$full" = 1 ]; then
  for size in 1 4095 4096 4097 65536 1048576 16777216; do
    for mtu in 256 1024 4096; do
      for polling in poll events; do
        for scatter in 0 1; do
          one "$size" "$mtu" "$polling" "$scatter" "$(iterations_of "$size")"
        done
      done
    done
  done
else
  one 1 1024 poll 1 200
  one 4095 256 poll 1 100
  one 4096 1024 events 1 100
  one 4097 4096 poll 0 200
  one 65536 1024 events 0 50
  one 65536 4096 poll 1 100
  one 1048576 1024 poll 1 10
  one 16777216 4096 poll 1 3
fi
for size in 1 4097 65536; do
  unreliable "$size" 1024 poll 1 "$([ "$full" = 1 ] && echo 1000 || echo 100)"
  unreliable "$size" 4096 events 0 "$([ "$full" = 1 ] && echo 1000 || echo 50)"
done
for size in 1 2048 4096; do
  datagrams "$size" poll 1 "$([ "$full" = 1 ] && echo 1000 || echo 100)"
  datagrams "$size" events 0 "$([ "$full" = 1 ] && echo 1000 || echo 50)"
done
rounds=$([ "$full" = 1 ] && echo 1000 || echo 50)
shared 64 poll 16 "$rounds"
shared 5000 events 2 "$rounds"
extended 64 poll "$rounds"
extended 5000 events "$rounds"
conclude
