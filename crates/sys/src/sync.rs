//! Atomics of protocols that `tests/memory_order` explores: in that test, this name means other types.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
