//! A drive as a crash left it, for tests: the test places images, torn slots and extensions, and runs recovery.

use super::{LogRecords, RecoverOptions, RecoveryCounts, recover};
use crate::ordered::images::ImageHead;
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::group_table::{Group, GroupEdit};
use crate::ordered::slabs::growth::GroupLog;
use crate::ordered::slabs::keyspace_slots::{KeyspaceSlots, SlabOptions};
use crate::ordered::slabs::large_groups::WantedSlot;
use crate::ordered::slabs::slot_class::{PAGE_BYTES, SlotClass};
use crate::ordered::testing::{KEYSPACE, STORE, TestMedia};
use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::error::Error;
use tapetum_base::media::io::run;
use tapetum_kernels::mib_sums::MibSums;
use tapetum_kernels::ordered::extension::{
    ExtensionClass, ExtensionHead, ExtensionReference, crc_of_none, front_bytes,
};
use tapetum_kernels::ordered::{ImageSeal, NODE_BYTES, NewNode, NodeMut, NodeRef, SlotSalt};
use tapetum_kernels::record::{Codec, Header, Record};

/// The number of slots in a group.
pub const GROUP_SLOTS: u32 = 8;

pub struct CrashSite {
    pub media: TestMedia,
    /// The slots as they were before the crash.
    pub slots: KeyspaceSlots,
    pub options: RecoverOptions,
    /// The stamp up to which new images attest that others were durable.
    pub stamp_durable: u64,
    /// The number of durable images of the round that they attest.
    pub round_images: u32,
    /// Records in the log, in the order of their stamps.
    pub log: Vec<(u64, &'static str, Logged)>,
}

/// A log record.
#[derive(Clone, Copy)]
pub enum Logged {
    Put(Stored<'static>),
    Delete,
}

/// The content of a record.
#[derive(Clone, Copy)]
pub enum Stored<'a> {
    Value(&'a str),
    Extension(ExtensionReference, &'a str),
}

/// A keyspace as recovery found it.
pub struct Opened {
    pub slots: KeyspaceSlots,
    pub items: BTreeMap<String, String>,
    /// The stamp and slot of each node, by low fence. No two nodes have the same id.
    pub nodes: BTreeMap<String, (u64, u32)>,
    pub counts: RecoveryCounts,
    pub stamp_next: u64,
}

impl Logged {
    fn stored(&self) -> Vec<u8> {
        match self {
            Logged::Put(Stored::Value(value)) => value.as_bytes().to_vec(),
            Logged::Put(Stored::Extension(reference, _)) => reference.encode().to_vec(),
            Logged::Delete => Vec::new(),
        }
    }

    fn header(&self, stamp: u64, key_bytes: usize) -> Header {
        let header = Header { keyspace: KEYSPACE.0, ..Header::value(stamp, key_bytes, self.stored().len()) };
        match self {
            Logged::Put(Stored::Value(_)) => header,
            Logged::Put(Stored::Extension(_, value)) => {
                Header { codec: Codec::OutOfLine, raw_bytes: value.len() as u32, ..header }
            }
            Logged::Delete => Header { keyspace: KEYSPACE.0, ..Header::tombstone(stamp, key_bytes) },
        }
    }
}

impl Opened {
    pub fn is_free(&self, slot: u32) -> bool {
        self.slots.nodes().share(self.slots.nodes().map().address(slot)).is_none()
    }

    pub fn items(&self) -> Vec<(&str, &str)> {
        self.items.iter().map(|(key, value)| (&key[..], &value[..])).collect()
    }
}

fn slab_options(media: &TestMedia) -> SlabOptions {
    SlabOptions { map: media.map, store_id: STORE, open_groups: 2, group_pages_min: GROUP_SLOTS }
}

impl CrashSite {
    /// A keyspace with two open groups of nodes, and no image.
    pub fn new() -> CrashSite {
        let mut media = TestMedia::new();
        let slots = KeyspaceSlots::new(&slab_options(&media), KEYSPACE, &media.log.table);
        media.grow(slots.nodes()).unwrap();
        let options = RecoverOptions { stamp_durable: 1000, stamp_next: 5000, memory_bytes: 1 << 20 };
        CrashSite { media, slots, options, stamp_durable: 0, round_images: 0, log: Vec::new() }
    }

    /// The bytes of an image in a slot. An empty high fence means none.
    pub fn image_bytes(
        &self,
        salt: SlotSalt,
        stamp: u64,
        (low, high): (&str, &str),
        records: &[(&str, Stored<'_>)],
    ) -> Vec<u8> {
        let high_fence = (!high.is_empty()).then_some(high.as_bytes());
        let id = u64::from(low.bytes().next().unwrap_or(0));
        let new = NewNode { keyspace: KEYSPACE.0, id, low_fence: low.as_bytes(), high_fence };
        let mut bytes = [0; NODE_BYTES];
        let mut node = NodeMut::format(&mut bytes, &new).unwrap();
        for (key, stored) in records {
            let key = key.as_bytes();
            let put = match stored {
                Stored::Value(value) => node.put(&Record {
                    header: Header::value(stamp, key.len(), value.len()),
                    key,
                    stored: value.as_bytes(),
                }),
                Stored::Extension(reference, value) => {
                    let stored = reference.encode();
                    let mut header = Header::value(stamp, key.len(), stored.len());
                    (header.codec, header.raw_bytes) = (Codec::OutOfLine, value.len() as u32);
                    node.put(&Record { header, key, stored: &stored })
                }
            };
            put.unwrap();
        }
        node.seal(salt, ImageSeal { stamp, durable: self.stamp_durable, round_images: self.round_images });
        bytes.to_vec()
    }

    /// Writes an image to a free slot. Returns the share of the slot.
    pub fn image(&self, stamp: u64, fences: (&str, &str), records: &[(&str, Stored<'_>)]) -> SlotShare {
        let share = self.slots.nodes().take(None).unwrap();
        self.media.write(share.flash_offset(), &self.image_bytes(share.salt(), stamp, fences, records));
        share.settle(stamp);
        share
    }

    /// As [`CrashSite::image`], for records with values.
    pub fn values(&self, stamp: u64, fences: (&str, &str), items: &[(&str, &str)]) -> SlotShare {
        let records: Vec<_> = items.iter().map(|(key, value)| (*key, Stored::Value(value))).collect();
        self.image(stamp, fences, &records)
    }

    /// Tears a slot: the last sectors of the write are missing.
    pub fn tear(&self, slot: u32) {
        self.media.write(self.media.map.flash(slot) + 1024, &[0x55; 3072]);
    }

    /// Writes an extension. Returns its reference and its share.
    pub fn extension(&self, stamp: u64, key: &str, value: &str) -> (ExtensionReference, SlotShare) {
        let class = SlotClass::of_extension(ExtensionClass::of(key.len(), value.len()).unwrap());
        let share = self.slots.of_class(class).take(None).unwrap();
        self.write_extension(share, stamp, (key, value))
    }

    fn write_extension(
        &self,
        share: SlotShare,
        stamp: u64,
        (key, value): (&str, &str),
    ) -> (ExtensionReference, SlotShare) {
        let sums = MibSums::of(crc_of_none(share.salt()), value.as_bytes());
        let bytes = value.len() as u32;
        let head = ExtensionHead {
            keyspace: KEYSPACE.0,
            stamp,
            codec: Codec::Raw,
            raw_bytes: bytes,
            stored_bytes: bytes,
            sums,
        };
        let pages = (front_bytes(key.len(), value.len()) + value.len()).next_multiple_of(PAGE_BYTES as usize);
        let mut page = vec![0; pages];
        let at = head.encode(key.as_bytes(), share.salt(), &mut page);
        page[at..at + value.len()].copy_from_slice(value.as_bytes());
        self.media.write(share.flash_offset(), &page);
        (ExtensionReference { stamp, slot: share.address(), codec: Codec::Raw, stored_bytes: bytes }, share)
    }

    /// As [`CrashSite::extension`], for one beyond the slabs, which gets a group of its own.
    pub fn large_extension(&mut self, stamp: u64, key: &str, value: &str) -> (ExtensionReference, SlotShare) {
        let pages = (ExtensionClass::of(key.len(), value.len()).unwrap().bytes() / PAGE_BYTES) as u32;
        let space = self.slots.of_class(SlotClass::Large).clone();
        let want = space.want(pages);
        self.media.grow(&space).unwrap();
        let WantedSlot::Given(share) = want.take() else { panic!("there are extents") };
        self.write_extension(share, stamp, (key, value))
    }

    /// Makes slots for small extensions.
    pub fn with_extensions(mut self) -> CrashSite {
        self.media.grow(&self.slots.of_class(SlotClass::Extensions(0)).clone()).unwrap();
        self
    }

    pub fn edit(&mut self, edits: Vec<GroupEdit>) {
        run(&self.media.io, self.media.log.append(edits), || false).unwrap().unwrap();
    }

    /// Begins a round, with at least one resting slot. Images written from now on have stamps above this one.
    pub fn turn_round(&mut self, stamp: u64) {
        let round =
            self.slots.nodes().turn_round(stamp).expect("a slot rests, and nothing of the round before is on its way");
        self.edit(vec![GroupEdit::Round(round)]);
    }

    /// The group of a slot.
    pub fn group_of(&self, slot: u32) -> Group {
        let holds = |group: &&Group| (group.first..group.first + group.extents).contains(&slot);
        *self.media.log.table.iter().find(holds).unwrap()
    }

    /// Opens the keyspace after the crash: the state in memory is lost.
    pub fn recover(&mut self) -> Result<Opened, Error> {
        let slots = KeyspaceSlots::new(&slab_options(&self.media), KEYSPACE, &self.media.log.table);
        let references: Vec<Vec<u8>> = self.log.iter().map(|(.., logged)| logged.stored()).collect();
        let of_log = self.log.iter().zip(&references).map(|((stamp, key, logged), stored)| Record {
            header: logged.header(*stamp, key.len()),
            key: key.as_bytes(),
            stored,
        });
        let records = LogRecords::of(of_log);
        let TestMedia { drive, io, extents, log, .. } = &mut self.media;
        let recovering = recover(drive, io, &slots, &self.options, &records, extents, log);
        let recovered = run(io, recovering, || false).unwrap()?;
        let (mut items, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        let mut ids = BTreeSet::new();
        for node in recovered.nodes() {
            assert!(ids.insert(node.id), "{node:?}");
            self.read_node(&slots, &node, &mut items);
            nodes.insert(String::from_utf8(node.low.to_vec()).unwrap(), (node.stamp, node.slot));
        }
        let (counts, stamp_next) = (recovered.counts, recovered.stamp_next);
        Ok(Opened { slots, items, nodes, counts, stamp_next })
    }

    fn read_node(&self, slots: &KeyspaceSlots, node: &ImageHead<'_>, items: &mut BTreeMap<String, String>) {
        let share = slots.nodes().resume(node.slot);
        let page = self.media.read(share.flash_offset(), NODE_BYTES);
        let image = NodeRef::check(&page, share.salt()).unwrap();
        assert_eq!((image.low_fence(), image.high_fence()), (node.low, node.high), "its image has just its fences");
        assert_eq!((image.stamp(), image.id()), (node.stamp, u64::from(node.id)));
        for record in image.records() {
            let record = record.unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let value = match record.extension().unwrap() {
                None => text(record.stored),
                Some(reference) => text(&self.read_extension(slots, &reference, record.header.raw_bytes)),
            };
            assert_eq!(items.insert(text(record.key), value), None, "a key is in one node");
        }
        let _ = share.keep();
    }

    fn read_extension(&self, slots: &KeyspaceSlots, reference: &ExtensionReference, raw_bytes: u32) -> Vec<u8> {
        let classes = SlotClass::SLABS.into_iter().chain([SlotClass::Large]).skip(1);
        let mut shares = classes.filter_map(|class| slots.of_class(class).share(reference.slot));
        let share = shares.next().expect("recovery claimed it");
        let page = self.media.read(share.flash_offset(), (share.pages() * PAGE_BYTES as u32) as usize);
        let (head, key) = ExtensionHead::parse(&page, share.salt()).unwrap();
        head.check(reference, raw_bytes).unwrap();
        let at = front_bytes(key.len(), reference.stored_bytes as usize);
        let stored = page[at..at + reference.stored_bytes as usize].to_vec();
        assert!(head.holds(share.salt(), &stored));
        stored
    }
}
