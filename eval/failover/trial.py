"""Runs one trial: the lab, the meters, the collector, the sender, and the chain of faults."""

import os
import shutil
import signal
import subprocess
import time

from chains import FILE, PLAIN
from lab import COLLECTOR, METRICS, Lab, Meter, Process
from traffic import draw_flows, write_flows
from watch import open_watch

PORT = 4739
IDLE, ACTIVE = 2, 4
# A meter that is not ready after so long never will be.
READY_TIMEOUT = 40
# Meters without peers say nothing. By the page, each flow has had two whole parts then; the first began up to a part later.
PLAIN_READY = 3 * ACTIVE + 1


class NotReady(Exception):
    """A meter did not come back: itself a result."""


class Trial:
    """`events`: what happened, with monotonic times since the first packet."""

    def __init__(self, plan, program, sender, directory):
        self.plan, self.program, self.sender_program, self.directory = plan, program, sender, directory
        self.events, self.began = [], time.monotonic()

    def note(self, what, **more):
        self.events.append({"at": round(time.monotonic() - self.began, 3), "what": what, **more})

    def meter_command(self, number):
        command = [self.program, "meter", "m0", "--group", "judged", "--member", str(number), "--json"]
        command += ["--idle", f"{IDLE}s", "--active", f"{ACTIVE}s", "--export", f"tcp://{COLLECTOR}:{PORT}"]
        if self.plan["mode"] == PLAIN:
            return command
        for other in self.numbers:
            if other != number:
                command += ["--peer", f"198.19.0.{other}"]
        command += ["--peer-listen", f"198.19.0.{number}", "--peer-key", self.key]
        command += ["--advertise", self.plan["advertise"], "--metrics", f"127.0.0.1:{METRICS}"]
        if self.plan["mode"] == FILE:
            command += ["--role-from", f"file:{self.role_path(number)}"]
        return command

    def role_path(self, number):
        return f"{self.directory}/role{number}/role"

    def write_role(self, number, role):
        path = self.role_path(number)
        with open(f"{path}.new", "w") as file:
            file.write(f"{role}\n")
        os.rename(f"{path}.new", path)

    def give_role(self, number):
        """As keepalived would: the others first. Not to a meter that is not there."""
        for other in self.numbers:
            if other != number:
                self.write_role(other, "standby")
        self.write_role(number, "active")
        self.chosen = number

    def prepare_files(self):
        self.numbers = list(range(1, self.plan["meters"] + 1))
        self.key = f"{self.directory}/group.key"
        with open(self.key, "w") as file:
            file.write("5a" * 32)
        os.chmod(self.key, 0o600)
        if self.plan["mode"] == FILE:
            for number in self.numbers:
                os.makedirs(f"{self.directory}/role{number}", exist_ok=True)
            self.give_role(1)

    def run(self):
        """The keys of the result that do not need judging."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)
        os.chmod(self.directory, 0o755)
        self.prepare_files()
        with Lab(self.directory, self.numbers) as self.lab:
            try:
                self.start_all()
                self.run_chain()
                self.end_all()
            finally:
                self.watch.stop()
            lab_lost = self.lab.lost_by_lab()
        self.watch.write(f"{self.directory}/arrivals", self.began)
        gap = self.watch.longest_gap(self.first_packet + 5, self.last_packet)
        codes = {process.name: process.codes for process in [self.collector, *self.meters.values()]}
        return {"events": self.events, "codes": codes, "gap": round(gap, 3), "cables": lab_lost}

    def start_all(self):
        lab, records = self.lab, f"{self.directory}/records"
        record = open(f"{self.directory}/messages", "wb") if os.environ.get("RECORD") else None
        self.watch = open_watch(lab.collector, record)
        listen = ["--listen", f"tcp://0.0.0.0:{PORT}", "--directory", records, "--json", "-q", "--user", "root"]
        self.collector = Process(lab, lab.collector, "collector", [self.program, "collect", *listen])
        self.collector.start()
        time.sleep(0.3)
        after = PLAIN_READY if self.plan["mode"] == PLAIN else None
        self.meters = {number: Meter(lab, number, self.meter_command(number), after) for number in self.numbers}
        for meter in self.meters.values():
            meter.start()
        self.await_ready()
        self.flows = draw_flows(self.plan["traffic"])
        write_flows(f"{self.directory}/flows", self.flows, self.plan["traffic"])
        command = [self.sender_program, "s0", *(f"{self.directory}/{name}" for name in ("flows", "truth", "packets"))]
        self.sender = lab.start(lab.within(lab.wire, command), stdout=subprocess.PIPE, text=True)
        if self.sender.stdout.readline() != "sending\n":
            raise OSError("the sender did not start")
        self.began = self.first_packet = time.monotonic()
        time.sleep(3)

    def await_ready(self):
        end = time.monotonic() + READY_TIMEOUT
        for meter in self.meters.values():
            while not meter.is_ready():
                if time.monotonic() > end or not meter.is_alive():
                    raise NotReady(f"meter {meter.number} is not ready: {meter.state()} {meter.words()[-300:]}")
                time.sleep(0.05)

    def choose(self, target):
        """The meter that exports, or another one. Without an election, any."""
        active = [meter for meter in self.meters.values() if meter.is_active()]
        others = [meter for meter in self.meters.values() if meter not in active]
        if target == "active" and active:
            return active[0]
        return (others or active)[0]

    def run_chain(self):
        ends = self.began + 60 * self.plan.get("minutes", 60)
        for fault in self.plan["faults"]:
            if time.monotonic() > ends:
                break
            self.await_ready()
            time.sleep(fault["delay"])
            # A meter may have noticed meanwhile that it lacks packets. Then nobody could say what the other one must not lose.
            self.await_ready()
            self.do_fault(fault)
        self.await_ready()
        time.sleep(self.plan["after"])

    def do_fault(self, fault):
        kind, length = fault["kind"], fault["length"]
        meter = self.choose(fault["target"])
        was_chosen = self.plan["mode"] == FILE and meter.number == self.chosen and kind not in ("collector", "control")
        self.note(kind, meter=None if kind == "collector" else meter.number, active=meter.is_active())
        FAULTS[kind](self, meter, length, was_chosen)
        self.note("undone")

    def pass_role(self, meter, was_chosen):
        """A program that decides notices the fault and gives the role to another one that is there."""
        if was_chosen:
            self.give_role(next(number for number in self.numbers if number != meter.number))

    def restart_meter(self, number, meter, length, was_chosen):
        meter.end(number)
        self.pass_role(meter, was_chosen)
        time.sleep(length)
        meter.start()

    def kill(self, *arguments):
        self.restart_meter(signal.SIGKILL, *arguments)

    def terminate(self, *arguments):
        self.restart_meter(signal.SIGTERM, *arguments)

    def freeze(self, meter, length, was_chosen):
        meter.signal(signal.SIGSTOP)
        self.pass_role(meter, was_chosen)
        time.sleep(length)
        meter.signal(signal.SIGCONT)
        self.settle()

    def cut_copy(self, meter, length, was_chosen):
        self.lab.set_copy(meter.number, False)
        self.pass_role(meter, was_chosen)
        time.sleep(length)
        self.lab.set_copy(meter.number, True)
        self.settle()

    def cut_cable(self, name, length):
        self.lab.set_cable(name, False)
        time.sleep(length)
        self.lab.set_cable(name, True)

    def cut_control(self, meter, length, _):
        self.cut_cable(f"p{meter.number}", length)
        self.settle(3)

    def cut_export(self, meter, length, was_chosen):
        self.pass_role(meter, was_chosen)
        self.cut_cable(f"e{meter.number}", length)
        self.settle(3)

    def kill_collector(self, _, length, __):
        self.collector.end(signal.SIGKILL)
        time.sleep(length)
        self.collector.start()
        self.settle(3)

    def settle(self, seconds=IDLE + 2):
        """A meter that was away takes a moment to notice it, and to say so."""
        time.sleep(seconds)

    def end_all(self):
        if self.plan["ending"] == "survivor":
            survivor = self.choose("other")
            for meter in self.meters.values():
                if meter is not survivor:
                    self.note("last", meter=meter.number, active=meter.is_active())
                    self.pass_role(meter, self.plan["mode"] == FILE)
                    meter.end(getattr(signal, self.plan["ending_signal"]))
            if self.plan["mode"] == FILE:
                self.give_role(survivor.number)
            time.sleep(self.plan["after"] + 2)
        self.sender.send_signal(signal.SIGTERM)
        self.sender.wait(timeout=30)
        self.last_packet = time.monotonic()
        self.note("sender ended")
        time.sleep(self.plan["quiet"])
        alive = [meter for meter in self.meters.values() if meter.is_alive()]
        for meter in alive:
            meter.signal(signal.SIGINT)
        for meter in alive:
            meter.wait_for_end()
        time.sleep(0.5)
        self.collector.end(signal.SIGINT)


FAULTS = {
    "kill": Trial.kill,
    "terminate": Trial.terminate,
    "freeze": Trial.freeze,
    "copy": Trial.cut_copy,
    "control": Trial.cut_control,
    "export": Trial.cut_export,
    "collector": Trial.kill_collector,
}
