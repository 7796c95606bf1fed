//! What is said of sampling: by a record of itself, or by an options record of a sampler.

use super::meaning::FieldMeaning;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SamplingState {
    pub(super) sampler: Option<u64>,
    /// One packet of so many is taken.
    pub(super) every: Option<u64>,
    /// So many packets are taken …
    pub(super) taken: Option<u64>,
    /// … and so many passed over.
    pub(super) space: Option<u64>,
}

impl SamplingState {
    /// Takes a field's value if it is about sampling. Says whether it was.
    pub(super) const fn take(&mut self, meaning: FieldMeaning, value: u64) -> bool {
        match meaning {
            FieldMeaning::Sampler => self.sampler = Some(value),
            FieldMeaning::SamplingInterval => self.every = Some(value),
            FieldMeaning::SamplingTaken => self.taken = Some(value),
            FieldMeaning::SamplingSpace => self.space = Some(value),
            _ => return false,
        }
        true
    }

    /// Every how many packets one is taken, if that was said; what was taken and passed over is believed before an interval.
    pub(super) fn interval(&self) -> Option<u32> {
        let said = match (self.taken, self.space) {
            (Some(taken), Some(space)) => Some(taken.saturating_add(space).checked_div(taken).unwrap_or(1)),
            _ => self.every,
        };
        said.map(|said| u32::try_from(said).unwrap_or(u32::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_at_least_one() {
        let said = |every, taken, space| SamplingState { every, taken, space, sampler: None }.interval();
        assert_eq!([said(None, None, None), said(None, Some(1), None)], [None; 2]);
        assert_eq!([said(Some(0), None, None), said(None, Some(0), Some(9))], [Some(1); 2]);
        assert_eq!([said(Some(5), Some(2), Some(18)), said(Some(5), Some(2), None)], [Some(10), Some(5)]);
        assert_eq!(said(Some(u64::MAX), None, None), Some(u32::MAX));
    }
}
