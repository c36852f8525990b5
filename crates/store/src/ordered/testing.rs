//! A drive in memory with groups of slots, for tests.

use super::slabs::group_table::{GroupEdit, GroupTable};
use super::slabs::growth::{GroupLog, grow};
use super::slabs::slot_class::SlotClass;
use super::slabs::slot_map::SlotMap;
use super::slabs::{SlotSpace, SpaceOptions};
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, run};
use tapetum_base::media::wire::Writer;
use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash};

const CAPACITY_BYTES: u64 = 4 << 20;
pub const STORE: u64 = 77;
pub const KEYSPACE: KeyspaceId = KeyspaceId(3);

pub struct TestMedia {
    pub drive: Drive,
    pub io: Io,
    pub map: SlotMap,
    pub extents: Mutex<Extents>,
    pub log: TestLog,
    /// Images that are written from now on have higher stamps.
    pub stamp: u64,
}

/// A manifest with only groups.
#[derive(Clone)]
pub struct TestLog {
    io: Io,
    pub table: GroupTable,
    pub flushes: u32,
    pub appends: u32,
    /// The error of the next append, which then is not durable.
    pub failure: Option<Error>,
    /// The error of the next flush.
    pub flush_failure: Option<Error>,
}

impl GroupLog for TestLog {
    fn version_next(&self) -> u64 {
        self.table.version_next()
    }

    async fn flush(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.flush_failure.take() {
            return Err(failure);
        }
        self.flushes += 1;
        self.io.flush().await
    }

    async fn append(&mut self, edits: Vec<GroupEdit>) -> Result<(), Error> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.appends += 1;
        let mut writer = Writer::default();
        edits.iter().for_each(|edit| edit.encode(&mut writer));
        self.table.apply(&writer).map_err(Error::Corrupt)
    }
}

impl TestMedia {
    /// Extents of 4 KiB, so that a group has as many extents as it has nodes.
    pub fn new() -> TestMedia {
        let geometry = Geometry::new(CAPACITY_BYTES, 64 << 10, 0, 512).unwrap();
        let local = LocalMemory::new(2 << 20).unwrap();
        let flash = Arc::new(MemoryFlash::new(CAPACITY_BYTES));
        let drive = Drive::new(flash, local, Vec::new(), Env::simulated(1).0);
        let io = Io::new(drive.queue_pair(32).unwrap());
        TestMedia {
            log: TestLog {
                io: io.clone(),
                table: GroupTable::default(),
                flushes: 0,
                appends: 0,
                failure: None,
                flush_failure: None,
            },
            drive,
            io,
            stamp: 0,
            map: SlotMap::new(&geometry).unwrap(),
            extents: Mutex::new(Extents::new(geometry.extents(CAPACITY_BYTES))),
        }
    }

    pub fn options(class: SlotClass, group_extents: u32) -> SpaceOptions {
        SpaceOptions { store_id: STORE, keyspace: KEYSPACE, class, open_groups: 2, group_extents }
    }

    /// The space of all groups of a class.
    pub fn space(&self, class: SlotClass, group_extents: u32) -> SlotSpace {
        let groups = self.log.table.of_keyspace(KEYSPACE).filter(|group| group.class == class);
        SlotSpace::new(self.map, TestMedia::options(class, group_extents), groups, self.log.table.round(KEYSPACE))
    }

    pub fn grow(&mut self, space: &SlotSpace) -> Result<(), Error> {
        run(&self.io, grow(space, &self.io, &self.extents, &mut self.log, || self.stamp), || false).unwrap()
    }

    pub fn write(&self, flash: u64, bytes: &[u8]) {
        let mut buffer = self.drive.local().allocate(bytes.len()).unwrap();
        buffer.bytes_mut().copy_from_slice(bytes);
        run(&self.io, self.io.write_durably(flash, &mut buffer, bytes.len()), || false).unwrap().unwrap();
    }

    pub fn read(&self, flash: u64, length: usize) -> Vec<u8> {
        let mut buffer = self.drive.local().allocate(length).unwrap();
        run(&self.io, self.io.read(flash, &mut buffer, 0, length), || false).unwrap().unwrap();
        buffer.bytes().to_vec()
    }
}
