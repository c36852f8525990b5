//! The keys of a keyspace, listed in steps while the store serves: each step takes a part into memory and holds nothing of the store afterwards. A
//! part is a slice of the hash space in a hashed keyspace, and the next keys in order in an ordered one.
//!
//! A [`ListCursor`] is plain data: it names nothing of the store that could go, also when the store is opened anew between two steps.

use crate::api::store::Store;
use crate::hashed::slice::{self, SliceSize};
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::Io;
use tapetum_base::request::key_range::{KeyRange, ScanPart};
use tapetum_drive::Purpose;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::Record;

/// Small: keys alone are taken, and whoever lists them holds a part of them as text.
const KEY_SLICES: SliceSize =
    SliceSize { bytes: 256 << 10, bytes_per_segment: 2 << 10, bytes_max: 4 << 20, buffered_keys: 4096 };
/// Commands on their way at once.
const DEPTH: u32 = 64;
/// Items that one part of an ordered keyspace has at most.
const PART_ITEMS: usize = 1024;

/// How far a listing has come. By default it begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListCursor {
    place: ListPlace,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum ListPlace {
    #[default]
    Beginning,
    /// The next of so many slices of the hash space.
    Slice {
        next: u64,
        slices: u64,
    },
    Range(KeyRange),
}

impl ListCursor {
    /// Begins a listing of a range of an ordered keyspace's keys.
    pub fn of_range(range: KeyRange) -> ListCursor {
        ListCursor { place: ListPlace::Range(range) }
    }
}

/// A key, and what is known of its item without reading its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedKey {
    pub key: Vec<u8>,
    pub value_bytes: u64,
    /// The client's flags.
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPart {
    pub keys: Vec<ListedKey>,
    /// The place to go on from; `None` at the end.
    pub next: Option<ListCursor>,
}

impl Store {
    /// The next part of a listing of a keyspace's keys, in no order that means anything unless the keyspace is ordered. A key whose item is
    /// there from the first to the last step is shown, and once, whatever else is written meanwhile.
    ///
    /// # Errors
    /// If a segment cannot be read; [`KeyspaceError::Gone`](crate::KeyspaceError::Gone) if the keyspace was dropped.
    pub fn list_keys(&self, keyspace: KeyspaceRef, cursor: &ListCursor) -> Result<ListPart, Error> {
        match (keyspace.kind(), &cursor.place) {
            (KeyspaceKind::Ordered, ListPlace::Range(range)) => self.list_range(keyspace, range.clone()),
            (KeyspaceKind::Ordered, _) => self.list_range(keyspace, KeyRange::default()),
            (_, ListPlace::Slice { next, slices }) => self.list_slice(keyspace, Some((*next, *slices))),
            _ => self.list_slice(keyspace, None),
        }
    }

