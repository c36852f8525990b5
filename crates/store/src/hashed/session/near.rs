//! An item's value through programs at the drive: of an item on flash only the result comes to the host.
//!
//! ```text
//! get of fields ─ on flash ─► pages, match and query ─► result to the host ─► answer                one command
//! get ─ on flash ─► pages, match: the value lies in local memory ─┐
//!   ├─ in extents of its own ─ named as they lie on flash ────────┼─► Compute ─► result to the host ─► answer
//!   └─ in a write buffer, or the DRAM tier ─► copied to the drive ┘
//! ```
//! 1. The operation is a get until its value is found: it has its place among the operations of its key, and keeps it until it is answered.
//! 2. The pipeline's source is held until its command has ended: local memory as its lease, extents by this operation. A session that is dropped
//!    waits for the drive first.
//!
//! The command and its result are [`tapetum_base::session::near`]'s.

use super::flash_read::FlashRead;
use super::large::OutOfLine;
use super::limits::refuse;
use super::{HashedMeans, HashedOp, HashedSession, end_read};
use crate::hashed::HashedEngine;
use crate::hashed::large::verify::corrupt;
use std::sync::atomic::Ordering;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::engine_session::OWN_TAG_BITS;
use tapetum_base::session::near::{NearEnd, NearGet, NearSource, NearStart};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::match_record::Matched;
use tapetum_drive::{LocalBuffer, PipelineStage, ProgramId, Returned, SOURCE_RANGES_MAX, SourceRange};
use tapetum_kernels::record::Codec;
use tapetum_kernels::reference::Reference;

/// Set in the tags of commands that run pipelines; the rest is the operation's number.
pub(super) const TAG_NEAR: u64 = 1 << (OWN_TAG_BITS - 2);

/// A longer query goes by a pipeline: the parameters lie in the buffer of the read.
const QUERY_BYTES_MAX: usize = 2 << 10;

/// State of a get whose value goes through programs.
pub(super) struct HashedNear {
    get: Box<NearGet>,
    /// Its query over the record went wrong in the read: it is a pipeline, whose failures say where.
    needs_pipeline: bool,
    /// Set while the drive runs the programs.
    running: Option<NearRun>,
}

struct NearRun {
    item: ItemHead,
    shown_by: u64,
    /// Held, so that its extents stay.
    large: Option<(OutOfLine, Reference)>,
}

/// The place of a value that is to go through programs.
pub(super) enum NearValue {
    /// With the host.
    Host(Vec<u8>),
    /// In local memory, in these parts.
    Local(LocalBuffer, Vec<SourceRange>),
    /// On flash, to be checked and inflated by the stages of `prefix`.
    Large { value: OutOfLine, reference: Reference, prefix: Vec<PipelineStage> },
}

impl HashedNear {
    /// The program that finds the record and runs the query of a get of fields over it, and the query. `None`: the value goes through a pipeline.
    pub fn fields_asked(&self, engine: &HashedEngine) -> Option<(ProgramId, &[u8])> {
        let programs = engine.programs.fields.filter(|_| !self.needs_pipeline)?;
        let query = self.get.attachment_of(programs.fields)?;
        (query.len() <= QUERY_BYTES_MAX).then_some((programs.match_fields, query))
    }

    /// The stages that check and inflate a large value at the drive. `None` if the host has to: the drive lacks a program, or the pipeline has no
    /// room for it.
    pub fn prefix_of_large(&self, engine: &HashedEngine, reference: &Reference) -> Option<Vec<PipelineStage>> {
        let programs = engine.programs.large?;
        let crcs = [reference.crc_of_none(engine.store_id), reference.sums.whole].map(u32::to_le_bytes).concat();
        let mut prefix = vec![PipelineStage::new(programs.crc32c_check, &crcs)?];
        if reference.codec == Codec::Zstd {
            prefix.push(PipelineStage::new(programs.zstd_decompress, &[])?);
        }
        let has_room = self.get.has_room_for(prefix.len()) && reference.runs.len() <= SOURCE_RANGES_MAX;
        has_room.then_some(prefix)
    }
}

/// The item that a get through programs found.
#[derive(Clone, Copy)]
pub(super) struct NearItem {
    pub item: ItemHead,
    /// An answer that shows the item waits until this stamp is durable.
    pub shown_by: u64,
}

/// The stored bytes of a large value, run by run.
fn ranges_of(geometry: &Geometry, reference: &Reference) -> Vec<SourceRange> {
    let mut left = u64::from(reference.stored_bytes);
    let range = |run: &tapetum_kernels::reference::Run| {
        let bytes = left.min(u64::from(run.count) * geometry.extent_bytes);
        left -= bytes;
        SourceRange { offset: geometry.extent_offset(run.first), bytes }
    };
    reference.runs.iter().map(range).collect()
}

