"""A hostile client of the OTG API, against the built server: `otg_client.py CHECK`.

Each check does what a page in a browser, another user of the machine or a broken program can do, and asserts what remains
possible for the honest client. Numbers that an evaluation prints are lines `NAME: VALUE`.
"""

import itertools
import json
import os
import pathlib
import select
import sys
import tempfile
import threading
import time

from rig import (
    CONTINUATION, DATA, HEADERS, HONEST, PREFACE, RESET, SETTINGS, STRANGER,
    as_user, ask, call, call_head, connect, enter_network, eventually, frame, head, kept_by, message,
    read_response, serving,
)

SLOTS = 256
MANY = 1000
CONFIG = json.dumps({"ports": [{"name": "p", "location": "no-such-interface"}]})
NOBODY = 65534


def is_honest_client_served(server, times=20):
    for _ in range(times):
        assert ask(server.http)[0] == 200
        assert call(server.grpc), "no version over gRPC"


def is_untouched(server):
    return ask(server.http) == (200, "{}")


def pages():
    """What a page can have a browser send, by whatever name and form: nothing changes."""
    with serving() as server:
        host = "{}:{}".format(*server.http)
        ours = {"Host": host, "Content-Type": "application/json"}
        forged = [
            {"Host": host, "Content-Type": media}
            for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "text/json")
        ]
        forged += [{"Host": host}, {"Content-Type": "application/json"}]
        names = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example@127.0.0.1", "")
        forged += [{**ours, "Host": name} for name in names]
        origins = ("https://evil.example", "null", f"https://{host}", "http://localhost:1", f"http://{host}.evil.example")
        forged += [{**ours, "Origin": origin} for origin in origins]
        forged += [{**ours, "Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "new-site")]
        calls = [("POST", "/config", "{}"), ("POST", "/config", CONFIG), ("PATCH", "/config", "{}"), ("POST", "/control/state", "{}")]
        for headers, (method, path, body) in itertools.product(forged, calls):
            status, text = ask(server.http, method, path, body, headers)
            assert status in (403, 415, 421), (headers, status, text)
        for how in (
            {"media": "application/grpc-web"}, {"media": "application/grpc-web-text"}, {"media": "text/plain"},
            {"media": "application/json"}, {"authority": "evil.example"}, {"extra": [("origin", "https://evil.example")]},
            {"extra": [("sec-fetch-site", "cross-site")]},
        ):
            assert call(server.grpc, **how) is None or how.get("media"), how
            assert not call(server.grpc, "GetVersion", **how) or b"error" in call(server.grpc, **how), how
        preflight = ask(server.http, "OPTIONS", "/config", "", {"Host": host, "Origin": "https://evil.example"})
        assert preflight[0] == 403 and is_untouched(server)
        is_honest_client_served(server)
        assert ask(server.http, "POST", "/config", "{}", ours) == (200, '{"warnings":[]}')
        refused = server.stop()
        for cause in ("for an unknown host name", "from web pages", "with a wrong content type"):
            assert cause in refused, refused


def send_and_vanish(address, request):
    """A connection whose client has gone when the server asks whose it is."""
    with connect(address) as stream:
        stream.sendall(request)


def users():
    """Another user of the machine: refused without the token, also when the connection is nobody's any more."""
    request = head("POST", "/config", 2, HONEST) + b"{}"
    bad = head("POST", "/config", len(CONFIG), HONEST) + CONFIG.encode()
    setting = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, call_head("SetConfig")) + frame(DATA, 1, 1, message())

    def everything(server):
        answers = [ask(server.http, "POST", "/config", "{}"), ask(server.http), ask(server.http, path="/docs")]
        answers += [ask(server.http, headers={**HONEST, "Authorization": value}) for value in ("Bearer ", "Bearer x", "Basic Og==")]
        for _ in range(300):
            send_and_vanish(server.http, request)
            send_and_vanish(server.http, bad)
            send_and_vanish(server.grpc, setting)
        return [answer and answer[0] for answer in answers] + [call(server.grpc) is not None]

    directory = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"packetrig-hostile-{os.getpid()}"
    directory.mkdir(mode=0o755)
    token_file = directory / "token"
    try:
        with serving() as server:
            for user in (STRANGER, NOBODY):
                assert as_user(user, lambda: everything(server)) == [401] * 6 + [False]
            assert is_untouched(server)
            is_honest_client_served(server)
            assert "without the token" in server.stop()
        with serving(f"--token-file={token_file}") as server:
            token = token_file.read_text().strip()
            assert token_file.stat().st_mode & 0o777 == 0o600
            for place in ("cmdline", "environ"):
                assert token not in pathlib.Path(f"/proc/{server.process.pid}/{place}").read_text()
            assert token not in server.text()
            is_readable = lambda: os.access(token_file, os.R_OK)
            assert not as_user(STRANGER, is_readable)
            assert as_user(STRANGER, lambda: everything(server)) == [401] * 6 + [False]
            with_token = {**HONEST, "Authorization": f"Bearer {token}"}
            assert as_user(STRANGER, lambda: ask(server.http, "POST", "/config", "{}", with_token)[0]) == 200
            extra = [("authorization", f"Bearer {token}")]
            assert as_user(STRANGER, lambda: call(server.grpc, extra=extra) is not None)
            is_honest_client_served(server)
        with serving(f"--allow-user={STRANGER}") as server:
            assert as_user(STRANGER, lambda: ask(server.http)[0]) == 200
            assert as_user(NOBODY, lambda: ask(server.http)[0]) == 401
        with serving(f"--token-file={token_file}", "--token-always") as server:
            assert ask(server.http)[0] == 401
    finally:
        token_file.unlink(missing_ok=True)
        directory.rmdir()


def open_many(address, first_bytes=b""):
    """A client that has many connections and sends only this on each; those that are closed it opens again."""
    held = []
    for _ in range(MANY):
        held.append(connect(address))
        try:
            held[-1].sendall(first_bytes)
        except OSError:
            pass
    return held


def count_free(address):
    """How many connections an honest client has at once, each with two answers."""
    streams = []
    for _ in range(SLOTS):
        streams.append(connect(address))
        streams[-1].sendall(head("GET", "/config", None, HONEST))
        assert read_response(streams[-1])[0] == 200
    free = 0
    for stream in streams:
        try:
            stream.sendall(head("GET", "/config", None, HONEST))
            free += read_response(stream) is not None
        except OSError:
            pass
        stream.close()
    return free


def idle():
    """Connections that say nothing, of another user and of the honest client's own."""
    with serving() as server:
        for name, user in (("another user's", STRANGER), ("its own user's", 0)):
            with kept_by(user, lambda: holding(open_many(server.http) + open_many(server.grpc))):
                print(f"slots free under {MANY} idle connections ({name}): {count_free(server.http)} of {SLOTS}")
                assert count_free(server.http) == SLOTS
                is_honest_client_served(server)
        refused = server.stop()
        assert "closed while idle to make room for new connections" in refused, refused


def holding(held):
    """Keeps what is held and does nothing."""
    return lambda: time.sleep(len(held))


def dripping(address, first_bytes):
    """Sends one more byte on each of many connections, again and again."""
    held = open_many(address, first_bytes)

    def drip():
        for stream in held:
            try:
                stream.sendall(b"a")
            except OSError:
                pass
        time.sleep(0.5)

    return drip


def slow_heads():
    with serving() as server:
        for user in (STRANGER, 0):
            with kept_by(user, lambda: dripping(server.http, b"POST /config HTTP/1.1\r\nX: ")):
                is_honest_client_served(server)
        half = connect(server.http)
        half.sendall(b"GET /config HT")
        assert half.recv(1) == b"", "half a head is not waited for"
        refused = server.stop()
        assert "without a request in time" in refused, refused


def slow_bodies():
    """More bodies than connections, by a user that may: they end after the time they have, and the honest client has its turn."""
    with serving() as server:
        first = head("POST", "/config", 1 << 20, HONEST)
        with kept_by(STRANGER, lambda: dripping(server.http, first)):
            is_honest_client_served(server)
        with kept_by(0, lambda: dripping(server.http, first)):
            is_honest_client_served(server, 5)
        assert is_untouched(server)
        refused = server.stop()
        assert "with a body that arrived too slowly" in refused and "without the token" in refused, refused


def refused_bodies():
    """Clients at many addresses that have no token and send long bodies slowly: the holder of the token is served all the while."""
    sources = [f"127.1.{number // 200}.{1 + number % 200}" for number in range(2 * SLOTS)]
    begun = head("POST", "/config", 1 << 20, HONEST) + b"{"

    def attack(address):
        held = {source: connect(address, source) for source in sources}

        def open_again():
            for source, stream in held.items():
                try:
                    stream.sendall(begun)
                except OSError:
                    held[source] = connect(address, source)
        return open_again

    with tempfile.TemporaryDirectory(prefix="packetrig-hostile-") as directory:
        token_file = pathlib.Path(directory) / "token"
        with serving(f"--token-file={token_file}", "--token-always") as server:
            honest = {**HONEST, "Authorization": f"Bearer {token_file.read_text().strip()}"}
            assert ask(server.http, headers=honest)[0] == 200
            with kept_by(STRANGER, lambda: attack(server.http)):
                answers = []
                for _ in range(200):
                    # Longer in all than a refused body is read.
                    time.sleep(0.02)
                    answers.append(ask(server.http, headers=honest))
            served = sum(answer is not None and answer[0] == 200 for answer in answers)
            print(f"requests with the token served beside {len(sources)} refused clients: {served} of {len(answers)}")
            assert served == len(answers)
            refused = server.stop()
            assert "without the token" in refused, refused
            print(refused)


def no_preface():
    with serving() as server:
        for first in (b"", PREFACE[:20], PREFACE, PREFACE + frame(SETTINGS, 0, 0)[:5]):
            for user in (STRANGER, 0):
                with kept_by(user, lambda: holding(open_many(server.grpc, first))):
                    is_honest_client_served(server, 5)
        silent = connect(server.grpc)
        silent.sendall(PREFACE[:23])
        eventually("the connection is closed", lambda: is_at_end(silent))
        server.stop()


def is_at_end(stream):
    try:
        while part := stream.recv(65536):
            assert part
        return True
    except ConnectionResetError:
        return True


def rapid_reset():
    """Streams that are opened and reset at once, in one connection after the other."""
    def storm(address, rpc):
        opened = itertools.count(1, 2)
        sent = 0
        for _ in range(20):
            with connect(address) as stream:
                try:
                    stream.sendall(PREFACE + frame(SETTINGS, 0, 0))
                    for number in itertools.islice(opened, 2000):
                        stream.sendall(frame(HEADERS, 4, number, call_head(rpc)) + frame(RESET, 0, number, b"\0\0\0\x08"))
                        sent += 1
                except OSError:
                    pass
        return sent

    with serving() as server:
        is_honest_client_served(server)
        before = server.memory()
        for user, rpc in ((STRANGER, "SetConfig"), (0, "GetVersion")):
            results = []
            attack = threading.Thread(target=lambda: results.append(as_user(user, lambda: storm(server.grpc, rpc))))
            attack.start()
            while attack.is_alive():
                is_honest_client_served(server, 1)
            print(f"streams reset at once by user {user}: {results[0]}")
        grown = server.memory() - before
        print(f"memory after rapid reset, MiB more: {grown:.1f}")
        assert grown < 64 and is_untouched(server)
        server.stop()


def huge_heads():
    def attack(server):
        for _ in range(20):
            with connect(server.http) as stream:
                flood(stream, b"GET /config HTTP/1.1\r\nHost: localhost\r\n", b"X: " + b"a" * 8190 + b"\r\n")
            with connect(server.grpc) as stream:
                start = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, call_head("GetVersion"))
                flood(stream, start, frame(CONTINUATION, 0, 1, b"\0\x01x\x7f\x81\x3e" + b"a" * 8192))
        return True

    with serving() as server:
        is_honest_client_served(server)
        before = server.memory()
        for user in (STRANGER, 0):
            assert as_user(user, lambda: attack(server))
            is_honest_client_served(server)
        grown = server.memory() - before
        print(f"memory after huge heads, MiB more: {grown:.1f}")
        assert grown < 64
        server.stop()


