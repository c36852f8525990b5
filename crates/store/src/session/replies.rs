//! Answers: when they may go out, and where their values lie until they are read.

use super::{Held, KEEP_BYTES, Local};
use crate::keyspace::request::{Outcome, Reply, ValueRange};
use crate::planted::Bug;
use crate::shared::Shared;

impl Local {
    pub(super) fn answer(&mut self, token: u64, outcome: Outcome) {
        self.ready.push(Reply { token, outcome });
    }

    /// Answers when the record with `stamp` may be shown.
    pub(super) fn answer_after(&mut self, shared: &Shared, token: u64, stamp: u64, outcome: Outcome) {
        let early = shared.planted.has(Bug::ReadUndurable)
            && matches!(outcome, Outcome::Value { .. } | Outcome::Leased { .. } | Outcome::Missing);
        if early || shared.log.may_acknowledge(stamp) {
            return self.answer(token, outcome);
        }
        let value = outcome.value().map(|value| self.range_bytes(value).to_vec()).unwrap_or_default();
        self.kept_bytes += value.len();
        self.held.push(Held { token, stamp, outcome, value });
    }

    pub(super) fn range_bytes(&self, value: ValueRange) -> &[u8] {
        let low = usize::MAX >> 1;
        &self.values[self.values_now][value.start & low..value.end & low]
    }

    /// Names the bytes of the current values from `start` on.
    pub(super) fn range_from(&self, start: usize) -> ValueRange {
        let half = if self.values_now == 1 { !(usize::MAX >> 1) } else { 0 };
        ValueRange { start: start | half, end: self.values[self.values_now].len() | half }
    }

    /// Replies of this poll stay readable while the next one's values gather.
    pub(super) fn turn_values(&mut self) {
        self.values_now ^= 1;
        let values = &mut self.values[self.values_now];
        values.clear();
        for buffer in [values, &mut self.scratch, &mut self.inflated] {
            if buffer.capacity() > KEEP_BYTES {
                *buffer = Vec::new();
            }
        }
        self.compressor.shrink(KEEP_BYTES);
    }

    pub(super) fn release_held(&mut self, shared: &Shared) {
        if self.held.is_empty() {
            self.notifier.set_waiting(!self.waiting.is_empty());
            return;
        }
        self.notifier.set_waiting(true);
        shared.log.advance(true, shared.drive.env().now_us());
        let poisoned = shared.log.poisoned().err();
        let mut place = 0;
        while place < self.held.len() {
            let stamp = self.held[place].stamp;
            if shared.log.may_acknowledge(stamp) {
                let held = self.held.swap_remove(place);
                self.kept_bytes -= held.value.len();
                self.release(held);
            } else if let Some(error) = &poisoned {
                let held = self.held.swap_remove(place);
                self.kept_bytes -= held.value.len();
                self.answer(held.token, Outcome::Failed(error.clone()));
            } else {
                place += 1;
            }
        }
    }

    pub(super) fn release(&mut self, mut held: Held) {
        if let Some(value) = held.outcome.value_mut() {
            *value = self.add_value(&held.value);
        }
        self.answer(held.token, held.outcome);
    }

    /// Appends to the values of this poll.
    pub(super) fn add_value(&mut self, value: &[u8]) -> ValueRange {
        let values = &mut self.values[self.values_now];
        let start = values.len();
        values.extend_from_slice(value);
        self.range_from(start)
    }

    /// Appends the value in `scratch` to the values of this poll.
    pub(super) fn add_scratch(&mut self) -> ValueRange {
        let scratch = std::mem::take(&mut self.scratch);
        let value = self.add_value(&scratch);
        self.scratch = scratch;
        value
    }
}
