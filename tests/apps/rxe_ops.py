#!/usr/bin/env python3
"""rxe_ops.py: two machines through every operation that verbs have, with the bytes compared.

  rxe_ops.py serve -g GID-INDEX [-d DEVICE] -p PORT            the passive side
  rxe_ops.py drive -g GID-INDEX [-d DEVICE] -p PORT [--scenes A,B] HOST

The driving side tells the passive one by TCP what to do (make a queue pair, post a receive, show
bytes), does every operation itself, and compares: completions of both sides, the bytes that had to
change, and those beside them that must not. Prints a line `ok` or `FAIL` for each, and `differs`
for what a peer is known to answer otherwise than the specification says (--peer rxe). Runs on any
verbs device; needs python3-pyverbs on both sides.
"""
import argparse
import json
import random
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
          e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_MW_BIND)
MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
KINDS = {'RC': e.IBV_QPT_RC, 'UC': e.IBV_QPT_UC, 'UD': e.IBV_QPT_UD}
REGION = 256 * 1024
LIMIT = 60  # seconds that one completion may take
BESIDE = 64  # bytes after a target that must stay as they were

SUCCESS = int(e.IBV_WC_SUCCESS)
LOC_LEN = int(e.IBV_WC_LOC_LEN_ERR)
LOC_QP_OP = int(e.IBV_WC_LOC_QP_OP_ERR)
REM_INVALID = int(e.IBV_WC_REM_INV_REQ_ERR)
REM_ACCESS = int(e.IBV_WC_REM_ACCESS_ERR)
REM_OPERATION = int(e.IBV_WC_REM_OP_ERR)
RETRY_SPENT = int(e.IBV_WC_RETRY_EXC_ERR)
RNR_SPENT = int(e.IBV_WC_RNR_RETRY_EXC_ERR)


def pattern(seed, length):
    return random.Random(seed).randbytes(length)


