//! Starts a tap: prepares the interfaces, chooses the back end, creates the file, starts the forwarding. In this order
//! every refusal comes before the tap touches a frame.

use super::choose::{TapBackEndChoice, TapBackEndFacts, TapMethod, choose_tap_back_end};
use super::guard::TapGuard;
use super::hold::{PreparedTapInterface, PreparedTapInterfaces};
use super::kernel::KernelTap;
use super::lanes::{FRAME_BYTES_BEYOND_MTU, TapLanes};
use super::link_state::LinkWatch;
use super::place::{TapFiles, TapInterface, TapState, tap_name_or_default};
use super::record::{RecordSource, RecordThread};
use super::{DEFAULT_COPY_BYTES, RunningTap, TapForwardingBackEnd, TapRefusal, TapSpec, find_taps};
use crate::Error;
use packetrig_engine::clock::RealClock;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::tap_losses::TapLossLog;
use packetrig_engine::xdp;
use packetrig_link::FrameTreatment;
use packetrig_plan::PortLocation;
use packetrig_sys::xdp::tap::{
    self as programs, MirrorTarget, PinnedForwarding, TapForwarding, TapForwardingRules,
};
use packetrig_sys::{clock, process};
use packetrig_units::clamp_to_u32;
use packetrig_wire::trailer;

/// Length of the Ethernet header, which an MTU does not count.
const HEADER: u32 = 14;

/// Forwarding that has started.
struct StartedTap {
    plane: TapForwardingBackEnd,
    /// Rings with the frames to record, one for each direction; `None` without a recording.
    sources: Option<[RecordSource; 2]>,
    /// Reason why frames that the drivers drop are not counted; `None` if they are counted.
    blindness: Option<String>,
    /// Reason why the tap does not forward in the kernel although that was chosen; `None` otherwise.
    refusal: Option<String>,
}

impl RunningTap {
    pub fn begin_tap(spec: &TapSpec) -> Result<Self, Error> {
        Self::begin_tap_with_treatments(spec, None)
    }

    /// Starts a tap with a treatment for the frames of each direction: from A to B, and back.
    pub fn begin_tap_with_treatments(
        spec: &TapSpec,
        treatments: Option<[Box<dyn FrameTreatment>; 2]>,
    ) -> Result<Self, Error> {
        let name = tap_name_or_default(spec)?;
        check_tap_spec(spec, &name)?;
        let held = prepare_interfaces(spec)?;
        let links: Vec<_> = held.iter_interfaces().map(|held| &held.link).collect();
        let choice = choose_tap_back_end(
            spec,
            &TapBackEndFacts::query_interfaces(&held.sides[0].netns, &links, treatments.is_some()),
        )?;
        let files = TapFiles::for_tap(&name);
        let mut guard = TapGuard::new(files, held)?;
        // A tap whose process died may have left pinned programs, which would prevent the new tap.
        PinnedForwarding::remove_pins(guard.files.pins())?;
        // The changes are saved before any frame is forwarded: if this process is killed at the next line,
        // `tap stop` still finds the interfaces and restores them.
        let mut state = build_initial_state(spec, name, &choice, &guard.held);
        guard.save_state(&mut state)?;
        let started = start_forwarding(spec, &choice, &mut guard, treatments)?;
        if let Some(why) = started.refusal {
            state = build_initial_state(
                spec,
                state.name,
                &TapBackEndChoice::choose_packet_back_end(why),
                &guard.held,
            );
        }
        state.knows_drivers = started.blindness.is_none();
        state.caveats.extend(started.blindness);
        guard.save_state(&mut state)?;
        // From here on, only the tap's own file records the changes. If the interfaces' records stayed, another run on
        // an interface could restore it after this process was killed, while the kernel still forwards.
        if !state.fail_closed {
            guard.held.iter_interfaces_mut().try_for_each(PreparedTapInterface::delete_saved_settings)?;
        }
        let clock = RealClock::new();
        let now = clock.now();
        let watch = LinkWatch::open_links(&guard.held.sides[0].netns, now, spec.link_state)?;
        let record = match (started.sources, &spec.capture) {
            (Some(sources), Some(file)) => {
                Some(RecordThread::begin_recording(spec, file, sources, RealClock::new())?)
            }
            _ => None,
        };
        // An error is ignored: without the log, a run on the same link does not learn the tap's losses.
        let losses = match &started.plane {
            TapForwardingBackEnd::Process(_) => TapLossLog::create_loss_log(&state.name, now).ok(),
            TapForwardingBackEnd::Kernel(_) => None,
        };
        Ok(Self {
            plane: started.plane,
            record,
            watch,
            gone: Vec::new(),
            waiting: None,
            losses,
            state,
            guard,
            began: now,
            published: now,
            clock: Box::new(clock),
        })
    }
}

