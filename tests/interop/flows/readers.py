"""Reads files of flow records with readers that are not ours, and prints the sums they find as JSON.

    readers.py duckdb|polars DIRECTORY PAGE COPY

All records are written to the file COPY as that reader writes Parquet.

With DuckDB, addresses are shown by the macro that is in the page of the book.
"""
import ipaddress
import json
import sys


def by_duckdb(directory):
    import duckdb
    page = open(sys.argv[3]).read()
    duckdb.sql(page[page.index("CREATE MACRO"):].split(";")[0])
    mapped, other = (duckdb.sql(f"SELECT ip(unhex('{ipaddress.IPv6Address(text).packed.hex()}'))").fetchone()[0]
                     for text in ("::ffff:198.18.0.1", "2001:2::a"))
    assert (mapped, ipaddress.ip_address(other)) == ("198.18.0.1", ipaddress.ip_address("2001:2::a")), (mapped, other)
    records = f"read_parquet('{directory}/flows/**/*.parquet', hive_partitioning = true)"
    sums = duckdb.sql(f"""
        SELECT count(*), count(*) FILTER (flowPart = 0),
               sum(packetDeltaCount + reversePacketDeltaCount), sum(octetDeltaCount + reverseOctetDeltaCount),
               sum(layer2OctetDeltaCount + reverseLayer2OctetDeltaCount), count(*) FILTER (observedLoss),
               epoch_ns(min(flowStartNanoseconds)), epoch_ns(max(flowEndNanoseconds)),
               count(*) FILTER (date::VARCHAR != strftime(flowStartNanoseconds::TIMESTAMP, '%Y-%m-%d')
                                OR hour::INT != extract(hour FROM flowStartNanoseconds::TIMESTAMP))
        FROM {records}""").fetchone()
    protocols = duckdb.sql(f"SELECT protocolIdentifier, count(*) FROM {records} GROUP BY ALL").fetchall()
    source = duckdb.sql(f"""
        SELECT sourceIPv6Address, sum(octetDeltaCount) FROM {records} GROUP BY ALL ORDER BY 2 DESC, 1 LIMIT 1""").fetchone()
    seen = duckdb.sql(f"SELECT max(seen) FROM '{directory}/meter_stats/**/*.parquet'").fetchone()[0]
    duckdb.sql(f"COPY (FROM {records}) TO '{sys.argv[4]}' (FORMAT parquet, COMPRESSION zstd)")
    types = dict(duckdb.sql(f"SELECT column_name, column_type FROM (DESCRIBE FROM {records})").fetchall())
    return sums, protocols, source, seen, {name: types[name] for name in SHOWN}


def by_polars(directory):
    import polars
    records = polars.scan_parquet(f"{directory}/flows/**/*.parquet", hive_partitioning=True)
    column = polars.col
    start = column("flowStartNanoseconds")
    sums = records.select(
        polars.len(), (column("flowPart") == 0).sum().alias("flows"),
        (column("packetDeltaCount") + column("reversePacketDeltaCount")).sum(),
        (column("octetDeltaCount") + column("reverseOctetDeltaCount")).sum(),
        (column("layer2OctetDeltaCount") + column("reverseLayer2OctetDeltaCount")).sum(),
        column("observedLoss").sum(), start.min().cast(polars.Int64).alias("first"),
        column("flowEndNanoseconds").max().cast(polars.Int64).alias("last"),
        ((column("date").cast(polars.String) != start.dt.strftime("%Y-%m-%d"))
         | (column("hour").cast(polars.Int8) != start.dt.hour())).sum().alias("misplaced")).collect().row(0)
    protocols = records.group_by("protocolIdentifier").len().collect().rows()
    source = (records.group_by("sourceIPv6Address").agg(column("octetDeltaCount").sum())
              .sort(["octetDeltaCount", "sourceIPv6Address"], descending=[True, False]).limit(1).collect().row(0))
    seen = polars.scan_parquet(f"{directory}/meter_stats/**/*.parquet").select(column("seen").max()).collect().item()
    records.collect().write_parquet(sys.argv[4])
    schema = records.collect_schema()
    return sums, protocols, source, seen, {name: str(schema[name]) for name in SHOWN}


SHOWN = ["flowStartNanoseconds", "protocolIdentifier", "octetDeltaCount", "sourceIPv6Address", "observedLoss"]


def main():
    sums, protocols, source, seen, types = {"duckdb": by_duckdb, "polars": by_polars}[sys.argv[1]](sys.argv[2])
    names = ["records", "flows", "packets", "bytes", "frame_bytes", "records_with_loss", "first_ns", "last_ns", "misplaced"]
    answer = {name: int(value) for name, value in zip(names, sums)}
    answer["protocols"] = {str(number): count for number, count in protocols}
    answer["source"] = str(ipaddress.IPv6Address(bytes(source[0])).ipv4_mapped)
    answer["source_bytes"] = int(source[1])
    answer["seen"] = seen
    answer["types"] = types
    print(json.dumps(answer))


main()
