//! The sampling interval: stated in a record itself, or in an options record of its sampler.

use super::meaning::FieldMeaning;
use packetrig_units::clamp_to_u32;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SamplingState {
    pub(super) sampler: Option<u64>,
    /// Sampling interval: one of this many packets is sampled.
    pub(super) every: Option<u64>,
    /// Number of consecutive packets that are sampled before packets are skipped.
    pub(super) taken: Option<u64>,
    /// Number of packets that are skipped after the sampled ones.
    pub(super) space: Option<u64>,
}

impl SamplingState {
    /// Stores the value of a field about sampling. Returns false for any other field.
    pub(super) const fn set_field(&mut self, meaning: FieldMeaning, value: u64) -> bool {
        match meaning {
            FieldMeaning::Sampler => self.sampler = Some(value),
            FieldMeaning::SamplingInterval => self.every = Some(value),
            FieldMeaning::SamplingTaken => self.taken = Some(value),
            FieldMeaning::SamplingSpace => self.space = Some(value),
            _ => return false,
        }
        true
    }

    /// Returns the sampling interval that the record states; `None` if it states none. Numbers of sampled and skipped
    /// packets take precedence over an interval.
    pub(super) fn sampling_interval_of_record(&self) -> Option<u32> {
        let said = match (self.taken, self.space) {
            // If an exporter states 0 sampled packets, there is no ratio; 1 leaves its counts as they are.
            (Some(taken), Some(space)) => Some(taken.saturating_add(space).checked_div(taken).unwrap_or(1)),
            _ => self.every,
        };
        // Exporters send 0 for no sampling. Used as a factor, 0 would make every count zero.
        said.map(|said| clamp_to_u32(said).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_at_least_one() {
        let said = |every, taken, space| {
            SamplingState { every, taken, space, sampler: None }.sampling_interval_of_record()
        };
        assert_eq!([said(None, None, None), said(None, Some(1), None)], [None; 2]);
        assert_eq!([said(Some(0), None, None), said(None, Some(0), Some(9))], [Some(1); 2]);
        assert_eq!([said(Some(5), Some(2), Some(18)), said(Some(5), Some(2), None)], [Some(10), Some(5)]);
        assert_eq!(said(Some(u64::MAX), None, None), Some(u32::MAX));
    }
}
