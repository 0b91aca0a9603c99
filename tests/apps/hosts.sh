#!/usr/bin/env bash
# Two hosts: stock programs in two network namespaces that a cable joins, over IPv4 and IPv6, with
# an interface MTU of 1500 and of 9000; and what is said of a path MTU that does not fit.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong ibv_devinfo ib_send_bw ip nsenter unshare ss timeout
need_root_in_namespace "$@"

two_hosts $((limit * 20)) 10.77.0

# cable_mtu MTU: of the interface. IPv6 leaves an interface that cannot carry 1280 bytes.
cable_mtu() {
  local at address
  for at in server:fd77::1 client:fd77::2; do
    local -n prefix=at_${at%%:*}
    address=${at#*:}
    "${prefix[@]}" ip link set cable mtu "$1"
    [ "$1" -lt 1280 ] || "${prefix[@]}" ip address replace "$address/64" dev cable nodad
  done
}

# gid_index FAMILY: of the global address of the family (4 or 6), the same on both sides.
gid_index() {
  local address=::ffff:10.77.0.1
  [ "$1" = 4 ] || address=fd77::1
  "${at_server[@]}" "$softhca" run -- ibv_devinfo -v |
    sed -n "s/.*GID\[ *\([0-9]*\)\]:[^a-f0-9:]*$address, RoCE v2.*/\1/p"
}

# pingpong FAMILY SIZE MTU POLLING SCATTER ITERATIONS
pingpong() {
  local family=$1 size=$2 mtu=$3 polling=$4 scatter=$5 iterations=$6
  local what="pingpong, MTU $interface_mtu, IPv$family, size $size, path MTU $mtu, $polling"
  local command=("$softhca" run -- ibv_rc_pingpong -g "${gid_of[$family]}" -c -s "$size" -m "$mtu"
    -n "$iterations")
  what+=", scatter $scatter"
  [ "$polling" = poll ] || command+=(-e)
  SOFTHCA_SCATTER=$scatter pair "$what" "${command[@]}" || return 0
  judge_pingpong "$what" "$iterations"
}

# perftest FAMILY PROGRAM OPTION...: a line of results for every size.
perftest() {
  local what="$2, MTU $interface_mtu, IPv$1, ${*:3}" lines expected=1
  pair "$what" "$softhca" run -- "$2" -F -x "${gid_of[$1]}" "${@:3}" || return 0
  [[ " ${*:3} " != *" -a "* ]] || expected=23  # 2 bytes to 8 MiB
  lines=$(grep -cE '^ *[0-9]+ +[0-9]+ +[0-9.]+ ' "$work/client.out" || true)
  if [ "$lines" != "$expected" ]; then
    flunk "$what: $lines lines of results, expected $expected" "$work/client.out" \
      "$work/client.err"
  else
    pass "$what"
  fi
}

# refused WHAT MTU [OPTION...]: both sides end with an error, and the one that comes to modify_qp
# (the server does; its client may see the end of the connection first) says why on one line.
refused() {
  local what=$1 mtu=$2 status_client=0 status_server=0 line
  new_port
  local command=("$softhca" run -- ibv_rc_pingpong -g "${gid_of[4]}" "${@:3}" -p "$port")
  start server "${at_server[@]}" "${command[@]}"
  await 15 listening_or_gone server "$port" "${at_server[@]}" || true
  start client "${at_client[@]}" "${command[@]}" "$server_address"
  finish client || status_client=$?
  finish server || status_server=$?
  line=$(grep '^softhca: softhca0: .*mtu_too_large' "$work/server.err" || true)
  if [ "$status_client/$status_server" != 1/1 ]; then
    flunk "$what: client ended with $status_client, server with $status_server, expected 1" \
      "$work/client.err" "$work/server.err"
  elif [ "$(grep -c . <<<"$line")" != 1 ] || ! grep -q "Asked for $mtu\..*Remedy: ." <<<"$line"; then
    flunk "$what: not one line that says what, why and the remedy" "$work/server.err"
  else
    pass "$what: refused with its reason"
  fi
}

iterations_of() {
  if [ "$1" -gt 1048576 ]; then
    echo 5
  elif [ "$1" -gt 65536 ]; then
    echo 30
  else
    echo 200
  fi
}

full_matrix() {
  local family size mtu polling scatter program
  for family in 4 6; do
    for size in 1 4095 4096 4097 65536 1048576 16777216; do
      for mtu in "$@"; do
        for polling in poll events; do
          for scatter in 0 1; do
            pingpong "$family" "$size" "$mtu" "$polling" "$scatter" "$(iterations_of "$size")"
          done
        done
      done
    done
    for program in ib_send_bw ib_write_bw ib_read_bw; do
      for options in '-q 1' '-q 4' '-q 1 -e' '-q 4 -e' '-b' '-q 4 -b'; do
        # perftest has no events for WRITEs.
        if [[ $program = ib_write_bw && $options = *-e ]]; then continue; fi
        # shellcheck disable=SC2086
        perftest "$family" "$program" -a -n 5 $options
      done
      for mtu in "$@"; do perftest "$family" "$program" -s 65536 -n 100 -m "$mtu"; done
    done
    for program in ib_send_lat ib_write_lat ib_read_lat; do
      perftest "$family" "$program" -a -n 5
      [ "$program" = ib_write_lat ] || perftest "$family" "$program" -a -n 5 -e
    done
  done
}

# Multicast groups, of IPv4 and of IPv6's site; perftest writes their bytes in decimal.
declare -A group_of=([4]=0:0:0:0:0:0:0:0:0:0:255:255:239:77:0:1
  [6]=255:21:0:0:0:0:0:0:0:0:0:0:0:0:0:119)
declare -A gid_of=()
for interface_mtu in 1500 9000; do
  cable_mtu "$interface_mtu"
  for family in 4 6; do
    gid_of[$family]=$(gid_index "$family")
    [ -n "${gid_of[$family]}" ] || {
      flunk "no GID of IPv$family"
      conclude
    }
  done
  if [ "$full" = 1 ]; then
    if [ "$interface_mtu" = 1500 ]; then full_matrix 256 1024; else full_matrix 256 1024 4096; fi
  elif [ "$interface_mtu" = 1500 ]; then
    pingpong 4 1 1024 poll 0 50
    pingpong 6 4097 256 events 1 50
    perftest 6 ib_send_bw -s 65536 -n 50 -q 4
    perftest 4 ib_read_lat -s 4096 -n 50 -e
    for family in 4 6; do
      perftest "$family" ib_send_lat -c UD -g -M "${group_of[$family]}" -s 64 -n 50
    done
  else
    pingpong 6 4096 4096 poll 1 50
    pingpong 4 1048576 4096 events 1 5
    perftest 4 ib_write_bw -s 65536 -n 50 -q 4 -b
    perftest 6 ib_read_bw -s 65536 -n 50 -e
    perftest 6 ib_write_lat -s 64 -n 50
    perftest 4 ib_send_lat -s 64 -n 50
  fi
done

interface_mtu=1500
cable_mtu 1500
refused "path MTU 4096 on an interface of 1500 bytes" 4096 -m 4096
cable_mtu 1000
refused "pingpong's own path MTU on an interface of 1000 bytes" 1024
conclude
