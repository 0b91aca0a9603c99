#!/usr/bin/env bash
# Stock programs that connect by librdmacm, on two hosts: two network namespaces that a cable joins,
# over IPv4 and IPv6.
# shellcheck source=rdmacm_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/rdmacm_lib.sh"
need_product
need_rdmacm
need_programs nsenter
need_root_in_namespace "$@"

two_hosts $((limit * 20)) 10.77.0
"${at_server[@]}" ip address add fd77::1/64 dev cable nodad
"${at_client[@]}" ip address add fd77::2/64 dev cable nodad
count=$([ "$full" = 1 ] && echo 500 || echo 20)

for address in 10.77.0.1 fd77::1; do
  every=0.0.0.0
  members=239.77.0.1
  bound=(10.77.0.1 10.77.0.2)
  if [ "$address" = fd77::1 ]; then
    every=::0
    members=ff15::77
    bound=(fd77::1 fd77::2)
  fi
  ping "$count" "$address"
  ping "$count" "$every" -q -S 65000
  pings_at_once 4
  transfers ucmatose "$count" "$address" -c 8 -S 5000
  transfers ucmatose "$count" "$every" -m -t 32
  transfers udaddy "$count" "$address" -c 4 -S 1000
  group -m "$members"
done
address=10.77.0.1
messages rdma_server rdma_client
messages rdma_xserver rdma_xclient
messages rdma_xserver rdma_xclient -c x
times 100
tests_of_perftest
tests_of_qperf
tests_of_fio

if setpriv --reuid 65533 --regid 65533 --clear-groups true 2>/dev/null; then
  as_user 65534
  ping "$count" 10.77.0.1
  transfers ucmatose "$count" 0.0.0.0
  transfers udaddy "$count" 0.0.0.0
  bandwidth ib_write_bw -s 4096 -n 100
fi
conclude
