//! Follows the sample numbers and the drop counts of each sampler of an agent, to find lost samples.
//!
//! Invariant: the number of samplers that are remembered is bounded.

use super::super::memory::map_memory_bytes;
use super::sample::{FlowSampleHead, SampleSource};
use std::collections::BTreeMap;

/// Maximum number of samplers of one agent that are remembered: more than a large switch has ports.
const MAX_SAMPLERS_PER_AGENT: usize = 1024;
/// Longest jump of a sample number that counts as a loss; a longer one means that the sampler began again.
const MAX_SEQUENCE_JUMP: u32 = 1 << 24;
/// Farthest back that the number of a late sample may be. A number further back means that the sampler began again,
/// and reduces no losses.
const MAX_LATE_SAMPLES: u32 = 1 << 12;

#[derive(Clone, Copy, Debug)]
struct SamplerNumbers {
    next: u32,
    drops: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SamplerTable {
    known: BTreeMap<SampleSource, SamplerNumbers>,
    lost: u64,
}

impl SamplerTable {
    pub(super) fn memory_bytes(&self) -> usize {
        map_memory_bytes::<SampleSource, SamplerNumbers>(self.known.len())
    }

    /// Returns the number of samples that are missing according to their sequence numbers.
    pub(super) const fn lost_samples(&self) -> u64 {
        self.lost
    }

    /// Records the number and the drop count of a sample. Returns by how much the drop count of its sampler has grown.
    pub(super) fn record_sample_numbers(&mut self, head: &FlowSampleHead) -> u64 {
        let next = head.number.wrapping_add(1);
        let Some(numbers) = self.known.get_mut(&head.source) else {
            // Without room, losses of this sampler are not counted. The sequence numbers of the datagrams
            // show lost datagrams anyway.
            if self.known.len() < MAX_SAMPLERS_PER_AGENT {
                self.known.insert(head.source, SamplerNumbers { next, drops: head.drops });
            }
            return 0;
        };
        let ahead = head.number.wrapping_sub(numbers.next);
        let behind = numbers.next.wrapping_sub(head.number);
        if ahead < MAX_SEQUENCE_JUMP {
            self.lost += u64::from(ahead);
        } else if behind <= MAX_LATE_SAMPLES {
            // The sample is late: most likely it was counted as lost. Its drop count is older than the known one.
            self.lost = self.lost.saturating_sub(1);
            return 0;
        }
        numbers.next = next;
        let grown = head.drops.wrapping_sub(numbers.drops);
        numbers.drops = head.drops;
        // A restarted sampler counts from zero.
        if grown < MAX_SEQUENCE_JUMP { grown.into() } else { 0 }
    }

    /// Forgets all samplers; their losses stay counted. Returns whether there were any.
    pub(super) fn forget_all_samplers(&mut self) -> bool {
        let has_any = !self.known.is_empty();
        self.known.clear();
        has_any
    }
}
