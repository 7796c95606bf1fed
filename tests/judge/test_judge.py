#!/usr/bin/env python3
"""Tests forwarder and judge.py with raw sockets in namespaces of its own.  Run as root: ./test_judge.py [--asan] [NAME...]"""
import ctypes, collections, json, os, select, signal, socket, struct, subprocess, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import judge as judge_module
PID = os.getpid()
TESTER, JUDGE = f"jt{PID}", f"jj{PID}"
libc = ctypes.CDLL(None, use_errno=True)
BINARY = os.path.join(HERE, "forwarder")
SOL_PACKET, IGNORE_OUT, AUXDATA = 263, 23, 8

def sh(command, check=True):
    return subprocess.run(command, shell=True, check=check, capture_output=True, text=True).stdout

def setup():
    sh(f"ip netns add {TESTER}; ip netns add {JUDGE}")
    for ns in (TESTER, JUDGE):
        sh(f"ip netns exec {ns} sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    for i in range(3):
        sh(f"ip -n {TESTER} link add p{i} mtu 9000 type veth peer name e{i} netns {JUDGE} mtu 9000")
        sh(f"ip -n {TESTER} link set p{i} up promisc on; ip -n {JUDGE} link set e{i} up")
    time.sleep(0.3)

def teardown():
    for ns in (TESTER, JUDGE):
        sh(f"ip netns del {ns}", check=False)

home = os.open("/proc/self/ns/net", os.O_RDONLY)
def in_namespace(ns, action):
    fd = os.open(f"/run/netns/{ns}", os.O_RDONLY)
    assert libc.setns(fd, 0x40000000) == 0
    try:
        return action()
    finally:
        assert libc.setns(home, 0x40000000) == 0
        os.close(fd)

def raw(interface, buffer=64 << 20):
    def make():
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        s.setsockopt(socket.SOL_SOCKET, 33, buffer)
        s.setsockopt(SOL_PACKET, IGNORE_OUT, 1)
        s.setsockopt(SOL_PACKET, AUXDATA, 1)
        s.bind((interface, 3))
        s.setblocking(False)
        return s
    return in_namespace(TESTER, make)

def frame(key, ident, size=128, proto=17, tags=b"", ethertype=0x0800):
    eth = b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + tags + struct.pack("!H", ethertype)
    body = size - len(eth)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, body, 0, 0, 64, proto, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    l4 = struct.pack("!HHHH", key, 9, body - 20, 0)
    data = eth + ip + l4
    return data + b"x" * (size - len(data) - 32) + struct.pack("!QQQQ", 0xfeed, key, ident, ident * 0x9e3779b97f4a7c15 & (2**64 - 1))

def fnv(data):
    h = 0xcbf29ce484222325
    for b in data[-32:]:
        h = (h ^ b) * 0x100000001b3 & (2**64 - 1)
    return f"{h:016x}"

def drain(s, quiet=0.25, limit=20.0):
    got, end = [], time.monotonic() + limit
    while time.monotonic() < end and select.select([s], [], [], quiet)[0]:
        while True:
            try:
                data, anc, _, _ = s.recvmsg(70000, 256)
            except BlockingIOError:
                break
            except OSError:     # ENETDOWN, reported once
                continue
            for level, kind, value in anc:
                if level == SOL_PACKET and kind == AUXDATA:
                    status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", value)
                    if status & 16:
                        data = data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
            got.append((time.monotonic_ns(), data))
    return got

class Run:
    """A forwarder with a spec; .stop() gives the records, the summary, and what came out of each interface."""
    def __init__(self, spec, ports="e0 e1 e2"):
        self.base = f"/tmp/judge_test_{PID}"
        with open(self.base + ".spec", "w") as f:
            f.write(spec)
        self.rx = {f"e{i}": raw(f"p{i}") for i in range(3)}
        self.proc = subprocess.Popen(["ip", "netns", "exec", JUDGE, BINARY, self.base + ".spec", self.base + ".log"]
                                     + ports.split(), stdout=subprocess.PIPE, text=True)
        assert self.proc.stdout.readline() == "ready\n"
        self.sent = []
    def send(self, port, data):
        self.sent.append((port, data))
        self.rx[port].send(data)
    def finish(self, sig=signal.SIGTERM, timeout=60):
        self.proc.send_signal(sig)
        out = self.proc.communicate(timeout=timeout)[0]
        assert out == "done\n" and self.proc.returncode == 0, (out, self.proc.returncode)
    def stop(self, wait=0.2, sig=signal.SIGTERM):
        time.sleep(wait)
        self.finish(sig)
        self.out = {name: drain(s, 0.1) for name, s in self.rx.items()}
        for s in self.rx.values():
            s.close()
        self.records = []
        with open(self.base + ".log") as f:
            assert next(f) == "in_if\tkey\tnumber\thash\treceived_ns\tfates\n"
            for line in f:
                if not line.startswith("#"):
                    r = line.rstrip("\n").split("\t")
                    self.records.append((r[0], int(r[1]), int(r[2]), r[3], int(r[4]), [x.split(":") for x in r[5].split(",")]))
        self.summary = judge_module.judge(self.base + ".log")
        return self
    def kinds(self, key=None, port="e0"):
        return [",".join(f[0] for f in r[5]) for r in self.records if r[0] == port and (key is None or r[1] == key)]
    def stream(self, key, port="e0"):
        return next(s for s in self.summary["streams"] if s["key"] == key and s["from"] == port)
    def check(self):
        """What the log says was sent is what came: every frame, every interface, every byte."""
        assert self.summary["sound"], self.summary["problems"]
        assert [r[3] for r in sorted(self.records, key=lambda r: r[0])] == \
            [fnv(d) for p, d in sorted(self.sent, key=lambda x: x[0])], "hashes of what was received"
        original = {}
        for p in ("e0", "e1", "e2"):
            for r, (_, d) in zip([r for r in self.records if r[0] == p], [x for x in self.sent if x[0] == p]):
                original[id(r)] = d
        expected = collections.defaultdict(list)
        for r in self.records:
            data = bytearray(original[id(r)])
            for f in r[5]:
                if f[0] == "corrupt":
                    data[int(f[1])] ^= self.mask
                elif f[0] == "rewrite_mac":
                    data[:6] = bytes.fromhex("020000009999")
                elif f[0] in judge_module.LEAVING:
                    expected[f[1]].append((int(f[2]), bytes(data)))
        for port in ("e0", "e1", "e2"):
            want = [d for _, d in sorted(expected[port], key=lambda x: x[0])]
            got = [d for _, d in self.out[port]]
            assert collections.Counter(want) == collections.Counter(got), (port, len(want), len(got))
            assert want == got, f"order on {port}"
        return self
    mask = 0

def simple(spec, n=100, keys=(5000,), both=False, **kw):
    run = Run(spec)
    for i in range(n):
        for k in keys:
            run.send("e0", frame(k, i, **kw))
            if both:
                run.send("e1", frame(k, i, **kw))
    return run

TESTS = {}
def test(f):
    TESTS[f.__name__] = f
    return f

@test
def clean_forward_both_ways():
    run = simple("# nothing\n\n", both=True, keys=(5000, 6000)).stop().check()
    for port, to in (("e0", "e1"), ("e1", "e0")):
        for key in (5000, 6000):
            s = run.stream(key, port)
            assert (s["to"], s["received"], s["forwarded"], s["intact"], s["outages"]) == (to, 100, 100, 100, []), s
    assert len(run.records) == 400

@test
def own_and_host_frames_are_not_received():
    run = Run("")
    def send():
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0); s.bind(("e1", 0))
        s.send(frame(77, 1)); s.close()
    in_namespace(JUDGE, send)
    run.send("e0", frame(5000, 0)); run.send("e0", b"\xff" * 6 + frame(5000, 1)[6:])
    run.stop()
    assert [(r[0], r[1]) for r in run.records] == [("e0", 5000), ("e0", 5000)], run.records
    assert len(run.out["e0"]) == 0 and len(run.out["e1"]) == 3

