//! Memory of stored state: its bytes, and the overhead of the allocator and the maps around it.
//!
//! The results are upper bounds, so that a collector never counts less memory than it holds. `tests/tests/allocation`
//! compares them with the allocator.

/// Maximum number of entries of a node of a B-tree map. `MIN_NODE_ENTRIES` is the minimum in every node but the root.
const MAX_NODE_ENTRIES: usize = 11;
const MIN_NODE_ENTRIES: usize = 5;

/// Returns an upper bound of the memory that a block of this many bytes takes: glibc puts eight bytes in front,
/// rounds up to sixteen and uses at least 32.
pub(super) const fn block_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16) + 16 }
}

/// Returns the maximum memory that a B-tree map with this many entries takes, in bytes.
pub(super) const fn map_memory_bytes<K, V>(entries: usize) -> usize {
    // Every node may be as empty as a B-tree allows, and still takes the memory of a full node.
    let leaf = block_bytes(MAX_NODE_ENTRIES * (size_of::<K>() + size_of::<V>()) + 16);
    let leaves = entries.div_ceil(MIN_NODE_ENTRIES);
    // The nodes above the leaves are at most a quarter as many as the leaves. They also have twelve pointers each.
    let inner = if leaves > 1 { leaves.div_ceil(4) } else { 0 };
    leaves * leaf + inner * (leaf + block_bytes(12 * size_of::<usize>()))
}
