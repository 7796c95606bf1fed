//! Interfaces as a source: AF_PACKET rings that share the traffic by flow, or the rings of an XDP program.
//!
//! Whatever is metered goes on to the kernel's stack: a meter listens. The clock is the wall clock's; while packets are
//! at hand it is that of the latest, so that a meter which is behind does not take flows for idle whose packets wait.

use super::{PacketSource, TakeOutcome};
use crate::Error;
use crate::intake::PacketIntake;
use packetrig_engine::packet::{PacketTap, TapOptions};
use packetrig_engine::port::{FrameRx, PortLocation, RxFrame};
use packetrig_engine::xdp::{HeaderListener, XdpTap, XdpTapOptions};
use packetrig_sys::clock;
use packetrig_sys::link::{LinkCounters, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_units::{MonoTime, Nanos};

/// How often to look at rings that nobody can wait for.
const LOOK_AGAIN_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    pub way: ListenMethod,
    /// Workers that share the traffic of an interface.
    pub workers: usize,
    /// Bytes of a frame that are wanted.
    pub snap_len: u32,
    /// Meter what this machine sends, too.
    pub outgoing: bool,
    /// Receive frames for other stations, too.
    pub promiscuous: bool,
    /// Bytes of a ring.
    pub ring_bytes: u64,
}

impl LiveOptions {
    /// Workers of each interface, if it can have so many.
    pub(crate) const fn workers_of_each(&self) -> Result<usize, Error> {
        let way = match self.way {
            ListenMethod::Packet => return Ok(if self.workers == 0 { 1 } else { self.workers }),
            ListenMethod::Xdp => "xdp",
            ListenMethod::Headers => "headers",
        };
        if self.workers > 1 { Err(Error::OneWorker { way, workers: self.workers }) } else { Ok(1) }
    }
}

/// Ways to listen at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenMethod {
    Packet,
    /// Frames, trimmed, by an XDP program.
    Xdp,
    /// Unified headers, made by an XDP program.
    Headers,
}

enum LiveTap {
    Packet(PacketTap),
    Xdp(XdpTap),
    Headers(HeaderListener),
}

/// What packets get beside what they say themselves.
struct LiveStamp {
    /// How the wall clock is ahead of the monotonic one.
    offset_ns: i64,
    input: u16,
    /// The latest so far.
    last_ns: u64,
}

/// A ring of an interface.
pub struct LiveSource {
    tap: LiveTap,
    stamp: LiveStamp,
    delivered: u64,
    /// Since when nothing is let in any more.
    shut_ns: Option<u64>,
}

impl std::fmt::Debug for LiveSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSource").field("input", &self.stamp.input).finish_non_exhaustive()
    }
}

/// Listens at an interface from now on; `input` is its number in records.
pub fn open_live(
    location: &PortLocation,
    input: u16,
    options: LiveOptions,
) -> Result<Vec<LiveSource>, Error> {
    let source = |tap, offset: clock::RealtimeOffset| LiveSource {
        tap,
        stamp: LiveStamp { offset_ns: offset.offset_ns, input, last_ns: 0 },
        delivered: 0,
        shut_ns: None,
    };
    let workers = options.workers_of_each()?;
    match options.way {
        ListenMethod::Packet => {
            let tap = TapOptions {
                filter: None,
                snap_len: Some(options.snap_len),
                promiscuous: options.promiscuous,
                outgoing: options.outgoing,
                blocks: u32::try_from(options.ring_bytes >> 16).unwrap_or(u32::MAX).max(4),
            };
            let taps = PacketTap::open_fanned(location, tap, workers)?;
            Ok(taps
                .into_iter()
                .map(|tap| (tap.offset(), tap))
                .map(|(o, tap)| source(LiveTap::Packet(tap), o))
                .collect())
        }
        ListenMethod::Xdp => {
            let tap = XdpTap::open(location, &in_driver(options))?;
            let offset = tap.offset();
            Ok(vec![source(LiveTap::Xdp(tap), offset)])
        }
        ListenMethod::Headers => {
            let tap = HeaderListener::open(location, &in_driver(options))?;
            let offset = tap.offset();
            Ok(vec![source(LiveTap::Headers(tap), offset)])
        }
    }
}

/// Whatever is metered goes on to the kernel's stack.
fn in_driver(options: LiveOptions) -> XdpTapOptions {
    XdpTapOptions { filter: None, snap_len: Some(options.snap_len), pass: true }
}