@test
def drop_frames_every_key_from():
    run = simple("drop key=5000 frames=10-20 from=e0\ndrop key=6000 every=7 frames=14-50\ndrop from=e1 key=6000 frames=0-3", keys=(5000, 6000), both=True).stop().check()
    s = run.stream(5000)
    assert s["dropped"] == 10 and [(o["first"], o["last"], o["frames"]) for o in s["outages"]] == [(10, 19, 10)], s
    o = s["outages"][0]
    sends = {r[2]: int(r[5][0][2]) for r in run.records if r[0] == "e0" and r[1] == 5000 and r[5][0][0] == "sent"}
    assert o["before_ns"] == sends[9] and o["after_ns"] == sends[20]
    assert [i for i, k in enumerate(run.kinds(6000)) if k == "drop"] == [14, 21, 28, 35, 42, 49]
    assert [i for i, k in enumerate(run.kinds(6000, "e1")) if k == "drop"] == [0, 1, 2, 14, 21, 28, 35, 42, 49]
    assert run.stream(5000, "e1")["dropped"] == 0
    assert run.stream(6000, "e1")["outages"][0]["before_ns"] is None

@test
def drop_by_time():
    run = Run("drop t=100-200")
    for i in range(300):
        run.send("e0", frame(5000, i)); time.sleep(0.001)
    run.stop().check()
    start = run.summary["start_ns"]
    assert start == run.records[0][4]
    for r in run.records:
        assert (r[5][0][0] == "drop") == (100e6 <= r[4] - start < 200e6)
    assert len(run.stream(5000)["outages"]) == 1

