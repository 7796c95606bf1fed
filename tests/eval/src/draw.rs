//! Seeded random numbers: the same seed and number give the same scenario or trial.

/// A generator by Steele, Lea and Flood ("Fast splittable pseudorandom number generators", 2014): good enough to draw scenarios.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The generator of scenario `index` of a seed.
    pub const fn of(seed: u64, index: u64) -> Self {
        Self(seed.wrapping_mul(1_000_003).wrapping_add(index))
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of `least..most`.
    pub const fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least)
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.next() % all.len() as u64).unwrap_or(0)]
    }
}
