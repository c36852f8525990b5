//! The allocator of a search tree: blocks of words, cut from chunks that are mapped on demand.
//!
//! Invariants:
//! 1. A block lies in one chunk. Its index is not 0.
//! 2. A block is in use, retired, or on the list of free blocks of its size.
//! 3. A retired block is not reused while a pinned handle may still see it (`epochs`).
//! 4. Chunks are mapped up to the limit, and one more for removals only: a removal may need a block before it frees others, and a full tree must be
//!    able to shrink.
//!
//! Chunks are unmapped when the tree is dropped. A free block is reused for a block of its size, or is cut if there is no other memory.
//!
//! Threads: words are read without a lock. Everything else is under the allocator's lock, which is taken last.

use super::SearchError;
use super::epochs::{self, Epochs, Pin};
use super::node::BLOCK_WORDS_MAX;
use super::tree_memory::{Exclusive, TreeMemory};
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use tapetum_base::memory::memory_word::Word;

/// The first word that may be allocated. Index 0 means no block.
pub const FIRST: u32 = 8;
/// The words that an index can name: references use one bit for themselves.
const WORDS_MAX: usize = 1 << 31;
const BLOCK_WORDS_MIN: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Insert,
    Remove,
}

#[derive(Clone)]
struct RetiredBlock {
    tag: u64,
    index: u32,
    words: u32,
}

#[derive(Clone)]
struct Allocator {
    /// The first free block of each size in words. Its first word links to the next one.
    free: [u32; BLOCK_WORDS_MAX + 1],
    /// Words of the newest chunk that were never allocated.
    fresh: std::ops::Range<u32>,
    chunks: usize,
    retired: VecDeque<RetiredBlock>,
    /// Blocks that running writers will retire. The queue has room for them.
    promised: usize,
    words_used: u64,
    anchors: u64,
}

pub struct Blocks<M: TreeMemory> {
    memory: M,
    chunks: Box<[OnceLock<M::Chunk>]>,
    epochs: Epochs<M::Chunk>,
    allocator: M::Lock<Allocator>,
    handles_max: usize,
}

impl<M: TreeMemory> Blocks<M> {
    pub fn new(memory: M, bytes_max: usize, handles_max: usize) -> Result<Blocks<M>, SearchError> {
        assert!(M::CHUNK_WORDS.is_power_of_two() && M::CHUNK_WORDS > FIRST as usize + BLOCK_WORDS_MAX);
        let chunk_bytes = M::CHUNK_WORDS * 8;
        let chunks_max = (bytes_max / chunk_bytes).clamp(1, WORDS_MAX / M::CHUNK_WORDS - 1);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(chunks_max + 1).map_err(|_| SearchError::out_of_memory())?;
        chunks.resize_with(chunks_max + 1, OnceLock::new);
        let epochs = Epochs::new(memory.map(epochs::words_for(handles_max)).map_err(SearchError::Memory)?);
        let allocator = Allocator {
            free: [0; BLOCK_WORDS_MAX + 1],
            fresh: 0..0,
            chunks: 0,
            retired: VecDeque::new(),
            promised: 0,
            words_used: 0,
            anchors: 0,
        };
        let allocator = M::Lock::new(allocator);
        Ok(Blocks { memory, chunks: chunks.into(), epochs, allocator, handles_max })
    }

    pub fn register(&self) -> Result<usize, SearchError> {
        self.epochs.register(self.handles_max).ok_or(SearchError::HandlesTaken { handles_max: self.handles_max })
    }

