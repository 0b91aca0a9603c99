#!/usr/bin/env python3
"""Has tshark take a capture of RoCEv2 packets apart, and compares what it finds in each with the
line that the product prints of it. Usage: judge_packets.py FILE.pcap PACKET_TEXT

PACKET_TEXT is packet_text_main. Exit status 1 if a line differs, if tshark calls a packet malformed
or has something to say of it, if an opcode that the product sends is missing, or a kind of answer.

What tshark 4.0 cannot take apart is shown to it again as what has the same layout: of XRC it knows
the opcodes but not the headers, which are those of RC behind an XRCETH of four bytes in requests; an
atomic WRITE (opcode 29, of 2022) is laid out as a WRITE ONLY.
"""
import re
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from check_icrc import ROCE_PORT, roce_packets

NOT_SENT = {"RC_FLUSH", "CNP"}
ANSWERS = {"credit", "RNR NAK", "NAK 0 (sequence error)", "NAK 1 (invalid request)",
           "NAK 2 (remote access)", "NAK 3 (remote operational)"}
SERVICES = {"Reliable Connection (RC)": "RC", "Unreliable Connection (UC)": "UC",
            "Unreliable Datagram (UD)": "UD", "Extended Reliable Connection (XRC)": "XRC"}
# tshark's words, as ours.
WORDS = [("RDMA ", ""), (" with Immediate", "_IMM"), (" with Invalidate", "_INV"),
         ("response", "RESP"), ("ATOMIC Acknowledge", "ATOMIC_ACK"), ("Acknowledge", "ACK"),
         ("CmpSwap", "CMP_SWAP"), ("FetchAdd", "FETCH_ADD"), (" ", "_")]
NAKS = ["sequence error", "invalid request", "remote access", "remote operational"]
HEADERS = ("bth", "deth", "reth", "atomiceth", "aeth", "atomicacketh", "immdt", "ieth")
XRC, ATOMIC_WRITE, WRITE_ONLY = 5, 29, 10
XRC_ANSWERS = range(0x0d, 0x13)  # these carry no XRCETH
# Guesses the contents of payloads, and stumbles where there is none.
GUESSES = ["--disable-protocol", "rpcordma"]


def known_layout(payload):
    """The packet as one whose layout tshark knows, and the number of a shared queue, if it has one."""
    service, operation = payload[0] >> 5, payload[0] & 31
    if service == 0 and operation == ATOMIC_WRITE:
        return bytes([WRITE_ONLY]) + payload[1:], None
    if service != XRC:
        return payload, None
    if operation in XRC_ANSWERS:
        return bytes([operation]) + payload[1:], None
    srqn = int.from_bytes(payload[12:16], "big")
    return bytes([operation]) + payload[1:12] + payload[16:], srqn


def write_capture(file, payloads):
    """Raw IPv4 (link type 228); the addresses do not matter."""
    file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 228))
    for payload in payloads:
        ip = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + len(payload), 0, 0, 64, 17, 0, 1, 2)
        frame = ip + struct.pack("!HHHH", 0xc000, ROCE_PORT, 8 + len(payload), 0) + payload
        file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    file.flush()


def dissected(name):
    """tshark's fields of every RoCEv2 packet: name -> (what it shows, value, size)."""
    text = subprocess.run(["tshark", *GUESSES, "-r", name, "-T", "pdml"], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120).stdout
    for packet in ElementTree.fromstring(text):
        protocols = {p.get("name"): p for p in packet}
        if "infiniband" not in protocols:
            continue
        fields = {"size": ("", "", int(protocols["infiniband"].get("size")))}
        for field in protocols["infiniband"].iter("field"):
            entry = (field.get("showname"), field.get("value"), int(field.get("size")))
            fields.setdefault(field.get("name").removeprefix("infiniband."), entry)
        fields["remarks"] = ["%s %s" % (f.get("name"), f.get("show")) for f in packet.iter()
                             if (f.get("name") or "").startswith(("_ws.malformed", "_ws.expert"))]
        yield fields


def name_of(fields):
    """'Opcode: Reliable Connection (RC) - SEND Only (4)' as RC_SEND_ONLY; nothing if unknown."""
    found = re.fullmatch(r"Opcode: (.*\)) - (.*) \(\d+\)", fields["bth.opcode"][0])
    if not found:
        return None
    operation = found.group(2)
    for theirs, ours in WORDS:
        operation = operation.replace(theirs, ours)
    return SERVICES[found.group(1)] + "_" + operation.upper()


