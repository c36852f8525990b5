//! Operations whose key may be on flash: their reads, from the first command to the answer.

use super::change::needs_value;
use super::flash_read::{FlashRead, ReadCount, Step};
use super::large::{LargeOp, LargeRead, OutOfLine, TAG_LARGE};
use super::{Attempt, FromFlash, Local, Op, TAG_EXECUTE};
use crate::error::Error;
use crate::request::Outcome;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use tapetum_drive::Completion;
use tapetum_drive::programs::match_record::{Matched, Place};

impl Local {
    pub(super) fn begin_read(&mut self, shared: &Shared, number: usize, mut op: Op, mut read: FlashRead) {
        let mut count = if op.request.is_get() { self.flash_reads } else { ReadCount::default() };
        let tag = (number as u64) << 1;
        let step = read.begin(&mut self.queue, &mut self.spare_buffers, tag, &op.request.key, &mut count);
        if op.request.is_get() {
            self.flash_reads = count;
        }
        match step {
            Step::Waits => {
                op.read = Some(read);
                self.ops[number] = Some(op);
            }
            // No page may hold it: the candidate was another key's.
            Step::Missing => self.read_decided(shared, number, op, read, None),
            _ => {
                read.finish(&mut self.spare_buffers);
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
        }
    }

    /// Takes completions until there are none.
    pub(super) fn reap(&mut self, shared: &Shared) {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            self.queue.poll(&mut completions);
            let none = completions.is_empty();
            for completion in completions.drain(..) {
                self.completed(shared, completion);
            }
            self.completions = completions;
            let reads = std::mem::take(&mut self.flash_reads);
            if reads.commands > 0 {
                shared.counters.get_flash_reads.fetch_add(reads.commands, Ordering::Relaxed);
                shared.counters.get_flash_read_max_bytes.fetch_max(reads.bytes_max, Ordering::Relaxed);
            }
            if none {
                return;
            }
        }
    }

    pub(super) fn completed(&mut self, shared: &Shared, completion: Completion) {
        if completion.tag & TAG_LARGE != 0 {
            return self.large_completed(shared, completion);
        }
        let number = (completion.tag >> 1) as usize;
        let Some(mut op) = self.ops[number].take() else { unreachable!("a completion has an operation") };
        let Some(mut read) = op.read.take() else { unreachable!("a completion has a read") };
        let key = &op.request.key;
        let tag = (number as u64) << 1;
        let step = if completion.tag & TAG_EXECUTE == 0 {
            read.read_done(completion, &mut self.queue, tag | TAG_EXECUTE, key)
        } else {
            read.match_done(completion, &mut self.queue, &mut self.spare_buffers, tag | TAG_EXECUTE, key)
        };
        match step {
            Step::Waits => {
                op.read = Some(read);
                self.ops[number] = Some(op);
            }
            Step::NoMemory => {
                read.finish(&mut self.spare_buffers);
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
            Step::Missing if read.has_more_pages() => self.begin_read(shared, number, op, read),
            Step::Missing => self.read_decided(shared, number, op, read, None),
            Step::Found(matched) => self.read_decided(shared, number, op, read, Some(matched)),
            Step::Failed(error) => {
                read.finish(&mut self.spare_buffers);
                self.answer(op.token, Outcome::Failed(error));
                self.forget(number, op);
            }
        }
    }

    pub(super) fn read_decided(
        &mut self,
        shared: &Shared,
        number: usize,
        op: Op,
        read: FlashRead,
        matched: Option<Matched>,
    ) {
        let dead = matched.as_ref().is_some_and(|found| !read.segment.is_valid(found.entry));
        if dead && shared.install_sequence.load(Ordering::SeqCst) != read.sequence {
            // It died since the look at the index: look again.
            read.finish(&mut self.spare_buffers);
            return self.attempt_op(shared, number, op, None);
        }
        let shown_by = matched.as_ref().map_or(0, |found| shared.deletion_of(found.stamp));
        // A dead record that the index did not mean: it took another key's entry for this one's.
        let matched = matched.filter(|found| !dead && shared.is_live_stamp(found.stamp, found.expiry, shared.now()));
        if let Some(found) = &matched
            && matches!(found.place, Place::OutOfLine(_))
        {
            return self.large_found(shared, number, op, read, (*found, shown_by));
        }
        if op.request.is_get() {
            let outcome = match &matched {
                None => Outcome::Missing,
                Some(found) => {
                    let values = &mut self.values[self.values_now];
                    let start = values.len();
                    read.copy_value(found, &self.queue, values);
                    shared.counters.get_from_flash.fetch_add(1, Ordering::Relaxed);
                    let value = self.range_from(start);
                    Outcome::Value { flags: found.flags, stamp: found.stamp, expiry: found.expiry, value }
                }
            };
            read.finish(&mut self.spare_buffers);
            self.answer_after(shared, op.token, shown_by, outcome);
            return self.forget(number, op);
        }
        self.scratch.clear();
        if let Some(found) = &matched {
            read.copy_value(found, &self.queue, &mut self.scratch);
        }
        let found = matched.map(|found| (found.flags, found.expiry, found.stamp));
        let flash = FromFlash { seen: read.seen, found, large: None, shown_by };
        read.finish(&mut self.spare_buffers);
        self.attempt_op(shared, number, op, Some(flash));
    }

    /// The record is there and names a large value.
    fn large_found(
        &mut self,
        shared: &Shared,
        number: usize,
        op: Op,
        read: FlashRead,
        (found, shown_by): (Matched, u64),
    ) {
        let Some(extents) = read.segment.large(found.entry) else {
            let gone = !read.segment.is_valid(found.entry);
            let descriptor = &read.segment.descriptor;
            let place = format!("record {} of segment {}, whose value is nowhere", found.entry, descriptor.number);
            read.finish(&mut self.spare_buffers);
            if gone {
                return self.attempt_op(shared, number, op, None);
            }
            self.answer(op.token, Outcome::Failed(Error::Corrupt(place)));
            return self.forget(number, op);
        };
        let mut reference = Vec::with_capacity(found.value_bytes as usize);
        read.copy_value(&found, &self.queue, &mut reference);
        let value = OutOfLine { reference, raw_bytes: found.raw_bytes, extents };
        let (seen, item) = (read.seen, (found.flags, found.expiry, found.stamp));
        read.finish(&mut self.spare_buffers);
        if !needs_value(&op.request.borrow()) {
            let flash = FromFlash { seen, found: Some(item), large: Some(value), shown_by };
            return self.attempt_op(shared, number, op, Some(flash));
        }
        if op.request.is_get() {
            shared.counters.get_from_flash.fetch_add(1, Ordering::Relaxed);
        }
        match LargeRead::new(shared, value, item, seen, shown_by) {
            Ok(read) => self.go_on_large(shared, number, op, Box::new(LargeOp::Read(read))),
            Err(error) => {
                self.answer(op.token, Outcome::Failed(error));
                self.forget(number, op);
            }
        }
    }

    pub(super) fn attempt_op(&mut self, shared: &Shared, number: usize, mut op: Op, flash: Option<FromFlash>) {
        if let Some(large) = op.large.take() {
            return self.go_on_large(shared, number, op, large);
        }
        match self.attempt(shared, op.token, op.hash, &op.request.borrow(), flash) {
            Attempt::Answered => self.forget(number, op),
            Attempt::NeedsFlash { read } => self.begin_read(shared, number, op, read),
            Attempt::Large(large) => self.go_on_large(shared, number, op, large),
            Attempt::Waits => {
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
        }
    }
}
