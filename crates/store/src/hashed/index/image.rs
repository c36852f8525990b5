//! The index as plain bytes, for a checkpoint, and back.
//!
//! The image is the words of every partition, in order, little-endian: its buckets and the extensions that were ever used.
//! The counts of both are in the partition's [`PartitionShape`]. The only check here is that the shapes are possible: whoever keeps an image keeps
//! checksums with it.

use super::geometry::EXTENSION_WORDS;
use super::partition::{NONE, Partition};
use super::{GlobalIndex, IndexGeometry, IndexTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, mem};
use tapetum_base::memory::region::page_bytes;

const WORD_BYTES: usize = size_of::<u64>();

/// A partition without its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionShape {
    pub buckets: u32,
    pub payload_bits: u32,
    pub entries: u64,
    /// The list of extensions given back, those ever used, and those in use.
    pub extensions_free: u32,
    pub extensions_fresh: u32,
    pub extensions_used: u32,
}

/// The partitions at one moment. The holder ensures that nothing is merged meanwhile.
pub struct IndexImage {
    table: Arc<IndexTable>,
}

impl IndexImage {
    pub fn of(index: &GlobalIndex) -> IndexImage {
        IndexImage { table: index.table.load_full() }
    }

    pub fn shapes(&self) -> Vec<PartitionShape> {
        self.table.partitions.iter().map(|partition| partition.shape()).collect()
    }

    pub fn bytes(&self) -> u64 {
        self.table.partitions.iter().map(|partition| partition.image().len() as u64 * WORD_BYTES as u64).sum()
    }

    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.table.partitions.iter().flat_map(|partition| partition.image()).map(|word| word.load(Ordering::Relaxed))
    }
}

impl Partition {
    fn shape(&self) -> PartitionShape {
        PartitionShape {
            buckets: self.buckets as u32,
            payload_bits: self.geometry().payload_bits,
            entries: self.entries() as u64,
            extensions_free: self.extensions_free.load(Ordering::Relaxed),
            extensions_fresh: self.extensions_fresh.load(Ordering::Relaxed),
            extensions_used: self.extensions_used() as u32,
        }
    }

    /// The words that hold anything.
    fn image(&self) -> &[AtomicU64] {
        let extensions = self.extensions_fresh.load(Ordering::Relaxed) as usize;
        &self.region[..self.buckets * self.bucket_words + extensions * EXTENSION_WORDS]
    }
}

/// Puts an index together from its image, aside: it is seen when all of it is there.
pub struct IndexRestorer<'a> {
    index: &'a GlobalIndex,
    partitions: Vec<Arc<Partition>>,
    /// The partition that is being filled, and the next word of its image.
    partition: usize,
    word: usize,
}

impl<'a> IndexRestorer<'a> {
    /// `None` if an index of these options has no such partitions, an image of `image_bytes` does not fill them, or there
    /// is no memory for them.
    pub fn new(index: &'a GlobalIndex, shapes: &[PartitionShape], image_bytes: u64) -> Option<IndexRestorer<'a>> {
        let wanted = index.geometry();
        let mut words_left = image_bytes / WORD_BYTES as u64;
        if shapes.len() != wanted.partitions() {
            return None;
        }
        let mut partition = |shape: &PartitionShape| -> Option<Arc<Partition>> {
            if shape.payload_bits < wanted.payload_bits || shape.payload_bits > 32 {
                return None;
            }
            let geometry = IndexGeometry { payload_bits: shape.payload_bits, ..wanted };
            let buckets = shape.buckets as usize;
            let words = buckets.checked_mul(geometry.bucket_words())?;
            let words = words + shape.extensions_fresh as usize * EXTENSION_WORDS;
            words_left = words_left.checked_sub(words as u64)?;
            let fits = words <= geometry.partition_words(buckets, page_bytes())
                && shape.extensions_used <= shape.extensions_fresh
                && (shape.extensions_free < shape.extensions_fresh || shape.extensions_free == NONE);
            if buckets == 0 || !fits {
                return None;
            }
            let partition = Partition::with_buckets(geometry, buckets, &index.account).ok()?;
            partition.set_entries(shape.entries as usize);
            partition.extensions_free.store(shape.extensions_free, Ordering::Relaxed);
            partition.extensions_fresh.store(shape.extensions_fresh, Ordering::Relaxed);
            partition.extensions_used.store(shape.extensions_used as usize, Ordering::Relaxed);
            Some(Arc::new(partition))
        };
        let partitions = shapes.iter().map(&mut partition).collect::<Option<Vec<_>>>()?;
        Some(IndexRestorer { index, partitions, partition: 0, word: 0 })
    }

    /// Takes the next bytes of the image, whole words; what is behind its end is passed over.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(WORD_BYTES), "{} bytes of an image", bytes.len());
        let mut words = bytes.chunks_exact(WORD_BYTES).map(|bytes| {
            let mut word = [0; WORD_BYTES];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        while let Some(partition) = self.partitions.get(self.partition) {
            let rest = &partition.image()[self.word..];
            let mut filled = 0;
            for (to, word) in rest.iter().zip(&mut words) {
                to.store(word, Ordering::Relaxed);
                filled += 1;
            }
            self.word += filled;
            if filled < rest.len() {
                return;
            }
            (self.partition, self.word) = (self.partition + 1, 0);
        }
    }

    pub fn entries(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.entries() as u64).sum()
    }

    /// Makes it the index, if all of it has come.
    pub fn install(mut self) -> io::Result<()> {
        if self.partition < self.partitions.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let partitions = mem::take(&mut self.partitions).into();
        let _writer = self.index.lock_writer();
        self.index.table.store(Arc::new(IndexTable { partitions }));
        Ok(())
    }
}
