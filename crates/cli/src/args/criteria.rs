//! Arguments for the criteria that a run must meet for the verdict PASS.

use super::quantities::{LatencyBound, PercentArg, parse_time_with_unit};
use clap::Args;
use packetrig_plan::criteria::{AcceptanceCriteria, CarrierLossCause};
use packetrig_units::{Nanos, Share};

/// Limits that a run must keep to pass. A plan can also set them in `x_criteria`; a flag overrides the plan.
// Times need a unit here: `--max-jitter 5` would mean five seconds, and everything would pass.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Criteria for PASS")]
pub(crate) struct CriteriaFlags {
    /// Largest share of lost frames per stream; 0.1 and 0.1% mean the same [default: 0%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_loss: Option<PercentArg>,
    /// Largest share of frames that arrive more than once [default: 0%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_duplicates: Option<PercentArg>,
    /// Largest share of frames with a damaged payload or tag [default: 0%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_damaged: Option<PercentArg>,
    /// Largest share of frames that arrive at a port where their stream is not expected [default: 0%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_misdelivered: Option<PercentArg>,
    /// Largest share of frames that arrive after a later frame [default: any]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_reordered: Option<PercentArg>,
    /// Largest share of frames whose headers changed on the way [default: any]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_altered: Option<PercentArg>,
    /// Largest latency, such as p99=50us,max=1ms. Figures: p50, p90, p99, p99.9, p99.99, mean, max [default: any]
    #[arg(long, value_name = "FIGURE=TIME,…", value_delimiter = ',')]
    pub(crate) max_latency: Vec<LatencyBound>,
    /// Largest interarrival jitter (RFC 3550) [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_jitter: Option<Nanos>,
    /// Longest time in which a stream loses frames and receives none [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_outage: Option<Nanos>,
    /// Smallest received rate, as a share of the requested rate [default: any]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) min_rate: Option<PercentArg>,
    /// Smallest share of frames that the receiver must verify, by tag or content; below it there is
    /// no PASS [default: 100%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) min_verified: Option<PercentArg>,
    /// Largest delay of a frame behind its schedule; beyond it there is no PASS, and losses during the delay are
    /// not blamed on the device [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_late: Option<Nanos>,
    /// Largest difference between the start times of senders on different nodes [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_skew: Option<Nanos>,
    /// Cause of a carrier loss at a port: `device` if the device is expected to cause it, as in a reset;
    /// then losses at that time are the device's [default: unknown]
    #[arg(long, value_name = "CAUSE")]
    pub(crate) carrier_loss: Option<CarrierLossCause>,
}

impl CriteriaFlags {
    /// Returns the criteria of the plan. Each given flag replaces the value of the plan.
    pub(crate) fn with_plan_defaults(&self, plan: &AcceptanceCriteria) -> AcceptanceCriteria {
        // A flag replaces the plan's limit of the same figure and leaves its other limits in force.
        let mut latency = plan.latency.clone();
        for bound in &self.max_latency {
            latency.retain(|limit| limit.figure != bound.0.figure);
            latency.push(bound.0);
        }
        AcceptanceCriteria {
            // Limits with `share_or_plan_limit` or `unwrap_or` always exist, because a plan has defaults for them.
            // Limits with `or` exist only if a flag or the plan sets them.
            max_loss: share_or_plan_limit(self.max_loss, plan.max_loss),
            max_duplicates: share_or_plan_limit(self.max_duplicates, plan.max_duplicates),
            max_damaged: share_or_plan_limit(self.max_damaged, plan.max_damaged),
            max_misdelivered: share_or_plan_limit(self.max_misdelivered, plan.max_misdelivered),
            max_reordered: self.max_reordered.map(|share| share.0).or(plan.max_reordered),
            max_altered: self.max_altered.map(|share| share.0).or(plan.max_altered),
            latency,
            max_jitter: self.max_jitter.or(plan.max_jitter),
            max_outage: self.max_outage.or(plan.max_outage),
            min_rate: self.min_rate.map(|share| share.0).or(plan.min_rate),
            min_verified: share_or_plan_limit(self.min_verified, plan.min_verified),
            max_late: self.max_late.unwrap_or(plan.max_late),
            max_skew: self.max_skew.or(plan.max_skew),
            carrier_loss: self.carrier_loss.unwrap_or(plan.carrier_loss),
        }
    }
}

fn share_or_plan_limit(flag: Option<PercentArg>, plan: Share) -> Share {
    flag.map_or(plan, |flag| flag.0)
}
