//! Any bytes, and sets that nearly fit.

use super::*;
use proptest::prelude::*;

/// Sets of templates and data that fit each other now and then.
fn sets() -> impl Strategy<Value = MessageBytes> {
    let field = (prop_oneof![0_u16..400, any::<u16>()], prop_oneof![0_u16..9, Just(0xffff), any::<u16>()]);
    let template =
        (256_u16..260, prop::collection::vec(field, 0..12), 2_u16..4).prop_map(|(id, fields, kind)| {
            let count = u16::try_from(fields.len()).expect("few");
            let head = MessageBytes::default().u16(id).u16(count);
            let head = if kind == 3 { head.u16(1) } else { head };
            MessageBytes::default()
                .set(kind, fields.iter().fold(head, |bytes, (id, length)| bytes.u16(*id).u16(*length)))
        });
    let data = (256_u16..260, prop::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(id, content)| MessageBytes::default().set(id, MessageBytes(content)));
    prop::collection::vec(prop_oneof![template, data], 0..6)
        .prop_map(|sets| sets.into_iter().fold(MessageBytes::default(), |all, set| all.bytes(&set.0)))
}

proptest! {
    #[test]
    fn any_bytes_are_fine(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        let mut heard = HeardRecords::new(CollectorOptions::default());
        for mut message in messages {
            for version in [5, 9, 10] {
                if message.len() > 4 {
                    let length = u16::try_from(message.len()).expect("short").to_be_bytes();
                    message[..4].copy_from_slice(&[0, version, length[0], length[1]]);
                }
                heard.take(&message).unwrap_or(());
            }
        }
    }

    /// Every unit of a stream is decoded, lost, or was in sets that could not be read, and memory stays bounded.
    #[test]
    fn memory_is_bounded(stream in prop::collection::vec((any::<u32>(), sets(), any::<bool>()), 0..40)) {
        let session = SessionOptions { templates: 3, template_fields: 9000, hold_bytes: 3000, ..SessionOptions::default() };
        let mut heard = HeardRecords::new(CollectorOptions { session, ..CollectorOptions::default() });
        let mut refused = 0;
        for (number, sets, as_nine) in stream {
            heard.now_ns += 1_000_000_000;
            let taken = if as_nine {
                let mut nine = sets.0.clone();
                // Templates are sets 0 and 1 there.
                if nine.len() > 1 {
                    nine[1] = nine[1].saturating_sub(2);
                }
                heard.take(&netflow9(number, number, number, MessageBytes(nine)))
            } else {
                heard.take(&ipfix(number, sets))
            };
            refused += u64::from(taken.is_err());
            prop_assert!(heard.counts().pending_bytes <= 2 * 3000);
        }
        prop_assert_eq!(heard.counts().records, heard.records.len() as u64);
        prop_assert_eq!(heard.counts().malformed, refused);
        prop_assert_eq!(heard.counts().find_imbalances(), []);
    }
}