def flood(stream, first, more):
    """Sends up to 16 MiB; the server has to stop it."""
    try:
        stream.sendall(first)
        for _ in range(2048):
            stream.sendall(more)
    except OSError:
        return
    raise AssertionError("16 MiB of head were taken")


def slow_readers():
    """Clients that ask for more than all buffers hold, and do not read it."""
    def ask_on(stream, requests=head("GET", "/docs", None, HONEST) * 100):
        stream.setblocking(False)
        try:
            while True:
                stream.send(requests)
        except BlockingIOError:
            return stream

    def unread(address, many):
        return holding([ask_on(connect(address)) for _ in range(many)])

    with serving() as server:
        single = ask_on(connect(server.http))
        hangup = select.poll()
        hangup.register(single, select.POLLHUP | select.POLLERR)
        eventually("a client that does not read is closed", lambda: hangup.poll(0))
        with kept_by(0, lambda: unread(server.http, SLOTS)):
            is_honest_client_served(server, 5)
        refused = server.stop()
        assert "that read the response too slowly" in refused, refused


CHECKS = (pages, users, idle, slow_heads, slow_bodies, refused_bodies, no_preface, rapid_reset, huge_heads, slow_readers)

if __name__ == "__main__":
    wanted = sys.argv[1:] or [check.__name__ for check in CHECKS]
    enter_network()
    for check in CHECKS:
        if check.__name__ in wanted:
            check()
            print(f"ok: {check.__name__}", flush=True)