@test
def clock_starts_with_key():
    run = Run("drop t=0-1000000")
    for i in range(5): run.send("e0", frame(1, i, ethertype=0x88b5))
    time.sleep(0.1)
    run.send("e1", frame(7, 0)); time.sleep(0.05); run.send("e0", frame(1, 9, ethertype=0x88b5))
    run.stop().check()
    assert run.kinds(-1) == ["sent"] * 5 + ["drop"] and run.kinds(7, "e1") == ["drop"]

@test
def drop_share():
    picks = []
    for seed in (1, 1, 2):
        run = simple(f"drop share=100 seed={seed}", n=5000).stop().check()
        picks.append([i for i, k in enumerate(run.kinds(5000)) if k == "drop"])
        assert 420 < len(picks[-1]) < 580, len(picks[-1])
    assert picks[0] == picks[1] != picks[2]
    assert simple("drop share=0").stop().check().stream(5000)["dropped"] == 0
    assert simple("drop share=1000").stop().check().stream(5000)["dropped"] == 100

@test
def copy():
    run = simple("copy frames=5-6\ncopy frames=50-52 copies=3").stop().check()
    s = run.stream(5000)
    assert (s["copies"], s["forwarded"], s["left_total"], s["outages"]) == (7, 100, 107, [])

@test
def corrupt():
    Run.mask = 0x5a
    run = simple("corrupt every=10 offset_from_end=4 mask=0x5a\ncorrupt frames=3-4 offset_from_end=127 mask=0x5a\ncorrupt offset_from_end=128 mask=0x5a").stop().check()
    s = run.stream(5000)
    assert (s["corrupted"], s["forwarded"], s["intact"]) == (11, 100, 89)
    assert run.records[10][5][0] == ["corrupt", "123"] and run.records[3][5][0] == ["corrupt", "0"]

@test
def copy_before_and_after_corrupt():
    Run.mask = 1
    run = simple("copy every=10\ncorrupt every=10 offset_from_end=0 mask=1\ncopy every=20\nrewrite_mac every=5").stop().check()
    assert run.kinds(5000)[20] == "copy,corrupt,copy,rewrite_mac,sent"
    s = run.stream(5000)
    assert (s["intact"], s["corrupted"], s["rewritten"]) == (90, 10, 20), s  # every=10 has an intact copy; every=5 otherwise rewritten

@test
def delay():
    run = Run("delay key=5000 every=10 ms=50\ndelay key=6000 ms=30\ndelay key=7000 ms=150")
    for i in range(200):
        for k in (5000, 6000, 7000):
            run.send("e0", frame(k, i))
        time.sleep(0.001)
    run.stop(wait=0.4).check()
    worst = 0
    for r in run.records:
        ms = {5000: 50 if r[2] % 10 == 0 else 0, 6000: 30, 7000: 150}[r[1]]
        late = int(r[5][-1][2]) - r[4] - ms * 1000000
        worst = max(worst, late)
        assert 0 <= late < 20000000, (r, late)
    return f"latest {worst / 1e3:.0f} us after due"

@test
def delay_flushed_at_end():
    run = simple("delay ms=60000")
    run.stop().check()
    assert run.stream(5000)["forwarded"] == 100

