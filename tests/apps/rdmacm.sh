#!/usr/bin/env bash
# Stock programs that connect by librdmacm, server and client on one host: over loopback, at a real
# address of the host and for every address, over IPv4 and IPv6, as root and as an ordinary user.
# shellcheck source=rdmacm_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/rdmacm_lib.sh"
need_product
need_rdmacm
in_own_network "$@"

count=$([ "$full" = 1 ] && echo 500 || echo 20)

# all_programs ADDRESS: each once.
all_programs() {
  address=$1
  ping "$count" "$address"
  ping "$count" "$address" -q -S 4000
  transfers ucmatose "$count" "$address" -c 4
  transfers udaddy "$count" "$address" -c 4
  messages rdma_server rdma_client
  messages rdma_xserver rdma_xclient
  messages rdma_xserver rdma_xclient -c x
  times 50
}

all_programs 127.0.0.1
ping "$count" 0.0.0.0 -S 65000
ping "$count" ::0
address=::1
ping "$count" ::1
transfers ucmatose "$count" ::1 -S 5000
address=127.0.0.1
pings_at_once 4
pings_at_once 4 -q
transfers ucmatose "$count" "$address" -f ip -t 32 -a 14
transfers ucmatose "$count" "$address" -m
transfers ucmatose "$count" "$address" -P ib
transfers udaddy "$count" "$address" -t 32
tests_of_perftest
tests_of_qperf
tests_of_fio

# A real address: the device is that of the interface.
export SOFTHCA_NETDEV=cable
all_programs 10.77.0.1
ping "$count" 0.0.0.0
ping "$count" 10.77.0.1 -I 10.77.0.1
transfers udaddy "$count" "$address" -p 0x2
address=fd77::1
ping "$count" fd77::1
ping "$count" ::0
transfers udaddy "$count" fd77::1
bound=(10.77.0.1 10.77.0.1)
group -m 239.77.0.1
bound=(fd77::1 fd77::1)
group -m ff15::77

# As a user without privileges, where the product can be read by all.
if setpriv --reuid 65533 --regid 65533 --clear-groups true 2>/dev/null; then
  as_user 65534
  all_programs 10.77.0.1
  pings_at_once 3
  # Two users: the server is the first's.
  client_on=(setpriv --reuid 65533 --regid 65533 --clear-groups "$softhca" run --)
  address=10.77.0.1
  ping "$count" 10.77.0.1
  transfers udaddy "$count" 10.77.0.1
fi
conclude
