//! An iterator over the items of a keyspace.
//!
//! It takes a slice of the hash space at a time into memory, and holds nothing of the store between slices: writes, flush and collector go
//! on while a caller works on what it was given.

use crate::api::blocking::{Item, KeyspaceHandle};
use crate::api::store::Store;
use crate::hashed::slice::{self, SliceSize};
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::io::Io;
use tapetum_drive::Purpose;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::{Codec, Header, Record};

const ITEM_SLICES: SliceSize =
    SliceSize { bytes: 1 << 20, bytes_per_segment: 16 << 10, bytes_max: 16 << 20, buffered_keys: 16 << 10 };

struct SliceItem {
    key: Vec<u8>,
    header: Header,
    /// `None`: the value lies in extents of its own, and is to be read by a get.
    value: Option<Vec<u8>>,
}

impl SliceItem {
    fn of(record: &Record<'_>, decompressor: &mut Decompressor) -> Result<SliceItem, Error> {
        let value = match record.header.codec {
            Codec::OutOfLine => None,
            _ => {
                let mut value = Vec::new();
                let inflated = decompressor.inflate(record, &mut value);
                inflated.map_err(|_| Error::Corrupt(format!("the value of the key {:?}", record.key)))?;
                Some(value)
            }
        };
        Ok(SliceItem { key: record.key.to_vec(), header: record.header, value })
    }
}

/// The items of a keyspace, each once, in no order that means anything. An item that was there from the first to the last call of `next`
/// is shown, with the value that it had at some moment between; one that came, changed or went meanwhile may be shown as it was or as it is.
///
/// An error ends it: what was shown before holds.
pub struct Items {
    store: Store,
    keyspace: KeyspaceRef,
    prefix: Vec<u8>,
    io: Option<Io>,
    /// How many slices there are, once the first was asked for.
    slices: Option<u64>,
    slice_next: u64,
    found: std::vec::IntoIter<SliceItem>,
    ended: bool,
}

impl Items {
    fn new(store: &Store, keyspace: KeyspaceRef, prefix: &[u8]) -> Items {
        Items {
            store: store.clone(),
            keyspace,
            prefix: prefix.to_vec(),
            io: None,
            slices: None,
            slice_next: 0,
            found: Vec::new().into_iter(),
            ended: false,
        }
    }

    /// Takes the next slice; whether there was one.
    fn advance(&mut self) -> Result<bool, Error> {
        let engine = self.store.hashed();
        engine.refuse_unservable(self.keyspace)?;
        let io = match &self.io {
            Some(io) => io.clone(),
            None => {
                let queue = engine.drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?;
                self.io.insert(Io::new(queue).of(Purpose::Scan)).clone()
            }
        };
        if self.slices.is_some_and(|slices| self.slice_next == slices) {
            return Ok(false);
        }
        let (keyspace, prefix) = (self.keyspace.id(), &self.prefix[..]);
        let (slices, number) = (self.slices, self.slice_next);
        let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let mut found = Vec::new();
        let gathering = async {
            let installer = engine.take_installer().await;
            let slices = slices.unwrap_or_else(|| slice::count(engine, &installer, keyspace, &ITEM_SLICES));
            let show = |record: &Record<'_>| {
                found.push(SliceItem::of(record, &mut decompressor)?);
                Ok(())
            };
            let bounds = slice::bounds(number, slices);
            let gathered = slice::gather(engine, &io, &installer, keyspace, prefix, bounds, show).await;
            drop(installer);
            gathered.map(|()| slices)
        };
        let slices = engine.run_beside_maintenance(&io, gathering)??;
        self.slices = Some(slices);
        self.slice_next += 1;
        self.found = found.into_iter();
        Ok(true)
    }

    /// An item of the slice; `None` if it is gone since.
    fn show(&self, SliceItem { key, header, value }: SliceItem) -> Result<Option<(Vec<u8>, Item)>, Error> {
        let item = match value {
            Some(value) => Some(Item { value, flags: header.flags, expiry: header.expiry, stamp: header.stamp }),
            None => KeyspaceHandle::new(self.store.clone(), self.keyspace).get(&key)?,
        };
        Ok(item.map(|item| (key, item)))
    }

    fn find(&mut self) -> Result<Option<(Vec<u8>, Item)>, Error> {
        self.store.refuse_forked()?;
        loop {
            while let Some(found) = self.found.next() {
                if let Some(shown) = self.show(found)? {
                    return Ok(Some(shown));
                }
            }
            if !self.advance()? {
                return Ok(None);
            }
        }
    }
}

impl Iterator for Items {
    type Item = Result<(Vec<u8>, Item), Error>;

    fn next(&mut self) -> Option<Result<(Vec<u8>, Item), Error>> {
        if self.ended {
            return None;
        }
        let found = self.find();
        self.ended = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}

impl Store {
    /// The items of the default keyspace, in no order that means anything. See [`Items`].
    pub fn items(&self) -> Items {
        self.items_with_prefix(b"")
    }

    /// Items whose keys begin with `prefix`. All of the keyspace is read for them.
    pub fn items_with_prefix(&self, prefix: &[u8]) -> Items {
        Items::new(self, KeyspaceRef::DEFAULT, prefix)
    }
}

impl KeyspaceHandle {
    /// The items of this keyspace, in no order that means anything. See [`Items`]. For an ordered keyspace there is only one error:
    /// [`KeyspaceHandle::scan`] has its items.
    pub fn items(&self) -> Items {
        self.items_with_prefix(b"")
    }

    /// Items whose keys begin with `prefix`. All of the keyspace is read for them.
    pub fn items_with_prefix(&self, prefix: &[u8]) -> Items {
        Items::new(self.store(), self.keyspace(), prefix)
    }
}