@test
def delay_same_batch_keeps_order():
    run = Run("delay every=2 ms=40\ndelay frames=1-1000 every=2 ms=40")
    os.kill(run.proc.pid, signal.SIGSTOP)       # so that frames are read in full batches, with equal times
    for i in range(500): run.send("e0", frame(5000, i))
    os.kill(run.proc.pid, signal.SIGCONT)
    run.stop(wait=0.5).check()
    assert len({r[4] for r in run.records}) < 50
    order = sorted((int(r[5][-1][2]), r[2]) for r in run.records)
    assert [n for _, n in order] == list(range(500))

@test
def reorder():
    run = Run("reorder every=10 by=3")
    for i in range(100):
        run.send("e0", frame(5000, i)); run.send("e1", frame(5000, i))
    run.stop().check()
    for port, to in (("e0", "e1"), ("e1", "e0")):
        order = sorted((int(r[5][-1][2]), r[2]) for r in run.records if r[0] == port)
        want = []
        for base in range(0, 100, 10):
            want += [base + 1, base + 2, base + 3, base] + list(range(base + 4, base + 10))
        assert [n for _, n in order] == want, [n for _, n in order]

@test
def reorder_copies_and_other_direction_do_not_count():
    run = Run("reorder frames=0-1 from=e0 by=2\ncopy frames=1-2 copies=5")
    run.send("e0", frame(5000, 0)); time.sleep(.05)
    for i in range(10): run.send("e1", frame(5000, i))
    run.send("e0", frame(5000, 1)); time.sleep(.05)
    run.send("e0", frame(5000, 2)); time.sleep(.05)
    run.send("e0", frame(5000, 3))
    run.stop().check()
    t = {r[2]: int(r[5][-1][2]) for r in run.records if r[0] == "e0"}
    assert t[1] < t[2] < t[0] < t[3]

@test
def reorder_nested_and_chain():
    run = simple("reorder every=5 by=7\nreorder frames=1-1000 every=5 by=1", n=1000)
    run.stop().check()
    assert run.stream(5000)["forwarded"] == 1000
    t = {r[2]: int(r[5][-1][2]) for r in run.records}
    for n in range(1, 990, 5):   # by=1: exactly one later frame forwarded first
        assert sum(t[m] < t[n] for m in range(n + 1, 1000)) == 1, n
    for n in range(0, 900, 5):   # by=7
        assert sum(t[m] < t[n] for m in range(n + 1, 1000)) == 7, (n, sum(t[m] < t[n] for m in range(n + 1, 1000)))

@test
def reorder_two_seconds():
    run = simple("reorder by=5", n=10)
    run.stop(wait=2.4).check()
    for r in run.records:
        assert 2e9 <= int(r[5][-1][2]) - r[4] < 2.02e9

@test
def reorder_flushed_at_end():
    assert simple("reorder by=5", n=10).stop().check().stream(5000)["forwarded"] == 10

@test
def misdeliver_flood_reflect():
    run = simple("misdeliver frames=10-20 to=e2\nflood frames=30-33 to=e2\nreflect frames=40-45", both=False).stop().check()
    s = run.stream(5000)
    assert (s["misdelivered"], s["flooded"], s["reflected"], s["forwarded"]) == (10, 3, 5, 90)
    assert [(o["first"], o["last"]) for o in s["outages"]] == [(10, 19)]
    assert (len(run.out["e0"]), len(run.out["e1"]), len(run.out["e2"])) == (5, 90, 13)

@test
def reflect_then_drop_and_hold_inherited():
    run = simple("reflect frames=0-10\ndrop frames=0-10\ndelay frames=20-30 ms=20\nflood frames=20-30 to=e2\nreflect frames=20-21").stop().check()
    assert run.kinds(5000)[0] == "reflect,drop" and run.kinds(5000)[20] == "delay,flood,reflect,sent"
    assert all(int(f[2]) - r[4] >= 20e6 for r in run.records[20:30] for f in r[5][1:])
    s = run.stream(5000)
    assert (s["reflected"], s["dropped"], s["forwarded"]) == (11, 10, 90)

@test
def rewrite_mac():
    run = simple("rewrite_mac key=6000", keys=(5000, 6000)).stop().check()
    assert run.stream(6000)["rewritten"] == 100 and run.stream(6000)["intact"] == 0 and run.stream(5000)["rewritten"] == 0

