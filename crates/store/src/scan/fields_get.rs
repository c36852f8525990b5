//! A query over the record of one key (nKV's `NDP_GET`): only the requested fields of the value come to the host.
//!
//! ```text
//! hashed:   get ─► the record's pages, `match-fields` over them ─► frames ─► host  one command
//!           from elsewhere than a page of flash: the value ─► `fields` ─► frames ─► host
//! ordered:  the node that has the key ─► `scan` of the key ─► frames ─► host       and another one over a value in an extension
//! ```
//! A scan of one key reads one node, at a desk that has local memory for little more ([`super::key_desks`]).

use super::host_side::HostRun;
use super::query_scan::{QueryError, QueryReport, QuerySide, check_misfits};
use crate::api::blocking::KeyspaceHandle;
use crate::api::session::ItemPipeline;
use tapetum_base::error::Error;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::key_range::KeyRange;
use tapetum_drive::programs::fields::{FIELDS, encode_fields_request};
use tapetum_drive::programs::room_needed;
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::{Query, QueryResult};

/// Room for the result, at first: one that takes more says how much, and has that.
const OUTPUT_BYTES: u32 = 16 << 10;

impl KeyspaceHandle {
    /// Runs a query over the record of one key, and hands out its rows; `None` when there is no such key. At the drive only the result comes to the
    /// host, for a hashed keyspace in one submission. The report's bytes are those of the query and its result.
    ///
    /// # Errors
    /// As [`KeyspaceHandle::query`].
    pub fn get_fields(
        &self,
        key: &[u8],
        query: &Query,
        side: QuerySide,
        rows: &mut dyn RowSink,
    ) -> Result<Option<QueryReport>, QueryError> {
        self.store().refuse_forked()?;
        if side != QuerySide::Host && self.keyspace().kind() != KeyspaceKind::Hashed {
            return self.fields_of_ordered(key, query, rows);
        }
        let (mut report, mut result) = (QueryReport::of(side), QueryResult::new(query));
        let found = match side {
            QuerySide::Drive | QuerySide::DriveByRecord => {
                self.fields_at_drive(key, query, &mut (&mut result, rows), &mut report)?
            }
            QuerySide::Host => match self.get(key)? {
                Some(item) => {
                    let mut host = HostRun::new(query, &mut result, rows);
                    host.push(key, &item.value)?;
                    host.finish()?;
                    true
                }
                None => false,
            },
        };
        if !found {
            return Ok(None);
        }
        check_misfits(query, &result)?;
        report.counts = result.finish(rows);
        Ok(Some(report))
    }

    /// A query over the range of one key.
    fn fields_of_ordered(
        &self,
        key: &[u8],
        query: &Query,
        rows: &mut dyn RowSink,
    ) -> Result<Option<QueryReport>, QueryError> {
        let task = self.begin_query(query, &KeyRange::of_key(key))?.of_what_is_found();
        let report = self.run_to_end(task, rows)?;
        Ok((report.counts.records > 0).then_some(report))
    }

    fn fields_at_drive(
        &self,
        key: &[u8],
        query: &Query,
        (result, rows): &mut (&mut QueryResult, &mut dyn RowSink),
        report: &mut QueryReport,
    ) -> Result<bool, QueryError> {
        let identity = self.store().drive_identity();
        let program = identity.programs.iter().find(|program| (&program.name[..], program.version) == FIELDS);
        let program =
            program.ok_or_else(|| Error::Io(format!("the drive has no program {} {}", FIELDS.0, FIELDS.1)))?;
        let mut encoded = Vec::new();
        query.encode(&mut encoded);
        let mut room = OUTPUT_BYTES;
        loop {
            let pipeline = ItemPipeline {
                stages: vec![(program.id, Vec::new())],
                output_bytes_max: room,
                attachment: encode_fields_request(room, &encoded, key),
                application: self.application(),
                ..ItemPipeline::default()
            };
            report.commands += 1;
            report.wake_ups += 1;
            report.sent_bytes += pipeline.attachment.len() as u64;
            match self.get_through(key, &pipeline) {
                Ok(Some(frames)) => {
                    report.returned_bytes += frames.len() as u64;
                    result.merge(&frames, *rows)?;
                    return Ok(true);
                }
                Ok(None) => return Ok(false),
                Err(Error::Pipeline(failure)) => {
                    match room_needed(&failure).and_then(|bytes| u32::try_from(bytes).ok()) {
                        Some(bytes) if bytes > room => room = bytes,
                        _ => return Err(Error::Pipeline(failure).into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
