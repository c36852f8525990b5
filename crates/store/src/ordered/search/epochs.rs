//! Epochs: the handles that read the tree, and since when. They tell when nobody can see a retired block any more.
//!
//! Invariants:
//! 1. `epoch` grows by one with every batch of retired blocks, after they were unlinked. The batch's tag is the epoch before that.
//! 2. A pinned handle's line holds the epoch that the handle read before anything else. A handle that announces an epoch above a tag cannot reach
//!    that tag's blocks: it saw the epoch that was stored after they were unlinked.
//! 3. So a batch may be reused once every pinned handle announces an epoch above its tag.
//!
//! A handle that announces an old epoch only delays reuse. If a check did not see a handle as pinned, the handle sees every unlink before the check:
//! each side has a full fence between its store and its load.
//!
//! Threads: a handle writes its own line and waits for nobody. Tags and checks need the allocator's lock.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use tapetum_base::memory::memory_word::Word;

/// The words of a cache line. Each handle has a line of its own, and so has the epoch.
const LINE_WORDS: usize = 8;

/// The value of an unused handle's line.
const FREE: u64 = 0;
/// The handle is in use, but does not read the tree.
const IDLE: u64 = 1;
/// Epochs of pinned handles are added to this.
const PINNED: u64 = 2;

pub const fn words_for(handles: usize) -> usize {
    (handles + 1) * LINE_WORDS
}

/// Words: the epoch's line, then a line for each handle.
pub struct Epochs<C> {
    words: C,
}

/// A pinned handle: nothing that it can reach is reused until this is dropped.
pub struct Pin<'a, W: Word> {
    line: &'a W,
}

impl<W: Word> Drop for Pin<'_, W> {
    fn drop(&mut self) {
        // Release: all loads of this handle come before a reuse by a thread that sees this store.
        self.line.store(IDLE, Release);
    }
}

impl<W: Word, C: Deref<Target = [W]>> Epochs<C> {
    /// Uses zeroed words.
    pub fn new(words: C) -> Epochs<C> {
        Epochs { words }
    }

    fn lines<'a>(&'a self) -> impl Iterator<Item = &'a W>
    where
        W: 'a,
    {
        self.words[LINE_WORDS..].iter().step_by(LINE_WORDS)
    }

    fn line(&self, handle: usize) -> &W {
        &self.words[(handle + 1) * LINE_WORDS]
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Takes one of the first `handles_max` lines, if one is free. Returns the handle's number.
    pub fn register(&self, handles_max: usize) -> Option<usize> {
        self.lines().take(handles_max).position(|line| {
            while line.load(Relaxed) == FREE {
                if line.replace(FREE, IDLE).is_ok() {
                    return true;
                }
            }
            false
        })
    }

    /// Frees a handle's line.
    pub fn leave(&self, handle: usize) {
        self.line(handle).store(FREE, Release);
    }

    pub fn pin(&self, handle: usize) -> Pin<'_, W> {
        let line = self.line(handle);
        // Acquire: a reader of an epoch sees every unlink before its store.
        let epoch = self.words[0].load(Acquire);
        // Release: earlier loads of this handle come before a reuse by a thread that sees this store.
        line.store(epoch + PINNED, Release);
        W::fence(SeqCst);
        Pin { line }
    }

    /// The tag of blocks that were unlinked before this call.
    pub fn tag(&self) -> u64 {
        let tag = self.words[0].load(Relaxed);
        self.words[0].store(tag + 1, Release);
        tag
    }

    /// Blocks with a tag below this can be reused.
    pub fn oldest_pinned(&self) -> u64 {
        W::fence(SeqCst);
        let pinned = self.lines().map(|line| line.load(Acquire)).filter(|line| *line >= PINNED);
        pinned.map(|line| line - PINNED).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn epochs(handles: usize) -> Epochs<Vec<AtomicU64>> {
        Epochs::new((0..words_for(handles)).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn a_line_is_one_handles_until_it_leaves() {
        let epochs = epochs(2);
        assert_eq!([epochs.register(2), epochs.register(2), epochs.register(2)], [Some(0), Some(1), None]);
        epochs.leave(0);
        assert_eq!([epochs.register(2), epochs.register(2)], [Some(0), None]);
    }

    #[test]
    fn a_pinned_handle_keeps_what_was_retired_since_and_nothing_older() {
        let epochs = epochs(2);
        let (reader, writer) = (epochs.register(2).unwrap(), epochs.register(2).unwrap());
        let before = epochs.tag();
        let pin = epochs.pin(reader);
        let since = epochs.tag();
        assert!(before < epochs.oldest_pinned() && since >= epochs.oldest_pinned());
        let later = epochs.pin(writer);
        assert!(since >= epochs.oldest_pinned(), "the older pin decides");
        drop(pin);
        assert!(since < epochs.oldest_pinned(), "the later pin began after it");
        drop(later);
        assert_eq!(epochs.oldest_pinned(), u64::MAX);
    }
}
