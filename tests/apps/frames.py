#!/usr/bin/env python3
"""Ethernet frames that are not the device's: made, sent and received by the kernel's own means.

Usage: frames.py udp TO FROM PORT TEXT [VLAN]   prints a frame, in hexadecimal
       frames.py send INTERFACE FRAME...
       frames.py receive INTERFACE COUNT FROM   prints "ready", then so many frames of that sender

Addresses are twelve digits. The frames made are UDP from 192.0.2.1 to 192.0.2.2.
"""
import socket
import struct
import sys

ALL_TYPES = 3
PATIENCE_S = 20


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def udp_frame(to, sender, port, text, vlan=None):
    addresses = bytes([192, 0, 2, 1, 192, 0, 2, 2])
    length = 8 + len(text)
    pseudo = addresses + struct.pack("!BBH", 0, 17, length)
    udp = struct.pack("!HHHH", 4000, port, length, 0) + text
    udp = udp[:6] + struct.pack("!H", checksum(pseudo + udp) or 0xffff) + udp[8:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 1, 0, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    tag = struct.pack("!HH", 0x8100, vlan) if vlan is not None else b""
    return to + sender + tag + struct.pack("!H", 0x0800) + ip + udp


def packet_socket(interface):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_TYPES))
    packets.bind((interface, ALL_TYPES))
    packets.settimeout(PATIENCE_S)
    return packets


def receive(interface, count, sender):
    packets = packet_socket(interface)
    print("ready", flush=True)
    while count > 0:
        frame = packets.recv(65536)
        if frame[6:12] == sender:
            print(frame.hex(), flush=True)
            count -= 1


def main(command, *rest):
    if command == "udp":
        to, sender = bytes.fromhex(rest[0]), bytes.fromhex(rest[1])
        vlan = int(rest[4]) if len(rest) > 4 else None
        print(udp_frame(to, sender, int(rest[2]), rest[3].encode(), vlan).hex())
    elif command == "send":
        packets = packet_socket(rest[0])
        for frame in rest[1:]:
            packets.send(bytes.fromhex(frame))
    elif command == "receive":
        receive(rest[0], int(rest[1]), bytes.fromhex(rest[2]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
