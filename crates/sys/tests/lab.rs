//! Entering a private lab, as root and as an ordinary user. Runs without the test harness, which has threads.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, although the harness does not know it"
)]

use packetrig_sys::link::{NamespaceLinks, VethEnd};
use packetrig_sys::netns::{self, NetNs};
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_sys::{Error, userns};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Says in the child that it is one.
const CHILD: &str = "PACKETRIG_TEST_IN_LAB";
const NOBODY: u32 = 65_534;

/// Answer to a test runner that asks for the tests of this program.
const LIST: &str = "a_lab_is_entered: test";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("{LIST}");
        }
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        return inside();
    }
    let before = NetNs::current().unwrap().inode().unwrap();
    run_child("as this user", &mut command());
    if packetrig_sys::caps::ThreadRights::current().has_capability("CAP_SYS_ADMIN") {
        run_child("as an ordinary user", command().uid(NOBODY).gid(NOBODY));
    }
    assert_eq!(NetNs::current().unwrap().inode().unwrap(), before);
    println!("test result: ok. a lab was entered");
}

/// This program again, from a place where every user can run it.
fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(CHILD, "1");
    command
}

fn run_child(who: &str, command: &mut Command) {
    let status = match command.status() {
        // In an ordinary user's own lab there is no second user to become.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return println!("skipped: {who}: no such user in this namespace");
        }
        ended => ended.unwrap(),
    };
    assert!(status.success(), "{who}: {status}");
}

fn inside() {
    let outside = NetNs::current().unwrap().inode().unwrap();
    let entered = match userns::enter_lab() {
        Ok(entered) => entered,
        Err(Error::Unsupported(why)) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    println!("entered: {entered:?}");
    let here = NetNs::current().unwrap();
    assert_ne!(here.inode().unwrap(), outside);
    assert!(netns::list_named_namespaces().is_empty(), "the machine's namespaces are not seen");
    assert!(NamespaceLinks::open_in(&here).unwrap().find_link_by_name("lo").unwrap().up);
    // A run needs a named namespace, a cable into it, and a ring.
    let there = NetNs::create_named_namespace("far").unwrap();
    let mut links = NamespaceLinks::open_in(&here).unwrap();
    let far = VethEnd { name: "b", netns: Some(&there), mac: None };
    links.create_veth(VethEnd { name: "a", netns: None, mac: None }, far).unwrap();
    let index = NamespaceLinks::open_in(&there).unwrap().find_link_by_name("b").unwrap().index;
    TxRing::open_on_interface(&there, index, "b", TxOptions::default()).unwrap();
    netns::delete_named_namespace("far").unwrap();
}
