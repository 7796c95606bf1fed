//! Small values that several tests share.

use super::*;
use crate::MAPPED;

#[test]
fn addresses_of_ipv4_are_mapped() {
    let address = ipv4_mapped(LEFT);
    assert!(address.starts_with(&MAPPED));
    assert!(address.ends_with(&LEFT));
}
