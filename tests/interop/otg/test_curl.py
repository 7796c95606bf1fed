"""The same server under curl: the words that clients send, and what people type."""

import json
import subprocess

from rig import eventually

# As a client writes it: defaults filled in, long numbers as text, empty headers.
CONFIG = """{"ports":[{"name":"p1","location":"localhost:5555"},{"name":"p2","location":"localhost:5556"}], "flows":[{"name":"f1",
  "tx_rx":{"choice":"port","port":{"tx_name":"p1","rx_names":["p2"]}}, "rate":{"choice":"pps","pps":"50"}, "size":{"choice":"fixed","fixed":128},
  "packet":[{"choice":"ethernet","ethernet":{}},{"choice":"ipv4","ipv4":{}},
            {"choice":"udp","udp":{"src_port":{"choice":"increment","increment":{"start":5000,"step":1,"count":1}}}}],
  "duration":{"choice":"fixed_packets","fixed_packets":{"packets":100,"gap":12}}, "metrics":{"enable":true,"loss":false,"timestamps":false}}]}"""
START = '{"choice":"traffic","traffic":{"choice":"flow_transmit","flow_transmit":{"state":"start"}}}'


def curl(server, path, body=None, *flags):
    """Status and text."""
    command = ["curl", "--silent", "--insecure", "--write-out", "\n%{http_code}", *flags, server.https + path]
    if body is not None:
        command += ["--header", "Content-Type: application/json", "--data", body]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    body, status = text.rsplit("\n", 1)
    return int(status), body


def test_a_run_by_hand(server):
    assert curl(server, "/config", CONFIG) == (200, '{"warnings":[]}')
    assert curl(server, "/control/state", START) == (200, '{"warnings":[]}')

    def ended():
        status, text = curl(server, "/monitor/metrics", '{"choice":"flow","flow":{"flow_names":[]}}')
        assert status == 200
        row = json.loads(text)["flow_metrics"][0]
        return row if row["transmit"] == "stopped" else None

    row = eventually("the flow has stopped", ended)
    assert (row["frames_tx"], row["frames_rx"], row["bytes_tx"], row["bytes_rx"]) == ("100", "100", "12800", "12800")
    ports = json.loads(curl(server, "/monitor/metrics", '{"choice":"port"}')[1])["port_metrics"]
    assert (ports[0]["frames_tx"], ports[1]["frames_rx"]) == ("100", "100")
    assert json.loads(curl(server, "/config")[1])["flows"][0]["name"] == "f1"
    version = json.loads(curl(server, "/capabilities/version")[1])
    assert set(version) == {"api_spec_version", "sdk_version", "app_version"}


def test_mistakes(server):
    status, text = curl(server, "/config", "{")
    assert status == 400 and json.loads(text)["kind"] == "validation"
    status, text = curl(server, "/config", '{"flws": []}')
    assert status == 400 and json.loads(text)["errors"][0].startswith("flws")
    assert curl(server, "/nothing")[0] == 404
    assert curl(server, "/config", "{}", "--request", "DELETE")[0] == 405
    status, text = curl(server, "/config", None, "--data", "{}")
    assert status == 415 and "use --json" in json.loads(text)["errors"][0]