    fn list_slice(&self, keyspace: KeyspaceRef, at: Option<(u64, u64)>) -> Result<ListPart, Error> {
        let engine = self.hashed();
        engine.refuse_unservable(keyspace)?;
        let queue = engine.drive.queue_pair(DEPTH).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Scan);
        let mut keys = Vec::new();
        let gathering = async {
            let installer = engine.take_installer().await;
            let (number, slices) =
                at.unwrap_or_else(|| (0, slice::count(engine, &installer, keyspace.id(), &KEY_SLICES)));
            let show = |record: &Record<'_>| {
                let header = record.header;
                keys.push(ListedKey {
                    key: record.key.to_vec(),
                    value_bytes: u64::from(header.raw_bytes),
                    flags: header.flags,
                    expiry: header.expiry,
                    stamp: header.stamp,
                });
                Ok(())
            };
            let bounds = slice::bounds(number, slices);
            let gathered = slice::gather(engine, &io, &installer, keyspace.id(), b"", bounds, show).await;
            drop(installer);
            gathered.map(|()| (number + 1, slices))
        };
        let (next, slices) = engine.run_beside_maintenance(&io, gathering)??;
        let next = (next < slices).then_some(ListCursor { place: ListPlace::Slice { next, slices } });
        Ok(ListPart { keys, next })
    }

    fn list_range(&self, keyspace: KeyspaceRef, range: KeyRange) -> Result<ListPart, Error> {
        let part = self.scan_part(keyspace, range)?;
        let listed = part.items.into_iter().map(|item| ListedKey {
            key: item.key,
            value_bytes: item.value.len() as u64,
            flags: item.flags,
            expiry: item.expiry,
            stamp: item.stamp,
        });
        let next = part.rest.map(|range| ListCursor { place: ListPlace::Range(range) });
        Ok(ListPart { keys: listed.collect(), next })
    }

    /// Some items at the range's beginning, and what is left of it.
    fn scan_part(&self, keyspace: KeyspaceRef, range: KeyRange) -> Result<ScanPart, Error> {
        self.with_session(|session| {
            session.submit_scan(keyspace, 0, range, PART_ITEMS)?;
            let (mut replies, mut scanned) = (Vec::new(), Vec::new());
            loop {
                session.poll(&mut replies);
                session.take_scanned(&mut scanned);
                if let Some(reply) = scanned.pop() {
                    return reply.part;
                }
                session.wait(Some(Duration::from_millis(10)));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use crate::{StoreOptions, Sync};
    use std::collections::BTreeSet;

    fn listed(store: &Store, keyspace: KeyspaceRef, mut between: impl FnMut(u32)) -> Vec<ListedKey> {
        let (mut keys, mut cursor, mut steps) = (Vec::new(), Some(ListCursor::default()), 0);
        while let Some(at) = cursor {
            let part = store.list_keys(keyspace, &at).unwrap();
            keys.extend(part.keys);
            cursor = part.next;
            steps += 1;
            between(steps);
        }
        assert!(steps > 1, "all in one step");
        keys
    }

    #[test]
    fn every_key_that_stays_is_listed_once_while_others_are_written_and_deleted() {
        let options = StoreOptions { sync: Sync::No, ..small_options() };
        let (_drive, store) = store_in_memory(SMALL_BYTES, &options);
        let other = store.create_keyspace("other").unwrap();
        other.put(b"elsewhere", b"").unwrap();
        let key = |number: u32| format!("key {number}").into_bytes();
        for number in 0..30_000 {
            store.put(&key(number), &number.to_be_bytes()).unwrap();
        }
        assert!(store.stats().flushes > 0, "some are in segments, and some in buffers");
        let churn = |step: u32| {
            for number in 0..500 {
                store.put(&key(number), &step.to_be_bytes()).unwrap();
                store.put(&key(100_000 + step * 500 + number), b"new").unwrap();
                store.delete(&key(1000 + (step % 10) * 100 + number % 100)).unwrap();
            }
        };
        let keys = listed(&store, KeyspaceRef::DEFAULT, churn);
        let stay = |name: &[u8]| {
            let number: u32 = std::str::from_utf8(&name[4..]).unwrap().parse().unwrap();
            (2000..30_000).contains(&number).then_some(number)
        };
        let stayed: Vec<u32> = keys.iter().filter_map(|listed| stay(&listed.key)).collect();
        assert_eq!(stayed.len(), 28_000, "none is shown twice");
        assert_eq!(stayed.into_iter().collect::<BTreeSet<_>>().len(), 28_000);
        assert!(keys.iter().all(|listed| listed.key != b"elsewhere"));
        let one = keys.iter().find(|listed| listed.key == key(2000)).unwrap();
        assert_eq!(
            (one.value_bytes, one.expiry, one.stamp),
            (4, Expiry::NONE, store.get(&key(2000)).unwrap().unwrap().stamp)
        );
    }

    #[test]
    fn an_ordered_keyspace_is_listed_in_its_order() {
        let (_drive, store) = store_in_memory(64 << 20, &StoreOptions::new(64 << 20, 64 << 20));
        let ordered = store.create_keyspace_of("ordered", KeyspaceKind::Ordered).unwrap();
        for number in 0..5000u32 {
            ordered.put(&number.to_be_bytes(), b"value").unwrap();
        }
        let keys = listed(&store, ordered.keyspace(), |_| ());
        let numbers = (0..5000u32).map(|number| number.to_be_bytes().to_vec());
        assert!(keys.iter().map(|listed| listed.key.clone()).eq(numbers));
    }
}
