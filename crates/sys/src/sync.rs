//! Atomics of protocols that `tests/memory_order` explores. That test replaces this module by the types of loom.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
