//! Stamps of a network card on frames that it sends: off until a program asks for them.
//!
//! Invariant: dropping a [`CardStamping`] leaves the card as it was before; a card that already stamped for another
//! program continues to do so. If the driver does not report its mode, dropping switches stamping off.

use crate::Error;
use crate::error::ignore_failure;
use crate::ethtool::{EthtoolCalls, HwStamping};
use crate::netns::NetNs;

/// Makes a card stamp its sent frames, as long as the value lives.
#[derive(Debug)]
pub struct CardStamping {
    ethtool: EthtoolCalls,
    name: String,
    before: Option<HwStamping>,
}

impl CardStamping {
    /// Makes the card of this interface stamp sent frames, unless it does so already.
    pub fn enable_on(netns: &NetNs, name: &str) -> Result<Self, Error> {
        let ethtool = EthtoolCalls::open_in(netns)?;
        // Old drivers do not report the mode; then the default is used: off.
        let found = ethtool.read_card_stamping(name).unwrap_or_default();
        let before = (!found.departures).then_some(found);
        if before.is_some() {
            ethtool.set_card_stamping(name, HwStamping { departures: true, ..found })?;
        }
        Ok(Self { ethtool, name: name.to_owned(), before })
    }
}

impl Drop for CardStamping {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // A removed interface needs no restoring, and a drop cannot report another failure.
            ignore_failure(self.ethtool.set_card_stamping(&self.name, before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_without_card_refuses_hardware_stamping() {
        let refused = CardStamping::enable_on(&NetNs::current().unwrap(), "lo");
        assert!(refused.is_err(), "{refused:?}");
    }
}
