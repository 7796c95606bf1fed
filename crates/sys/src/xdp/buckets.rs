//! Buckets of the histograms of `bpf/send.bpf.c`: eight between one power of two and the next, so a value is known
//! to within an eighth.

pub const BUCKET_COUNT: usize = crate::layout::send::BUCKETS;

/// The largest value that falls into a bucket.
pub fn largest_value(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let octave = bucket / 8 + 2;
    let part = (bucket % 8) as u64;
    ((8 + part + 1) << (octave - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bucket of a value, computed as in `bpf/send.bpf.c`.
    fn bucket_of(value: u64) -> usize {
        if value < 8 {
            return usize::try_from(value).unwrap();
        }
        let e = u64::from(value.ilog2());
        usize::try_from((e - 2) * 8 + ((value >> (e - 3)) & 7)).unwrap().min(BUCKET_COUNT - 1)
    }

    #[test]
    fn bucket_end_is_smallest_at_or_above_value() {
        for value in (0..2_000).chain([4_095, 4_096, 1 << 20, (1 << 30) + 12_345, 1 << 40]) {
            let bucket = bucket_of(value);
            assert!(value <= largest_value(bucket), "{value} in {bucket}");
            assert!(bucket == 0 || value > largest_value(bucket - 1), "{value} in {bucket}");
        }
    }
}
