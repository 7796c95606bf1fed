"""Sends a pair of UDP packets, 50 us apart, 10 ms from now: python3 example.py 198.18.0.2"""

import sys

from packetrig_release import Packet, ReleaseClient, ReleaseError, now, source_for, udp_packet


def main(target: str) -> None:
    data = udp_packet(source_for(target), 40000, target, 9, b"a pair")
    with ReleaseClient(name="example") as client:
        start = now() + 10_000_000
        client.submit([Packet(data, start + n * 50_000, cookie=n, train=1) for n in range(2)])
        for report in client.reports(2, timeout=2):
            left = f"left {report.driver.lo} to {report.driver.hi}" if report.driver else "departure not known"
            print(f"{report.cookie} {report.outcome.name.lower()} planned {report.planned} {left}")


try:
    main(sys.argv[1])
except (ReleaseError, OSError) as error:
    sys.exit(str(error))
