//! Chooses the back end of a port when the user does not name one.
//!
//! Pure: the plan's needs, the machine's abilities and the results of a calibration are arguments. The decision and its
//! reasons are in docs/decisions/0007.
//!
//! Invariant: without a calibration and without a load above [`COMFORTABLE_FRAME_RATE`], the choice is `packet`.

use packetrig_plan::Plan;
use packetrig_plan::recording::{FrameOrigin, PlannedRecording};
use packetrig_stats::limit::{RigLimit, find_nearest_rig_limit};
use packetrig_stats::port::BackEnd;
use packetrig_units::{BitRate, FrameRate, Nanos, Rate, clamp_to_u16};

/// Frames per second that AF_PACKET rings carry on every machine, with a reserve: a third of the lowest rate without
/// loss that was measured (0.6 million on one slow core, frames of 64 B). Above this rate, XDP is worth the processor
/// that it keeps busy all the time.
pub const COMFORTABLE_FRAME_RATE: u64 = 200_000;

/// Rate of streams that are sent as fast as possible.
pub const UNLIMITED_FRAME_RATE: u64 = u64::MAX;

/// Demands of the plan on a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortNeeds {
    pub sends: bool,
    /// Frames per second in the busier direction; [`UNLIMITED_FRAME_RATE`] if a stream is sent as fast as possible.
    pub frames_per_second: u64,
    pub size: u64,
    /// Reason why the port's frames cannot be sent as live frames, if there is one.
    pub live_send_obstacle: Option<String>,
    /// Whether frames with VLAN tags may arrive.
    pub tagged: bool,
}

/// Abilities of the machine and the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAbilities {
    /// Name of the driver.
    pub driver: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Reason why BPF programs cannot be loaded, if they cannot.
    pub no_bpf: Option<String>,
    /// Whether the driver itself runs XDP programs.
    pub native: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackEndChoice {
    pub back_end: BackEnd,
    pub why: String,
}

impl PortNeeds {
    /// Collects what `plan` demands of the port with index `port`. `speed` is its link speed; if it is unknown, rates
    /// in percent of it count as 0.
    pub fn from_plan(plan: &Plan, port: usize, speed: Option<BitRate>) -> Self {
        let mut needs = Self::default();
        let mut out = 0u64;
        let mut into = 0u64;
        let mut bytes = 0;
        let mut frames = 0u32;
        for (number, stream) in plan.streams.iter().enumerate() {
            let sends = stream.tx == port;
            let receives = stream.rx.contains(&port);
            if !sends && !receives {
                continue;
            }
            let rate = frames_per_second_of_stream(&stream.frames, stream.rate, speed);
            let (of_bytes, of_frames) = stream.frames.mean_size();
            // The mean over streams, not over frames: it only selects the nearest calibrated size.
            bytes += of_bytes / of_frames.max(1);
            frames += 1;
            needs.tagged |= receives && may_be_tagged(&stream.frames);
            if receives {
                into = into.saturating_add(rate);
            }
            if sends {
                needs.sends = true;
                out = out.saturating_add(rate);
                let number = clamp_to_u16(number);
                needs.live_send_obstacle = needs
                    .live_send_obstacle
                    .or_else(|| crate::xdp::live_send_obstacle(number, &stream.frames));
            }
        }
        // The loads are not added: each direction has its own ring and thread.
        needs.frames_per_second = out.max(into);
        needs.size = bytes / u64::from(frames.max(1));
        needs
    }

    fn describe_load(&self) -> String {
        match self.frames_per_second {
            UNLIMITED_FRAME_RATE => "the plan asks for the highest possible rate".into(),
            rate => format!("the plan asks for {rate} frames/s"),
        }
    }
}

/// Returns the frames per second that a stream demands; 0 if that depends on an unknown link speed.
fn frames_per_second_of_stream(frames: &FrameOrigin, rate: Rate, speed: Option<BitRate>) -> u64 {
    if frames.is_unpaced() {
        return UNLIMITED_FRAME_RATE;
    }
    let (bytes, count) = frames.mean_size();
    let rate = match (frames.recording().and_then(PlannedRecording::mean_rate), rate) {
        (Some(rate), _) | (None, Rate::Frames(rate)) => Some(rate),
        (None, Rate::Bits(bits)) => FrameRate::from_bits(bits, bytes, count),
        // Without a known link speed the plan is refused later, during binding.
        (None, Rate::Share(share)) => {
            // A share is of the line rate, which includes 20 bytes of preamble and gap for each frame.
            speed.and_then(|speed| FrameRate::from_share(speed, share, bytes + count * 20, count))
        }
    };
    rate.map_or(0, |rate| rate.frames_within(Nanos::from_secs(1)))
}

