//! Converts arguments to the options of a meter.

use crate::args::{
    DirectionArg, FlowIdKey, FlowKeyPart, MeterArgs as Arguments, MeterFormat, MeterGroupArgs, MeterSourceArg,
};
use crate::error::Error;
use crate::identity::random_number;
use crate::secret_key::read_secret_key;
use packetrig_flow::RecordOriginMark;
use packetrig_flow::group::ElectionOptions;
use packetrig_flow::parse::ParseOptions;
use packetrig_flow::table::TableOptions;
use packetrig_flow_io::export::{self, GroupExport};
use packetrig_flow_io::group::{GroupKey, GroupOptions};
use packetrig_flow_io::source::{FileOptions, ListenMethod, LiveOptions, PortLocation, ReplayPace};
use packetrig_flow_io::{MeterInput, MeterOptions};
use packetrig_units::{Nanos, clamp_to_usize};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Shortest `--idle` and `--active` in a group: as long as the largest assumed difference between the clocks of the
/// group's meters.
const MIN_GROUP_IDLE_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Largest assumed difference between the clocks of meters. It is also longer than the time for which flows stay in the
/// table after their end.
const MAX_METER_CLOCK_DIFFERENCE: Nanos = Nanos::from_secs(2);

/// An input whose name has one of these endings is a capture file, even if the file does not exist.
const CAPTURE_FILE_EXTENSIONS: [&str; 4] = [".pcap", ".pcapng", ".cap", ".zst"];

pub(super) fn meter_options(arguments: &Arguments) -> Result<MeterOptions, Error> {
    let key = &arguments.key;
    if key.contains(&FlowKeyPart::None) && key.len() > 1 {
        return Err(Error::Usage("--key none cannot be combined with other fields".into()));
    }
    let group = record_origin_mark_of_group(arguments)?;
    let table = TableOptions {
        capacity: arguments.flows,
        active: arguments.active,
        idle: arguments.idle,
        biflow: !arguments.uniflow,
        icmp_in_key: key.contains(&FlowKeyPart::Icmp),
        vlan_in_key: key.contains(&FlowKeyPart::Vlan),
        tunnel_in_key: key.contains(&FlowKeyPart::Tunnel),
        // The key is secret and new for each process: with a known key, a sender could choose flows that all fall
        // into one bucket.
        hash_key: [random_number(), random_number()],
        // The user chooses this key: meters with the same key give the same flow the same number.
        flow_id_key: read_flow_id_key(arguments.flow_id_key.as_deref())?,
        sampling: arguments.sample,
        group,
        begins_with_all: arguments.inputs.iter().any(|name| is_file_input(name)),
        ..TableOptions::default()
    };
    let parse = ParseOptions {
        depth: arguments.depth,
        // This key is random, too: a sender must not be able to choose fragments that all fall into one bucket.
        hash_key: [random_number(), random_number()],
        ..ParseOptions::default()
    };
    let share = arguments.share.map(|share| share.0);
    Ok(MeterOptions {
        input: meter_input(arguments)?,
        parse,
        table,
        share,
        has_top: arguments.top,
        // Only records with histories tell the collector of a loss.
        has_compared_copies: group.is_some() && has_live_peers(arguments),
    })
}

/// Returns whether other meters of the group count the same packets at the same time.
fn has_live_peers(arguments: &Arguments) -> bool {
    !arguments.of_group.peer.is_empty() && !arguments.inputs.iter().any(|name| is_file_input(name))
}

/// Reads the secret key from which flow numbers are computed; zero without a file.
fn read_flow_id_key(file: Option<&Path>) -> Result<[u64; 2], Error> {
    file.map_or(Ok([0; 2]), |path| read_secret_key::<FlowIdKey>("--flow-id-key", path).map(|key| key.0))
}

/// The mark that a meter of a group writes into its records; `None` without a group, and for SIM. Refuses options that
/// do not work in a group.
fn record_origin_mark_of_group(arguments: &Arguments) -> Result<Option<RecordOriginMark>, Error> {
    let Some((name, meter)) = arguments.of_group.group.as_ref().zip(arguments.of_group.member) else {
        return Ok(None);
    };
    let refused = |why: &str| Err(Error::Usage(format!("--group {name} {why}")));
    let has_peers = !arguments.of_group.peer.is_empty();
    match arguments.format {
        MeterFormat::Ipfix => {}
        MeterFormat::Sim if has_peers => {}
        MeterFormat::Sim => {
            return refused(
                "with --format sim needs --peer: without it, each meter would report every packet",
            );
        }
        MeterFormat::V9 | MeterFormat::V5 => {
            return refused(
                "needs --format ipfix or sim: NetFlow has no field for the totals of a flow since its start",
            );
        }
    }
    if arguments.stores.is_any_given() {
        return refused(
            "cannot be combined with --kafka or --clickhouse: each meter would store the same records; let `packetrig collect` store them",
        );
    }
    if arguments.alerts.alerts.is_some() {
        return refused(
            "cannot be combined with --alerts: each meter would raise every alert; give the rules to `packetrig collect`",
        );
    }
    if arguments.sample > 1 {
        return refused("cannot be combined with --sample: each meter would sample different packets");
    }
    if arguments.idle < MIN_GROUP_IDLE_TIMEOUT || arguments.active < MIN_GROUP_IDLE_TIMEOUT {
        return refused("needs timeouts (--idle, --active) of at least 2s");
    }
    if has_peers && arguments.inputs.iter().any(|name| is_file_input(name)) {
        return refused("with --peer works only with interfaces: a meter that reads files misses no packets");
    }
    // Each item of SIM describes one packet, so it needs no history of a flow.
    let has_history = arguments.format == MeterFormat::Ipfix;
    Ok(has_history.then(|| RecordOriginMark { group: RecordOriginMark::group_number(name), meter, lane: 0 }))
}