@test
def police():
    run = Run("police rate=1000 bucket=20 key=5000")
    begin = time.monotonic()
    i = 0
    while time.monotonic() - begin < 1.0:
        for _ in range(4):
            run.send("e0", frame(5000, i)); i += 1
        run.send("e0", frame(6000, i)); time.sleep(0.002)
    run.stop().check()
    # The same bucket, computed anew from the logged times.
    tokens, last = 20.0, None
    for r in run.records:
        if r[1] == 6000:
            assert r[5][0][0] == "sent"
            continue
        if last is not None:
            tokens = min(20.0, tokens + (r[4] - last) * 1000 / 1e9)
        last = r[4]
        assert (r[5][0][0] == "sent") == (tokens >= 1) or abs(tokens - 1) < 1e-6, (r, tokens)
        tokens -= tokens >= 1
    s = run.stream(5000)
    span = (run.records[-1][4] - run.records[0][4]) / 1e9
    assert 900 < s["forwarded"] < 22 + 1000 * span, (s["forwarded"], span)
    return f"{s['received']} received, {s['forwarded']} passed in {span:.3f} s"

@test
def arp_drop_and_keys():
    tag = struct.pack("!HH", 0x8100, 100)
    run = Run("arp_drop")
    run.send("e0", frame(1, 0, size=60, ethertype=0x0806))
    run.send("e0", frame(1, 1, size=64, ethertype=0x0806, tags=tag))
    run.send("e0", frame(5000, 2, proto=6))
    run.send("e0", frame(5000, 3, proto=17))
    run.send("e0", frame(5000, 4, proto=1))
    run.send("e0", frame(5000, 5, ethertype=0x86dd))
    fragment = bytearray(frame(5000, 6)); fragment[20:22] = b"\x00\x10"
    run.send("e0", bytes(fragment))
    options = bytearray(frame(5000, 7)); options[14] = 0x46; options[38:40] = struct.pack("!H", 4321)
    run.send("e0", bytes(options))
    run.send("e0", b"\xff" * 12 + b"\x88\xb5")      # 14 bytes
    run.send("e0", frame(5000, 8)[:34])              # cut after IP header
    run.stop().check()
    assert [(r[1], r[2], r[5][0][0]) for r in run.records] == [(-1, 0, "arp_drop"), (-1, 1, "arp_drop"), (5000, 0, "sent"),
        (5000, 1, "sent"), (-1, 2, "sent"), (-1, 3, "sent"), (-1, 4, "sent"), (4321, 0, "sent"), (-1, 5, "sent"), (-1, 6, "sent")], \
        [(r[1], r[2], r[5][0][0]) for r in run.records]

@test
def vlan_and_sizes():
    Run.mask = 0xff
    run = Run("corrupt key=9 offset_from_end=0 mask=255\nrewrite_mac key=8\ndelay key=7 ms=20")
    for tags in (b"", struct.pack("!HH", 0x8100, 0x6064), struct.pack("!HHHH", 0x88a8, 200, 0x8100, 0xe003), struct.pack("!HH", 0x8100, 0)):
        for key in (5, 7, 8, 9):
            for size in (78, 100, 128, 1500, 9014):
                run.send("e0", frame(key, size, size=size + len(tags) if size < 9014 or len(tags) <= 4 else size, tags=tags))
    run.stop().check()
    assert all(r[1] != -1 for r in run.records) and len(run.records) == 80

@test
def pass_map_and_no_route():
    run = Run("pass from=e0 to=e2\npass from=e2 to=e0\ncopy from=e1 frames=0-1")
    run.send("e0", frame(1, 0)); run.send("e1", frame(2, 0)); run.send("e2", frame(3, 0)); run.stop().check()
    assert [(r[0], r[5][-1][:2]) for r in run.records] == [("e0", ["sent", "e2"]), ("e1", ["sent", "e0"]), ("e2", ["sent", "e0"])]
    run = Run("copy from=e2")
    run.send("e2", frame(3, 0)); run.stop().check()
    assert run.kinds(3, "e2") == ["no_route,no_route"] and run.stream(3, "e2")["dropped"] == 1

