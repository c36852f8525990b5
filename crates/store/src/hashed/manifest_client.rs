//! The hashed engine's catalog as a client of the manifest.
//!
//! ```text
//!  item: kind u8, then
//!   1 install:    as drawn above `Install` (hashed/catalog.rs)
//!   2 checkpoint: as drawn above `Checkpoint` (hashed/index/checkpoint.rs); holds only as long as no frame follows
//!  piece of a snapshot: segments, one behind the other: descriptor · valid bytes u64 · a bit an entry, in words of u64
//! ```

use super::catalog::{Catalog, Install, SegmentState};
use super::index::checkpoint::Checkpoint;
use super::item_count::by_keyspace::ItemTally;
use tapetum_base::installer::Clients;
use tapetum_base::manifest::base_marks::MarksEdit;
use tapetum_base::manifest::client::{ManifestClient, Misfit, pieces};
use tapetum_base::manifest::items::{ClientId, FrameItems};
use tapetum_base::media::wire::{Reader, Short, Writer};

const INSTALL: u8 = 1;
const CHECKPOINT: u8 = 2;

/// A change of the catalog, as an item encodes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HashedEdit {
    Install(Install),
    Checkpoint(Checkpoint),
}

impl HashedEdit {
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            HashedEdit::Install(install) => encode_install(install, writer),
            HashedEdit::Checkpoint(checkpoint) => {
                writer.u8(CHECKPOINT);
                checkpoint.encode(writer);
            }
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<HashedEdit, Short> {
        let mut reader = Reader::new(bytes);
        let [kind] = reader.array()?;
        let edit = match kind {
            INSTALL => HashedEdit::Install(Install::parse(&mut reader)?),
            CHECKPOINT => HashedEdit::Checkpoint(Checkpoint::parse(&mut reader)?),
            _ => return Err(Short),
        };
        if reader.is_empty() { Ok(edit) } else { Err(Short) }
    }
}

fn encode_install(install: &Install, writer: &mut Writer) {
    writer.u8(INSTALL);
    install.encode(writer);
}

impl ManifestClient for Catalog {
    fn id(&self) -> ClientId {
        ClientId::HASHED
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        pieces(self.segments.values(), SegmentState::encode)
    }

    fn snapshot_bytes_max(&self) -> u64 {
        self.segments.values().map(SegmentState::encoded_bytes_max).sum()
    }

    fn load(&mut self, piece: &[u8]) -> Result<(), Misfit> {
        let mut reader = Reader::new(piece);
        while !reader.is_empty() {
            self.add(SegmentState::parse(&mut reader)?)?;
        }
        Ok(())
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        match HashedEdit::parse(edit)? {
            HashedEdit::Install(install) => self.install(&install),
            HashedEdit::Checkpoint(checkpoint) => {
                self.checkpoint = Some(checkpoint);
                Ok(())
            }
        }
    }

    fn supersede(&mut self) {
        self.checkpoint = None;
    }
}

/// The contents of one frame: an install, and its edits to the base's marks.
#[derive(Clone, Debug, Default)]
pub struct InstallFrame {
    pub install: Install,
    pub marks: Vec<MarksEdit>,
    /// Counts of keys that come in and go out. The manifest does not record them: key tables do.
    pub tally: ItemTally,
}

impl InstallFrame {
    pub fn items(&self) -> FrameItems {
        let mut items = FrameItems::default();
        if self.install != Install::default() {
            items.put(ClientId::HASHED, |writer| encode_install(&self.install, writer));
        }
        MarksEdit::put(&self.marks, &mut items);
        items
    }

    /// Applies the frame. On an error (it does not fit) nothing that matters has changed.
    pub fn apply(&self, clients: &mut Clients) -> Result<(), Misfit> {
        clients.of_mut::<Catalog>().install(&self.install)?;
        self.marks.iter().for_each(|edit| clients.marks.edit(edit));
        Ok(())
    }

    /// The last stamp whose deletion it makes durable.
    pub fn watermark(&self) -> u64 {
        let watermark = |edit: &MarksEdit| if let MarksEdit::Delete(_, mark) = edit { mark.watermark } else { 0 };
        self.marks.iter().map(watermark).max().unwrap_or(0)
    }
}
