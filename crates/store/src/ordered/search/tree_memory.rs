//! The memory of a search tree, abstracted so that the same code runs over mappings and under a model.

use std::io;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use tapetum_base::memory::memory_word::Word;
use tapetum_base::memory::region::{Account, Region, page_bytes};

/// A value that one thread at a time may touch.
pub trait Exclusive<T>: Send + Sync {
    fn new(value: T) -> Self;
    fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R;
}

impl<T: Send> Exclusive<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.lock().expect("nobody panicked while changing this"))
    }
}

pub trait TreeMemory: Send + Sync + 'static {
    type Word: Word;
    type Chunk: Deref<Target = [Self::Word]> + Send + Sync;
    type Lock<T: Send>: Exclusive<T>;

    /// Words of a chunk, a power of two.
    const CHUNK_WORDS: usize;
    /// The number of retired blocks at which a writer checks which of them can be reused.
    const RETIRED_MANY: usize;

    /// Maps at least `words` zeroed words.
    fn map(&self, words: usize) -> io::Result<Self::Chunk>;
}

/// Anonymous mappings, counted by an account.
pub struct MappedMemory {
    pub account: Account,
}

impl TreeMemory for MappedMemory {
    type Word = AtomicU64;
    type Chunk = Region;
    type Lock<T: Send> = Mutex<T>;

    /// 256 KiB: an empty tree costs little, and a large one has few chunks.
    const CHUNK_WORDS: usize = 1 << 15;
    /// A check reads one cache line for each handle. It is worth that for so many blocks.
    const RETIRED_MANY: usize = 64;

    fn map(&self, words: usize) -> io::Result<Region> {
        Region::new(words.next_multiple_of(page_bytes() / 8), &self.account)
    }
}
