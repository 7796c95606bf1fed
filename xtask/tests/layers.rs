//! The workspace keeps the rules between its rooms: the chore `layers`, as `cargo run -p xtask -- layers` runs it.

use std::process::Command;

#[test]
fn rooms_use_only_the_rooms_they_may() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("layers").output().expect("the chore starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
