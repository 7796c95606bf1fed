//! The networked fabric over a real server on loopback: held to what every fabric must do, with faults and enemies.

mod captures;
mod conformance;
mod enrolment;
mod faults;
mod filling;
mod fleet;
mod flood;
mod hostile;
mod security;
mod server;
mod several;
mod slow_link;
mod stranger;
