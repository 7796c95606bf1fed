//! The networked fabric over a real server on loopback: the suite of every fabric, faults, and attackers.

mod captures;
mod conformance;
mod enrolment;
mod faults;
mod filling;
mod fleet;
mod flood;
mod hostile;
mod own_user;
mod security;
mod server;
mod several;
mod slow_link;
mod stranger;
