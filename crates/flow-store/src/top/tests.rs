use super::*;
use crate::sample::{address, record, records};
use crate::scan::list_flow_files;
use crate::totals::flow_totals;
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_flow::FlowRecord;

fn stored(records: &[FlowRecord]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    sink.write_records(records, RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    (directory, files.to_vec())
}

fn question(by: &str, order: TopOrder, most: usize) -> TopGroupsQuery {
    TopGroupsQuery::new(by.parse().unwrap(), order, most)
}

fn sums(top: &TopGroupsResult) -> Vec<(Vec<GroupValue>, GroupTotals)> {
    top.groups.iter().map(|group| (group.values.clone(), group.has.sum)).collect()
}

#[test]
fn senders_and_receivers_count_their_own_half() {
    let (_directory, files) = stored(&[record(0), record(3), record(6)]);
    let top =
        |by| find_top_groups(&files, &FlowFilter::default(), &question(by, TopOrder::Packets, 10)).unwrap();
    // Records 0, 3 and 6 have 1, 4 and 7 packets forward to one address, and 0, 6 and 12 back.
    let sum = |flows, packets| GroupTotals { flows, packets, bytes: packets * 100 };
    let at = |number, flows, packets| (vec![GroupValue::Address(address(number))], sum(flows, packets));
    let by_source = top("source");
    assert_eq!(sums(&by_source), [at(9999, 2, 18), at(6, 1, 7), at(3, 1, 4), at(0, 1, 1)]);
    assert_eq!((by_source.total.sum.packets, by_source.groups_seen), (30, 4));
    assert!(!by_source.groups_are_estimated && !by_source.files_have_changed);
    assert_eq!(sums(&top("dst-ip")), [at(6, 1, 12), at(9999, 3, 12), at(3, 1, 6)]);
    let pair = (vec![GroupValue::Pair(address(6), address(9999))], sum(1, 19));
    assert_eq!(sums(&top("pair"))[0], pair);
    let protocol = |number| vec![GroupValue::Number(number)];
    assert_eq!(sums(&top("protocol")), [(protocol(6), sum(2, 20)), (protocol(17), sum(1, 10))]);
    assert_eq!(sums(&top("port"))[1], (vec![GroupValue::Port(17, 443)], sum(1, 10)));
    assert_eq!(sums(&top("exporter")), [(vec![GroupValue::Exporter([0; 16], 0)], sum(3, 30))]);
}

#[test]
fn addresses_are_grouped_by_network() {
    let (_directory, files) = stored(&[record(0), record(3), record(6)]);
    let networks = |by: &str| -> Vec<_> {
        let top =
            find_top_groups(&files, &FlowFilter::default(), &question(by, TopOrder::Packets, 10)).unwrap();
        let text = |value: &GroupValue| match value {
            GroupValue::Network(network) => network.to_string(),
            other => panic!("{other:?}"),
        };
        top.groups.iter().map(|group| (text(&group.values[0]), group.has.sum.packets)).collect()
    };
    let named = |networks: &[(&str, u64)]| -> Vec<_> {
        networks.iter().map(|(name, packets)| ((*name).to_owned(), *packets)).collect()
    };
    // Addresses 0, 3, 6 and 9999 are 198.18.0.0, .3, .6 and 198.18.39.15.
    assert_eq!(networks("src-ip/24"), named(&[("198.18.39.0/24", 18), ("198.18.0.0/24", 12)]));
    assert_eq!(networks("src-ip/15"), named(&[("198.18.0.0/15", 30)]));
    assert_eq!(networks("src-ip/0/0"), named(&[("0.0.0.0/0", 30)]));
    assert_eq!(networks("source/64")[0], ("198.18.39.15".to_owned(), 18), "IPv4 stays whole");
    assert_eq!(
        networks("src-ip/30/48"),
        named(&[("198.18.39.12/30", 18), ("198.18.0.4/30", 7), ("198.18.0.0/30", 5)])
    );
}

#[test]
fn top_groups_combine_fields_and_drop_small_ones() {
    let (_directory, files) = stored(&[record(0), record(3), record(6)]);
    let mut asked = question("src-ip,dst-port", TopOrder::Bytes, 10);
    let values = |number, port| vec![GroupValue::Address(address(number)), GroupValue::Number(port)];
    let packets = |top: &TopGroupsResult| {
        sums(top).into_iter().map(|(values, sum)| (values, sum.packets)).collect::<Vec<_>>()
    };
    let all = find_top_groups(&files, &FlowFilter::default(), &asked).unwrap();
    let expected = [
        (values(9999, 40_006), 12),
        (values(6, 443), 7),
        (values(9999, 40_003), 6),
        (values(3, 443), 4),
        (values(0, 443), 1),
    ];
    assert_eq!(packets(&all), expected);
    asked.least_packets = 5;
    assert_eq!(packets(&find_top_groups(&files, &FlowFilter::default(), &asked).unwrap()), expected[..3]);
    asked.least_bytes = 701;
    let few = find_top_groups(&files, &FlowFilter::default(), &asked).unwrap();
    assert_eq!((packets(&few), few.total, few.groups_seen), (expected[..1].to_vec(), all.total, 5));
}

/// A group's time is from the first of its packets to the last.
#[test]
fn rates_are_those_of_the_whole_group() {
    let (_directory, files) = stored(&[record(3), record(6)]);
    let ask = |order| {
        find_top_groups(&files, &FlowFilter::default(), &question("dst-port", order, 1))
            .unwrap()
            .groups
            .remove(0)
    };
    // From second 3 to second 6, and 1500 ns: 11 packets of 100 bytes to port 443.
    let all = ask(TopOrder::Duration);
    assert_eq!(all.values, [GroupValue::Number(443)]);
    assert_eq!(all.has.order_value(TopOrder::Duration), 3_000_001_500);
    assert_eq!(
        (all.has.order_value(TopOrder::PacketRate), all.has.order_value(TopOrder::BitRate)),
        (3, 2933)
    );
    assert_eq!(all.has.order_value(TopOrder::PacketSize), 100);
    // The way back of each record lasts 1500 ns.
    assert_eq!(ask(TopOrder::BitRate).values, [GroupValue::Number(40_006)]);
}

#[test]
fn biflow_and_uniflow_records_have_equal_top_talkers() {
    let two_way = records(300);
    let one_way: Vec<_> = two_way
        .iter()
        .flat_map(|record| {
            let (there, back) = record.split_directions();
            [Some(there), back]
        })
        .flatten()
        .collect();
    let (_first, two_way) = stored(&two_way);
    let (_second, one_way) = stored(&one_way);
    for by in ["src-ip", "dst-ip", "src-ip,dst-port", "src-mac,protocol", "outer-dst-ip,flags"] {
        for filter in
            ["any", "src port 443", "dst ip 198.18.0.0/25 and packets > 100", "not flags X", "bpp 100"]
        {
            let filter: FlowFilter = filter.parse().unwrap();
            let ask =
                |files| sums(&find_top_groups(files, &filter, &question(by, TopOrder::Bytes, 1000)).unwrap());
            assert_eq!(ask(&two_way), ask(&one_way), "{by} {filter:?}");
        }
    }
}

#[test]
fn abandoned_query_ends_and_removed_file_is_skipped() {
    let (_directory, mut files) = stored(&records(2000));
    let asked = question("src-ip", TopOrder::Bytes, 50);
    let terms = ScanTerms { readers: 1, is_given_up: &|| true };
    let given_up = find_top_groups_with_limits(&terms, &files, &FlowFilter::default(), &asked);
    assert!(matches!(given_up, Err(Error::GivenUp)), "{given_up:?}");
    let whole = find_top_groups(&files, &FlowFilter::default(), &asked).unwrap();
    files.push(files[0].with_file_name("removed.parquet"));
    assert_eq!(find_top_groups(&files, &FlowFilter::default(), &asked).unwrap(), whole);
    assert_eq!(flow_totals(&files, &FlowFilter::default(), None).unwrap().records, 2000);
}

/// With room for 100 groups of some two thousand.
#[test]
fn top_groups_beyond_memory_are_still_exact() {
    let mut given = records(2000);
    given.rotate_left(1000);
    let (_directory, files) = stored(&given);
    let ask = |asked: &TopGroupsQuery, bound| {
        find_top_groups_within_bound(&ScanTerms::default(), &files, &FlowFilter::default(), asked, bound)
            .unwrap()
    };
    let orders = [
        TopOrder::Bytes,
        TopOrder::Packets,
        TopOrder::Flows,
        TopOrder::PacketRate,
        TopOrder::BitRate,
        TopOrder::PacketSize,
        TopOrder::Duration,
    ];
    for order in orders {
        for (most, least_packets) in [(1, 0), (50, 0), (50, 900), (5000, 0)] {
            let asked = TopGroupsQuery { least_packets, ..question("src-ip,dst-port", order, most) };
            let (exact, small) = (ask(&asked, MAX_GROUPS), ask(&asked, 100));
            assert_eq!((&small.groups, small.total), (&exact.groups, exact.total), "{order:?} {most}");
            assert!(!exact.groups_are_estimated && !small.files_have_changed);
            let bound = if small.groups_are_estimated { exact.groups_seen / 50 } else { 0 };
            assert!(
                small.groups_seen.abs_diff(exact.groups_seen) <= bound,
                "{order:?} {most}: {} of {}",
                small.groups_seen,
                exact.groups_seen
            );
        }
    }
}

/// All orders together have the answers of each by itself, also if the groups do not fit into memory.
#[test]
fn several_orders_are_answered_in_one_pass() {
    let (_directory, files) = stored(&records(2000));
    let ask = |asked: &TopGroupsQuery, bound| {
        find_top_groups_within_bound(&ScanTerms::default(), &files, &FlowFilter::default(), asked, bound)
            .unwrap()
    };
    let orders = [TopOrder::Bytes, TopOrder::Flows, TopOrder::PacketRate, TopOrder::Duration];
    let all =
        TopGroupsQuery { more_orders: orders[1..].to_vec(), ..question("src-ip,dst-port", orders[0], 20) };
    for bound in [MAX_GROUPS, 100] {
        let together = ask(&all, bound);
        let in_orders = [together.groups].into_iter().chain(together.groups_in_more_orders);
        for (order, groups) in orders.into_iter().zip(in_orders) {
            let alone = ask(&question("src-ip,dst-port", order, 20), MAX_GROUPS);
            assert_eq!(
                (groups, together.groups_seen),
                (alone.groups, alone.groups_seen),
                "{order:?} {bound}"
            );
        }
    }
}

/// Records of one packet each, with the sources asked for.
fn equal(sources: impl IntoIterator<Item = u16>) -> Vec<FlowRecord> {
    let small = |source| {
        let mut record = record(0);
        record.key.source = address(source);
        record
    };
    sources.into_iter().map(small).collect()
}

/// No group can be passed over, and the order is that of their keys.
#[test]
fn equal_groups_beyond_memory_are_all_counted() {
    let (_directory, files) = stored(&equal((0..150).chain(0..150)));
    for most in [70, 200] {
        let asked = question("src-ip", TopOrder::Packets, most);
        let top =
            find_top_groups_within_bound(&ScanTerms::default(), &files, &FlowFilter::default(), &asked, 20)
                .unwrap();
        let expected: Vec<_> = (0..150)
            .take(most)
            .map(|n| {
                (vec![GroupValue::Address(address(n))], GroupTotals { flows: 2, packets: 2, bytes: 200 })
            })
            .collect();
        assert_eq!(sums(&top), expected);
    }
}

#[test]
fn sampled_records_are_counted_and_rates_have_decimals() {
    let sampled = FlowRecord { sampling: 100, ..record(3) };
    let (_directory, files) = stored(&[record(0), sampled]);
    let asked = question("protocol", TopOrder::Packets, 10);
    let top = find_top_groups(&files, &FlowFilter::default(), &asked).unwrap();
    let counts: Vec<_> = top.groups.iter().map(|group| group.has.sampled_records).collect();
    assert_eq!((counts.iter().sum::<u64>(), top.total.sampled_records), (1, 1));
    assert_eq!(flow_totals(&files, &FlowFilter::default(), None).unwrap().sampled_records, 1);
    let sum = GroupTotals { flows: 1, packets: 2, bytes: 1001 };
    let has = GroupSum { sum, last_ns: 3_000_000_000, ..GroupSum::default() };
    assert_eq!(
        (has.packet_rate(), has.bit_rate(), has.packet_size()),
        (Some(0.667), Some(2669.333), Some(500.5))
    );
    assert_eq!(GroupSum { last_ns: 0, ..has }.packet_rate(), None);
}

/// The second scan lacks a record, as when the retention of a collector removes a file.
#[test]
fn files_that_change_between_two_scans_are_noticed() {
    let asked = question("src-ip", TopOrder::Packets, 5);
    let mut counter = GroupCounter::new(&asked, 8, 2);
    let has = GroupSum {
        sum: GroupTotals { flows: 1, packets: 1, bytes: 1 },
        first_ns: 1,
        last_ns: 1,
        ..GroupSum::default()
    };
    // Two threads, each with every other group.
    let mut scan = |groups: u8| {
        let mut threads = [counter.scan_counter(), counter.scan_counter()];
        (0..groups).for_each(|n| threads[usize::from(n % 2)].add_record(&[n], has));
        counter.end_scan(threads.into())
    };
    assert!(!scan(20));
    let mut has_ended = scan(19);
    while !has_ended {
        has_ended = scan(20);
    }
    assert!(counter.into_counted().has_changed);
}

#[test]
fn filters_are_kept() {
    let (_directory, files) = stored(&records(1000));
    let flows = |filter: &FlowFilter| {
        find_top_groups(&files, filter, &question("exporter", TopOrder::Packets, 1)).unwrap().total.sum.flows
    };
    let of = |text: &str| flows(&text.parse().unwrap());
    // Every third record is a first part.
    assert_eq!(of(""), 334);
    assert_eq!(of("ip 198.18.0.3"), 1);
    assert_eq!(of("net 198.18.0.0/24"), 86);
    assert_eq!(of("port 443"), 334);
    assert_eq!(of("port in [40003 1]"), 1);
    assert_eq!(of("proto udp"), 84);
    assert_eq!(of("proto icmp"), 0);
    assert_eq!(flows(&FlowFilter::either_address(&["198.18.0.3".parse().unwrap()])), 1);
    assert_eq!(flows(&FlowFilter::either_port(&[40_003, 1]).and(FlowFilter::any_protocol(&[17]))), 1);
    assert_eq!(flows(&FlowFilter::either_port(&[]).and(FlowFilter::any_protocol(&[]))), 334);
}
