//! Checks the numbers of one sender's messages of one kind: each number is accepted once, and only in rising order.

use std::collections::VecDeque;

/// Reason for refusing a message whose number was accepted before.
pub(crate) const REPEATED_MESSAGE_REASON: &str = "the message was received before";
/// Reason for refusing a message that arrives after a later one. This happens to correct messages after a lost
/// connection, when messages of the old connection arrive after messages of the new one.
pub(crate) const OVERTAKEN_MESSAGE_REASON: &str = "a later message has arrived before it";
/// Number of accepted message numbers that are remembered. Once so many are, a lower number counts as repeated.
const MAX_REMEMBERED_NUMBERS: usize = 64;

/// The latest accepted numbers, in order.
#[derive(Debug, Default)]
pub(super) struct AcceptedNumbers(VecDeque<u64>);

impl AcceptedNumbers {
    pub(super) fn accept_number(&mut self, number: u64) -> Result<(), &'static str> {
        let last = self.0.back().copied().unwrap_or(0);
        // Gaps are allowed, because messages may be lost.
        if number > last {
            if self.0.len() == MAX_REMEMBERED_NUMBERS {
                self.0.pop_front();
            }
            self.0.push_back(number);
            return Ok(());
        }
        let is_forgotten = number == 0
            || self.0.len() == MAX_REMEMBERED_NUMBERS
                && self.0.front().is_some_and(|oldest| number < *oldest);
        Err(if is_forgotten || self.0.contains(&number) {
            REPEATED_MESSAGE_REASON
        } else {
            OVERTAKEN_MESSAGE_REASON
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_accepted_once_and_in_order() {
        let mut numbers = AcceptedNumbers::default();
        let accepted = [1, 2, 7, 5, 7, 2, 5, 8, 0].map(|number| numbers.accept_number(number));
        let [good, repeated, overtaken] =
            [Ok(()), Err(REPEATED_MESSAGE_REASON), Err(OVERTAKEN_MESSAGE_REASON)];
        let wanted = [good, good, good, overtaken, repeated, repeated, overtaken, good, repeated];
        assert_eq!(accepted, wanted);
        for number in (100..100 + 2 * MAX_REMEMBERED_NUMBERS as u64).step_by(2) {
            assert_eq!(numbers.accept_number(number), good);
        }
        assert_eq!([101, 99, 8].map(|number| numbers.accept_number(number)), [overtaken, repeated, repeated]);
    }
}
