//! What a tap left in a file, or somebody else did.

use packetrig_link_io::tap::{TapAccounts, TapState};

/// State and accounts are read or refused; what is read is written as it was.
pub fn tap_state(data: &[u8]) {
    if let Ok(state) = serde_json::from_slice::<TapState>(data) {
        let again = serde_json::to_vec(&state).map(|text| serde_json::from_slice::<TapState>(&text));
        assert!(again.is_ok_and(|again| again.is_ok_and(|again| again == state)), "{state:?}");
    }
    if let Ok(accounts) = serde_json::from_slice::<TapAccounts>(data) {
        let again = serde_json::to_vec(&accounts).map(|text| serde_json::from_slice::<TapAccounts>(&text));
        assert!(again.is_ok_and(|again| again.is_ok()), "{accounts:?}");
    }
}
