#!/usr/bin/env python3
"""compare.py BUILD [--rounds N] [--only WORD]: stock programs on the device beside plain sockets.

Each round runs every contestant once, one after the other, so that what else happens on the machine
hits all alike. Prints, for each row, the median of the rounds, their range, the ratio to the row
that one would take instead, and the processor time of both ends. Over loopback and, as root, between
two network namespaces (veth, MTU 9000); the programs are perftest's, cmtime of the examples of librdmacm, and bench/raw_net.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

import peers
from programs import LIMIT_S, Failed, output_of, wait_for_line, wait_for_listener

PORT = 18620
CONNECTIONS = 1000
GIB = 1 << 30
HEADER_BYTES = 32  # of a WRITE's packet beside its payload: BTH, RETH, ICRC


class Place:
    """Where two ends are: `ends` are (namespace or None, interface, address)."""

    def __init__(self, name, ends):
        self.name = name
        self.ends = ends

    def command(self, end, command):
        """The command as it is run at that end."""
        namespace = self.ends[end][0]
        return ["ip", "netns", "exec", namespace] + command if namespace else command

    def environment(self, end, memory="ordinary"):
        """What tells a program of ours which interface to use, and where to have its regions."""
        return dict(os.environ, SOFTHCA_NETDEV=self.ends[end][1], SOFTHCA_QUIET="1",
                    SOFTHCA_MEMORY=memory)

    def raw_arguments(self):
        """What raw_net is told."""
        if self.ends[0][0] is None:
            return []
        return [word for namespace, _, address in self.ends for word in (namespace, address)]


LOOPBACK = Place("loopback", [(None, "lo", "127.0.0.1")] * 2)


class Cable:
    """Two namespaces with a veth of MTU 9000 between them, while the `with` lasts."""

    def __init__(self):
        self.names = [f"softhca-bench-{os.getpid()}-{end}" for end in "ab"]
        self.made = []

    def __enter__(self):
        try:
            for name in self.names:
                self.run("ip", "netns", "add", name)
                self.made.append(name)
            self.run("ip", "-n", self.names[0], "link", "add", "wire0", "mtu", "9000", "type", "veth",
                     "peer", "name", "wire1", "mtu", "9000", "netns", self.names[1])
            ends = []
            for i, name in enumerate(self.names):
                address = f"10.77.0.{i + 1}"
                self.run("ip", "-n", name, "link", "set", "lo", "up")
                self.run("ip", "-n", name, "addr", "add", address + "/24", "dev", f"wire{i}")
                self.run("ip", "-n", name, "link", "set", f"wire{i}", "up")
                ends.append((name, f"wire{i}", address))
            for i, name in enumerate(self.names):
                self.wait_for_carrier(name, f"wire{i}")
        except (OSError, subprocess.CalledProcessError) as problem:
            self.__exit__()
            raise Failed(f"no namespaces: {problem}") from problem
        return Place("veth 9000", ends)

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], check=False)

    @staticmethod
    def run(*command):
        """What a command that has to succeed prints."""
        return subprocess.run(command, check=True, capture_output=True, text=True,
                              timeout=LIMIT_S).stdout

    def wait_for_carrier(self, namespace, interface):
        """The kernel notices it some time after both ends are up."""
        until = time.monotonic() + 10
        while "state UP" not in self.run("ip", "-n", namespace, "link", "show", interface):
            if time.monotonic() > until:
                raise Failed(f"{interface} does not come up")
            time.sleep(0.05)


def raw_net(build, mode, size, place=LOOPBACK):
    """A figure of bench/raw_net, and for streams the CPU seconds for each GB of both ends."""
    words = output_of([f"{build}/bench/raw_net", mode, str(size)] + place.raw_arguments()).split()
    return float(words[0]), sum(map(float, words[1:])) if len(words) > 1 else None


def raw_memory(build, mode, size):
    """A figure of bench/raw_memory."""
    return float(output_of([f"{build}/bench/raw_memory", mode, str(size)])), None


def cpu_seconds():
    """Of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def perftest(build, program, size, iterations, column, scale=1.0, mtu=4096, place=LOOPBACK,
             more=(), memory="ordinary"):
    """A column of the table that a perftest client prints, with a server of its own; and, if it is a
    rate, the CPU seconds for each GB of both."""
    command = [f"{build}/softhca", "run", "--", program, "-F", "-s", str(size), "-n", str(iterations),
               "-m", str(mtu), "-p", str(PORT), *more]
    before = cpu_seconds()
    server = subprocess.Popen(place.command(1, command), env=place.environment(1, memory),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_listener(server, PORT)
        client = place.command(0, command + [place.ends[1][2]])
        table = output_of(client, env=place.environment(0, memory))
        server.wait(timeout=LIMIT_S)
    finally:
        server.kill()
        server.wait()
    row = re.search(rf"^ *{size} +{iterations} .*$", table, re.M)
    if row is None:
        raise Failed(f"{program} printed no row for {size} bytes")
    spent = (cpu_seconds() - before) / (size * iterations / 1e9) if scale != 1.0 else None
    return float(row.group().split()[column]) * scale, spent


def cmtime(build, place, steps):
    """Connections per second that cmtime sets up, by the time of these of its steps."""
    command = [f"{build}/softhca", "run", "--", "cmtime", "-c", str(CONNECTIONS), "-p", str(PORT)]
    server = subprocess.Popen(place.command(1, command), env=place.environment(1),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_line(server, "unix", rf"@softhca/1/service/\d+/[0-9a-f]*{PORT:04x}/")
        client = place.command(0, command + ["-s", place.ends[1][2]])
        table = output_of(client, env=place.environment(0))
    finally:
        server.kill()
        server.wait()
    spent = 0.0
    for step in steps:
        row = re.search(rf"^{step} *: *([0-9.]+)", table, re.M)
        if row is None:
            raise Failed(f"cmtime printed no row for {step}")
        spent += float(row.group(1))
    return CONNECTIONS / (spent / 1e3), None


def registration(build, name):
    """Milliseconds of one registration (or lock) of 1 GiB and its undoing, in chain_bench."""
    text = output_of([f"{build}/bench/chain_bench", f"--benchmark_filter=^{name}/{GIB}$",
                      "--benchmark_format=json"])
    run = json.loads(text)["benchmarks"][0]
    if run.get("error_occurred"):
        raise Failed(run.get("error_message", name))
    return run["real_time"] / {"ns": 1e6, "us": 1e3, "ms": 1}[run["time_unit"]], None


def streams(build, place):
    """Rows of messages that go one way."""
    mib = 1048576 / 1e9
    for mtu in (4096, 1024):
        for size, iterations in ((65536, 10000), (1048576, 1000)):
            group = f"{place.name}, {size >> 10} KiB messages, path MTU {mtu}"
            yield (group, "GB/s", "one TCP stream",
                   lambda s=size: raw_net(build, "tcp-stream", s, place))
            yield (group, "GB/s", "raw UDP in bursts",
                   lambda m=mtu: raw_net(build, "udp-stream", m + HEADER_BYTES, place))
            yield (group, "GB/s", "ib_write_bw",
                   lambda s=size, n=iterations, m=mtu: perftest(build, "ib_write_bw", s, n, 3, mib, m,
                                                                place))


def same_host(build):
    """Rows of processes of one host, beside the kernel's calls on another one's memory, memory or a
    ring that both have mapped, and other libraries."""
    raw = {"write": [("the kernel's calls", "write"), ("shared memory", "stores")],
           "atomic": [("the kernel's calls", "atomic"), ("an atomic add in shared memory", "adds")],
           "write-stream": [("the kernel's calls", "write-stream"),
                            ("memcpy into shared memory", "copies")],
           "ring": [("a ring in shared memory", "ring")],
           "ring-stream": [("a ring in shared memory", "ring-stream")]}

    def row(group, unit, mode, size, program, iterations, column, scale=1.0, more=(), others=()):
        group = f"same host, {group}"
        for name, instead in raw.get(mode, [("the kernel's calls", mode)]):
            yield group, unit, name, lambda m=instead: raw_memory(build, m, size)
        for other, call in others:
            yield group, unit, other, call
        for memory, where in (("ordinary", ""), ("frames", ", in frames")):
            yield (group, unit, program + where,
                   lambda m=memory: perftest(build, program, size, iterations, column, scale,
                                             more=more, memory=m))
    mib = 1048576 / 1e9
    yield from row("8 B written and seen, one way", "us", "write", 8, "ib_write_lat", 10000, 4,
                   others=peers.write_latency())
    yield from row("8 B read", "us", "read", 8, "ib_read_lat", 10000, 4)
    yield from row("8 B fetched and added to", "us", "atomic", 8, "ib_atomic_lat", 10000, 4)
    yield from row("1 MiB written", "GB/s", "write-stream", 1 << 20, "ib_write_bw", 2000, 3, mib)
    yield from row("1 MiB read", "GB/s", "read-stream", 1 << 20, "ib_read_bw", 2000, 3, mib)
    yield from row("8 B written, lists of 64", "M/s", "write-list", 8, "ib_write_bw", 1000000, 4,
                   more=("-l", "64", "-t", "512"))
    yield from row("8 B sent, one way", "us", "ring", 8, "ib_send_lat", 10000, 4,
                   others=peers.send_latency())
    yield from row("1 MiB sent", "GB/s", "ring-stream", 1 << 20, "ib_send_bw", 2000, 3, mib,
                   others=peers.send_bandwidth())


def connections(build, place):
    """Rows of connections that are set up one beside the other."""
    group = f"{place.name}, {CONNECTIONS} connections set up"
    connect = ["connect"]
    every = ["create id", "resolve addr", "resolve route", "create qp"] + connect
    yield (group, "1/s", "TCP: socket, connect, accept",
           lambda: raw_net(build, "tcp-accept", CONNECTIONS, place))
    yield group, "1/s", "cmtime, its step of connecting", lambda: cmtime(build, place, connect)
    yield group, "1/s", "cmtime, all its steps before, too", lambda: cmtime(build, place, every)


def contestants(build, places):
    """(group, unit, name, call); the first of a group is what one would take instead."""
    for place in places:
        group = f"{place.name}, 8 B, both ends spin, one way"
        yield group, "us", "UDP, spinning", lambda p=place: raw_net(build, "udp-spin", 8, p)
        yield group, "us", "TCP, spinning", lambda p=place: raw_net(build, "tcp-spin", 8, p)
        yield (group, "us", "ib_send_lat",
               lambda p=place: perftest(build, "ib_send_lat", 8, 5000, 4, place=p))
        group = f"{place.name}, 8 B, the target watches memory, one way"
        yield group, "us", "UDP, blocking thread", lambda p=place: raw_net(build, "udp-passive", 8, p)
        yield (group, "us", "ib_write_lat",
               lambda p=place: perftest(build, "ib_write_lat", 8, 5000, 4, place=p))
        yield from streams(build, place)
        yield from connections(build, place)
    yield from same_host(build)
    group = "1 GiB of touched memory, there and back"
    yield group, "ms", "mlock, munlock", lambda: registration(build, "RegisterMlock")
    yield group, "ms", "ibv_reg_mr, ibv_dereg_mr", lambda: registration(build, "Register")


def measure(rows, rounds):
    """row -> [(figure, CPU)], interleaved; a contestant that fails is told and left out of that
    round."""
    figures = {row[:3]: [] for row in rows}
    for number in range(rounds):
        for group, unit, name, call in rows:
            try:
                figures[group, unit, name].append(call())
            except (Failed, subprocess.TimeoutExpired) as problem:
                print(f"compare: round {number + 1}, {name}: {problem}", file=sys.stderr)
    return figures


def report(figures, rounds):
    """The table, in Markdown."""
    print(f"| median of {rounds} interleaved rounds (lowest, highest) | | ratio | CPU s/GB |")
    print("|---|---|---|---|")
    instead = {}
    for (group, unit, name), measured in figures.items():
        if not measured:
            print(f"| {group}: {name} | no figure | | |")
            continue
        values = [value for value, _ in measured]
        spent = [cpu for _, cpu in measured if cpu is not None]
        median = statistics.median(values)
        instead.setdefault(group, median)
        cpu = f"{statistics.median(spent):.2f}" if spent else ""
        print(f"| {group}: {name} | {median:.4g} {unit} ({min(values):.4g}, {max(values):.4g}) "
              f"| {median / instead[group]:.2f} | {cpu} |")


def run(arguments, places):
    """Measures what was asked for. Exit status 1 if a contestant gave no figure at all."""
    rows = [row for row in contestants(arguments.build, places) if arguments.only in row[0]]
    figures = measure(rows, arguments.rounds)
    report(figures, arguments.rounds)
    return 0 if all(figures.values()) else 1


def main():
    """Exit status 1 if a contestant gave no figure at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="groups that contain this word")
    arguments = parser.parse_args()
    try:
        with Cable() as cable:
            return run(arguments, [LOOPBACK, cable])
    except Failed as problem:
        print(f"compare: loopback only; {problem}", file=sys.stderr)
        return run(arguments, [LOOPBACK])


if __name__ == "__main__":
    sys.exit(main())