fn may_be_tagged(frames: &FrameOrigin) -> bool {
    // Recorded frames are not inspected, so any of them may have a tag.
    let Some(template) = frames.template() else { return true };
    let parts = template.split_into_parts(template.spec().size.max_size(), 0);
    matches!(parts.image.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]))
}

pub fn choose_back_end(needs: &PortNeeds, abilities: &PortAbilities, limits: &[RigLimit]) -> BackEndChoice {
    let obstacle = xdp_obstacle(needs, abilities);
    // The preferred back end is the last one, because `max_by_key` below returns the last of equal rates.
    let able: &[BackEnd] = match (&obstacle, &needs.live_send_obstacle) {
        (Some(_), _) => &[BackEnd::Packet],
        (None, Some(_)) => &[BackEnd::AfXdp, BackEnd::Packet],
        (None, None) => &[BackEnd::Xdp, BackEnd::AfXdp, BackEnd::Packet],
    };
    let measured = able
        .iter()
        .filter_map(|back_end| find_nearest_rig_limit(limits, *back_end, &abilities.driver, needs.size));
    // A measurement on this machine overrides every rule below, including the default (decision 0007).
    if let Some(best) = measured.max_by_key(|limit| limit.frames_per_second) {
        return choose_calibrated_back_end(best, needs, abilities, limits, obstacle.as_deref());
    }
    // XDP pays off only beyond the rate of the rings, because it keeps a processor busy.
    if obstacle.is_none()
        && needs.live_send_obstacle.is_none()
        && needs.frames_per_second > COMFORTABLE_FRAME_RATE
    {
        let why = format!(
            "{}, more than the {COMFORTABLE_FRAME_RATE} that AF_PACKET rings can send on every machine, and the driver runs \
                XDP programs",
            needs.describe_load()
        );
        return BackEndChoice { back_end: BackEnd::Xdp, why };
    }
    BackEndChoice { back_end: BackEnd::Packet, why: explain_packet_choice(needs, obstacle.as_deref()) }
}

/// Explains the choice of AF_PACKET rings without a calibration.
fn explain_packet_choice(needs: &PortNeeds, obstacle: Option<&str>) -> String {
    if needs.frames_per_second <= COMFORTABLE_FRAME_RATE {
        return "the default: AF_PACKET rings work with every kernel and card, and carry this load".into();
    }
    let load = needs.describe_load();
    match (obstacle, &needs.live_send_obstacle) {
        (Some(obstacle), _) => format!("{load}; back end xdp would be faster, but {obstacle}"),
        // Without zero copy, AF_XDP may be no faster than the rings; only a calibration can tell.
        (None, Some(reason)) => format!("{load}; live frames would be faster, but {reason}"),
        (None, None) => load,
    }
}

fn choose_calibrated_back_end(
    best: &RigLimit,
    needs: &PortNeeds,
    abilities: &PortAbilities,
    limits: &[RigLimit],
    obstacle: Option<&str>,
) -> BackEndChoice {
    let others = [BackEnd::Packet, BackEnd::AfXdp, BackEnd::Xdp].into_iter();
    // The text names the other back ends with their rates, so that a user who doubts the choice
    // need not measure again.
    let others = others.filter(|other| *other != best.back_end).filter_map(|other| {
        let limit = find_nearest_rig_limit(limits, other, &abilities.driver, needs.size)?;
        let but = match (other, obstacle, &needs.live_send_obstacle) {
            (BackEnd::Packet, ..) | (_, None, None) | (BackEnd::AfXdp, None, _) => String::new(),
            (_, Some(reason), _) => format!(", but {reason}"),
            (_, None, Some(reason)) => format!(", but {reason}"),
        };
        Some(format!("; back end {} reached {} frames/s{but}", other.name(), limit.frames_per_second))
    });
    let why = format!(
        "as calibrated, {} frames/s of {} B without loss (driver {}){}",
        best.frames_per_second,
        best.size,
        best.driver,
        others.collect::<String>()
    );
    BackEndChoice { back_end: best.back_end, why }
}

/// Returns why packetrig does not choose XDP by itself here; `None` if it may.
fn xdp_obstacle(needs: &PortNeeds, abilities: &PortAbilities) -> Option<String> {
    if let Some(reason) = &abilities.no_bpf {
        return Some(reason.clone());
    }
    if !abilities.native {
        return Some(format!("driver {} does not run XDP programs itself", abilities.driver));
    }
    if abilities.processors < 2 {
        return Some("it needs a CPU of its own, and packetrig may use only one".into());
    }
    if needs.tagged && abilities.driver == "veth" {
        return Some("an XDP program on a veth may not see the VLAN tags of frames".into());
    }
    None
}

#[cfg(test)]
mod tests;
