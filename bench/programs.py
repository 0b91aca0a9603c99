"""Running the programs that are compared."""
import re
import subprocess
import time

LIMIT_S = 120


class Failed(Exception):
    """A contestant that gave no figure."""


def output_of(command, **options):
    """What a command prints; it is ended when it takes too long."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def wait_for_listener(server, port):
    """Until somebody listens at the TCP port where the server (a Popen) is."""
    wait_for_line(server, "tcp", f":{port:04X} 00000000:0000 0A")


def wait_for_line(server, table, wanted):
    """Until one of its kernel's tables of sockets has what the expression describes."""
    until = time.monotonic() + 20
    while time.monotonic() < until and server.poll() is None:
        try:
            with open(f"/proc/{server.pid}/net/{table}", encoding="ascii") as listing:
                if re.search(wanted, listing.read()):
                    return
        except OSError:  # it has just ended
            pass
        time.sleep(0.05)
    said = server.stderr.read().strip()[-200:] if server.poll() is not None else ""
    raise Failed(f"the server does not listen {said}")
