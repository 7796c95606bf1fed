//! Small values that several tests share.

use super::*;
use crate::IPV4_MAPPED_PREFIX;

#[test]
fn addresses_of_ipv4_are_mapped() {
    let address = ipv4_mapped(LEFT);
    assert!(address.starts_with(&IPV4_MAPPED_PREFIX));
    assert!(address.ends_with(&LEFT));
}
