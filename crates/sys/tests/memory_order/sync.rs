//! Atomics as the protocols use them, of which one ordering at a time can be weakened.

use crate::explore::effective;
pub(crate) use loom::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $number:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $number) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $number {
                self.0.load(effective(order))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $number, order: Ordering) {
                self.0.store(value, effective(order));
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    #[track_caller]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, effective(order))
    }
}
