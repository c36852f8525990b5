//! Which images of an ordered keyspace are attested by later images. Damage in an attested image is no torn write, and must be an error.
//!
//! The store counts what has become durable. Of each key it is kept how much that was when the key was last known to be in a durable image;
//! at a crash the marks say how much of it the manifest or an image attests.

use tapetum::ImageMarks;

#[derive(Clone, Default)]
pub struct Attested {
    /// By slot, as the store had them last; `None`: there is no ordered keyspace.
    marks: Vec<Option<ImageMarks>>,
    /// By key, as they were when the key was in a durable image. `None`: the log alone may have what the key has.
    keys: Vec<Option<ImageMarks>>,
}

impl Attested {
    /// The store has these marks.
    pub fn look(&mut self, marks: Vec<Option<ImageMarks>>) {
        self.marks = marks;
    }

    /// The store was opened: all that keys have is in durable images. By key, the slot that it is of.
    pub fn begin(&mut self, slots: &[usize]) {
        self.keys = slots.iter().map(|slot| self.marks[*slot]).collect();
    }

    /// A reply told what a key has; `wrote`: what it now has.
    pub fn shown(&mut self, key: usize, slot: usize, wrote: bool) {
        if wrote || self.keys[key].is_some() {
            self.keys[key] = self.marks[slot];
        }
    }

    /// A group of the log, if anything, has what a key is to have.
    pub fn written_by_group(&mut self, key: usize) {
        if let Some(mark) = self.keys.get_mut(key) {
            *mark = None;
        }
    }

    /// Whether what a key has is attested.
    pub fn has(&self, key: usize, slot: usize) -> bool {
        match (&self.marks[slot], &self.keys[key]) {
            (Some(marks), Some(earlier)) => marks.attest(earlier),
            _ => false,
        }
    }
}
