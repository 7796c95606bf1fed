"""A Kafka broker of its own: starts it, makes a topic, and reads what was sent.

    broker.py JARS

Prints its address, waits for a line with the number of records to expect, prints what it read as JSON and ends the broker.
"""
import collections
import glob
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import kafka
import kafka.admin

TOPIC, PARTITIONS = "flows", 3
place = tempfile.TemporaryDirectory()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def settings(port, controller):
    return f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={place.name}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def java(jars, *arguments):
    path = os.pathsep.join(sorted(glob.glob(f"{jars}/**/*.jar", recursive=True)))
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, *arguments]


def start(jars):
    port = free_port()
    file = os.path.join(place.name, "server.properties")
    with open(file, "w") as out:
        out.write(settings(port, free_port()))
    log = open(os.path.join(place.name, "log"), "wb")
    subprocess.run(java(jars, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", file),
                   check=True, stdout=log, stderr=log)
    broker = subprocess.Popen(java(jars, "kafka.Kafka", file), stdout=log, stderr=log)
    return broker, f"127.0.0.1:{port}"


def make_topic(broker, address):
    for _ in range(300):
        if broker.poll() is not None:
            raise SystemExit("the broker ended: " + open(os.path.join(place.name, "log")).read()[-2000:])
        try:
            admin = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
            admin.create_topics([kafka.admin.NewTopic(TOPIC, PARTITIONS, 1)])
            admin.close()
            return
        except (kafka.errors.NoBrokersAvailable, kafka.errors.KafkaTimeoutError, kafka.errors.KafkaConnectionError):
            time.sleep(0.2)
    raise SystemExit("the broker does not come up")


def read(address, expected):
    # Until nothing more comes: a record that was stored twice would be seen, too.
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", check_crcs=True,
                                   consumer_timeout_ms=2000, enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    seen, sums, partitions = collections.Counter(), collections.Counter(), {}
    for message in consumer:
        record = json.loads(message.value)
        flow = record["flowId"]
        assert message.key == flow.to_bytes(8, "big"), message
        assert partitions.setdefault(flow, message.partition) == message.partition, message
        seen[flow, record["flowPart"], record["flowStartNanoseconds"]] += 1
        sums["packets"] += record["packetDeltaCount"] + record["reversePacketDeltaCount"]
        sums["bytes"] += record["octetDeltaCount"] + record["reverseOctetDeltaCount"]
    consumer.close()
    return {"expected": expected, "records": sum(seen.values()), "different": len(seen),
            "partitions": len(set(partitions.values())), **sums}


def main():
    broker, address = start(sys.argv[1])
    try:
        make_topic(broker, address)
        print(address, flush=True)
        expected = sys.stdin.readline()
        if expected:
            print(json.dumps(read(address, int(expected))), flush=True)
    finally:
        broker.kill()
        broker.wait()


main()
