"""Many changes, many clients, clients that die: the server goes on as it was."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import rig
import snappi
from rig import eventually
from talk import Talk, assert_exact, config, flow, udp


def footprint(pid):
    """Resident KiB, open files, threads."""
    process = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    return int(status["VmRSS"].split()[0]), len(list((process / "fd").iterdir())), int(status["Threads"])


def threads(pid):
    """Their names, for messages only."""
    return sorted(name for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if (name := thread_name(task)))


def thread_name(task):
    """Nothing if the thread has ended since it was listed."""
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return None


def test_a_hundred_configurations_leave_nothing_behind(grpc, server):
    made = config()
    for number in range(4):
        udp(flow(made, f"f{number}", packets=10))

    def turns(count):
        for turn in range(count):
            grpc.set(made)
            grpc.start()
            if turn % 10 == 0:
                assert_exact(grpc.ended(), grpc.ports(), 40, 128)
        grpc.set(snappi.Config())

    turns(20)
    before = footprint(server.pid)
    turns(100)

    def settled():
        now = footprint(server.pid)
        print(now, threads(server.pid))
        return now if now[1] <= before[1] and now[2] <= before[2] else None

    # Threads that serve calls end some seconds after their last one, not with it; none may stay beyond that.
    after = eventually(f"files and threads are as before, {before}", settled)
    assert after[0] <= before[0] * 1.1 + 2_048, (before, after)


def test_ten_clients_at_once(server):
    """One steers, nine look; what they see never goes backwards."""
    made = config()
    udp(flow(made, pps=2_000))
    talk = Talk(server.api("grpc"), "grpc")
    talk.set(made)
    failures, done = [], threading.Event()

    def look(transport):
        try:
            mine, last = Talk(server.api(transport), transport), 0
            while not done.is_set():
                seen = mine.flow().frames_tx
                assert seen >= last, (seen, last)
                last = seen
                assert len(mine.ports()) == 2 and len(mine.api.get_config().flows) == 1
        except BaseException as error:  # noqa: BLE001  (told by the main thread)
            failures.append(error)

    talk.start()
    clients = [threading.Thread(target=look, args=(("grpc", "http")[n % 2],)) for n in range(9)]
    for client in clients:
        client.start()
    try:
        talk.sent("f1", 6_000)
    finally:
        done.set()
        for client in clients:
            client.join()
    assert not failures, failures
    talk.stop()
    rows = talk.ended()
    assert_exact(rows, talk.ports(), rows["f1"].frames_tx, 128)


def test_configurations_at_the_same_time_come_one_after_another(server):
    def made(name):
        it = config()
        for number in range(50):
            udp(flow(it, f"{name} {number}", packets=1))
        return it

    failures = []

    def push(name, transport):
        try:
            talk = Talk(server.api(transport), transport)
            for _ in range(5):
                talk.set(made(name))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    clients = [threading.Thread(target=push, args=(f"c{n}", ("grpc", "http")[n % 2])) for n in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not failures, failures
    talk = Talk(server.api(), "grpc")
    names = [added.name for added in talk.api.get_config().flows]
    assert len(names) == 50 and len({name.split()[0] for name in names}) == 1
    assert set(talk.flows()) == set(names), "rows are those of the configuration"
    talk.start()
    assert_exact(talk.ended(), talk.ports(), 50, 128)


DIES = """
import sys, time
sys.path.insert(0, {here!r})
import snappi
kind = snappi.Transport.GRPC if sys.argv[1] == "grpc" else snappi.Transport.HTTP
api = snappi.api(location=sys.argv[2], transport=kind, verify=False)
request = snappi.MetricsRequest()
request.flow.flow_names = []
print("ready", flush=True)
while True:
    api.set_config(api.get_config())
    api.get_metrics(request)
"""


def test_clients_that_are_killed_in_the_middle(server):
    here = os.path.dirname(__file__)
    made = config()
    for number in range(200):
        udp(flow(made, f"f{number}", packets=5))
    talk = Talk(server.api(), "grpc")
    talk.set(made)
    for turn in range(6):
        transport, where = (("grpc", server.grpc), ("http", server.https))[turn % 2]
        client = subprocess.Popen(
            [sys.executable, "-c", DIES.format(here=here), transport, where], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert client.stdout.readline() == b"ready\n"
            # Somewhere in a call, another place each time.
            threading.Event().wait(0.1 + 0.07 * turn)
        finally:
            client.send_signal(signal.SIGKILL)
            client.wait()
            client.stdout.close()
    # Whatever was under way goes on to its end; then the server is as before.
    talk.set(made)
    talk.start()
    assert_exact(talk.ended(), talk.ports(), 1_000, 128)


def test_results_are_kept(tmp_path):
    """Each configuration that has sent is a run in the catalogue, with the counts that clients saw."""
    server = rig.Server()
    try:
        talk = Talk(server.api(), "grpc")
        counts = []
        for packets in (100, 250):
            made = config()
            udp(flow(made, packets=packets))
            rows = talk.run(made)
            assert_exact(rows, talk.ports(), packets, 128)
            counts.append(packets)
        # One that sends nothing is no result.
        talk.set(config())
        talk.set(snappi.Config())
        assert server.stop() == 0, server.text()
        runs = reports(server.store)
        # A machine that is busy may be late, which leaves the verdict open.
        assert len(runs) == 2 and all(run["verdict"].lower() in ("pass", "inconclusive") for run in runs), runs
        shown = list(reversed(runs))
        for report, packets in zip(shown, counts):
            assert (report["sent"], report["lost"]) == (packets, 0), report
    finally:
        server.kill()


def packetrig(*arguments):
    return json.loads(subprocess.run([rig.binary(), *arguments], check=True, capture_output=True, text=True).stdout)


def reports(store):
    """Newest first."""
    return packetrig("report", "list", "--json", "--store", store)


def show(store, run):
    return packetrig("report", "show", run["run"], "--json", "--store", store)


def test_a_server_that_is_stopped_under_load_ends_and_keeps_the_result():
    server = rig.Server()
    try:
        talk = Talk(server.api(), "grpc")
        made = config()
        udp(flow(made))
        talk.set(made)
        talk.start()
        talk.sent("f1", 500)
        assert server.stop() == 0, server.text()
        assert len(reports(server.store)) == 1
    finally:
        server.kill()


def test_names_of_a_configuration_can_change_while_clients_look(server):
    talk, other = Talk(server.api(), "grpc"), Talk(server.api("http"), "http")
    for turn in range(10):
        made = config()
        udp(flow(made, f"turn {turn}", packets=20))
        talk.set(made)
        assert list(other.flows()) == [f"turn {turn}"]
        talk.start()
        eventually("it has run", lambda: other.flow(f"turn {turn}").frames_rx == 20)