@test
def exit_link_down_is_logged():
    text = ""
    for side, ns, port in (("peer", TESTER, "p1"), ("own", JUDGE, "e1")):
        run = Run("")
        for i in range(50): run.send("e0", frame(5000, i))
        time.sleep(.1); sh(f"ip -n {ns} link set {port} down"); time.sleep(.3)
        for i in range(50, 90): run.send("e0", frame(5000, i))
        time.sleep(.2); sh(f"ip -n {ns} link set {port} up"); time.sleep(.3)
        for i in range(90, 140): run.send("e0", frame(5000, i))
        run.stop()
        run.out["e1"] = [x for x in run.out["e1"] if len(x[1]) == 128]
        run.check()
        s = run.stream(5000)
        assert (s["forwarded"], s["send_failed"], [(o["first"], o["last"]) for o in s["outages"]]) == (100, 40, [(50, 89)]), s
        text += f"{side} end: {s['send_errors']} "
    return text

@test
def ingress_link_down_and_up():
    run = Run("")
    for i in range(50): run.send("e0", frame(5000, i))
    time.sleep(.1); sh(f"ip -n {JUDGE} link set e0 down"); time.sleep(.2); sh(f"ip -n {JUDGE} link set e0 up"); time.sleep(.3)
    for i in range(50, 100): run.send("e0", frame(5000, i))
    run.stop().check()
    assert run.stream(5000)["forwarded"] == 100

@test
def too_long_for_exit():
    sh(f"ip -n {JUDGE} link set e1 mtu 1500")
    try:
        run = Run("")
        for i in range(4): run.send("e0", frame(5000, i, size=(1514, 1515)[i % 2]))
        run.stop()
        s = run.stream(5000)
        assert (s["forwarded"], s["send_errors"]) == (2, {"90": 2}), s
    finally:
        sh(f"ip -n {JUDGE} link set e1 mtu 9000")

@test
def own_socket_overrun_is_counted():
    run = Run("")
    run.rx["e1"].close(); run.rx["e1"] = raw("p1", 256 << 20)
    os.kill(run.proc.pid, signal.SIGSTOP)
    n = 100000
    data = frame(5000, 1, size=1500)
    for i in range(n): run.rx["e0"].send(data)
    os.kill(run.proc.pid, signal.SIGCONT)
    run.stop(wait=2)
    s, f = run.stream(5000), run.summary
    assert s["received"] + f["kernel_drops"]["e0"] == n and f["kernel_drops"]["e0"] > 0 and not f["sound"], (s["received"], f["kernel_drops"])
    return f"{s['received']} received + {f['kernel_drops']['e0']} kernel_drops = {n}"

@test
def sigint_and_stop_under_fire():
    run = Run("delay every=3 ms=500\nreorder frames=1-100000000 every=3 by=10")
    run.rx["e1"].close(); run.rx["e1"] = raw("p1", 256 << 20)
    child = os.fork()
    if child == 0:
        data = frame(5000, 1)
        for i in range(400000): run.rx["e0"].send(data)
        os._exit(0)
    time.sleep(0.1)
    begin = time.monotonic(); run.finish(signal.SIGINT); took = time.monotonic() - begin
    os.waitpid(child, 0)
    got = len(drain(run.rx["e1"]))
    f = judge_module.judge(run.base + ".log")
    assert f["sound"], f["problems"]
    assert f["totals"]["sent"] == f["totals"]["received"] == got and 0 < got < 400000, (f["totals"], got)
    return f"{got} frames before the stop, ended in {took * 1e3:.0f} ms"

@test
def bad_specs_are_refused():
    bad = ["explode", "drop foo=1", "drop key", "drop key=70000", "drop frames=5", "drop frames=5-5", "drop frames=5-x", "drop t=1-2x",
           "misdeliver", "misdeliver to=e9", "corrupt offset_from_end=1", "corrupt offset_from_end=1 mask=0", "police rate=5", "drop ms=5",
           "drop key=1 key=2", "pass from=e0", "delay", "reorder by=0", "copy copies=", "drop every=0", "drop share=1001", "pass from=e0 to=e1 key=1"]
    for spec in bad:
        with open(f"/tmp/judge_test_{PID}.spec", "w") as f: f.write(spec + "\n")
        r = subprocess.run(["ip", "netns", "exec", JUDGE, BINARY, f.name, "/dev/null", "e0", "e1"], capture_output=True, text=True, timeout=10)
        assert r.returncode == 2 and "spec line 1" in r.stderr, (spec, r)
    for arguments in (["e0"], ["e0", "nosuch"], ["e0", "e0"]):
        r = subprocess.run(["ip", "netns", "exec", JUDGE, BINARY, "/dev/null", "/dev/null"] + arguments, capture_output=True, text=True, timeout=10)
        assert r.returncode == 2, r
    return f"{len(bad) + 3} refused"

