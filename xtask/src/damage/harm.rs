//! Damage to blocks of a file, done and undone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::subject::{BLOCK_BYTES, Blocks, Region, Subject};
use tapetum_bench::random::Random;

const SECTOR_BYTES: usize = 512;
/// Draws before a kind of damage is given up in a region in which it changes nothing.
const TRIES: u32 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Bits that turned: one, or a few.
    Flip,
    /// A block, or one of its sectors, that reads as zeros.
    Zero,
    /// Two blocks in each other's place: of the same region, or of any.
    Swap,
    /// A block, or one of its sectors, as it was at an earlier moment: a write that was lost.
    Replay,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Flip, Kind::Zero, Kind::Swap, Kind::Replay];
}

/// Damage: blocks as they are to be, and as they were.
pub struct Harm {
    blocks: BTreeMap<usize, [Vec<u8>; 2]>,
}

impl Harm {
    /// Draws damage of a kind in a region of a file with `image`; `None` where nothing of that kind changes anything.
    pub fn draw(
        kind: Kind,
        region: Region,
        blocks: &Blocks,
        image: &[u8],
        subject: &Subject,
        random: &mut Random,
    ) -> Option<Harm> {
        let here = blocks.get(&region)?;
        let one = |random: &mut Random, of: &[(usize, Option<u32>)]| of[random.below(of.len() as u64) as usize].0;
        let bytes = |image: &[u8], block: usize| image[block * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
        for _ in 0..TRIES {
            let block = one(random, here);
            let mut harmed = BTreeMap::from([(block, bytes(image, block))]);
            let sector = random.below((BLOCK_BYTES / SECTOR_BYTES) as u64) as usize * SECTOR_BYTES;
            let part = if random.one_in(2) { 0..BLOCK_BYTES } else { sector..sector + SECTOR_BYTES };
            let content = harmed.get_mut(&block)?;
            match kind {
                Kind::Flip => {
                    for _ in 0..1 << random.below(4) {
                        content[random.below(BLOCK_BYTES as u64) as usize] ^= 1 << random.below(8);
                    }
                }
                Kind::Zero => content[part].fill(0),
                Kind::Swap => {
                    let all: Vec<_> = blocks.values().flatten().copied().collect();
                    let among = if random.one_in(4) { &all } else { here };
                    let other = one(random, among);
                    let own = std::mem::replace(content, bytes(image, other));
                    harmed.insert(other, own);
                }
                Kind::Replay => {
                    let older = &subject.older[random.below(subject.older.len() as u64) as usize];
                    content[part.clone()].copy_from_slice(&older[block * BLOCK_BYTES..][part]);
                }
            }
            let changed = harmed.into_iter().map(|(block, harmed)| (block, [harmed, bytes(image, block)]));
            let blocks: BTreeMap<_, _> = changed.filter(|(_, [harmed, whole])| harmed != whole).collect();
            if !blocks.is_empty() {
                return Some(Harm { blocks });
            }
        }
        None
    }

    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.blocks.keys().copied()
    }

    /// Blocks as they were, with their numbers.
    pub fn whole(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.blocks.iter().map(|(block, [_, whole])| (*block, &whole[..]))
    }

    /// Whether any byte of a range of the drive is another now.
    pub fn reaches(&self, mut range: std::ops::Range<u64>) -> bool {
        range.any(|at| {
            let (block, at) = (at as usize / BLOCK_BYTES, at as usize % BLOCK_BYTES);
            self.blocks.get(&block).is_some_and(|[harmed, whole]| harmed[at] != whole[at])
        })
    }

    pub fn apply(&self, file: &File) -> io::Result<()> {
        self.write(file, 0)
    }

    pub fn undo(&self, file: &File) -> io::Result<()> {
        self.write(file, 1)
    }

    fn write(&self, file: &File, version: usize) -> io::Result<()> {
        self.blocks
            .iter()
            .try_for_each(|(block, versions)| file.write_all_at(&versions[version], (block * BLOCK_BYTES) as u64))
    }
}
