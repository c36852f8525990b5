//! Every key of a store, one after the other, in no order that means anything: for tools.
//!
//! First what is in the write buffers, then segment by segment. Flush and collector wait meanwhile, so that nothing moves
//! out of sight: every key that is there from the beginning to the end comes, and comes once unless it is written while
//! the scan runs.

use crate::api::store::Store;
use crate::hashed::HashedEngine;
use crate::hashed::buffer::Place;
use crate::hashed::catalog::Catalog;
use crate::hashed::collect::victim::VictimCursor;
use std::ops::ControlFlow;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::io::Io;
use tapetum_drive::Purpose;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Header, Kind};

/// A key, and its value as its record's header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned<'a> {
    pub key: &'a [u8],
    pub value_bytes: u64,
    /// The client's flags.
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
}

impl<'a> Scanned<'a> {
    fn new(key: &'a [u8], header: &Header) -> Scanned<'a> {
        let Header { raw_bytes, flags, expiry, stamp, .. } = *header;
        Scanned { key, value_bytes: u64::from(raw_bytes), flags, expiry, stamp }
    }
}

/// Shows `visit` every live key of a keyspace that begins with `prefix`, until it breaks off.
///
/// # Errors
/// If a segment cannot be read; [`KeyspaceError::Gone`](crate::KeyspaceError::Gone) if the keyspace was dropped.
pub fn scan(
    store: &Store,
    keyspace: KeyspaceRef,
    prefix: &[u8],
    mut visit: impl FnMut(Scanned<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let engine = store.hashed();
    engine.refuse_unservable(keyspace)?;
    let wanted = ScanWanted { keyspace: keyspace.id(), prefix };
    let io = Io::new(engine.drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Scan);
    let walk = async {
        let installer = engine.take_installer().await;
        let stamp_begun = engine.log.stamp_last();
        let mut outcome = Ok(ControlFlow::Continue(()));
        if buffers(engine, wanted, &mut visit).is_continue() {
            outcome = segments(engine, &io, &installer, stamp_begun, wanted, &mut visit).await;
        }
        outcome
    };
    engine.run_beside_maintenance(&io, walk)?.map(|_| ())
}

fn buffers(
    engine: &HashedEngine,
    wanted: ScanWanted<'_>,
    visit: &mut impl FnMut(Scanned<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for shard in engine.buffers.shards() {
        // Copied, so that writers do not wait for a caller that prints.
        let mut found: Vec<(Vec<u8>, Header)> = Vec::new();
        let shard = tapetum_base::media::io::lock(shard);
        shard.latest().for_each(|(_, place)| {
            // SAFETY: the shard names the place, and we hold it.
            let record = unsafe { engine.log.record(place.buffer, place.place) };
            if wanted.is(engine, &record.header, record.key) {
                found.push((record.key.to_vec(), record.header));
            }
        });
        drop(shard);
        show(&mut found, visit)?;
    }
    ControlFlow::Continue(())
}

fn show(found: &mut Vec<(Vec<u8>, Header)>, visit: &mut impl FnMut(Scanned<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
    found.drain(..).try_for_each(|(key, header)| visit(Scanned::new(&key, &header)))
}

/// Which keys are shown.
#[derive(Clone, Copy)]
struct ScanWanted<'a> {
    keyspace: KeyspaceId,
    prefix: &'a [u8],
}

impl ScanWanted<'_> {
    fn is(self, engine: &HashedEngine, header: &Header, key: &[u8]) -> bool {
        let is_named = KeyspaceId::of(header) == self.keyspace && key.starts_with(self.prefix);
        is_named && header.kind == Kind::Value && engine.is_live(header, engine.now_ms())
    }
}

async fn segments(
    engine: &Arc<HashedEngine>,
    io: &Io,
    installer: &Installer,
    stamp_begun: u64,
    wanted: ScanWanted<'_>,
    visit: &mut impl FnMut(Scanned<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    for state in installer.of::<Catalog>().segments.values() {
        let Some(segment) = engine.segments.get(state.descriptor.number) else { continue };
        let mut cursor = VictimCursor::new(segment, io, engine.drive.local(), engine.hasher.clone()).await?;
        // Those of one page, shown when it is known what they are.
        let (mut found, mut page) = (Vec::new(), None);
        cursor.advance(&state.valid).await?;
        while let Some(hash) = cursor.head() {
            if page != cursor.page() {
                page = cursor.page();
                if show(&mut found, visit).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            let header = cursor.header();
            let key = &cursor.record()[header.header_bytes()..][..header.key_bytes as usize];
            if wanted.is(engine, &header, key) && !was_in_buffer(engine, hash, stamp_begun) {
                found.push((key.to_vec(), header));
            }
            cursor.advance(&state.valid).await?;
        }
        if show(&mut found, visit).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether the write buffers had a later word on the key when the scan passed them.
fn was_in_buffer(engine: &HashedEngine, hash: HashKey, stamp_begun: u64) -> bool {
    let shard = engine.buffers.shard(hash);
    // SAFETY: the shard names the place, and we hold it.
    let stamp = |place: Place| unsafe { engine.log.record(place.buffer, place.place) }.header.stamp;
    shard.get(hash).is_some_and(|place| stamp(place) <= stamp_begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::Bitmap;
    use crate::hashed::collect::victim::tests::{
        RECORD_BYTES, first_segment, lengthen_first_record, put_equal_records, store_of_equal_records,
    };
    use tapetum_base::media::io::run;

    #[test]
    fn a_deleted_key_is_not_shown_for_the_damaged_length_of_another_one() {
        const SEGMENT_BYTES: u64 = 64 << 10;
        let (drive, store) = store_of_equal_records(SEGMENT_BYTES, RECORD_BYTES);
        let engine = store.hashed();
        let segment = first_segment(engine);
        let io = Io::new(drive.queue_pair(16).unwrap());
        let first_six = async {
            let (all, mut keys) = (Bitmap::full(segment.descriptor.entries), Vec::new());
            let mut cursor =
                VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await.unwrap();
            while keys.len() < 6 {
                cursor.advance(&all).await.unwrap();
                let header = cursor.header();
                keys.push(cursor.record()[header.header_bytes()..][..header.key_bytes as usize].to_vec());
            }
            keys
        };
        let keys = run(&io, first_six, || false).unwrap();
        let deleted = [&keys[0], &keys[5]];
        deleted.iter().for_each(|key| assert!(store.delete(key).unwrap()));
        // Until the deletions are in a segment.
        put_equal_records(&store, SEGMENT_BYTES, RECORD_BYTES, "oth");
        run(&io, lengthen_first_record(&io, &segment, RECORD_BYTES), || false).unwrap();
        let mut shown = Vec::new();
        let ended = scan(&store, KeyspaceRef::DEFAULT, b"key:", |item| {
            shown.push(item.key.to_vec());
            ControlFlow::Continue(())
        });
        assert!(matches!(ended, Err(Error::Corrupt(_))), "{ended:?}");
        assert!(deleted.iter().all(|key| !shown.contains(key)), "a deleted key is shown");
    }
}
