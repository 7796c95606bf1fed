//! Draws the order of the two devices within the pairs.

/// Returns for each pair whether the second device is tested first. The order of every other pair is drawn; the pair
/// after it has the opposite order.
pub(super) fn draw_trial_orders(pairs: u32, seed: u64) -> Vec<bool> {
    let mut state = seed;
    let mut orders = Vec::new();
    while orders.len() < pairs as usize {
        let is_second_first = next_random(&mut state) & 1 == 1;
        // The opposite order in the next pair cancels a steady drift of the rig: A B B A.
        orders.extend([is_second_first, !is_second_first]);
    }
    // With an odd number of pairs, the last one has no opposite.
    orders.truncate(pairs as usize);
    orders
}

/// Returns the next random number of SplitMix64.
const fn next_random(state: &mut u64) -> u64 {
    // The journal holds only the seed. With another generator, the same seed would order different trials,
    // and an interrupted test could not be resumed.
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