fn prepare_interfaces(spec: &TapSpec) -> Result<PreparedTapInterfaces, Error> {
    // A mirror only sends, so it need not be promiscuous.
    let mirrors = spec.mirrors.iter().map(|mirror| prepare_interface(spec, &mirror.at, false));
    let mirrors = mirrors.collect::<Result<Vec<_>, _>>()?;
    let sides =
        [prepare_interface(spec, &spec.sides[0], true)?, prepare_interface(spec, &spec.sides[1], true)?];
    let held = PreparedTapInterfaces { sides, mirrors };
    check_same_namespace(&held)?;
    Ok(held)
}

/// Starts the forwarding with the chosen back end. Falls back to this process if the kernel refuses and the
/// user has not required the kernel back end.
fn start_forwarding(
    spec: &TapSpec,
    choice: &TapBackEndChoice,
    guard: &mut TapGuard,
    treatments: Option<[Box<dyn FrameTreatment>; 2]>,
) -> Result<StartedTap, Error> {
    if choice.way == TapMethod::Packet {
        return start_in_process(spec, &mut guard.held, treatments);
    }
    match start_in_kernel(spec, guard, choice.native) {
        // The driver may refuse although it reported support. Unless the user requires this back end, the
        // packet back end is used instead.
        Err(error) if spec.way.is_none() => {
            PinnedForwarding::remove_pins(guard.files.pins())?;
            let started = start_in_process(spec, &mut guard.held, treatments)?;
            Ok(StartedTap { refusal: Some(error.to_string()), ..started })
        }
        begun => begun,
    }
}

fn prepare_interface(
    spec: &TapSpec,
    at: &PortLocation,
    is_side: bool,
) -> Result<PreparedTapInterface, Error> {
    PreparedTapInterface::prepare_interface(at, spec.confirmed.contains(at), is_side)
}

/// Checks that the interfaces differ, that the mirrors are not too many, and that no running tap has this name. Ends a
/// tap of this name that no longer forwards, and restores its interfaces.
fn check_tap_spec(spec: &TapSpec, name: &str) -> Result<(), Error> {
    let all: Vec<&PortLocation> =
        spec.sides.iter().chain(spec.mirrors.iter().map(|mirror| &mirror.at)).collect();
    for (index, location) in all.iter().enumerate() {
        if all[..index].contains(location) {
            return Err(TapRefusal::Twice(location.to_string()).into());
        }
    }
    if spec.mirrors.len() > programs::MAX_MIRRORS {
        return Err(TapRefusal::TooMany(spec.mirrors.len(), programs::MAX_MIRRORS).into());
    }
    let there = find_taps(None)?.into_iter().find(|found| found.state.name == name);
    match there {
        Some(found) if found.is_forwarding() => Err(TapRefusal::Taken(name.to_owned()).into()),
        // The process of this tap has ended, and the tap no longer forwards. Its interfaces are restored
        // before the new tap takes them.
        Some(found) => found.end_tap().map(drop),
        None => Ok(()),
    }
}

fn check_same_namespace(held: &PreparedTapInterfaces) -> Result<(), Error> {
    let first = &held.sides[0];
    let space = first.netns.inode()?;
    for held in held.iter_interfaces() {
        // One namespace may have several names, but it has only one inode.
        if held.netns.inode()? != space {
            return Err(TapRefusal::Apart(first.location.to_string(), held.location.to_string()).into());
        }
    }
    Ok(())
}

fn build_initial_state(
    spec: &TapSpec,
    name: String,
    choice: &TapBackEndChoice,
    held: &PreparedTapInterfaces,
) -> TapState {
    let PreparedTapInterfaces { sides, mirrors } = held;
    let mut caveats: Vec<String> =
        held.iter_interfaces().flat_map(|held| held.caveats().iter().cloned()).collect();
    caveats.extend(describe_limits(spec, choice, sides, mirrors));
    TapState {
        name,
        way: choice.way,
        why: choice.why.clone(),
        process: process::current_process_id(),
        since_ns: clock::wall_clock_ns(),
        // The packet back end always ends with its process, whatever the user asked for.
        fail_closed: spec.fail_closed || choice.way == TapMethod::Packet,
        knows_drivers: false,
        sides: [TapInterface::from_held(&sides[0]), TapInterface::from_held(&sides[1])],
        mirrors: mirrors.iter().map(TapInterface::from_held).collect(),
        filter: spec.filter.as_ref().map(|(text, _)| text.clone()),
        snap_len: spec.snap_len,
        trailer: spec.trailer,
        caveats,
    }
}

/// Describes frames that will not be forwarded or copied because of their length.
fn describe_limits(
    spec: &TapSpec,
    choice: &TapBackEndChoice,
    sides: &[PreparedTapInterface; 2],
    mirrors: &[PreparedTapInterface],
) -> Vec<String> {
    let [a, b] = sides;
    let mut caveats = Vec::new();
    if a.link.mtu != b.link.mtu {
        let [small, large] = if a.link.mtu < b.link.mtu { [a, b] } else { [b, a] };
        caveats.push(format!(
            "{0} has MTU {1}, but {2} has MTU {3}: frames from {2} above the MTU of {0} are not forwarded",
            small.location, small.link.mtu, large.location, large.link.mtu
        ));
    }
    let largest = a.link.mtu.max(b.link.mtu);
    let more = if spec.trailer { clamp_to_u32(trailer::TRAILER_BYTES) } else { 0 };
    let cut = spec.snap_len.unwrap_or(u32::MAX);
    for mirror in mirrors {
        if mirror.link.mtu < mtu_for_copies(choice.way, largest, cut, more) {
            let name = mirror.location.to_string();
            caveats.push(format!("{name} has MTU {}: copies of longer frames are dropped", mirror.link.mtu));
        }
    }
    let in_pages = programs::MAX_COPY_BYTES;
    if choice.way == TapMethod::Xdp && !mirrors.is_empty() && largest + FRAME_BYTES_BEYOND_MTU > in_pages {
        caveats.push(format!(
            "frames longer than {in_pages} B are forwarded, but this back end cannot copy them to mirrors"
        ));
    }
    caveats
}

