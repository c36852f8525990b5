//! Data nodes of an ordered keyspace ([`crate::ordered`]) that are held as they were at one moment: their images, in the order in which they
//! lie on flash, so that those which lie near each other are read together.
//!
//! 1. The list says which image each slot has, by its stamp. Slots are held for who reads them, so anything else in one is damage.
//! 2. Nodes of one moment have each key once: they are shown in any order, and nobody keeps account of keys.
//! 3. Pages between two wanted ones are passed over, whatever they hold.

use super::key_span::{self, COPIES, KeySpanHead};
use super::node::show_records;
use super::page_parts::PageParts;
use super::{AccessError, EntryAccessor, EntrySink, LAYOUT_IMAGES};
use crate::ordered::{NODE_BYTES, NodeRef, SlotAddress, SlotSalt};
use crate::scan::wire::{ScanReader, WireError};

/// Pages that lie one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageRun {
    /// In slots of one extent, from this one on; the version is of their group. Each page has the stamp of its image; 0: it is passed over, and may
    /// be of any extent.
    Slots { first: SlotAddress, version: u64, stamps: Vec<u64> },
    /// Copies of pages in local memory.
    Copies { pages: u32 },
}

/// Nodes of a moment, and the range of keys that is shown of them.
///
/// ```text
///  0        1          9          11      13      15    16       20
///  +--------+----------+----------+-------+-------+-----+--------+------+----+---------
///  | layout | store id | keyspace | from  | to    | has | runs   | from | to | run ...
///  | u8     | u64      | u16      | bytes | bytes | to  | u32    |      |    |
///  +--------+----------+----------+-------+-------+-----+--------+------+----+---------
///  run: slot u64 (all ones: copies) · version u64 · pages u32 · stamp u64 of each page, but of copies
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceOfImages {
    pub store: u64,
    pub keyspace: u16,
    /// The first key; of no bytes for the first of all.
    pub from: Vec<u8>,
    /// The key to end before.
    pub to: Option<Vec<u8>>,
    pub runs: Vec<ImageRun>,
}

impl ImageRun {
    fn pages(&self) -> u32 {
        match self {
            ImageRun::Slots { stamps, .. } => stamps.len() as u32,
            ImageRun::Copies { pages } => *pages,
        }
    }
}

impl PieceOfImages {
    pub const HEAD_BYTES: usize = 20;
    pub const RUN_BYTES: usize = key_span::RUN_BYTES;
    pub const PAGE_BYTES: usize = 8;

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(LAYOUT_IMAGES);
        out.extend_from_slice(&self.store.to_le_bytes());
        key_span::encode(self.keyspace, &self.from, self.to.as_deref(), self.runs.len(), out);
        for run in &self.runs {
            let (slot, version, stamps) = match run {
                ImageRun::Slots { first, version, stamps } => (first.word(), *version, &stamps[..]),
                ImageRun::Copies { .. } => (COPIES, 0, &[][..]),
            };
            key_span::encode_run((slot, version), run.pages(), out);
            stamps.iter().for_each(|stamp| out.extend_from_slice(&stamp.to_le_bytes()));
        }
    }

    /// Reads a piece, behind its layout, from the front of `reader`, which may go on behind it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<PieceOfImages, WireError> {
        let store = reader.u64()?;
        let KeySpanHead { keyspace, from, to, runs } = KeySpanHead::decode(reader)?;
        let runs = (0..runs).map(|_| decode_run(reader)).collect::<Result<Vec<ImageRun>, WireError>>()?;
        Ok(PieceOfImages { store, keyspace, from, to, runs })
    }
}

fn decode_run(reader: &mut ScanReader<'_>) -> Result<ImageRun, WireError> {
    let (slot, version, pages) = (reader.u64()?, reader.u64()?, reader.u32()?);
    if pages == 0 {
        return Err(WireError::Malformed);
    }
    if (slot, version) == (COPIES, 0) {
        return Ok(ImageRun::Copies { pages });
    }
    let first = SlotAddress::from_word(slot).ok_or(WireError::Malformed)?;
    let stamps = reader.take(pages as usize * PieceOfImages::PAGE_BYTES)?.as_chunks::<8>().0;
    let stamps: Vec<u64> = stamps.iter().map(|stamp| u64::from_le_bytes(*stamp)).collect();
    let wanted_end = stamps.iter().rposition(|stamp| *stamp != 0).map_or(0, |last| last as u32 + 1);
    if first.page().checked_add(wanted_end).is_none_or(|end| end > SlotAddress::PAGES_MAX) {
        return Err(WireError::Malformed);
    }
    Ok(ImageRun::Slots { first, version, stamps })
}

pub struct ImageAccessor {
    piece: PieceOfImages,
    /// The run that is looked at, and its pages that were.
    run: usize,
    passed: u32,
    /// Nodes that were shown.
    shown: u32,
    parts: PageParts,
}

impl ImageAccessor {
    pub fn new(piece: PieceOfImages) -> ImageAccessor {
        ImageAccessor { piece, run: 0, passed: 0, shown: 0, parts: PageParts::default() }
    }

    /// The node in the page at hand; `None`: the page is passed over.
    fn node<'b>(&self, run: &ImageRun, page: &'b [u8]) -> Result<Option<NodeRef<'b>>, AccessError> {
        let error = AccessError { page: self.passed };
        let node = match run {
            ImageRun::Slots { stamps, .. } if stamps[self.passed as usize] == 0 => return Ok(None),
            ImageRun::Slots { first, version, stamps } => {
                let slot = SlotAddress::new(first.extent(), first.page() + self.passed);
                let salt = SlotSalt { store: self.piece.store, slot, version: *version };
                let node = NodeRef::sealed(page, salt).map_err(|_| error)?;
                if node.stamp() != stamps[self.passed as usize] {
                    return Err(error);
                }
                node
            }
            ImageRun::Copies { .. } => NodeRef::look(page).map_err(|_| error)?,
        };
        if node.keyspace() == self.piece.keyspace { Ok(Some(node)) } else { Err(error) }
    }

    /// Looks at a page, which lies in these bytes.
    fn page(&mut self, page: &[u8], bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        let error = AccessError { page: self.passed };
        let PieceOfImages { keyspace, from, to, runs, .. } = &self.piece;
        let run = runs.get(self.run).ok_or(error)?;
        let mut is_wanted = true;
        if let Some(node) = self.node(run, page)? {
            is_wanted = show_records(&node, *keyspace, (from, to.as_deref()), bytes, sink).map_err(|()| error)?;
            self.shown += 1;
        }
        self.passed += 1;
        if self.passed == run.pages() {
            (self.run, self.passed) = (self.run + 1, 0);
        }
        Ok(is_wanted)
    }
}

impl EntryAccessor for ImageAccessor {
    fn bytes_total(&self) -> u64 {
        self.piece.runs.iter().map(|run| u64::from(run.pages()) * NODE_BYTES as u64).sum()
    }

    /// The number of nodes that were shown.
    fn place(&self) -> Option<Vec<u8>> {
        (self.run < self.piece.runs.len()).then(|| self.shown.to_le_bytes().to_vec())
    }

    fn take(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        let mut parts = std::mem::take(&mut self.parts);
        let is_wanted = parts.take(bytes, sink, |page, bytes, sink| self.page(page, bytes, sink));
        self.parts = parts;
        is_wanted
    }
}

#[cfg(test)]
#[path = "images_tests.rs"]
mod tests;
