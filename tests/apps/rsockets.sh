#!/usr/bin/env bash
# Stock rsocket programs with verified contents, on loopback: rstream, riostream, udpong and rcopy of
# rdmacm-utils; then programs of sockets behind librspreload.so: Python's http.server and curl, one that
# forks for each connection, and a server that only knows TCP.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs rstream riostream udpong rcopy curl ss timeout
python=/usr/bin/python3
[ -x "$python" ] || skip "no $python"
preload=$build/lib/rsocket/librspreload.so
[ -e "$preload" ] || skip "no $preload"
export LD_LIBRARY_PATH=$build/lib

# through COMMAND...: the client, until it finds its server.
through() {
  timeout "$limit" "$@" >"$work/client.out" 2>"$work/client.err" </dev/null
}

# both WHAT SERVER-ARGUMENT... -- CLIENT-ARGUMENT...: the server of the same program ends by itself.
both() {
  local what=$1 program=$2 server=()
  shift 2
  while [ "$1" != -- ]; do
    server+=("$1")
    shift
  done
  shift
  start server "$program" "${server[@]}"
  if await 10 through "$program" "$@" && finish server; then
    pass "$what: $(tail -n 1 "$work/client.out")"
  else
    flunk "$what" "$work/client.out" "$work/client.err" "$work/server.err"
    [ -z "${pid_of[server]-}" ] || stop server
  fi
}

streams() {
  local mode size
  for mode in "" "-T a" "-T b" "-T n" "-T r"; do
    for size in 1 4096 1000000; do
      # shellcheck disable=SC2086
      both "rstream $mode, $size bytes" rstream $mode -T v -S $size -I 10 -C 5 -- \
        $mode -T v -S $size -I 10 -C 5 -s 127.0.0.1
    done
  done
  both "rstream, small rings, nothing inline" rstream -B 8192 -i 0 -T v -S 300000 -I 10 -C 5 -- \
    -B 8192 -i 0 -T v -S 300000 -I 10 -C 5 -s 127.0.0.1
  both "rstream, keepalive" rstream -k 1 -T v -S 4096 -I 10 -C 5 -- \
    -k 1 -T v -S 4096 -I 10 -C 5 -s 127.0.0.1
  both "rstream, IPv6" rstream -b ::1 -T v -S 100000 -I 10 -C 5 -- \
    -f ipv6 -T v -S 100000 -I 10 -C 5 -s ::1
  for mode in "" "-T a" "-T b" "-T n"; do
    # shellcheck disable=SC2086
    both "riostream $mode" riostream $mode -T v -S 50000 -I 10 -C 5 -- \
      $mode -T v -S 50000 -I 10 -C 5 -s 127.0.0.1
  done
}

# The server of udpong goes on for ever.
datagrams() {
  local mode
  for mode in "" "-T e"; do
    # shellcheck disable=SC2086
    start server udpong -b 127.0.0.1 $mode -S 64 -C 20
    # shellcheck disable=SC2086
    if await 10 through udpong -s 127.0.0.1 $mode -S 64 -C 20; then
      pass "udpong $mode: $(tail -n 1 "$work/client.out")"
    else
      flunk "udpong $mode" "$work/client.out" "$work/client.err" "$work/server.err"
    fi
    stop server
  done
}

copies() {
  head -c 5000000 /dev/urandom >"$work/from"
  start server rcopy
  if await 10 through rcopy "$work/from" "127.0.0.1:$work/to" && cmp -s "$work/from" "$work/to"; then
    pass "rcopy: 5000000 bytes"
  else
    flunk "rcopy" "$work/client.out" "$work/client.err" "$work/server.err"
  fi
  stop server
}

web() {
  head -c 3000000 /dev/urandom >"$work/from"
  new_port
  start server env LD_PRELOAD="$preload" "$python" -m http.server -d "$work" --bind 127.0.0.1 "$port"
  if await 10 through env LD_PRELOAD="$preload" curl -sS -o "$work/to" \
    "http://127.0.0.1:$port/from" && cmp -s "$work/from" "$work/to"; then
    pass "http.server and curl: 3000000 bytes"
  else
    flunk "http.server and curl" "$work/client.err" "$work/server.err"
  fi
  if curl -sS -m 3 "http://127.0.0.1:$port/from" >"$work/plain.out" 2>&1; then
    flunk "the server listens to TCP" "$work/plain.out"
  else
    pass "nothing of it went by TCP"
  fi
  stop server
}

# A server that only knows TCP, and a client that would rather not.
falls_back() {
  new_port
  start server "$python" -m http.server -d "$work" --bind 127.0.0.1 "$port"
  await 10 listening_or_gone server "$port"
  if through env LD_PRELOAD="$preload" "$python" -c "
import socket
end = socket.create_connection(('127.0.0.1', $port))
end.sendall(b'GET /from HTTP/1.0\r\n\r\n')
assert end.recv(8) == b'HTTP/1.0'"; then
    pass "a client goes on as TCP"
  else
    flunk "a client goes on as TCP" "$work/client.err"
  fi
  stop server
}

forks() {
  new_port
  export RDMAV_FORK_SAFE=1
  start server env LD_PRELOAD="$preload" "$python" -c "
import os, socket
ear = socket.socket()
ear.bind(('127.0.0.1', $port))
ear.listen(5)
end, _ = ear.accept()
if os.fork() == 0:
    end.sendall(end.recv(100).upper())
    end.close()
    os._exit(0)
os.wait()"
  await 10 listening_or_gone server "$port"
  if through env LD_PRELOAD="$preload" "$python" -c "
import socket
end = socket.create_connection(('127.0.0.1', $port))
end.sendall(b'hello')
assert end.recv(100) == b'HELLO'
end.close()" && finish server; then
    pass "a child of the server answers"
  else
    flunk "a child of the server answers" "$work/client.err" "$work/server.err"
  fi
  unset RDMAV_FORK_SAFE
}

# What dup2 refuses to replace stays as it was; what it replaces goes, and the copy is the same socket.
descriptors() {
  new_port
  start server env LD_PRELOAD="$preload" "$python" -c "
import socket
ear = socket.socket()
ear.bind(('127.0.0.1', $port))
ear.listen(5)
for _ in range(2):
    end, _ = ear.accept()
    while words := end.recv(100):
        end.sendall(words.upper())"
  if await 10 through env LD_PRELOAD="$preload" "$python" -c "
import os, socket
def echoes(end, words):
    end.sendall(words)
    assert end.recv(100) == words.upper()
first = socket.create_connection(('127.0.0.1', $port))
try:
    os.dup2(9999, first.fileno())
    raise SystemExit('there is no descriptor 9999')
except OSError:
    pass
echoes(first, b'one')
first.close()
second = socket.create_connection(('127.0.0.1', $port))
copy = os.dup2(second.fileno(), 200)
second.close()
echoes(socket.socket(fileno=copy), b'two')" && finish server; then
    pass "dup2, refused and not"
  else
    flunk "dup2, refused and not" "$work/client.err" "$work/server.err"
  fi
}

streams
datagrams
copies
web
falls_back
forks
descriptors
conclude