impl LiveTap {
    /// Gives at most as many frames or headers as there is room for; says how many.
    fn receive(&mut self, intake: &mut PacketIntake, stamp: &mut LiveStamp) -> Result<usize, Error> {
        let room = intake.room();
        let frame = &mut |frame: RxFrame<'_>| {
            intake.frame(frame.bytes, frame.full_len, stamp.of(frame.at), stamp.input);
        };
        Ok(match self {
            Self::Packet(tap) => tap.receive(room, frame)?,
            Self::Xdp(tap) => tap.receive(room, frame)?,
            Self::Headers(tap) => tap.receive(room, &mut |header| {
                let at_ns = stamp.of(header.at);
                if header.is_record {
                    intake.header(header.bytes, header.full_len, at_ns, stamp.input);
                } else {
                    intake.frame(header.bytes, header.full_len, at_ns, stamp.input);
                }
            }),
        })
    }
}

impl LiveStamp {
    fn of(&mut self, at: MonoTime) -> u64 {
        let at_ns = at.as_nanos().saturating_add_signed(self.offset_ns);
        self.last_ns = self.last_ns.max(at_ns);
        at_ns
    }
}

impl PacketSource for LiveSource {
    fn take(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        let given = self.tap.receive(intake, &mut self.stamp)?;
        self.delivered += given as u64;
        if given > 0 {
            return Ok(TakeOutcome::Some);
        }
        // What was on its way into the ring when it was shut is there by now.
        let is_over = |shut| clock::monotonic_ns() > shut + 3 * PacketTap::SETTLED.as_u64();
        Ok(if self.shut_ns.is_some_and(is_over) { TakeOutcome::Ended } else { TakeOutcome::Nothing })
    }

    fn now_ns(&mut self, is_idle: bool) -> u64 {
        if !is_idle {
            return self.stamp.last_ns;
        }
        let now = clock::wall_clock_ns().saturating_sub(PacketTap::SETTLED.as_u64());
        self.stamp.last_ns = self.stamp.last_ns.max(now);
        self.stamp.last_ns
    }

    fn wait(&mut self, within_ns: u64) -> Result<(), Error> {
        match &mut self.tap {
            LiveTap::Packet(tap) => tap.wait(Nanos::new(within_ns))?,
            LiveTap::Xdp(tap) => tap.wait(Nanos::new(within_ns))?,
            LiveTap::Headers(_) => {
                clock::sleep_until_ns(clock::monotonic_ns() + within_ns.min(LOOK_AGAIN_NS));
            }
        }
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(match &mut self.tap {
            LiveTap::Packet(tap) => tap.ring()?.dropped,
            LiveTap::Xdp(tap) => tap.ring_dropped(),
            LiveTap::Headers(tap) => tap.ring_dropped(),
        })
    }

    fn delivered(&self) -> u64 {
        self.delivered
    }

    fn put_in(&mut self) -> Result<Option<u64>, Error> {
        Ok(match &mut self.tap {
            LiveTap::Packet(tap) => Some(tap.ring()?.received),
            LiveTap::Xdp(_) | LiveTap::Headers(_) => None,
        })
    }

    fn stop(&mut self) -> Result<(), Error> {
        if self.shut_ns.is_none() {
            match &mut self.tap {
                LiveTap::Packet(tap) => tap.shut()?,
                LiveTap::Xdp(tap) => tap.shut()?,
                LiveTap::Headers(tap) => tap.shut()?,
            }
            self.shut_ns = Some(clock::monotonic_ns());
        }
        Ok(())
    }
}

/// What the kernel counts at an interface.
#[derive(Debug)]
pub struct InterfaceCounts {
    /// As the user wrote it.
    pub name: String,
    /// Its number in its namespace.
    pub index: u32,
    /// Whether it is up.
    pub is_up: bool,
    links: NamespaceLinks,
    start: LinkCounters,
}

impl InterfaceCounts {
    /// Counts from now on.
    pub fn open(location: &PortLocation) -> Result<Self, Error> {
        let netns = NetNs::open_or_current(location.namespace.as_deref())?;
        let mut links = NamespaceLinks::open(&netns)?;
        let link = links.by_name(&location.interface)?;
        let start = links.counters(link.index)?;
        Ok(Self { name: location.to_string(), index: link.index, is_up: link.up, links, start })
    }

    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.start = self.links.counters(self.index)?;
        Ok(())
    }

    /// What arrived and what was dropped since the start; `None` once the interface is gone.
    pub fn read(&mut self) -> Option<(u64, u64)> {
        let now = self.links.counters(self.index).ok()?;
        // Some drivers start from zero when they are brought up again.
        let since = |now: u64, start: u64| now.checked_sub(start).unwrap_or(now);
        Some((since(now.rx_frames, self.start.rx_frames), since(now.rx_dropped, self.start.rx_dropped)))
    }
}
