#!/usr/bin/env python3
"""Packets with ECN's mark (CE), from a plain UDP socket, as a switch would deliver them.

Usage: marked.py send ADDRESS QPN COUNT   from ADDRESS to a queue pair of a device there
       marked.py classes FILE.pcap        prints, for each pair of opcode and traffic class, how many

The packets change nothing: they are atomic acknowledgements that say NAK, which nobody waits for.
"""
import collections
import socket
import struct
import sys

import check_icrc

MARKED = 3
ATOMIC_ACK, NAK = 0x12, 0x60
HOPS = 64


def packet(address, port, qpn):
    heads = struct.pack("!BBHII", ATOMIC_ACK, 0, 0xffff, qpn, 0)
    heads += struct.pack("!IQ", NAK << 24, 0)
    length = 8 + len(heads) + 4
    # As the kernel sends from a socket that does not fragment: identification 0, DF.
    ip = struct.pack("!BBHHHBBH", 0x45, MARKED, 20 + length, 0, 0x4000, HOPS, 17, 0)
    ip += socket.inet_aton(address) * 2
    udp = struct.pack("!HHHH", port, check_icrc.ROCE_PORT, length, 0) + heads + bytes(4)
    header, datagram = check_icrc.masked_headers(ip + udp)
    return heads + check_icrc.icrc(header, datagram)


def send(address, qpn, count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: IP_PMTUDISC_DO
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, MARKED)
        sender.bind((address, 0))
        one = packet(address, sender.getsockname()[1], qpn)
        for _ in range(count):
            sender.sendto(one, (address, check_icrc.ROCE_PORT))


def classes(name):
    seen = collections.Counter((udp[8], ip[1]) for _, ip, _, udp, _ in
                               check_icrc.roce_packets(name))
    for (opcode, traffic_class), count in sorted(seen.items()):
        print(f"{opcode:#04x} {traffic_class:#04x} {count}")


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif len(sys.argv) == 3 and sys.argv[1] == "classes":
        classes(sys.argv[2])
    else:
        raise SystemExit(__doc__)
