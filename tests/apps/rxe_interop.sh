#!/usr/bin/env bash
# Our device and Linux rxe, on one segment, each as server and as client: stock pingpongs with
# validated contents, perftest, every operation with its bytes compared, what has to be refused, and
# the same with one packet in ten lost.
#
# SOFTHCA_RXE_VM is a command that takes `SCRIPT COMMAND...`: it starts an rxe machine whose
# interface has an MTU of $MTU, runs SCRIPT there with bash and COMMAND here, and prints what the
# latter does. The machine is started once for each MTU. What both need to find: docs/interop.md.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
[ -n "${SOFTHCA_RXE_VM:-}" ] || skip "SOFTHCA_RXE_VM names no rxe machine; see docs/interop.md"
need_programs ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong ib_send_bw rping \
  ucmatose udaddy rstream ss timeout
python=/usr/bin/python3
$python -c 'import pyverbs' 2>/dev/null || skip "python3-pyverbs is not installed"

# outside: starts the machine for each MTU, and counts the lines of the part that runs beside it.
outside() {
  local mtu machine
  read -ra machine <<<"$SOFTHCA_RXE_VM"
  for mtu in ${SOFTHCA_RXE_MTU:-1500 4200}; do
    limit=1800 start machine env MTU="$mtu" TIMEOUT=1700 "${machine[@]}" "$apps/rxe_agent.sh" \
      bash "$apps/rxe_interop.sh" --inside "$mtu"
    finish machine || true
    grep -E '^(ok|FAIL|differs|seen|  )' "$work/machine.out" || true
    checks=$((checks + $(grep -cE '^(ok|FAIL) ' "$work/machine.out" || true)))
    failures=$((failures + $(grep -c '^FAIL ' "$work/machine.out" || true)))
    grep -q '^inside: through$' "$work/machine.out" ||
      flunk "MTU $mtu: the exchange did not come to its end" "$work/machine.out" "$work/machine.err"
  done
  conclude
}

declare -A gid_here=() gid_there=()
there=(bash "$apps/on_rxe.sh")
family=4
settings=
# shellcheck disable=SC2016  # a script of its own
listens='until [ -n "$(ss -Hltn "sport = :$1")" ]; do sleep 0.1; done'

# our_gid ADDRESS: its index among our device's GIDs.
our_gid() {
  on_device ibv_devinfo -v |
    sed -n "s/.*GID\[ *\([0-9]*\)\]:[^a-f0-9:]*$1, RoCE v2.*/\1/p"
}

gid_option() {
  case $1 in ib_*) echo -x ;; *) echo -g ;; esac
}

# let_go: where packets are lost one side may be gone before its last acknowledgement came. rxe asks
# for that for ever (retry_cnt 7), so the side that is left ($deserted) is ended.
has_ended() { ! is_running "$1"; }
one_has_ended() { has_ended server || has_ended client; }
let_go() {
  local side
  await "$limit" one_has_ended || return 0
  for side in server client; do
    ! await 30 has_ended $side || continue
    sent=$(sent_by_rxe)
    ! await 5 has_ended $side || continue
    sent=$(($(sent_by_rxe) - sent))
    deserted=$side
    kill "${pid_of[$side]}"
  done
}
sent_by_rxe() {
  timeout -k 5 120 "${there[@]}" cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}

# still_asks OURS THEIRS STATUS: ours was through and rxe, which is still sending, had to be ended.
still_asks() {
  [ "$deserted" = "$2" ] && [ "$3" = 0 ] && [ "$sent" -gt 0 ] &&
    ! grep -q 'invalid data' "$work/$1.out" "$work/$1.err"
}