class End:
    """One queue pair with a region of its own; what it does is also what a peer may ask for."""

    shared = {}

    def __init__(self, device, gid_index, kind='RC', mtu=1024, psn=0x1000, depth=128):
        if 'context' not in End.shared:
            End.shared['context'] = Context(name=device)
            End.shared['pd'] = PD(End.shared['context'])
        self.context, self.pd = End.shared['context'], End.shared['pd']
        self.kind, self.gid_index, self.mtu, self.psn = kind, gid_index, mtu, psn
        self.qkey = 0x11111111
        self.cq = CQ(self.context, 2 * depth)
        access = ACCESS if kind != 'UD' else e.IBV_ACCESS_LOCAL_WRITE
        self.mr = MR(self.pd, REGION, access)
        self.mr.write(b'\0' * REGION, REGION)
        self.windows = []
        attr = QPAttr(port_num=1)
        attr.pkey_index = 0
        if kind == 'UD':
            attr.qkey = self.qkey
        elif kind == 'UC':
            attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        else:
            attr.qp_access_flags = ACCESS & ~e.IBV_ACCESS_MW_BIND
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=4, max_recv_sge=4,
                    max_inline_data=64)
        init = QPInitAttr(qp_type=KINDS[kind], scq=self.cq, rcq=self.cq, cap=cap)
        if kind == 'UD':
            attr.sq_psn = psn  # pyverbs brings it to RTS
        self.qp = QP(self.pd, init, attr)

    def info(self):
        gid = str(self.context.query_gid(1, self.gid_index))
        return dict(qpn=self.qp.qp_num, psn=self.psn, rkey=self.mr.rkey, address=self.mr.buf,
                    gid=gid, qkey=self.qkey)

    def connect(self, peer, timeout=14, retry=7, rnr_retry=7, min_rnr=12, rd_atomic=4):
        self.peer = peer
        route = GlobalRoute(dgid=GID(peer['gid']), sgid_index=self.gid_index, hop_limit=64)
        ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        if self.kind == 'UD':
            self.ah = AH(self.pd, attr=ah_attr)
            return
        attr = QPAttr(port_num=1)
        attr.path_mtu = MTUS[self.mtu]
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = peer['qpn'], peer['psn'], self.psn
        attr.ah_attr = ah_attr
        if self.kind == 'RC':
            attr.max_rd_atomic = attr.max_dest_rd_atomic = rd_atomic
            attr.min_rnr_timer, attr.rnr_retry = min_rnr, rnr_retry
            attr.timeout, attr.retry_cnt = timeout, retry
        self.qp.to_rts(attr)

    def sges(self, pieces):
        return [SGE(self.mr.buf + at, length, self.mr.lkey) for at, length in pieces]

    def recv(self, pieces, wr_id=7):
        self.qp.post_recv(RecvWR(wr_id, num_sge=len(pieces), sg=self.sges(pieces)))

    def post(self, op, pieces, at=0, imm=0, rkey=None, compare=0, swap=0, inline=False,
             fence=False, wr_id=1):
        flags = e.IBV_SEND_SIGNALED
        flags |= e.IBV_SEND_INLINE if inline else 0
        flags |= e.IBV_SEND_FENCE if fence else 0
        wr = SendWR(wr_id, opcode=getattr(e, 'IBV_WR_' + op), num_sge=len(pieces),
                    sg=self.sges(pieces), imm_data=imm, send_flags=flags)
        rkey = self.peer['rkey'] if rkey is None else rkey
        if 'RDMA' in op:
            wr.set_wr_rdma(rkey, self.peer['address'] + at)
        elif 'ATOMIC' in op:
            wr.set_wr_atomic(rkey, self.peer['address'] + at, compare, swap)
        elif self.kind == 'UD':
            wr.set_wr_ud(self.ah, self.peer['qpn'], self.peer['qkey'])
        self.qp.post_send(wr)

    def window(self, offset, length):
        """A type 2 window on the region, for WRITE; its rkey."""
        window = MW(self.pd, e.IBV_MW_TYPE_2)
        self.windows.append(window)
        wr = SendWR(3, opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None,
                    send_flags=e.IBV_SEND_SIGNALED)
        bind = MWBindInfo(self.mr, self.mr.buf + offset, length, e.IBV_ACCESS_REMOTE_WRITE)
        wr.set_bind_wr(window, bind)
        self.qp.post_send(wr)
        assert self.wait(1)[0]['status'] == SUCCESS
        return wr.rkey

    def wait(self, n, limit=LIMIT):
        """So many completions, or those that came in time."""
        out, until = [], time.time() + limit
        while len(out) < n and time.time() < until:
            _, completions = self.cq.poll(n - len(out))
            out += completions
            if not completions:
                time.sleep(0.001)
        return [dict(status=c.status, length=c.byte_len, imm=c.imm_data, wr_id=c.wr_id,
                     flags=c.wc_flags, opcode=c.opcode, src_qp=c.src_qp) for c in out]

    def fill(self, seed, offset, length):
        if length:
            self.mr.write(pattern(seed, length), length, offset)

    def content(self, offset, length):
        return bytes(self.mr.read(length, offset)).hex() if length else ''

    def set_number(self, offset, value):
        self.mr.write(value.to_bytes(8, sys.byteorder), 8, offset)

    def number(self, offset):
        return int.from_bytes(bytes(self.mr.read(8, offset)), sys.byteorder)

    def state(self):
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return attr.qp_state

    def close(self):
        self.qp.close()
        for window in self.windows:
            window.close()
        self.cq.close()
        self.mr.close()


class Wire:
    """JSON lines over a TCP connection."""

    def __init__(self, connection):
        connection.settimeout(2 * LIMIT + 60)
        self.file = connection.makefile('rw')

    def send(self, value):
        self.file.write(json.dumps(value) + '\n')
        self.file.flush()

    def receive(self):
        line = self.file.readline()
        return json.loads(line) if line else None


class Remote:
    """An End at the other side: every call goes there."""

    def __init__(self, wire, **arguments):
        self.wire = wire
        self._ask('make', arguments)

    def _ask(self, call, arguments):
        self.wire.send([call, arguments])
        answer = self.wire.receive()
        if answer is None or 'error' in answer:
            raise RuntimeError('peer: %s' % (answer or {'error': 'gone'})['error'])
        return answer['value']

    def __getattr__(self, call):
        return lambda *list_, **named: self._ask(call, dict(list=list_, named=named))


def serve(options):
    listener = socket.create_server(('', options.port))
    listener.settimeout(300)
    wire, end = Wire(listener.accept()[0]), None
    while (request := wire.receive()) is not None:
        call, arguments = request
        try:
            if call == 'make':
                end = End(options.device, options.gid_index, **arguments)
                value = None
            else:
                value = getattr(end, call)(*arguments['list'], **arguments['named'])
            wire.send(dict(value=value))
        except Exception as error:  # told to the one who asked
            wire.send(dict(error=repr(error)))
    return 0