def pump(s, frames, rate, stop_at, t0):
    """Sends frames at `rate`, in lots of 1 ms."""
    sent, failed = 0, 0
    while sent < len(frames):
        due = min(len(frames), int((time.monotonic() - t0) * rate))
        while sent < due:
            try:
                s.send(frames[sent]); sent += 1
            except OSError:
                failed += 1
        time.sleep(0.0005)
    return failed

@test
def load_20000_per_second():
    text = []
    for spec, seconds, sizes in (("", 10, (128, 512, 1500)), ("drop key=5000 t=2000-3000\ndelay key=5001 every=2 ms=20\nreorder key=5002 every=50 by=5\ncopy key=5002 every=100\n"
                       "corrupt key=5003 every=1000 offset_from_end=40 mask=255\nflood key=5003 share=10 to=e2\nreflect key=5000 share=5 seed=3\nmisdeliver key=5001 frames=1000-1100 to=e2", 10, (128, 512, 1500))):
        Run.mask = 255
        run = Run(spec)
        n = 20000 * seconds
        half = [[], []]
        for i in range(n):
            half[i % 2].append(frame(5000 + i // 2 % 4, i, size=sizes[i // 2 % 3]))
        pipes = []
        t0 = time.monotonic() + 0.3
        for side in (0, 1):      # a sender for each side, 10 000/s each
            pid = os.fork()
            if pid == 0:
                os._exit(1 if pump(run.rx[f"e{side}"], half[side], 10000, None, t0) else 0)
            pipes.append(pid)
        got = {p: [] for p in run.rx}
        by_fd = {s: p for p, s in run.rx.items()}
        end = t0 + seconds + 1.0
        while time.monotonic() < end:
            for s in select.select(list(by_fd), [], [], 0.1)[0]:
                try:
                    while True:
                        got[by_fd[s]].append(s.recv(65536))
                except BlockingIOError:
                    time.sleep(0.002)
        codes = [os.waitpid(p, 0)[1] for p in pipes]
        usage = open(f"/proc/{run.proc.pid}/stat").read().split()
        cpu = (int(usage[13]) + int(usage[14])) / os.sysconf("SC_CLK_TCK")
        begin = time.monotonic(); run.finish(); took = time.monotonic() - begin
        run.sent = [("e0", d) for d in half[0]] + [("e1", d) for d in half[1]]
        for p, s in run.rx.items():
            got[p] += [d for _, d in drain(s, 0.1)]
            s.close()
        run.rx = {}
        run.finish = lambda *a, **k: None
        run.stop(wait=0)
        run.out = {p: [(0, d) for d in frames] for p, frames in got.items()}
        run.check()
        hold = [int(r[5][-1][2]) - r[4] for r in run.records if len(r[5]) == 1 and r[5][0][0] == "sent"]
        hold.sort()
        assert codes == [0, 0] and len(run.records) == n
        text.append(f"{n} frames in {seconds} s, drops {run.summary['kernel_drops']}, cpu {cpu / seconds:.0%}, "
                    f"forwarding time median {hold[len(hold) // 2] / 1e3:.0f} us p99 {hold[len(hold) * 99 // 100] / 1e3:.0f} us max {hold[-1] / 1e3:.0f} us, log written in {took:.2f} s")
    return "; ".join(text)

if __name__ == "__main__":
    names = sys.argv[1:]
    if "--asan" in names:
        names.remove("--asan"); BINARY += "_asan"
    bad = 0
    setup()
    try:
        for name, function in TESTS.items():
            if names and name not in names: continue
            Run.mask = 0
            begin = time.monotonic()
            try:
                note = function()
                print(f"ok    {name} ({time.monotonic() - begin:.1f} s) {note or ''}", flush=True)
            except Exception as problem:
                bad += 1
                print(f"FAIL  {name}: {type(problem).__name__} {str(problem)[:600]}", flush=True)
    finally:
        teardown()
        for end in (".spec", ".log"):
            if not bad and os.path.exists(f"/tmp/judge_test_{PID}{end}"): os.unlink(f"/tmp/judge_test_{PID}{end}")
    sys.exit(bad != 0)