    pub fn pin(&self, handle: usize) -> Pin<'_, M::Word> {
        self.epochs.pin(handle)
    }

    pub fn leave(&self, handle: usize) {
        self.epochs.leave(handle);
    }

    /// The words from the first one of a block on.
    #[inline(always)]
    pub fn words(&self, index: u32) -> &[M::Word] {
        let chunk = self.chunks[index as usize / M::CHUNK_WORDS].get().expect("a block lies in a mapped chunk");
        &chunk[index as usize % M::CHUNK_WORDS..]
    }

    /// Allocates blocks of these sizes and reserves room to retire some; changes nothing if that fails. After a claim a change cannot fail.
    pub fn claim<const N: usize>(
        &self,
        words: [usize; N],
        retires: usize,
        purpose: Purpose,
    ) -> Result<[u32; N], SearchError> {
        self.allocator.with(|state| {
            let room = state.promised + retires;
            state.retired.try_reserve(room).map_err(|_| SearchError::out_of_memory())?;
            if state.retired.len() >= M::RETIRED_MANY {
                self.reclaim(state);
            }
            let mut taken = [0; N];
            for at in 0..N {
                match self.take(state, words[at], purpose) {
                    Ok(index) => taken[at] = index,
                    Err(error) => {
                        (0..at).for_each(|at| self.give(state, taken[at], words[at]));
                        return Err(error);
                    }
                }
            }
            state.promised = room;
            match purpose {
                Purpose::Insert => state.anchors += 1,
                Purpose::Remove => state.anchors -= 1,
            }
            Ok(taken)
        })
    }

    /// Retires unlinked blocks, as many as were claimed.
    pub fn retire<const N: usize>(&self, blocks: [(u32, usize); N]) {
        self.allocator.with(|state| {
            let tag = self.epochs.tag();
            state.promised -= N;
            for (index, words) in blocks {
                state.retired.push_back(RetiredBlock { tag, index, words: words as u32 });
            }
        });
    }

    fn reclaim(&self, state: &mut Allocator) {
        let oldest = self.epochs.oldest_pinned();
        while let Some(block) = state.retired.front().filter(|block| block.tag < oldest).cloned() {
            state.retired.pop_front();
            self.give(state, block.index, block.words as usize);
        }
    }

    /// A copy in another memory, whose chunks `make` fills.
    #[cfg(test)]
    pub fn copied<N: TreeMemory>(&self, memory: N, make: impl Fn(&[u64]) -> N::Chunk) -> Blocks<N> {
        assert_eq!(M::CHUNK_WORDS, N::CHUNK_WORDS);
        let copied = |words: &[M::Word]| make(&words.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>());
        Blocks {
            memory,
            chunks: self
                .chunks
                .iter()
                .map(|chunk| chunk.get().map_or_else(OnceLock::new, |words| OnceLock::from(copied(words))))
                .collect(),
            epochs: Epochs::new(make(&vec![0; epochs::words_for(self.handles_max)])),
            allocator: N::Lock::new(self.allocator.with(|state| state.clone())),
            handles_max: self.handles_max,
        }
    }

    #[cfg(test)]
    pub fn reclaim_all(&self) {
        self.allocator.with(|state| {
            self.reclaim(state);
            assert!(state.retired.is_empty() && state.promised == 0);
        });
    }

    fn take(&self, state: &mut Allocator, words: usize, purpose: Purpose) -> Result<u32, SearchError> {
        // Inserts may use neither the chunk beyond the limit nor the words of it that a removal left.
        let may_take_fresh = purpose == Purpose::Remove || state.chunks < self.chunks.len();
        let at_once =
            self.take_free(state, words).or_else(|| if may_take_fresh { take_fresh(state, words) } else { None });
        let index = match at_once {
            Some(index) => index,
            None => {
                self.reclaim(state);
                match self.take_free(state, words).or_else(|| self.cut_free(state, words)) {
                    Some(index) => index,
                    None => self.take_mapped(state, words, purpose)?,
                }
            }
        };
        state.words_used += words as u64;
        Ok(index)
    }

    fn take_free(&self, state: &mut Allocator, words: usize) -> Option<u32> {
        let index = state.free[words];
        if index == 0 {
            return None;
        }
        state.free[words] = self.words(index)[0].load(Relaxed) as u32;
        Some(index)
    }

    /// Allocates a part of a larger free block.
    fn cut_free(&self, state: &mut Allocator, words: usize) -> Option<u32> {
        let larger = words + BLOCK_WORDS_MIN..=BLOCK_WORDS_MAX;
        let size = larger.into_iter().find(|size| state.free[*size] != 0)?;
        let index = self.take_free(state, size)?;
        self.link_free(state, index + words as u32, size - words);
        Some(index)
    }

    fn take_mapped(&self, state: &mut Allocator, words: usize, purpose: Purpose) -> Result<u32, SearchError> {
        let chunks_max = self.chunks.len() - usize::from(purpose == Purpose::Insert);
        if state.chunks >= chunks_max {
            return Err(SearchError::Full { bytes_max: (self.chunks.len() - 1) * M::CHUNK_WORDS * 8 });
        }
        let chunk = self.memory.map(M::CHUNK_WORDS).map_err(SearchError::Memory)?;
        assert!(self.chunks[state.chunks].set(chunk).is_ok(), "a chunk is mapped once, under the lock");
        let rest = state.fresh.clone();
        let first = (state.chunks * M::CHUNK_WORDS) as u32;
        state.fresh = first.max(FIRST)..first + M::CHUNK_WORDS as u32;
        state.chunks += 1;
        // The rest of the previous chunk is smaller than the requested block. A single word is lost.
        if rest.len() >= BLOCK_WORDS_MIN {
            self.link_free(state, rest.start, rest.len());
        }
        Ok(take_fresh(state, words).expect("a chunk is larger than any block"))
    }

    fn give(&self, state: &mut Allocator, index: u32, words: usize) {
        state.words_used -= words as u64;
        self.link_free(state, index, words);
    }

    fn link_free(&self, state: &mut Allocator, index: u32, words: usize) {
        self.words(index)[0].store(u64::from(state.free[words]), Relaxed);
        state.free[words] = index;
    }

    pub fn anchors(&self) -> u64 {
        self.allocator.with(|state| state.anchors)
    }

    /// Bytes of blocks in use, retired ones included.
    pub fn bytes_used(&self) -> usize {
        self.allocator.with(|state| state.words_used as usize * 8)
    }

    /// Bytes of all mappings and tables.
    pub fn bytes(&self) -> usize {
        let (chunks, retired) = self.allocator.with(|state| (state.chunks, state.retired.capacity()));
        chunks * M::CHUNK_WORDS * 8
            + self.epochs.bytes()
            + self.chunks.len() * size_of::<OnceLock<M::Chunk>>()
            + retired * size_of::<RetiredBlock>()
            + size_of::<Self>()
    }
}

fn take_fresh(state: &mut Allocator, words: usize) -> Option<u32> {
    let index = state.fresh.start;
    (state.fresh.len() >= words).then(|| {
        state.fresh.start += words as u32;
        index
    })
}
