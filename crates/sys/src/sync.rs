//! Atomics of protocols that `tests/memory_order` explores: there this name stands for others.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