impl HashedSession {
    /// Starts a get whose value goes through programs of the drive.
    pub fn start_through(
        &mut self,
        (core, engine): HashedMeans<'_>,
        keyspace: KeyspaceRef,
        token: u64,
        key: &[u8],
        near: Box<NearGet>,
    ) {
        let request = Request::Get { key };
        let refused = refuse(engine, keyspace, &request).and_then(|()| refuse_groups(keyspace));
        if let Err(error) = refused {
            return core.answer(token, Outcome::Failed(error));
        }
        engine.check_watermark();
        let hash = engine.hash(keyspace.id, key);
        let goes_on = !self.ops.must_wait(hash, &request);
        let target = OpTarget { token, keyspace, hash, value_bytes_allowed: usize::MAX };
        let (number, mut op) = self.ops.keep_at_hand(target, &request);
        op.kept.near = Some(Box::new(HashedNear { get: near, needs_pipeline: false, running: None }));
        self.ops.put(number, op);
        match goes_on {
            true => self.gathered.push(number),
            false => self.ops.wait_for_turn(hash, number),
        }
    }

    /// Gives up the gets through programs that have this token.
    pub fn cancel_through(&mut self, core: &mut SessionCore, token: u64) {
        for (number, op) in self.ops.iter_mut().filter(|(_, op)| op.token == token) {
            if let Some(near) = &mut op.kept.near {
                near.get.cancel(core, TAG_NEAR | number as u64);
            }
        }
    }
}

fn refuse_groups(keyspace: KeyspaceRef) -> Result<(), Error> {
    if keyspace.is_grouped() { Err(Error::Keyspace(KeyspaceError::IsGrouped)) } else { Ok(()) }
}

impl HashedSession {
    /// A get has found its value on flash, and it lies in local memory.
    pub(super) fn compute_found(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        found: NearItem,
        matched: &Matched,
    ) {
        let (Some(read), Some(near)) = (&mut op.kept.read, &op.kept.near) else {
            unreachable!("the operation reads, for programs")
        };
        if read.has_fields() {
            if !near.get.takes(matched.value_bytes) {
                return self.read_without_fields((core, engine), number, op);
            }
            let values = core.values.current();
            let start = values.len();
            read.copy_value(matched, &core.queue, values);
            let outcome = op.request.found(found.item, Access::default, core.values.range_from(start));
            core.answer_after(op.token, found.shown_by, outcome);
            return self.forget(core, number, op);
        }
        let value = match FlashRead::take_value(read, matched) {
            Some((buffer, ranges)) => NearValue::Local(buffer, ranges),
            // The value is in more parts than a source has.
            None => {
                let mut value = Vec::with_capacity(matched.value_bytes as usize);
                read.copy_value(matched, &core.queue, &mut value);
                NearValue::Host(value)
            }
        };
        self.compute((core, engine), number, op, found, value);
    }

    /// A get of fields goes on as any other get through programs: its key is looked for again.
    pub(super) fn read_without_fields(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
    ) {
        let Some(near) = &mut op.kept.near else { unreachable!("the get goes through programs") };
        near.needs_pipeline = true;
        end_read(core, &mut op);
        self.attempt_op((core, engine), number, op, None);
    }

    /// Passes a value that was found to the drive's programs, or has the get start over when there is room.
    pub(super) fn compute(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        NearItem { item, shown_by }: NearItem,
        value: NearValue,
    ) {
        end_read(core, &mut op);
        let Some(near) = &mut op.kept.near else { unreachable!("the get goes through programs") };
        let (source, large) = match value {
            NearValue::Host(host) => (NearSource::Host(host), None),
            NearValue::Local(buffer, ranges) => (NearSource::Local(buffer, ranges), None),
            NearValue::Large { value, reference, .. }
                if reference.codec == Codec::Raw && reference.stored_bytes != value.raw_bytes =>
            {
                return self.refuse(core, number, op, corrupt(&reference, None));
            }
            NearValue::Large { value, reference, prefix } => {
                let ranges = ranges_of(&engine.geometry, &reference);
                (NearSource::Flash { ranges, prefix }, Some((value, reference)))
            }
        };
        match near.get.start(core, TAG_NEAR | number as u64, source) {
            NearStart::Runs => {
                near.running = Some(NearRun { item, shown_by, large });
                self.ops.put(number, op);
            }
            NearStart::NoRoom => self.wait_for_room(core, number, op),
            NearStart::Failed(error) => self.refuse(core, number, op, error),
        }
    }

    /// The drive has run the programs over an operation's value.
    pub(super) fn computed(&mut self, (core, engine): HashedMeans<'_>, returned: Returned) {
        let number = (returned.completion.tag & !TAG_NEAR) as usize;
        let mut op = self.ops.take(number);
        let Some(near) = &mut op.kept.near else { unreachable!("the get goes through programs") };
        let Some(run) = near.running.take() else { unreachable!("a completion has a pipeline") };
        match (near.get.ended(core, returned), run.large) {
            (NearEnd::Value(value), large) => {
                engine.counters.large_reads.fetch_add(u64::from(large.is_some()), Ordering::Relaxed);
                let outcome = op.request.found(run.item, Access::default, value);
                core.answer_after(op.token, run.shown_by, outcome);
                self.forget(core, number, op);
            }
            (NearEnd::NoRoom, _) => self.wait_for_room(core, number, op),
            (NearEnd::Damaged, Some((_, reference))) => self.refuse(core, number, op, corrupt(&reference, None)),
            (NearEnd::Damaged, None) => unreachable!("only large values have stages before the caller's"),
            (NearEnd::Failed(error), _) => self.refuse(core, number, op, error),
        }
    }
}
