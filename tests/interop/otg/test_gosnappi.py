"""The same server under gosnappi, the Go client: `go/client_test.go`."""

import os
import subprocess


def test_gosnappi(server):
    environment = {"OTG_HTTPS": server.https, "OTG_GRPC": server.grpc, "PATH": os.environ["PATH"]}
    program = [os.environ["GOSNAPPI"], "-test.v"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line for line in done.stdout.splitlines() if line.startswith("--- PASS: Test")]
    assert len(passed) == 4 and "SKIP" not in done.stdout, done.stdout
