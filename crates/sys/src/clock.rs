//! The only place that reads a clock.
