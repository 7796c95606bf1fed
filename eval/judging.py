"""What the independent judges share: namespaces that processes hold, and results that are made once.

A judge's `lab.py` puts this directory among those of its modules."""

import hashlib
import json
import os
import subprocess
import threading


class NamespaceLab:
    """Namespaces belong to processes that hold them, so runs side by side cannot meet, and nothing is left behind.

    A lab says in `PREPARE` what its namespaces need, and in `connect` what is in them. The script ends with `ready`."""

    PREPARE = ""
    # Seconds for a script of `shell`.
    PATIENCE = 30

    def __init__(self, directory):
        self.directory = directory
        self.processes = []
        self.lock = threading.Lock()

    def __enter__(self):
        os.makedirs(self.directory, exist_ok=True)
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def start(self, command, **options):
        process = subprocess.Popen(command, **options)
        with self.lock:
            self.processes.append(process)
        return process

    def hold_namespace(self):
        holder = self.start(
            ["unshare", "-n", "-m", "sh", "-c", self.PREPARE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if holder.stdout.readline() != "ready\n":
            raise OSError("no namespace can be had")
        return holder.pid

    def within(self, namespace, command):
        return ["nsenter", "-t", str(namespace), "-n", "-m", *command]

    def shell(self, namespace, script):
        command = self.within(namespace, ["sh", "-ec", script])
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.PATIENCE)
        if done.returncode:
            raise OSError(f"{script}: {done.stderr.strip()}")
        return done.stdout


def key_of(program, judge, seed):
    """Results of another program or another judge (its files) are no results of this one."""
    digest = hashlib.sha256()
    for path in (program, *judge, os.path.abspath(__file__)):
        with open(path, "rb") as file:
            digest.update(file.read())
    return f"{digest.hexdigest()[:12]}-{seed}"


def read_results(path, name_of):
    """By what names a result; a line that was cut off is no result."""
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                try:
                    result = json.loads(line)
                except ValueError:
                    continue
                results[name_of(result)] = result
    return results


def build_program(base, source, *options):
    """Builds a C program of a judge in a directory."""
    program = f"{base}/{os.path.splitext(os.path.basename(source))[0]}"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", program, source, *options], check=True)
    return program