/// Time after the start of a meter until it knows which flows began before its start.
fn time_until_ready(arguments: &Arguments) -> Nanos {
    match arguments.format {
        // SIM describes packets, so no earlier flow matters. Only the clocks of the other meters may be ahead.
        MeterFormat::Sim => MAX_METER_CLOCK_DIFFERENCE,
        _ => arguments.idle + MAX_METER_CLOCK_DIFFERENCE,
    }
}

/// Options of a group in which one meter exports for all; `None` without peers.
pub(super) fn group_export(arguments: &Arguments) -> Result<Option<GroupExport>, Error> {
    let of_group = &arguments.of_group;
    let MeterGroupArgs { group, member, peer, peer_key, .. } = of_group;
    let (Some(name), Some(meter), Some(first), Some(key)) = (group, member, peer.first(), peer_key) else {
        return Ok(None);
    };
    let key = GroupKey::from_file(key).map_err(export::Error::from)?;
    // One socket serves one address family, so the first peer decides which.
    let all = if first.0.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listen =
        of_group.peer_listen.map_or_else(|| SocketAddr::new(all, GroupOptions::PORT), |listen| listen.0);
    let mut options = GroupOptions::new(name, key, *meter, listen);
    options.peers = peer.iter().map(|peer| peer.0).collect();
    options.interface.clone_from(&of_group.peer_interface);
    options.orders = of_group.role_source();
    options.election = ElectionOptions {
        priority: of_group.priority,
        preempt: of_group.preempt,
        interval: of_group.advertise,
        multiplier: of_group.misses,
        ..options.election
    };
    Ok(Some(GroupExport {
        member: options,
        keep_bytes: clamp_to_usize(of_group.standby_memory.0),
        ready_after: time_until_ready(arguments),
    }))
}

fn parse_interface(name: &str) -> Result<PortLocation, Error> {
    if name.contains(',') {
        let why = "separate interfaces by spaces, not by commas";
        return Err(Error::Usage(format!("no interface or file is named {name}; {why}")));
    }
    name.parse().map_err(|why| Error::Usage(format!("{why}, and there is no file of that name")))
}

fn meter_input(arguments: &Arguments) -> Result<MeterInput, Error> {
    let workers = usize::from(arguments.workers);
    // Inputs are sorted before anything is opened, because files and interfaces have different options.
    if arguments.inputs.iter().all(|name| is_file_input(name)) {
        let files = arguments.inputs.iter().map(PathBuf::from).collect();
        let pace = arguments.pace.map(|speed| ReplayPace::new(speed.millionths()));
        return Ok(MeterInput::Files(FileOptions { files, workers, pace }));
    }
    if let Some(file) = arguments.inputs.iter().find(|name| is_file_input(name)) {
        return Err(Error::Usage(format!(
            "{file} is a file, but other inputs are interfaces; start one meter for each kind"
        )));
    }
    if arguments.pace.is_some() {
        return Err(Error::Usage(
            "--pace works with capture files only; an interface delivers frames at their own pace".into(),
        ));
    }
    let locations: Vec<PortLocation> =
        arguments.inputs.iter().map(|name| parse_interface(name)).collect::<Result<_, _>>()?;
    let mut seen = BTreeSet::new();
    // Only interfaces are checked: a file that is given twice is metered twice, as the user asked.
    if let Some(twice) = arguments.inputs.iter().find(|name| !seen.insert(*name)) {
        return Err(Error::Usage(format!("{twice} occurs twice: its packets would be counted twice")));
    }
    if arguments.direction == Some(DirectionArg::Both) && arguments.source != MeterSourceArg::Packet {
        return Err(Error::Usage(
            "--direction both needs --source packet: the other sources see only packets that arrive".into(),
        ));
    }
    let way = match arguments.source {
        MeterSourceArg::Packet => ListenMethod::Packet,
        MeterSourceArg::Xdp => ListenMethod::Xdp,
        MeterSourceArg::Headers => ListenMethod::Headers,
    };
    Ok(MeterInput::Interfaces(
        locations,
        LiveOptions {
            way,
            workers,
            snap_len: arguments.snap,
            outgoing: arguments.direction != Some(DirectionArg::In),
            promiscuous: !arguments.no_promiscuous,
            ring_bytes: arguments.ring.0,
        },
    ))
}

/// True if a file of this name exists, or if the name looks like a capture file: a missing `a.pcap` must be reported as
/// a missing file, not as an unknown interface.
fn is_file_input(name: &str) -> bool {
    // The file may be a pipe into which another program writes a capture.
    std::fs::metadata(name).is_ok_and(|facts| !facts.is_dir())
        || CAPTURE_FILE_EXTENSIONS.iter().any(|ending| name.ends_with(ending))
}
