//! Forwards frames between two interfaces in their drivers, and sends copies to further interfaces. The
//! programs are in `bpf/tap.bpf.c`.
//!
//! ```text
//!  side 0 -> program -> side 1        and the same back, with maps of its own
//!                   \-> mirrors       each copy through a program of the mirror: cut, trailer, address
//!                   \-> rings         for the caller to read ([`TapRings`])
//! ```
//! A [`TapForwarding`] owns programs, maps and attachments. Dropping it ends the forwarding, unless its attachments
//! were pinned: then the forwarding continues without any process, and [`PinnedForwarding`] finds it by its directory.
//!
//! Invariant: all counts are in one map, the [`TapCounts`], which every process that finds its pin can read.

mod counters;
mod watch;

pub use counters::{DriverSendCounts, FailedCounts, InboundCounts, OutboundCounts, TapCounts};

use super::TAP_PROGRAM;
use super::ring::{InterfaceRings, VALUE, XdpFrame};
use super::rx::{FilterProgramBuilder, MAX_WHOLE_FRAME_BYTES};
use crate::bpf::{AttachPoint, BpfAttachment, BpfInstruction, BpfMap, BpfProgram, MapKind, pin};
use crate::error::ignore_failure;
use crate::layout::tap::orders as fields;
use crate::link::Mac;
use crate::netns::NetNs;
use crate::{Error, clock, private_files, sched};
use packetrig_units::clamp_to_u32;
use std::path::{Path, PathBuf};
use watch::RedirectWatch;

pub const MAX_MIRRORS: usize = crate::layout::tap::MIRRORS;
/// The longest frame that is copied, without FCS; `LONGEST_COPY` of the BPF program.
pub const MAX_COPY_BYTES: u32 = 3500;
/// Size of `struct orders`.
const ORDERS_BYTES: usize = 104;
/// TAI and the time since 1970 differ by a whole number of seconds.
const SECOND_NS: i64 = 1_000_000_000;

/// An interface to which copies of frames are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorTarget {
    pub index: u32,
    /// New destination address of the copies; `None` leaves the address as it is.
    pub to: Option<Mac>,
    /// Longest copy that the interface accepts, in bytes.
    pub longest: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapForwardingRules {
    /// The interfaces between which frames are passed.
    pub sides: [u32; 2],
    /// Run the programs in the drivers; otherwise in the kernel's generic path, where copies cannot be made.
    pub native: bool,
    /// Targets of the copies; [`MAX_MIRRORS`] at most.
    pub mirrors: Vec<MirrorTarget>,
    /// Maximum number of bytes of a frame that are copied.
    pub snap: u32,
    /// Copies carry a trailer.
    pub trailer: bool,
    /// Maximum number of bytes of a frame that are put into the rings; `None` for no rings.
    pub capture: Option<u32>,
}

#[derive(Debug)]
pub struct TapForwarding {
    // The first field is dropped first: the programs are detached before their maps go.
    attachments: Vec<BpfAttachment>,
    watch: RedirectWatch,
    counts: TapCounts,
    /// Tables of programs. The kernel empties them when no process holds them.
    behind: Vec<BpfMap>,
    rings: Option<[TapRings; 2]>,
}

/// Rings with the frames of one direction, for this process to read.
#[derive(Debug)]
pub struct TapRings {
    rings: InterfaceRings,
}

impl TapRings {
    /// Calls `sink` with the frames that are ready, at most `most`. Returns their number. Does not wait.
    pub fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        self.rings.receive_frames(most, clock::monotonic_ns(), sink)
    }

    /// Number of frames that were dropped so far because their ring was full.
    pub fn dropped_frames(&self) -> u64 {
        self.rings.dropped_frames()
    }
}

