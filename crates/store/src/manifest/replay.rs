//! Builds the catalog from frames, one after the other.

use super::{Frame, Kind};
use crate::error::Error;
use crate::hashed::catalog::{Catalog, Install, Marks, SegmentState, parse_marks};
use crate::hashed::index::checkpoint::Checkpoint;
use crate::keyspace::catalogue::KeyspaceEdit;
use crate::manifest::keyspaces::{in_snapshot, parse_keyspace};
use crate::media::wire::{Reader, Short};
use crate::planted::{Bug, Planted};

#[derive(Default)]
pub struct Replay {
    pub catalog: Catalog,
    pub generation: u64,
    pub segments_expected: usize,
    /// Beside the default one.
    pub keyspaces_expected: usize,
    /// The snapshot has ended.
    pub whole: bool,
    pub checkpoint: Option<Checkpoint>,
    pub planted: Planted,
}

/// The generation that an opening began, the first stamp that it gives, and the last one that was durable then.
pub fn parse_opened(reader: &mut Reader<'_>) -> Result<[u64; 3], Short> {
    Ok([reader.u64()?, reader.u64()?, reader.u64()?])
}

impl Replay {
    pub fn apply(&mut self, frame: &Frame) -> Result<(), Error> {
        self.parse(frame)?.map_err(|Short| {
            Error::Corrupt(format!(
                "manifest frame {} of epoch {} is valid but makes no sense",
                frame.sequence, frame.epoch
            ))
        })
    }

    fn parse(&mut self, frame: &Frame) -> Result<Result<(), Short>, Error> {
        if !self.planted.has(Bug::StaleCheckpoint) {
            self.checkpoint = None;
        }
        let mut reader = Reader::new(&frame.payload);
        Ok(match frame.kind {
            Kind::SnapshotBegin => self.begin(&mut reader),
            Kind::SnapshotSegments => self.segments(&mut reader),
            Kind::SnapshotEnd => {
                self.whole = self.catalog.segments.len() == self.segments_expected
                    && in_snapshot(&self.catalog.keyspaces).count() == self.keyspaces_expected;
                if self.whole { Ok(()) } else { Err(Short) }
            }
            Kind::Install => match Install::parse(&frame.payload) {
                Ok(install) => {
                    self.catalog.install(&install)?;
                    Ok(())
                }
                Err(short) => Err(short),
            },
            Kind::SnapshotKeyspaces => self.keyspaces(&mut reader),
            Kind::Keyspace => match KeyspaceEdit::parse(&mut reader) {
                Ok(edit) => {
                    self.catalog.edit(&edit)?;
                    Ok(())
                }
                Err(short) => Err(short),
            },
            Kind::Opened => self.opened(&mut reader),
            Kind::Checkpoint => Checkpoint::parse(&frame.payload).map(|checkpoint| self.checkpoint = Some(checkpoint)),
        })
    }

    fn segments(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        while !reader.is_empty() {
            let state = SegmentState::parse(reader)?;
            self.catalog.segments.insert(state.descriptor.number, state);
        }
        Ok(())
    }

    fn keyspaces(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        while !reader.is_empty() {
            self.catalog.keyspaces.add(parse_keyspace(reader)?).map_err(|_| Short)?;
        }
        Ok(())
    }

    fn opened(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        [self.generation, self.catalog.stamp_base, self.catalog.stamp_opened] = parse_opened(reader)?;
        Ok(())
    }

    fn begin(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        let (buffer_next, marks): (u64, Marks) = parse_marks(reader)?;
        let (stamp_base, stamp_opened) = (reader.u64()?, reader.u64()?);
        self.catalog = Catalog { buffer_next, marks, stamp_base, stamp_opened, ..Catalog::default() };
        self.generation = reader.u64()?;
        self.segments_expected = reader.u32()? as usize;
        self.keyspaces_expected = reader.u32()? as usize;
        Ok(())
    }
}
