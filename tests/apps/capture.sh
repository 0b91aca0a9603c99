#!/usr/bin/env bash
# What goes over a cable is RoCEv2: ibv_rc_pingpong between two network namespaces, captured by
# tcpdump and by the product, judged by tshark and by an ICRC written apart from the product's.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ibv_rc_pingpong tshark tcpdump python3 ip nsenter unshare ss timeout
need_root_in_namespace "$@"

# tcpdump gives up root by itself, which a user namespace does not let it.
read -r _ _ users </proc/self/uid_map
with_tcpdump=$([ "$users" = 4294967295 ] && echo yes || echo no)
[ "$with_tcpdump" = yes ] || echo "in a user namespace: without tcpdump"
iterations=$([ "$full" = 1 ] && echo 500 || echo 50)

# Bursts are cut into packets before the capture sees them.
two_hosts $((limit * 4)) 10.77.0 gso_max_segs 1

judge() {
  local what=$1 file=$2 frames malformed verdict
  frames=$(tshark -r "$file" -Y infiniband.bth 2>/dev/null | wc -l)
  # tshark takes a SEND without payload for malformed; there is none here.
  malformed=$(tshark -r "$file" -Y _ws.malformed 2>/dev/null | wc -l)
  if [ "$frames" -lt $((2 * iterations)) ]; then
    flunk "$what: tshark finds $frames RoCE packets, expected $((2 * iterations)) at least"
  elif [ "$malformed" != 0 ]; then
    flunk "$what: tshark calls $malformed packets malformed"
  else
    pass "$what: $frames packets, none malformed"
  fi
  if verdict=$(python3 -B "$apps/check_icrc.py" "$file" 2>&1); then
    pass "$what: ICRC of $verdict"
  else
    flunk "$what: ICRC: $verdict"
  fi
}

# One packet, many packets, and a last packet with padding.
for size in 64 4096 3001; do
  if [ "$with_tcpdump" = yes ]; then
    start tcpdump "${at_server[@]}" tcpdump -Z root --immediate-mode -i cable -B 16384 -U -n \
      -w "$work/cable.pcap" 'udp port 4791'
    await 10 grep -q 'listening on' "$work/tcpdump.err" || flunk "tcpdump" "$work/tcpdump.err"
  fi
  command=("$softhca" run --pcap)
  program=(ibv_rc_pingpong -g 0 -c -s "$size" -m 1024 -n "$iterations")
  new_port
  start server "${at_server[@]}" "${command[@]}" "$work/server.pcap" -- "${program[@]}" -p "$port"
  await 15 listening_or_gone server "$port" "${at_server[@]}" || true
  start client "${at_client[@]}" "${command[@]}" "$work/client.pcap" -- "${program[@]}" \
    -p "$port" "$server_address"
  status=0
  finish client || status=$?
  [ "$status" = 0 ] || kill "${pid_of[server]}" 2>/dev/null || true
  finish server || status=$?
  if [ "$with_tcpdump" = yes ]; then
    sleep 0.5  # what tcpdump has not read yet
    stop tcpdump INT
  fi
  if [ "$status" != 0 ] || grep -q 'invalid data' "$work/server.out" "$work/client.out"; then
    flunk "size $size: pingpong" "$work/client.out" "$work/client.err" "$work/server.err"
    continue
  fi
  [ "$with_tcpdump" = no ] || judge "size $size, tcpdump" "$work/cable.pcap"
  judge "size $size, --pcap of the client" "$work/client.pcap"
  judge "size $size, --pcap of the server" "$work/server.pcap"
  rm -f "$work"/*.pcap
done
conclude