/// Returns the MTU that a mirror needs to get a copy of every frame that is copied.
fn mtu_for_copies(way: TapMethod, largest: u32, cut: u32, more: u32) -> u32 {
    // Longer frames are forwarded in the kernel and not copied (decision 0013).
    let copied = if way == TapMethod::Xdp { largest.min(programs::MAX_COPY_BYTES - HEADER) } else { largest };
    let cut = copied.min(cut.saturating_sub(HEADER)) + more;
    // The kernel compares the MTU of a mirror with the length of the frame before it is cut.
    if way == TapMethod::Xdp { copied.max(cut) } else { cut }
}

fn start_in_kernel(spec: &TapSpec, guard: &TapGuard, native: bool) -> Result<StartedTap, Error> {
    let PreparedTapInterfaces { sides, mirrors } = &guard.held;
    let targets = spec.mirrors.iter().zip(mirrors).map(|(mirror, held)| MirrorTarget {
        index: held.link.index,
        to: mirror.to,
        // The MTU counts neither the Ethernet header nor a VLAN tag.
        longest: held.link.mtu + FRAME_BYTES_BEYOND_MTU,
    });
    let snap = spec.snap_len.unwrap_or(DEFAULT_COPY_BYTES);
    let orders = TapForwardingRules {
        sides: [sides[0].link.index, sides[1].link.index],
        native,
        mirrors: targets.collect(),
        snap,
        trailer: spec.trailer,
        capture: spec.capture.as_ref().map(|_| snap),
    };
    let names = [sides[0].location.to_string(), sides[1].location.to_string()];
    let names = [names[0].as_str(), names[1].as_str()];
    let netns = &sides[0].netns;
    let begun = match &spec.filter {
        None => TapForwarding::begin_forwarding(netns, &orders, names, None)?,
        Some((text, program)) => {
            let filter = xdp::make_filter_translator(text, program)?;
            TapForwarding::begin_forwarding(netns, &orders, names, Some(&filter))?
        }
    };
    let mut forwarding = begun;
    // The programs are pinned immediately; until then, the forwarding ends with this process.
    programs::prepare_pins()?;
    forwarding.pin_in(guard.files.pins(), !spec.fail_closed)?;
    let sources = forwarding.take_rings().map(|rings| rings.map(RecordSource::Kernel));
    let blindness = match forwarding.watch_error() {
        Some(error) => Some(format!("frames that the drivers refuse are not counted: {error}")),
        None if !native => Some(
            "frames that the drivers refuse are not counted: the kernel's generic path does \
            not report them"
                .into(),
        ),
        None => None,
    };
    Ok(StartedTap {
        plane: TapForwardingBackEnd::Kernel(KernelTap { forwarding }),
        sources,
        blindness,
        refusal: None,
    })
}

fn start_in_process(
    spec: &TapSpec,
    held: &mut PreparedTapInterfaces,
    treatments: Option<[Box<dyn FrameTreatment>; 2]>,
) -> Result<StartedTap, Error> {
    let PreparedTapInterfaces { sides, mirrors } = held;
    sides.iter_mut().for_each(PreparedTapInterface::attach_pass_program);
    let sources = match spec.capture {
        Some(_) => Some([
            RecordSource::open_with_tap(&sides[0], spec)?,
            RecordSource::open_with_tap(&sides[1], spec)?,
        ]),
        None => None,
    };
    let lanes = TapLanes::begin_forwarding(spec, sides, mirrors, treatments)?;
    Ok(StartedTap { plane: TapForwardingBackEnd::Process(lanes), sources, blindness: None, refusal: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_mtu_fits_longest_copy_or_xdp_frame() {
        let of = |way, largest, cut, more| mtu_for_copies(way, largest, cut, more);
        assert_eq!(of(TapMethod::Packet, 1500, u32::MAX, 0), 1500);
        assert_eq!(of(TapMethod::Packet, 1500, u32::MAX, 24), 1524);
        assert_eq!((of(TapMethod::Packet, 1500, 96, 24), of(TapMethod::Xdp, 1500, 96, 24)), (106, 1500));
        assert_eq!(of(TapMethod::Xdp, 1500, 1510, 24), 1520);
        assert_eq!(of(TapMethod::Xdp, 9000, u32::MAX, 24), 3510, "longer ones are not copied");
    }
}
