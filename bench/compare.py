#!/usr/bin/env python3
"""compare.py BUILD [--rounds N] [--only WORD]: stock programs on the device beside plain sockets.

Each round runs every contestant once, one after the other, so that what else happens on the machine
hits all alike. Prints, for each row, the median of the rounds, their range, and the ratio to the row
that one would take instead. Loopback; the programs are perftest's and bench/raw_net.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

PORT = 18620
LIMIT_S = 120
GIB = 1 << 30


class Failed(Exception):
    """A contestant that gave no figure."""


def output_of(command, **options):
    """What a command prints; it is ended when it takes too long."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def raw_net(build, mode, size):
    """A figure of bench/raw_net."""
    return float(output_of([f"{build}/bench/raw_net", mode, str(size)]))


def perftest(build, program, size, iterations, column, scale=1.0):
    """A column of the table that a perftest client prints, with a server of its own."""
    environment = dict(os.environ, SOFTHCA_NETDEV="lo", SOFTHCA_QUIET="1")
    command = [f"{build}/softhca", "run", "--", program, "-F", "-s", str(size), "-n", str(iterations),
               "-m", "4096", "-p", str(PORT)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        wait_for_listener(server)
        table = output_of(command + ["127.0.0.1"], env=environment)
        server.wait(timeout=LIMIT_S)
    finally:
        server.kill()
        server.wait()
    row = re.search(rf"^ *{size} +{iterations} .*$", table, re.M)
    if row is None:
        raise Failed(f"{program} printed no row for {size} bytes")
    return float(row.group().split()[column]) * scale


def wait_for_listener(server):
    """Until somebody listens at PORT."""
    wanted = f":{PORT:04X} 00000000:0000 0A"
    until = time.monotonic() + 20
    while time.monotonic() < until and server.poll() is None:
        with open("/proc/net/tcp", encoding="ascii") as table:
            if wanted in table.read():
                return
        time.sleep(0.05)
    raise Failed("the server does not listen")


def registration(build, name):
    """Milliseconds of one registration (or lock) of 1 GiB and its undoing, in chain_bench."""
    text = output_of([f"{build}/bench/chain_bench", f"--benchmark_filter=^{name}/{GIB}$",
                      "--benchmark_format=json"])
    run = json.loads(text)["benchmarks"][0]
    if run.get("error_occurred"):
        raise Failed(run.get("error_message", name))
    return run["real_time"] / {"ns": 1e6, "us": 1e3, "ms": 1}[run["time_unit"]]


def contestants(build):
    """(group, unit, name, call); the first of a group is what one would take instead."""
    mib = 1048576 / 1e9
    rows = [
        ("8 B, both ends spin, one way", "us", "UDP, spinning", lambda: raw_net(build, "udp-spin", 8)),
        ("8 B, both ends spin, one way", "us", "TCP, spinning", lambda: raw_net(build, "tcp-spin", 8)),
        ("8 B, both ends spin, one way", "us", "ib_send_lat",
         lambda: perftest(build, "ib_send_lat", 8, 5000, 4)),
        ("8 B, the target watches memory, one way", "us", "UDP, blocking thread",
         lambda: raw_net(build, "udp-passive", 8)),
        ("8 B, the target watches memory, one way", "us", "ib_write_lat",
         lambda: perftest(build, "ib_write_lat", 8, 5000, 4)),
    ]
    for size, iterations in ((65536, 5000), (1048576, 500)):
        group = f"{size >> 10} KiB messages, one way"
        rows.append((group, "GB/s", "one TCP stream",
                     lambda s=size: raw_net(build, "tcp-stream", s)))
        rows.append((group, "GB/s", "ib_write_bw",
                     lambda s=size, n=iterations: perftest(build, "ib_write_bw", s, n, 3, mib)))
    group = "1 GiB of touched memory, there and back"
    rows.append((group, "ms", "mlock, munlock", lambda: registration(build, "RegisterMlock")))
    rows.append((group, "ms", "ibv_reg_mr, ibv_dereg_mr", lambda: registration(build, "Register")))
    return rows


def measure(rows, rounds):
    """name -> figures, interleaved; a contestant that fails is told and left out of that round."""
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
    print(f"| median of {rounds} interleaved rounds (lowest, highest) | | ratio |\n|---|---|---|")
    instead = {}
    for (group, unit, name), values in figures.items():
        if not values:
            print(f"| {group}: {name} | no figure | |")
            continue
        median = statistics.median(values)
        instead.setdefault(group, median)
        print(f"| {group}: {name} | {median:.4g} {unit} ({min(values):.4g}, {max(values):.4g}) "
              f"| {median / instead[group]:.2f} |")


def main():
    """Exit status 1 if a contestant gave no figure at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="groups that contain this word")
    arguments = parser.parse_args()
    rows = [row for row in contestants(arguments.build) if arguments.only in row[0]]
    figures = measure(rows, arguments.rounds)
    report(figures, arguments.rounds)
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