impl TapForwarding {
    /// Starts forwarding. With a filter, only frames that pass it are copied.
    pub fn begin_forwarding(
        netns: &NetNs,
        orders: &TapForwardingRules,
        names: [&str; 2],
        filter: Option<FilterProgramBuilder<'_>>,
    ) -> Result<Self, Error> {
        let counts = TapCounts::create_map()?;
        let numbers = BpfMap::create_zeroed("numbers", MapKind::Array, 64, 2)?;
        // The watch begins before the first frame, so that it counts every frame that a driver takes or refuses.
        let watch = RedirectWatch::begin_watch(netns, orders, &counts);
        let mut forwarding = Self { attachments: Vec::new(), watch, counts, behind: Vec::new(), rings: None };
        let mut first = Vec::new();
        let mut rings = Vec::new();
        for direction in [0, 1] {
            let maps = DirectionMaps::create_maps(netns, orders, direction, &forwarding.counts, &numbers)?;
            let entry = maps.load_entry_program(orders, filter)?;
            forwarding.behind.extend(entry.table);
            rings.extend(maps.share_rings()?);
            first.push(entry.program);
        }
        forwarding.rings = <[TapRings; 2]>::try_from(rings).ok();
        // Both programs exist by now, so the two attachments follow each other directly.
        for (direction, program) in first.iter().enumerate() {
            let side = orders.sides[direction];
            forwarding.attachments.push(program.attach_xdp(netns, side, orders.native, names[direction])?);
        }
        Ok(forwarding)
    }

    /// Returns the rings of both directions, if they were requested and not taken before.
    pub fn take_rings(&mut self) -> Option<[TapRings; 2]> {
        self.rings.take()
    }

    pub fn counts(&self) -> &TapCounts {
        &self.counts
    }

    /// Reason why the tap cannot count the frames that the drivers refused; `None` if it counts them.
    pub fn watch_error(&self) -> Option<&Error> {
        self.watch.watch_error()
    }

    /// Pins the counters in a directory of the BPF file system, where other processes find them. With `stays`, the
    /// forwarding is pinned, too, and continues without this process.
    pub fn pin_in(&self, directory: &Path, stays: bool) -> Result<(), Error> {
        private_files::create_directories(directory)
            .map_err(|error| Error::from_call("mkdir", directory.display().to_string(), error))?;
        self.counts.pin_at(&directory.join(COUNTS_FILE))?;
        if !stays {
            return Ok(());
        }
        for (index, table) in self.behind.iter().enumerate() {
            table.pin_at(&directory.join(format!("table{index}")))?;
        }
        self.watch.pin_in(directory)?;
        for (attachment, name) in self.attachments.iter().zip(SIDE_NAMES) {
            attachment.pin_at(&directory.join(name))?;
        }
        Ok(())
    }

    /// Ends the forwarding, even if it is pinned; the counters stay readable.
    pub fn end_forwarding(&mut self) {
        for attachment in self.attachments.drain(..) {
            // If the interface is gone, its program is gone, too.
            ignore_failure(attachment.detach_program("a side of the tap"));
        }
    }
}

const COUNTS_FILE: &str = "counts";
/// File names of the pinned attachments.
const SIDE_NAMES: [&str; 2] = ["side0", "side1"];

/// A forwarding with pinned counters, found by its directory.
#[derive(Debug)]
pub struct PinnedForwarding {
    directory: PathBuf,
    counts: TapCounts,
}

impl PinnedForwarding {
    /// Opens the counters that are pinned in `directory`; an error if there are none.
    pub fn find_in(directory: &Path) -> Result<Self, Error> {
        Ok(Self {
            directory: directory.to_owned(),
            counts: TapCounts::open_pinned(&directory.join(COUNTS_FILE))?,
        })
    }

    pub fn counts(&self) -> &TapCounts {
        &self.counts
    }

    /// Returns true if the attachments are pinned, too, so that the forwarding continues without a process.
    pub fn is_attached(&self) -> bool {
        SIDE_NAMES.iter().all(|name| self.directory.join(name).exists())
    }

    /// Ends the forwarding; the counters stay readable.
    pub fn end_forwarding(&self) -> Result<(), Error> {
        for name in SIDE_NAMES {
            let path = self.directory.join(name);
            if path.exists() {
                // If the interface is gone, its program is gone, too.
                ignore_failure(BpfAttachment::open_pinned(&path)?.detach_program("a side of the tap"));
            }
        }
        Ok(())
    }

