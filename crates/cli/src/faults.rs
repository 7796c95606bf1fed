//! Parses the faults of the demo's reference device, written like `drop=10,reorder=3,delay=50us`.

use packetrig_units::Nanos;
use std::str::FromStr;

/// Faults of the reference device: the number of frames that each fault hits, and a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultCounts {
    pub(crate) drop: u32,
    /// Frames that are forwarded twice.
    pub(crate) duplicate: u32,
    /// Frames that are forwarded after a later frame.
    pub(crate) reorder: u32,
    /// Frames with a flipped bit in the payload.
    pub(crate) corrupt: u32,
    /// Delay of every frame.
    pub(crate) delay: Nanos,
}

impl FromStr for FaultCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').try_fold(Self::default(), |faults, item| faults.with_fault(item.trim()))
    }
}

impl FaultCounts {
    fn with_fault(mut self, item: &str) -> Result<Self, String> {
        let (kind, value) = item
            .split_once('=')
            .ok_or_else(|| format!("`{item}` is not a fault; write it like drop=10 or delay=50us"))?;
        // The delay hits all frames, so it alone has a time instead of a count.
        if kind == "delay" {
            self.delay = value.parse().map_err(|error: packetrig_units::Error| error.to_string())?;
            return Ok(self);
        }
        let place = match kind {
            "drop" => &mut self.drop,
            "duplicate" => &mut self.duplicate,
            "reorder" => &mut self.reorder,
            "corrupt" => &mut self.corrupt,
            _ => {
                return Err(format!(
                    "unknown fault `{kind}`; use drop, duplicate, reorder, corrupt or delay"
                ));
            }
        };
        *place = value.parse().map_err(|_| format!("`{value}` is not a number of frames to {kind}"))?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_kind_is_parsed() {
        let faults: FaultCounts = "drop=10, duplicate=5,reorder=3,corrupt=2,delay=50us".parse().unwrap();
        let wanted =
            FaultCounts { drop: 10, duplicate: 5, reorder: 3, corrupt: 2, delay: Nanos::from_micros(50) };
        assert_eq!(faults, wanted);
    }

    #[test]
    fn unknown_fault_error_lists_known_kinds() {
        for (text, hint) in
            [("drop", "drop=10"), ("burn=3", "use drop"), ("drop=x", "number"), ("delay=soon", "50us")]
        {
            let error = text.parse::<FaultCounts>().unwrap_err();
            assert!(error.contains(hint) || error.contains("250us"), "{error}");
        }
    }
}
