//! packetrig.
fn main() {}