    /// Removes all pins of a directory. Programs and maps that no process holds are then removed by the
    /// kernel. A directory that does not exist or cannot be reached is no error: a user without access cannot
    /// have pinned anything there.
    pub fn remove_pins(directory: &Path) -> Result<(), Error> {
        if directory.symlink_metadata().is_err() {
            return Ok(());
        }
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from_call("remove", directory.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }
}

/// Mounts the BPF file system, which holds pins, unless it is mounted already.
pub fn prepare_pins() -> Result<(), Error> {
    pin::mount_bpffs()
}

/// BPF maps for the programs of one direction.
struct DirectionMaps<'a> {
    direction: usize,
    counts: &'a BpfMap,
    numbers: &'a BpfMap,
    orders: BpfMap,
    peer: BpfMap,
    exits: BpfMap,
    rings: Option<BpfMap>,
}

impl<'a> DirectionMaps<'a> {
    fn create_maps(
        netns: &NetNs,
        orders: &TapForwardingRules,
        direction: usize,
        counts: &'a TapCounts,
        numbers: &'a BpfMap,
    ) -> Result<Self, Error> {
        let rings = orders.capture.map(|_| {
            BpfMap::create_zeroed("rings", MapKind::SharedArray, VALUE, sched::read_possible_cpu_count())
        });
        let exits = clamp_to_u32(orders.mirrors.len() + 1);
        let maps = Self {
            direction,
            counts: counts.map(),
            numbers,
            orders: BpfMap::create_zeroed("orders", MapKind::Array, ORDERS_BYTES, 1)?,
            peer: BpfMap::create_zeroed("peer", MapKind::Exits, 8, 1)?,
            exits: BpfMap::create_zeroed("exits", MapKind::Exits, 8, exits)?,
            rings: rings.transpose()?,
        };
        maps.orders.set_value(0, &encode_direction_orders(orders, direction))?;
        maps.set_redirect_exits(netns, orders)?;
        Ok(maps)
    }

    /// Sets the exits, the mirrors first: the last exit gets the frame itself, the other exits get clones.
    fn set_redirect_exits(&self, netns: &NetNs, orders: &TapForwardingRules) -> Result<(), Error> {
        let peer = orders.sides[1 - self.direction];
        let mut index = 0;
        for (number, mirror) in orders.mirrors.iter().enumerate() {
            let program = self.load_mirror_program(orders, number, mirror)?;
            self.exits.set_redirect_target(netns, index, mirror.index, Some(&program))?;
            index += 1;
        }
        let bare = if orders.trailer { Some(load_program(AttachPoint::Exit, "bare", &[])?) } else { None };
        self.exits.set_redirect_target(netns, index, peer, bare.as_ref())?;
        self.peer.set_redirect_target(netns, 0, peer, None)
    }

    fn load_mirror_program(
        &self,
        orders: &TapForwardingRules,
        number: usize,
        mirror: &MirrorTarget,
    ) -> Result<BpfProgram, Error> {
        let own = BpfMap::create_zeroed("orders", MapKind::Array, ORDERS_BYTES, 1)?;
        own.set_value(0, &encode_mirror_orders(orders, self.direction, number, mirror))?;
        load_program(AttachPoint::Exit, "mirror", &[&own, self.counts])
    }

    fn load_entry_program(
        &self,
        orders: &TapForwardingRules,
        filter: Option<FilterProgramBuilder<'_>>,
    ) -> Result<TapEntryProgram, Error> {
        let mut maps = vec![&self.orders, self.counts, self.numbers, &self.peer, &self.exits];
        maps.extend(&self.rings);
        if orders.mirrors.is_empty() && orders.capture.is_none() {
            let program = load_program(AttachPoint::Interface, "plain", &maps)?;
            return Ok(TapEntryProgram { program, table: None });
        }
        let section = if self.rings.is_some() { "record" } else { "copy" };
        let copy = load_program(AttachPoint::Interface, section, &maps)?;
        let Some(filter) = filter else { return Ok(TapEntryProgram { program: copy, table: None }) };
        let table = BpfMap::create_zeroed("behind", MapKind::Programs, 4, 2)?;
        table.set_program(0, &copy)?;
        table.set_program(1, &load_program(AttachPoint::Interface, "plain", &maps)?)?;
        let code = filter(&tail_call_instructions(&table, 0), &tail_call_instructions(&table, 1));
        Ok(TapEntryProgram { program: BpfProgram::load_xdp("filter", &code, true)?, table: Some(table) })
    }

