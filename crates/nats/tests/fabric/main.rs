//! The networked fabric over a real server on loopback: held to what every fabric must do, with faults and enemies.

mod conformance;
mod faults;
mod fleet;
mod hostile;
mod security;
mod server;
mod stranger;
