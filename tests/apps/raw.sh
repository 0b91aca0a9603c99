#!/usr/bin/env bash
# Raw packet queue pairs and the interface: frames of others arrive by a flow rule, ours arrive at
# others; perftest's programs for them; and what is said to those who may not have the interface.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ip nsenter python3 raw_ethernet_bw raw_ethernet_lat ss timeout unshare
need_root_in_namespace "$@"

limit=$((limit * 5)) namespace left
limit=$((limit * 5)) namespace right
at_left=(nsenter -t "$(holder left)" -n)
at_right=(nsenter -t "$(holder right)" -n)
export SOFTHCA_NETDEV=cable
"${at_left[@]}" ip link add cable address 02:00:00:00:00:01 type veth \
  peer name cable address 02:00:00:00:00:02 netns "$(holder right)"
for at in left right; do
  declare -n prefix=at_$at
  "${prefix[@]}" ip link set cable addrgenmode none  # the kernels have nothing to say of their own
  "${prefix[@]}" ip link set cable up
done
"${at_left[@]}" ip address add 10.78.0.1/24 dev cable
"${at_right[@]}" ip address add 10.78.0.2/24 dev cable
left_mac=020000000001 right_mac=020000000002 other_mac=020000000007

frames=(python3 -B "$apps/frames.py")
raw=("$softhca" run -- "$build/tests/apps/raw_main")

# compare WHAT NAME FRAME...: the program NAME has ended well, and got exactly these.
compare() {
  local what=$1 name=$2 status=0
  finish "$name" || status=$?
  if [ "$status" = 0 ] && [ "$(cat "$work/$name.out")" = "$(printf '%s\n' ready "${@:3}")" ]; then
    pass "$what"
  else
    flunk "$what: $name ended with $status" "$work/$name.out" "$work/$name.err"
  fi
}

# arrives WHAT RULE -- FRAME... -- EXPECTED...: frames of a packet socket in the other namespace.
arrives() {
  local what=$1 rule=() sent=()
  shift
  while [ "$1" != -- ]; do rule+=("$1") && shift; done
  shift
  while [ "$1" != -- ]; do sent+=("$1") && shift; done
  shift
  start receiver "${at_right[@]}" "${raw[@]}" receive $# "${rule[@]}"
  await 15 says receiver ready || true
  "${at_left[@]}" "${frames[@]}" send cable "${sent[@]}"
  compare "$what" receiver "$@"
}

udp() { "${frames[@]}" udp "$@"; }
wanted=$(udp $right_mac $left_mac 7000 "for the one with the rule, and long enough for no padding")
tagged=$(udp $right_mac $left_mac 7000 "with a tag that the kernel takes off and we put back" 5)
stranger=$(udp $right_mac $left_mac 7001 "to another port of the same address")
others=$(udp $other_mac $left_mac 7000 "to an address that is not the interface's own")

arrives "exactly what the rule says" $right_mac 7000 -- "$stranger" "$wanted" "$others" "$wanted" \
  -- "$wanted" "$wanted"
arrives "for an address that the interface does not have" $other_mac 7000 -- "$wanted" "$others" \
  -- "$others"
arrives "with its VLAN tag" $right_mac 7000 5 -- "$wanted" "$tagged" -- "$tagged"

start receiver "${at_left[@]}" "${frames[@]}" receive cable 3 $right_mac
await 15 says receiver ready || true
reply=$(udp $left_mac $right_mac 7000 "from a queue pair to the kernel of the other side")
group=$(udp ffffffffffff $right_mac 7000 "to everybody, and long enough for no padding at all")
"${at_right[@]}" "${raw[@]}" send "$reply" "$group" "$reply" >"$work/sender.out"
compare "what a queue pair sends is on the wire" receiver "$reply" "$group" "$reply"

# A user namespace of one's own does not have the network namespace that it is in.
status=0
"${at_right[@]}" unshare -Ur timeout "$limit" "${raw[@]}" send "$reply" "$reply" \
  >"$work/inside.out" 2>"$work/inside.err" || status=$?
if [ "$status" = 0 ] && [ "$(cat "$work/inside.out")" = sent ] &&
  [ "$(grep -c 'frames_stay_inside.*Remedy: .' "$work/inside.err")" = 1 ]; then
  pass "who may not have the interface is told so once"
else
  flunk "without the interface: ended with $status" "$work/inside.out" "$work/inside.err"
fi

# perftest's own two sides; they do not talk but by frames.
perftest_pair() {
  local what="${*:3}" expected=$2 status_client=0 status_server=0
  start server "${at_left[@]}" "$softhca" run -- "$1" --server -B 02:00:00:00:00:01 \
    -E 02:00:00:00:00:02 -F "${@:3}"
  await 15 is_rule_there || true
  start client "${at_right[@]}" "$softhca" run -- "$1" --client -B 02:00:00:00:00:02 \
    -E 02:00:00:00:00:01 -F "${@:3}"
  finish client || status_client=$?
  finish server || status_server=$?
  if [ "$status_client/$status_server" = 0/0 ] &&
    grep -qE "^ *[0-9]+ +[0-9]+ +[0-9.]+ " "$work/$expected.out"; then
    pass "$1 $what: $(grep -E "^ *[0-9]+ +[0-9]+ +[0-9.]+ " "$work/$expected.out")"
  else
    flunk "$1 $what: client ended with $status_client, server with $status_server" \
      "$work/client.out" "$work/client.err" "$work/server.out" "$work/server.err"
  fi
}
# A packet socket that receives everything: the server's rules are there.
is_rule_there() { "${at_left[@]}" grep -q ' 0003 ' /proc/net/packet; }

perftest_pair raw_ethernet_bw server -s 64 -D 3 -f 1
perftest_pair raw_ethernet_bw server -s 1400 -D 3 -f 1 -J 10.78.0.1 -j 10.78.0.2 -K 7000 -k 7000
perftest_pair raw_ethernet_lat client -s 64 -n 200
conclude