    fn share_rings(&self) -> Result<Option<TapRings>, Error> {
        let Some(rings) = &self.rings else { return Ok(None) };
        Ok(Some(TapRings {
            rings: InterfaceRings::new(rings.share_memory()?, sched::read_possible_cpu_count() as usize),
        }))
    }
}

/// First program at an interface, and the table through which a filter calls the other programs.
struct TapEntryProgram {
    program: BpfProgram,
    table: Option<BpfMap>,
}

/// r1 = context; r2 = table (two instructions); r3 = which; call `bpf_tail_call`, which does not return if it succeeds.
fn tail_call_instructions(table: &BpfMap, which: u64) -> [BpfInstruction; 7] {
    let [load, rest] = table.load_map_instructions(2);
    [0x61bf, load, rest, 0x3b7 | which << 32, 0x85 | 12 << 32, 0xb7, 0x95]
}

fn load_program(place: AttachPoint, section: &'static str, maps: &[&BpfMap]) -> Result<BpfProgram, Error> {
    BpfProgram::load_program_for(
        place,
        section,
        &TAP_PROGRAM.link_program(section, maps)?,
        place != AttachPoint::Tracepoint,
    )
}

/// Difference of the time since 1970 and TAI: whole seconds, in ns; zero if the kernel does not know the leap seconds.
fn tai_to_unix_offset_ns() -> i64 {
    // The clocks are read one after the other, so their distance is rounded to whole seconds.
    let apart = clock::wall_clock_ns().cast_signed() - clock::tai_ns().cast_signed();
    (apart + apart.signum() * SECOND_NS / 2) / SECOND_NS * SECOND_NS
}

/// Encodes `struct orders` for the programs of one direction.
fn encode_direction_orders(orders: &TapForwardingRules, direction: usize) -> Vec<u8> {
    let mut stations = [0u64; MAX_MIRRORS];
    for (place, to) in stations.iter_mut().zip(orders.mirrors.iter().filter_map(|mirror| mirror.to)) {
        *place = encode_station(to);
    }
    let mirrors = clamp_to_u32(orders.mirrors.len());
    let capture = orders.capture.map_or(0, |snap| snap.min(MAX_WHOLE_FRAME_BYTES));
    let side = u32::from(direction == 1);
    let words = [
        (fields::BOOK, side),
        (fields::DIRECTION, side),
        (fields::MIRRORS, mirrors),
        (fields::CAPTURE, capture),
        (fields::TRAILER, orders.trailer.into()),
    ];
    encode_orders(&words, &stations)
}

/// Encodes `struct orders` for the program of one mirror.
fn encode_mirror_orders(
    orders: &TapForwardingRules,
    direction: usize,
    number: usize,
    mirror: &MirrorTarget,
) -> Vec<u8> {
    let mut stations = [0u64; MAX_MIRRORS];
    stations[0] = mirror.to.map_or(0, encode_station);
    let book = counters::outbound_index(direction, number);
    let rewrite = u32::from(mirror.to.is_some());
    let side = u32::from(direction == 1);
    let words = [
        (fields::BOOK, book),
        (fields::DIRECTION, side),
        (fields::SNAP, orders.snap),
        (fields::LONGEST, mirror.longest),
        (fields::TRAILER, orders.trailer.into()),
        (fields::REWRITE, rewrite),
    ];
    encode_orders(&words, &stations)
}

fn encode_orders(words: &[(usize, u32)], stations: &[u64; MAX_MIRRORS]) -> Vec<u8> {
    let mut bytes = vec![0; fields::SIZE];
    for (at, word) in words {
        bytes[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[fields::OFFSET..fields::OFFSET + 8].copy_from_slice(&tai_to_unix_offset_ns().to_ne_bytes());
    for (place, station) in bytes[fields::STATION..].chunks_exact_mut(8).zip(stations) {
        place.copy_from_slice(&station.to_ne_bytes());
    }
    bytes
}

/// Converts a MAC address to the number that the program compares: the first six bytes in memory are the address.
fn encode_station(mac: Mac) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;
