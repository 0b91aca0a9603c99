"""What a user would take instead between processes of one host: UCX and libfabric over shared
memory, measured by the programs that come with them (Debian: ucx-utils, libfabric-bin). Where they
are not installed there are no rows."""
import os
import shutil
import subprocess

from programs import LIMIT_S, Failed, output_of, wait_for_listener

UCX_PORT = 18640
LIBFABRIC_PORT = 18641
MIB = 1048576 / 1e9  # UCX counts in these


def words_of_last_line(server, client, port, separator, environment):
    """Of what the client prints, with that server for it."""
    environment = dict(os.environ, **environment)
    running = subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        wait_for_listener(running, port)
        printed = output_of(client + ["127.0.0.1"], env=environment)
        running.wait(timeout=LIMIT_S)
    finally:
        running.kill()
        running.wait()
    return printed.strip().splitlines()[-1].split(separator)


def number(words, column):
    """The figure in a column."""
    try:
        return float(words[column])
    except (IndexError, ValueError) as problem:
        raise Failed(f"no figure in {words}") from problem


def ucx(test, size, iterations, column, scale=1.0):
    """A column of ucx_perftest (-v: comma-separated)."""
    command = ["ucx_perftest", "-p", str(UCX_PORT), "-t", test, "-s", str(size), "-n",
               str(iterations), "-f", "-v"]
    words = words_of_last_line(command, command, UCX_PORT, ",",
                               {"UCX_TLS": "posix,cma", "UCX_WARN_UNUSED_ENV_VARS": "n"})
    return number(words, column) * scale, None


def libfabric(size, iterations):
    """Microseconds one way, by fi_pingpong over the shm provider."""
    command = ["fi_pingpong", "-p", "shm", "-e", "rdm", "-m", "tagged", "-S", str(size), "-I",
               str(iterations)]
    words = words_of_last_line(command + ["-B", str(LIBFABRIC_PORT)],
                               command + ["-P", str(LIBFABRIC_PORT)], LIBFABRIC_PORT, None, {})
    return number(words, 6), None


def send_latency():
    """(name, call) for a message of 8 bytes that both ends spin for, one way."""
    if shutil.which("ucx_perftest"):
        yield "UCX, tagged", lambda: ucx("tag_lat", 8, 100000, 1)
    if shutil.which("fi_pingpong"):
        yield "libfabric shm, tagged", lambda: libfabric(8, 20000)


def write_latency():
    """The same for 8 bytes put into memory that UCX has allocated."""
    if shutil.which("ucx_perftest"):
        yield "UCX, put", lambda: ucx("ucp_put_lat", 8, 100000, 1)


def send_bandwidth():
    """The same for messages of 1 MiB, GB/s."""
    if shutil.which("ucx_perftest"):
        yield "UCX, tagged", lambda: ucx("tag_bw", 1 << 20, 2000, 5, MIB)
