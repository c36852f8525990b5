//! Commands that a queue has cut into parts, which queues below run: the last part that ends, ends the command.
//!
//! Threads: those of the queue that has it.

use std::collections::BTreeMap;

use crate::protocol::Completion;

/// The commands in parts, by tag. The queue pair gives a tag to one command at a time.
#[derive(Default)]
pub struct Parts {
    split: BTreeMap<u64, Split>,
}

struct Split {
    parts_left: usize,
    /// The first part that failed, or success so far.
    ended: Completion,
}

impl Parts {
    /// Notes that a command was cut into this many parts, one or more, which have its tag.
    pub fn begin(&mut self, tag: u64, parts: usize) {
        self.split.insert(tag, Split { parts_left: parts, ended: Completion::success(tag) });
    }

    /// Removes completions of parts from those from `first` on, except the last part of each command, which gets the first error.
    pub fn join(&mut self, completions: &mut Vec<Completion>, first: usize) {
        if self.split.is_empty() {
            return;
        }
        let mut kept = first;
        for place in first..completions.len() {
            let mut completion = completions[place];
            if let Some(split) = self.split.get_mut(&completion.tag) {
                if split.ended.is_success() {
                    split.ended = completion;
                }
                split.parts_left -= 1;
                if split.parts_left > 0 {
                    continue;
                }
                completion = split.ended;
                self.split.remove(&completion.tag);
            }
            completions[kept] = completion;
            kept += 1;
        }
        completions.truncate(kept);
    }
}