# exchange SERVER WHAT PROGRAM [OPTION...]: the program on both machines; SERVER (ours, rxe) is
# where the server runs. True when both end with 0; what failed or differs is told.
exchange() {
  local server=$1 what=$2 option ours theirs to status_server=0 status_client=0
  local prefix_server=() our_side=client rxe_side=server our_status
  option=$(gid_option "$3")
  new_port
  ours=("$softhca" run --) theirs=("${there[@]}" timeout -k 5 "$limit")
  if [ "$3" = ops ]; then
    ours+=("$python" -B "$COMMON/rxe_ops.py") theirs+=("$python" -B /common/rxe_ops.py -d rxe0)
  else
    ours+=("$3") theirs+=("$3" -d rxe0)
  fi
  ours+=("$option" "${gid_here[$family]}" -p "$port" "${@:4}")
  theirs+=("$option" "${gid_there[$family]}" -p "$port" "${@:4}")
  if [ "$server" = ours ]; then
    first=("${ours[@]}") second=("${theirs[@]}")
    to=$HOST_IP our_side=server rxe_side=client
  else
    first=("${theirs[@]}") second=("${ours[@]}")
    to=$PEER_IP prefix_server=("${there[@]}")
  fi
  [ "$3" != ops ] || first+=(serve)
  start server "${first[@]}"
  if ! "${prefix_server[@]}" timeout "$limit" bash -c "$listens" - "$port" || ! is_running server; then
    stop server
    flunk "$what: the server does not listen" "$work/server.out" "$work/server.err"
    return 1
  fi
  if [ "$3" = ops ]; then second+=(drive); fi
  start client "${second[@]}" "$to"
  deserted='' sent=0
  [ "$lossy" = 0 ] || let_go
  finish client || status_client=$?
  [ "$status_client" = 0 ] || sleep 1
  if [ "$status_client" != 0 ] && is_running server; then kill "${pid_of[server]}" || true; fi
  finish server || status_server=$?
  [ "$3" != ops ] || return 0  # its lines say what failed
  our_status=status_$our_side
  if still_asks $our_side $rxe_side "${!our_status}"; then
    printf 'differs  %s: ours was through, rxe not: it still sent %d packets in 5 s and was ended\n' \
      "$what" "$sent"
    return 1
  fi
  [ -n "$deserted" ] || ! left_early "$status_client" "$status_server" || return 0
  if [ "$status_client" != 0 ] || [ "$status_server" != 0 ]; then
    flunk "$what: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
    return 1
  fi
}

# told SERVER NAME OPTION...: what a line of results begins with.
told() {
  printf '%s serve%s, MTU %s%s, IPv%s: %s' "$1" "$([ "$1" = ours ] || echo s)" "$mtu" "$settings" \
    "$family" "${*:2}"
}

# pingpong SERVER PROGRAM ITERATIONS [OPTION...]: with the received bytes validated.
pingpong() {
  local what
  what=$(told "$1" "$2 ${*:4}")
  exchange "$1" "$what" "$2" -c -n "$3" "${@:4}" || return 0
  judge_pingpong "$what" "$3"
}

# perftest SERVER PROGRAM SIZE ITERATIONS [OPTION...]. It gives a queue pair as many READs and
# atomics as the peer takes, so it has to be told what both can (-o). An emulated machine does not
# always acknowledge within perftest's 67 ms (-u); where packets are lost, that is what takes time.
perftest() {
  local what size=(-s "$3") result total=$4
  case $2 in
    ib_atomic_*) size=(-o 16) ;;  # an atomic has no other size than eight
    ib_read_*) size+=(-o 16) ;;
  esac
  [ -n "$settings" ] || [[ " $* " =~ \ -c\ U[CD]\  ]] || size+=(-u 18)
  [[ " $* " =~ \ -q\ ([0-9]+) ]] && total=$((BASH_REMATCH[1] * total))  # of all queue pairs
  what=$(told "$1" "$2, $3 bytes ${*:5}")
  exchange "$1" "$what" "$2" -F -n "$4" "${size[@]}" "${@:5}" || return 0
  result=$(grep -E "^ *$3 +$total +[0-9]" "$work/client.out" | tr -s ' \t' ' ' || true)
  if [ -z "$result" ]; then
    flunk "$what: no line of results" "$work/client.out" "$work/client.err"
  else
    pass "$what:$result"
  fi
}

# operations SERVER [OPTION...]: rxe_ops.py; what failed and what differs has a line of its own.
operations() {
  local what line server=$1 good=0 all
  what=$(told "$1" "")
  [ "$server" = ours ] || set -- "$@" --peer rxe
  exchange "$server" "$what operations" ops -m "$path_mtu" "${@:2}" || return 0
  while read -r line; do
    case $line in
      'ok '*) good=$((good + 1)) ;;
      'FAIL '*) flunk "$what${line#FAIL  }" ;;
      'differs '*) printf 'differs  %s%s\n' "$what" "${line#differs  }" ;;
    esac
  done <"$work/client.out"
  all=$(grep -cE '^(ok|FAIL) ' "$work/client.out" || true)
  what="$what$good of $all operations and refusals as they should be"
  if [ "$good" = "$all" ] && [ "$(tail -n 1 "$work/client.out")" = through ]; then
    pass "$what"
  else
    flunk "$what, or not through" "$work/client.out" "$work/client.err" "$work/server.err"
  fi
}