def syndrome_text(fields):
    value = int(fields["aeth.syndrome"][1], 16)
    kind, low = value >> 5, value & 31
    if "aeth.syndrome.error_code" in fields:
        return "NAK %d (%s)" % (low, NAKS[low]) if kind == 3 else "?"
    if "aeth.syndrome.timer" in fields:
        return "RNR NAK timer %d" % low if kind == 1 else "?"
    return "credit %d" % low if kind == 0 else "?"


def line_of(fields, name, srqn):
    """What the product should print of a packet that tshark has taken apart like this."""
    def number(field):
        return int(fields[field][1], 16)

    parts = [name, "qp %#08x psn %#08x" % (number("bth.destqp"), number("bth.psn"))]
    parts += ["A"] if fields["bth.a"][0].endswith("True") else []
    parts += ["SE"] if fields["bth.se"][0].endswith("True") else []
    if "deth" in fields:
        parts.append("qkey %#x src_qp %#08x" % (number("deth.q_key"), number("deth.srcqp")))
    if srqn is not None:
        parts.append("srq %#08x" % srqn)
    if "reth.va" in fields:
        parts.append("va %#x rkey %#x" % (number("reth.va"), number("reth.r_key")))
    if "reth.dmalen" in fields:
        parts.append("len %d" % number("reth.dmalen"))
    if "atomiceth.swapdt" in fields:
        parts.append("swap/add %#x cmp %#x" % (number("atomiceth.swapdt"),
                                               number("atomiceth.cmpdt")))
    if "aeth" in fields:
        parts.append("%s msn %d" % (syndrome_text(fields), number("aeth.msn")))
    if "atomicacketh.origremdt" in fields:
        parts.append("orig %#x" % number("atomicacketh.origremdt"))
    if "immdt" in fields:
        parts.append("imm %#x" % number("immdt"))
    if "ieth" in fields:
        parts.append("inv %#x" % number("ieth"))
    pad = int(fields["bth.padcnt"][0].rsplit(" ", 1)[1])
    payload = fields["size"][2] - 4 - pad - sum(fields[h][2] for h in HEADERS if h in fields)
    if not re.search("READ_REQUEST|_ACK$|CMP_SWAP|FETCH_ADD", name):
        parts.append("data %d" % payload)
    elif payload != 0:
        parts.append("data %d, which should not be" % payload)
    return " ".join(parts + (["pad %d" % pad] if pad else []))


def main(capture, packet_text):
    payloads = [udp[8:] for _, _, _, udp, _ in roce_packets(capture)]
    lines = subprocess.run([packet_text], input="".join(p.hex() + "\n" for p in payloads),
                           check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    lines = lines.splitlines()
    names = subprocess.run([packet_text, "--names"], check=True, stdout=subprocess.PIPE, text=True,
                           timeout=60).stdout.split()
    as_sent = list(dissected(capture))
    layouts = [known_layout(p) for p in payloads]
    with tempfile.NamedTemporaryFile(suffix=".pcap") as twin:
        write_capture(twin, [layout for layout, _ in layouts])
        as_known = list(dissected(twin.name))
    wrong = []
    if not payloads or not len(payloads) == len(lines) == len(as_sent) == len(as_known):
        wrong.append("%d packets, %d lines, %d and %d that tshark finds" %
                     (len(payloads), len(lines), len(as_sent), len(as_known)))
    seen, unnamed = {}, set()
    for at, (ours, sent, known) in enumerate(zip(lines, as_sent, as_known), 1):
        name = ours.split(" ", 1)[0]
        seen[name] = seen.get(name, 0) + 1
        if name_of(sent) is None:
            unnamed.add(name)
        theirs = line_of(known, name_of(sent) or name, layouts[at - 1][1])
        if theirs != ours:
            wrong.append("packet %d\n  ours   %s\n  tshark %s" % (at, ours, theirs))
        for remark in sent["remarks"] + known["remarks"]:
            wrong.append("packet %d: %s; %s" % (at, ours, remark))
    wrong += ["no packet is a %s" % n for n in names if n not in seen and n not in NOT_SENT]
    wrong += ["%s was sent" % n for n in NOT_SENT if n in seen]
    wrong += ["no answer is a %s" % a for a in sorted(ANSWERS) if not any(a in x for x in lines)]
    if unnamed - {"RC_ATOMIC_WRITE"}:
        wrong.append("tshark has no name for %s" % ", ".join(sorted(unnamed)))
    for text in wrong[:20]:
        print(text, file=sys.stderr)
    print("%d packets of %d opcodes, %d remarks" % (len(payloads), len(seen), len(wrong)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
