//! The commands that a drive in another process has: what it says of their ends is checked here.

use crate::device::EndedCommand;
use crate::fail_point;
use crate::link::ring::RingTaker;
use crate::link::submission::{END_WORDS, decode_end};
use crate::protocol::Completion;

#[derive(Default)]
pub(crate) struct OnTheirWay {
    /// The tag of the command in each slot, while it is on its way.
    tags: Vec<Option<u64>>,
    count: usize,
    /// Taken from the ring, and not polled yet.
    ended: Vec<EndedCommand>,
}

impl OnTheirWay {
    pub fn begin(&mut self, slot: u32, tag: u64) {
        if self.tags.len() <= slot as usize {
            self.tags.resize(slot as usize + 1, None);
        }
        let before = self.tags[slot as usize].replace(tag);
        assert!(before.is_none(), "slot {slot} has a command already");
        self.count += 1;
    }

    /// Takes what the ring has. An error is how the drive does not keep to the form; ends before that count.
    ///
    /// # Errors
    /// Words for a log.
    pub fn take_from(&mut self, ring: &mut RingTaker<END_WORDS>) -> Result<(), String> {
        while let Some(entry) = ring.take().map_err(|_| "its ring of ends has a count that cannot be")? {
            let (slot, completion) = decode_end(&entry).map_err(|error| format!("an end is none: {error}"))?;
            if !(self.end(slot, completion) || fail_point!(EndTwice) && self.believe(slot, completion)) {
                return Err("it ended a command that is not on its way".into());
            }
        }
        Ok(())
    }

    /// The drive is gone: all of them end so.
    pub fn end_all(&mut self, errno: i32) {
        for slot in 0..self.tags.len() {
            if let Some(tag) = self.tags[slot] {
                self.end(slot as u32, Completion::failed(tag, errno));
            }
        }
    }

    /// Whether it was on its way.
    fn end(&mut self, slot: u32, completion: Completion) -> bool {
        match self.tags.get_mut(slot as usize) {
            Some(tag) if *tag == Some(completion.tag) => {
                *tag = None;
                self.count -= 1;
                self.ended.push(EndedCommand { slot, completion });
                true
            }
            _ => false,
        }
    }

    /// The mistake of a planted bug.
    fn believe(&mut self, slot: u32, completion: Completion) -> bool {
        self.ended.push(EndedCommand { slot, completion });
        true
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn ended(&mut self) -> &mut Vec<EndedCommand> {
        &mut self.ended
    }
}