all_programs() {
  local server=$1 program kind
  pingpong "$server" ibv_rc_pingpong 100 -m "$path_mtu" -s 4096 -e
  pingpong "$server" ibv_rc_pingpong 30 -m "$path_mtu" -s 65536
  pingpong "$server" ibv_uc_pingpong 100 -m "$path_mtu" -s 4096
  pingpong "$server" ibv_ud_pingpong 100 -s "$path_mtu"
  pingpong "$server" ibv_srq_pingpong 100 -m "$path_mtu" -s 4096
  for program in ib_send ib_write ib_read; do
    perftest "$server" "${program}_bw" 65536 20
    perftest "$server" "${program}_lat" 64 100
  done
  perftest "$server" ib_atomic_bw 8 100 -A FETCH_AND_ADD
  perftest "$server" ib_atomic_lat 8 100 -A CMP_AND_SWAP
  [ "$full" = 1 ] || return 0
  pingpong "$server" ibv_rc_pingpong 100 -m "$path_mtu" -s 1
  pingpong "$server" ibv_uc_pingpong 100 -m "$path_mtu" -s 64 -e
  pingpong "$server" ibv_ud_pingpong 100 -s 64 -e
  pingpong "$server" ibv_srq_pingpong 100 -m "$path_mtu" -s 64 -e
  for program in ib_send ib_write ib_read; do
    perftest "$server" "${program}_bw" 64 100
    perftest "$server" "${program}_lat" 65536 20
  done
  for kind in FETCH_AND_ADD CMP_AND_SWAP; do
    perftest "$server" ib_atomic_lat 8 100 -A "$kind"
  done
  for program in ib_send_lat ib_write_lat; do
    perftest "$server" "$program" 4096 50 -c UC
  done
  perftest "$server" ib_send_lat "$path_mtu" 50 -c UD
  perftest "$server" ib_send_bw 4096 50 -q 4
  perftest "$server" ib_send_bw 4096 50 -b
}

# by_cm SERVER PROGRAM PORT [OPTION...]: a program that connects through rdma_cm, whose server takes
# its address with `-b` and whose client with `-s`, or `-s -a` and `-c -a` (rping). With 0 both ends
# have counted and compared what they are made to.
by_cm() {
  local server=$1 program=$2 cm_port=$3 what ours theirs to prefix=() listening status_server=0
  local status_client=0 as_server=(-b) as_client=(-s) first=() second=()
  what=$(told "$server" "$program ${*:4}, connected by rdma_cm")
  ours=("$softhca" run -- "$program") theirs=("${there[@]}" timeout -k 5 "$limit" "$program")
  # shellcheck disable=SC2016  # scripts of their own
  if [ "$server" = ours ]; then
    first=("${ours[@]}") second=("${theirs[@]}")
    to=$([ "$family" = 4 ] && echo "$HOST_IP" || echo "$HOST_IP6")
    listening='until grep -q "softhca/1/service/.*$(printf %04x "$1")/" /proc/net/unix; do sleep 0.1; done'
  else
    first=("${theirs[@]}") second=("${ours[@]}")
    to=$([ "$family" = 4 ] && echo "$PEER_IP" || echo "$PEER_IP6") prefix=("${there[@]}")
    listening='until rdma resource show cm_id | grep -q "LISTEN.*:$1\b"; do sleep 0.1; done'
  fi
  [ "$program" != rping ] || as_server=(-s -a) as_client=(-c -a)
  start server "${first[@]}" "${as_server[@]}" "$to" "${@:4}"
  if ! "${prefix[@]}" timeout "$limit" bash -c "$listening" - "$cm_port" || ! is_running server; then
    stop server
    flunk "$what: the server does not listen" "$work/server.out" "$work/server.err"
    return 0
  fi
  start client "${second[@]}" "${as_client[@]}" "$to" "${@:4}"
  finish client || status_client=$?
  if [ "$status_client" != 0 ] && is_running server; then kill "${pid_of[server]}" || true; fi
  finish server || status_server=$?
  if [ "$status_client" != 0 ] || [ "$status_server" != 0 ] ||
    grep -qiE 'error|fail|invalid|mismatch' "$work/client.out" "$work/server.out"; then
    flunk "$what: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
  else
    pass "$what"
  fi
}