class Drive:
    def __init__(self, options):
        self.options, self.mtu = options, options.mtu
        self.failures = self.differences = 0
        address = (options.host, options.port)
        for attempt in range(100):
            try:
                self.wire = Wire(socket.create_connection(address, timeout=10))
                break
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.1)
        self.sizes = [0, 1, self.mtu, self.mtu + 1, 65536]
        self.seed = 1

    def ends(self, kind='RC', mine=None, **connection):
        """A connected pair of queue pairs: ours, and the peer's."""
        here = End(self.options.device, self.options.gid_index, kind, self.mtu, 0xfffff0)
        there = Remote(self.wire, kind=kind, mtu=self.mtu, psn=0x123000)
        here.connect(there.info(), **connection)
        there.connect(here.info(), **{k: v for k, v in connection.items() if k != 'rnr_retry'})
        return here, there

    def say(self, what, got, expected, known=()):
        """`known`: other answers that this peer is known to give."""
        if got == expected:
            print('ok    %s' % what, flush=True)
        elif self.options.peer == 'rxe' and got in known:
            self.differences += 1
            print('differs  %s: %s, where it should be %s' % (what, got, expected), flush=True)
        else:
            self.failures += 1
            print('FAIL  %s: %s, expected %s' % (what, got, expected), flush=True)

    def fresh(self):
        self.seed += 1
        return self.seed

    def compare(self, end, offset, seed, length, beside):
        """What differs at `offset`, if anything: the message, or what lies behind it."""
        got = bytes.fromhex(end.content(offset, length + BESIDE))
        wanted = pattern(seed, length) + pattern(beside, length + BESIDE)[length:]
        if got == wanted:
            return 'same'
        first = next(i for i, (a, b) in enumerate(zip(got, wanted)) if a != b)
        return 'byte %d of %d is other' % (first, length)

    def message(self, here, there, op, size, expect=SUCCESS):
        """One message of this side, checked on both; what is wrong with it, or ''."""
        seed, beside, imm = self.fresh(), self.fresh(), 0
        with_imm, is_send, is_read = 'IMM' in op, 'SEND' in op, 'READ' in op
        header = 40 if here.kind == 'UD' else 0
        source, target = (there, here) if is_read else (here, there)
        source.fill(seed, 0, size)
        target.fill(beside, header, size + BESIDE)
        if with_imm:
            imm = 0x01020304 + self.seed
        if is_send or with_imm:
            there.recv([(0, size + header)])
        here.post(op, [(0, size)], imm=imm)
        completion = here.wait(1)
        if [c['status'] for c in completion] != [expect]:
            return 'completion %s' % [c['status'] for c in completion]
        if is_send or with_imm:
            got = there.wait(1, LIMIT)
            if [(c['status'], c['length']) for c in got] != [(SUCCESS, size + header)]:
                return 'receive %s' % [(c['status'], c['length']) for c in got]
            if with_imm and (got[0]['imm'] != imm or not got[0]['flags'] & e.IBV_WC_WITH_IMM):
                return 'immediate 0x%x' % got[0]['imm']
        elif here.kind == 'UC':
            time.sleep(0.3)  # nothing says that it has arrived
        result = self.compare(target, header, seed, size, beside)
        return '' if result == 'same' else result

    def every_size(self, op, kind='RC', sizes=None):
        here, there = self.ends(kind)
        for size in self.sizes if sizes is None else sizes:
            what = '%s %s, %d bytes' % (kind, op, size)
            self.say(what, self.message(here, there, op, size), '')
        here.close()
        there.close()

    # Scenes. Each has queue pairs of its own.

    def send(self):
        self.every_size('SEND')
        self.every_size('SEND_WITH_IMM')

    def write(self):
        self.every_size('RDMA_WRITE')
        self.every_size('RDMA_WRITE_WITH_IMM')

    def read(self):
        self.every_size('RDMA_READ')

    def unreliable(self):
        for op in ('SEND', 'SEND_WITH_IMM', 'RDMA_WRITE', 'RDMA_WRITE_WITH_IMM'):
            self.every_size(op, 'UC')

    def datagrams(self):
        for op in ('SEND', 'SEND_WITH_IMM'):
            self.every_size(op, 'UD', [0, 1, 101, self.mtu])

    def atomics(self):
        here, there = self.ends()
        there.set_number(64, 5)
        add, swap = 'ATOMIC_FETCH_AND_ADD', 'ATOMIC_CMP_AND_SWP'
        high = 0x1122334455667788
        for op, arguments, old, new in (
                (add, dict(compare=7), 5, 12), (swap, dict(compare=12, swap=high), 12, high),
                (swap, dict(compare=9, swap=1), high, high),
                (add, dict(compare=2**64 - 1), high, high - 1)):
            here.post(op, [(0, 8)], at=64, **arguments)
            status = [c['status'] for c in here.wait(1)]
            got = (status, here.number(0), there.number(64))
            self.say('%s %s' % (op, arguments), got, ([SUCCESS], old, new))
        for i in range(32):  # more than may be outstanding
            here.post(add, [(8 * i, 8)], at=128, compare=1)
        status = [c['status'] for c in here.wait(32)]
        got = [here.number(8 * i) for i in range(32)]
        self.say('32 FETCH_AND_ADD posted at once', (status, got, there.number(128)),
                 ([SUCCESS] * 32, list(range(32)), 32))
        here.close()
        there.close()

    def lists(self):
        """Several pieces of memory for one message, and bytes within the request."""
        here, there = self.ends()
        here.fill(91, 0, 9000)
        there.recv([(0, 100), (1000, 900), (4096, 8000)])
        here.post('SEND', [(0, 10), (100, 5000), (7000, 990)])
        sent = here.content(0, 10) + here.content(100, 5000) + here.content(7000, 990)
        status, got = [c['status'] for c in here.wait(1)], there.wait(1)
        came = there.content(0, 100) + there.content(1000, 900) + there.content(4096, 5000)
        self.say('SEND from 3 pieces into 3', (status, got[0]['length'], came == sent),
                 ([SUCCESS], 6000, True))
        there.recv([(0, 64)])
        here.post('SEND', [(0, 33)], inline=True)
        status, got = [c['status'] for c in here.wait(1)], there.wait(1)
        self.say('SEND of 33 bytes inline', (status, there.content(0, 33)),
                 ([SUCCESS], here.content(0, 33)))
        here.close()
        there.close()

    def pipeline(self):
        """Everything at once, both ways: WRITEs, READs of what they wrote, SENDs."""
        here, there = self.ends()
        step, n = 3000, 16
        here.fill(17, 0, n * step)
        there.fill(18, 0, n * step)
        for _ in range(n):
            there.recv([(200000, 64)])
            here.recv([(200000, 64)])
        for i in range(n):
            here.post('RDMA_WRITE', [(i * step, step)], at=65536 + i * step)
            here.post('RDMA_READ', [(131072 + i * step, step)], at=65536 + i * step, wr_id=2)
            here.post('SEND', [(0, 64)])
        for i in range(n):
            there.post('SEND', [(0, 64)])
        mine = here.wait(4 * n)
        other = there.wait(2 * n)
        self.say('16 WRITEs, READs, SENDs each, and 16 SENDs of the peer',
                 ([c['status'] for c in mine], [c['status'] for c in other]),
                 ([SUCCESS] * 4 * n, [SUCCESS] * 2 * n))
        written = pattern(17, n * step).hex()
        self.say('the bytes of those', (there.content(65536, n * step) == written,
                                        here.content(131072, n * step) == written), (True, True))
        here.close()
        there.close()

    def invalidate(self):
        for size in (64, 2 * self.mtu + 5):
            here, there = self.ends()
            rkey = there.window(0, 8192)
            here.fill(31, 0, 64)
            here.post('RDMA_WRITE', [(0, 64)], rkey=rkey)
            status = [c['status'] for c in here.wait(1)]
            self.say('WRITE through a type 2 window', (status, there.content(0, 64)),
                     ([SUCCESS], here.content(0, 64)))
            there.recv([(32768, 16384)])
            here.post('SEND_WITH_INV', [(0, size)], imm=rkey)
            status, got = [c['status'] for c in here.wait(1)], there.wait(1)
            flag = got[0]['flags'] & e.IBV_WC_WITH_INV != 0
            got = [(c['status'], c['length'], c['imm']) for c in got]
            self.say('SEND_WITH_INV, %d bytes' % size, (status, got),
                     ([SUCCESS], [(SUCCESS, size, rkey)]))
            self.say('SEND_WITH_INV, %d bytes: the receive says so' % size, flag, True, [False])
            here.post('RDMA_WRITE', [(0, 64)], rkey=rkey)
            status = [c['status'] for c in here.wait(1)]
            self.say('WRITE to the window that has ended', status, [REM_ACCESS])
            here.close()
            there.close()

    def refused(self, what, op, expect, known=(), receive=None, **arguments):
        """A request that the peer has to refuse: both sides' ends of it."""
        here, there = self.ends(retry=3)
        if receive is not None:
            there.recv([(0, receive)])
        there.fill(5, 0, 4096)
        before = there.content(0, 4096)
        here.post(op, **arguments)
        status = [c['status'] for c in here.wait(1)]
        self.say(what, status, [expect], [[k] for k in known])
        same = there.content(0, 4096) == before
        self.say(what + ': the peer\'s bytes are as they were', same or receive is not None, True)
        if receive is not None:
            got = [c['status'] for c in there.wait(1, 10)]
            self.say(what + ': the receive', got, [LOC_LEN], [[LOC_QP_OP]])
        self.say(what + ': this queue pair has ended', here.state(), int(e.IBV_QPS_ERR))
        here.close()
        there.close()

    def keys(self):
        here, there = self.ends()
        key = there.info()['rkey'] ^ 0xffff00
        here.close()
        there.close()
        for op, size in (('RDMA_WRITE', 64), ('RDMA_WRITE', 3 * self.mtu), ('RDMA_READ', 64),
                         ('ATOMIC_FETCH_AND_ADD', 8)):
            self.refused('%s of %d bytes, wrong rkey' % (op, size), op, REM_ACCESS,
                         pieces=[(0, size)], rkey=key)
        for op in ('RDMA_WRITE', 'RDMA_READ'):
            self.refused('%s past the end of the region' % op, op, REM_ACCESS, pieces=[(0, 64)],
                         at=REGION - 32)

    def too_long(self):
        for size in (64, 3 * self.mtu):
            self.refused('SEND of %d bytes into a receive of 16' % size, 'SEND', REM_INVALID,
                         [REM_OPERATION], receive=16, pieces=[(0, size)])

    def not_ready(self):
        here, there = self.ends(min_rnr=22)  # 20.48 ms
        here.fill(41, 0, 64)
        here.post('SEND', [(0, 64)])
        time.sleep(0.4)
        there.recv([(0, 64)])
        status, got = [c['status'] for c in here.wait(1)], there.wait(1)
        self.say('SEND before there is a receive', (status, there.content(0, 64)),
                 ([SUCCESS], here.content(0, 64)))
        here.close()
        there.close()
        here, there = self.ends(rnr_retry=2)
        here.post('SEND', [(0, 64)])
        self.say('SEND and never a receive, rnr_retry 2', [c['status'] for c in here.wait(1)],
                 [RNR_SPENT])
        here.close()
        there.close()

    def silent(self):
        here, there = self.ends(retry=2)
        there.close()
        here.post('SEND', [(0, 64)])
        self.say('SEND to a queue pair that is gone', [c['status'] for c in here.wait(1)],
                 [RETRY_SPENT])
        here.close()

    scenes = ('send', 'write', 'read', 'atomics', 'lists', 'pipeline', 'invalidate', 'keys',
              'too_long', 'not_ready', 'silent', 'unreliable', 'datagrams')
    loss = ('send', 'write', 'read', 'atomics', 'pipeline')

    def run(self):
        for name in self.options.scenes or self.scenes:
            try:
                getattr(self, name)()
            except Exception as error:  # the next scene has queue pairs of its own
                self.failures += 1
                print('FAIL  %s: %r' % (name, error), flush=True)
        print('through', flush=True)
        return 1 if self.failures else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('role', choices=('serve', 'drive'))
    parser.add_argument('-d', dest='device')
    parser.add_argument('-g', dest='gid_index', type=int, required=True)
    parser.add_argument('-m', dest='mtu', type=int, default=1024, choices=sorted(MTUS))
    parser.add_argument('-p', dest='port', type=int, required=True)
    parser.add_argument('--peer', default='')
    parser.add_argument('--scenes', type=lambda text: text.split(','))
    parser.add_argument('host', nargs='?')
    options = parser.parse_intermixed_args()
    if options.device is None:
        options.device = get_device_list()[0].name.decode()
    return serve(options) if options.role == 'serve' else Drive(options).run()


sys.exit(main())
