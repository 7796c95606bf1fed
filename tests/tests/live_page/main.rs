//! The live page and its API at the built server, with real frames.

mod api;
mod assistant;
mod browser;
mod dashboard;
mod measured;
mod plain_run;
mod screen;
mod terminal;
