//! A fleet of seven machines as far as the kernel can tell: one controller, three senders, three receivers, each in a
//! namespace of its own, with a control network and a test network; a real message server, real agents, real faults.
//!
//! What is demanded is what the report, the catalogue and the exit code say, counted in frames, never in time.

mod absent;
mod broker;
mod captures;
mod controllers;
mod full_store;
mod hostile_controller;
mod hostile_node;
mod lab;
mod methods;
mod metrics;
mod nodes;
mod operating;
mod probes;
mod refusals;
mod run;
mod sandboxed;
mod served;
mod several;
mod walls;
mod whole;
