#!/usr/bin/env python3
"""Checks the ICRC of every RoCEv2 packet of a capture. Written apart from the product's code.

Usage: check_icrc.py FILE.pcap | check_icrc.py --self-test
Prints "N packets, W wrong"; exit status 1 if W > 0 or N = 0.

The CRC-32 of zlib over: eight bytes of ones; the IP header with type of service, time to live
and checksum as ones (IPv6: traffic class, flow label and hop limit); the UDP header with the
checksum as ones; the BTH with its byte 4 as ones; the rest. Stored least significant byte first.
"""
import struct
import sys
import zlib

ROCE_PORT = 4791
IPV4, IPV6 = 0x0800, 0x86dd


def records(blob):
    """(link type, captured bytes, original length) of every record of a pcap file."""
    for order in "<", ">":
        magic, = struct.unpack_from(order + "I", blob)
        if magic in (0xa1b2c3d4, 0xa1b23c4d):
            break
    else:
        raise SystemExit("not a pcap file")
    link_type = struct.unpack_from(order + "I", blob, 20)[0] & 0xffff
    offset = 24
    while offset + 16 <= len(blob):
        captured, original = struct.unpack_from(order + "II", blob, offset + 8)
        yield link_type, blob[offset + 16:offset + 16 + captured], original
        offset += 16 + captured


def ip_packet(link_type, frame):
    """The IP packet in a frame, or nothing."""
    if link_type == 1:  # Ethernet
        ether_type, payload = int.from_bytes(frame[12:14], "big"), frame[14:]
    elif link_type == 113:  # Linux cooked
        ether_type, payload = int.from_bytes(frame[14:16], "big"), frame[16:]
    elif link_type == 276:  # Linux cooked, version 2
        ether_type, payload = int.from_bytes(frame[0:2], "big"), frame[20:]
    elif link_type in (101, 228, 229):  # IP and nothing else
        return frame
    else:
        raise SystemExit(f"link type {link_type} is not known here")
    return payload if ether_type in (IPV4, IPV6) else b""


def masked_headers(ip):
    """(IP header with its mutable fields as ones, UDP datagram), or nothing if it is not UDP."""
    version = ip[0] >> 4 if ip else 0
    if version == 4 and ip[9] == 17 and not int.from_bytes(ip[6:8], "big") & 0x3fff:
        size, total = (ip[0] & 15) * 4, int.from_bytes(ip[2:4], "big")
        header = bytearray(ip[:size])
        header[1] = header[8] = 0xff
        header[10:12] = b"\xff\xff"
        return bytes(header), ip[size:total]
    if version == 6 and ip[6] == 17:
        header = bytearray(ip[:40])
        header[0] |= 0x0f
        header[1:4] = b"\xff\xff\xff"
        header[7] = 0xff
        return bytes(header), ip[40:40 + int.from_bytes(ip[4:6], "big")]
    return b"", b""


def icrc(header, udp):
    """The four ICRC bytes that belong at the end of a RoCEv2 datagram."""
    covered = b"\xff" * 8 + header + udp[:6] + b"\xff\xff" + udp[8:12] + b"\xff" + udp[13:-4]
    return struct.pack("<I", zlib.crc32(covered))


def roce_packets(name):
    """(number of the record, IP packet, masked IP header, UDP datagram, whether it is cut short) of
    every RoCEv2 packet of a capture."""
    with open(name, "rb") as file:
        blob = file.read()
    for number, (link_type, frame, original) in enumerate(records(blob), 1):
        ip = ip_packet(link_type, frame)
        header, udp = masked_headers(ip)
        if len(udp) >= 24 and int.from_bytes(udp[2:4], "big") == ROCE_PORT:
            is_cut = len(frame) < original or len(udp) != int.from_bytes(udp[4:6], "big")
            yield number, ip, header, udp, is_cut


def main(name):
    count = wrong = 0
    for number, _, header, udp, is_cut in roce_packets(name):
        count += 1
        expected = icrc(header, udp)
        if is_cut:
            wrong += 1
            print(f"record {number}: cut short", file=sys.stderr)
        elif udp[-4:] != expected:
            wrong += 1
            print(f"record {number}: {udp[-4:].hex()}, should be {expected.hex()}", file=sys.stderr)
    print(f"{count} packets, {wrong} wrong")
    return 1 if wrong or not count else 0


def self_test():
    """A packet that Linux 6.1 rxe sent and accepted: an RC SEND_ONLY of 64 bytes."""
    ip = bytes.fromhex("4500006cea1a400040113510c0a84d02c0a84d03")
    udp = (bytes.fromhex("c12112b7005800000400ffff0000001180abc000") + bytes(range(0x21, 0x61))
           + bytes.fromhex("d37671b5"))
    header, datagram = masked_headers(ip + udp)
    assert datagram == udp and icrc(header, datagram) == udp[-4:]
    assert icrc(header, udp[:20] + b"\0" + udp[21:]) != udp[-4:]
    print("check_icrc: agrees with rxe")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        sys.exit(main(sys.argv[1]))