# connections SERVER: the port of udaddy is its own.
connections() {
  by_cm "$1" rping 7174 -p 7174 -C 20 -V -S 4000
  by_cm "$1" ucmatose 7175 -p 7175 -c 4 -C 10 -S 1000
  by_cm "$1" udaddy 7174 -c 2 -C 10 -S 500
  by_cm "$1" rstream 7176 -p 7176 -C 10 -S 65536 -T v
  family=6
  by_cm "$1" rping 7177 -p 7177 -C 20 -V -S 100
  family=4
}

over_ipv6() {
  family=6
  operations "$1" --scenes send,write,read,atomics,unreliable,datagrams
  [ "$full" != 1 ] || pingpong "$1" ibv_rc_pingpong 50 -m "$path_mtu" -s 4097
}

# lose PERCENT: of the RoCEv2 packets at the rxe machine's interface, both ways; 0 ends it.
lose() {
  local script='tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress'
  if [ "$1" != 0 ]; then
    script="set -e; modprobe ifb numifbs=1; ip link set ifb0 up
      roce='u32 match ip protocol 17 0xff match ip dport 4791 0xffff'
      tc qdisc add dev eth0 root handle 1: prio bands 4
      tc qdisc add dev eth0 parent 1:4 netem loss $1%
      tc filter add dev eth0 parent 1: protocol ip \$roce flowid 1:4
      tc qdisc add dev eth0 ingress
      tc filter add dev eth0 ingress protocol ip \$roce action mirred egress redirect dev ifb0
      tc qdisc replace dev ifb0 root netem loss $1%"
  fi
  "${there[@]}" bash -c "$script"
}

# dropped: what netem has taken, to the host and from it.
dropped() {
  "${there[@]}" bash -c 'tc -s qdisc show dev eth0; tc -s qdisc show dev ifb0' |
    awk '/^qdisc/ { netem = / netem / } netem && /dropped/ { sub(",", "", $7); print $7 }' |
    paste -sd' '
}

with_loss() {
  local server program
  lose 10 || {
    flunk "no loss: tc, sch_netem or ifb is missing on the rxe machine"
    return 0
  }
  lossy=1 settings=', 10 % lost'
  for server in rxe ours; do
    pingpong "$server" ibv_rc_pingpong 50 -m "$path_mtu" -s 4096
    for program in ib_write_bw ib_read_bw ib_send_bw; do
      perftest "$server" "$program" 16384 20
    done
    operations "$server" --scenes send,write,read,atomics,pipeline
  done
  printf 'seen  packets lost, to the host and from it: %s\n' "$(dropped)"
  lossy=0 settings=
  lose 0
}

# wants PART: SOFTHCA_RXE_PARTS names some of them, if not all are to be done.
wants() {
  [[ " ${SOFTHCA_RXE_PARTS:-operations programs connections ipv6 loss} " == *" $1 "* ]]
}

# inside MTU: beside the machine, which runs rxe_agent.sh.
inside() {
  local server
  mtu=$1
  path_mtu=$([ "$mtu" -gt 4100 ] && echo 4096 || echo 1024)
  limit=300  # an interpreted machine that shares its processors is slow
  export SOFTHCA_NETDEV=$HOST_IF
  await 120 test -e "$COMMON/gids"
  cp "$apps/rxe_ops.py" "$COMMON/"
  printf 'seen  %s\n' "$(paste -sd' ' "$COMMON/machine")"
  { read -r "gid_there[4]" && read -r "gid_there[6]"; } <"$COMMON/gids"
  gid_here[4]=$(our_gid "::ffff:$HOST_IP")
  gid_here[6]=$(our_gid "$HOST_IP6")
  for server in rxe ours; do
    family=4
    ! wants operations || operations "$server"
    ! wants programs || all_programs "$server"
    ! wants connections || connections "$server"
    ! wants ipv6 || over_ipv6 "$server"
  done
  family=4
  ! wants loss || with_loss
  echo 'inside: through'
  conclude
}

if [ "${1:-}" = --inside ]; then inside "$2"; else outside; fi
