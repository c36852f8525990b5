//! The partitions of a drive that hosts share: which bytes of its flash each has, whose it is, and how often it was attached.
//!
//! ```text
//!  flash
//!  0           4096        8192            1 MiB
//!  +-----------+-----------+---------------+--------------------+------+------------------+-----
//!  | table, of | table, of | not used      | a partition        | free | a partition      | ...
//!  | even      | odd       |               | (from a multiple   |      |                  |
//!  | writings  | writings  |               |  of 1 MiB on)      |      |                  |
//!  +-----------+-----------+---------------+--------------------+------+------------------+-----
//!
//!  a table, little endian
//!  0          8             16       20       24         128
//!  +----------+-------------+--------+--------+----------+-----------------------------+
//!  | magic    | writings    | count  | CRC32C | zero     | count entries of 128 bytes  |
//!  | u64      | u64         | u32    | u32    |          |                             |
//!  +----------+-------------+--------+--------+----------+-----------------------------+
//!
//!  an entry
//!  0             64       72       80      88       92       96     104    128
//!  +-------------+--------+--------+-------+--------+--------+------+------+
//!  | name, UTF-8,| start  | length | epoch | owner  | flags  | host | zero |
//!  | zero-filled | u64    | u64    | u64   | u32    | u32    | u64  |      |
//!  +-------------+--------+--------+-------+--------+--------+------+------+
//! ```
//! The CRC is of the table with that field zero. A change is durable before anybody relies on it: the table is written to the other place,
//! then flushed; of two whole ones, that with more writings counts. Partitions lie in the order of their start, and overlap nowhere.

use crate::host::{Drive, Lease, QueuePair, Returned};
use crate::memory::LocalBuffer;
use crate::protocol::{Command, MemoryAddress, Operation, Purpose, Status, get, put};
use std::io;
use std::ops::Range;
use tapetum_kernels::checksum::crc32c_append;

pub const PARTITIONS_MAX: usize = 31;
pub const NAME_BYTES_MAX: usize = 64;
/// Partitions begin at multiples of this.
pub const UNIT_BYTES: u64 = 1 << 20;
/// They have multiples of this: no sector is larger.
const LENGTH_UNIT_BYTES: u64 = 4096;
const TABLE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 128;
const MAGIC: u64 = u64::from_le_bytes(*b"tapetDRV");
const FLAG_MADE: u32 = 1;
const CRC: usize = 20;
const _: () = assert!((PARTITIONS_MAX + 1) * ENTRY_BYTES == TABLE_BYTES);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Bytes from the start of flash.
    pub start: u64,
    pub length: u64,
    /// How often it was attached to write.
    pub epoch: u64,
    /// The user whose hosts may attach it.
    pub owner: u32,
    /// The number that the last host has given itself.
    pub host: u64,
    /// Its host has said that its store is whole.
    pub is_made: bool,
}

impl Partition {
    /// The next one may begin here.
    fn end(&self) -> u64 {
        (self.start + self.length).next_multiple_of(UNIT_BYTES)
    }
}

/// Why a partition was not made or changed.
#[derive(Debug)]
pub enum PartitionError {
    NotFound,
    BadName,
    TooMany,
    /// No piece of that size is free.
    NoSpace {
        needed_bytes: u64,
        free_bytes: u64,
    },
    Io(io::Error),
}

/// The table of a drive, in memory and on flash.
pub struct Partitions {
    pair: QueuePair,
    entries: Vec<Partition>,
    writings: u64,
    capacity_bytes: u64,
}

impl Partitions {
    /// Reads the table of a drive, or makes one where flash begins with zeros.
    ///
    /// # Errors
    /// If flash holds something else, and the operating system's.
    pub fn open(drive: &Drive) -> io::Result<Partitions> {
        let (capacity_bytes, pair) = (drive.capacity_bytes(), drive.queue_pair(4)?);
        let mut all = Partitions { pair, entries: Vec::new(), writings: 0, capacity_bytes };
        if capacity_bytes < 2 * UNIT_BYTES {
            return Err(io::Error::other("it is too small to be shared: give it 2 MiB or more"));
        }
        let mut is_blank = true;
        for place in 0..2 {
            let bytes = all.read(place)?;
            is_blank &= bytes.iter().all(|byte| *byte == 0);
            if let Some((writings, entries)) = decode(&bytes).filter(|(writings, _)| *writings > all.writings) {
                (all.writings, all.entries) = (writings, entries);
            }
        }
        match (all.writings, is_blank) {
            (1.., _) => all.check()?,
            (0, true) => all.write()?,
            (0, false) => return Err(io::Error::other("it holds something else: give a new file, or an empty device")),
        }
        Ok(all)
    }

    pub fn find(&self, name: &str) -> Option<&Partition> {
        self.entries.iter().find(|partition| partition.name == name)
    }

    pub fn all(&self) -> &[Partition] {
        &self.entries
    }

    /// Makes one of at least `bytes`, where there is room.
    ///
    /// # Errors
    /// See [`PartitionError`].
    pub fn make(&mut self, name: &str, bytes: u64, owner: u32) -> Result<(), PartitionError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['/', '\0']) {
            return Err(PartitionError::BadName);
        }
        if self.entries.len() == PARTITIONS_MAX {
            return Err(PartitionError::TooMany);
        }
        let length = bytes.max(1).checked_next_multiple_of(LENGTH_UNIT_BYTES).unwrap_or(u64::MAX);
        let place = self.gaps().enumerate().find(|(_, gap)| gap.end - gap.start >= length);
        let Some((number, Range { start, .. })) = place else {
            return Err(PartitionError::NoSpace { needed_bytes: length, free_bytes: self.free_bytes_max() });
        };
        let made = Partition { name: name.into(), start, length, epoch: 0, owner, host: 0, is_made: false };
        self.entries.insert(number, made);
        self.write_or_undo(|all| drop(all.entries.remove(number)))
    }

    /// The largest piece that is free.
    pub fn free_bytes_max(&self) -> u64 {
        self.gaps().map(|gap| gap.end - gap.start).max().unwrap_or(0)
    }

    /// The free piece before each partition, and that behind the last.
    fn gaps(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = [UNIT_BYTES].into_iter().chain(self.entries.iter().map(Partition::end));
        let ends = self.entries.iter().map(|entry| entry.start).chain([self.end_bytes()]);
        starts.zip(ends).map(|(start, end)| start..end.max(start))
    }

    /// Changes one, durably.
    ///
    /// # Errors
    /// See [`PartitionError`]; then it is as it was.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Partition)) -> Result<Partition, PartitionError> {
        let number = self.number(name)?;
        let before = self.entries[number].clone();
        change(&mut self.entries[number]);
        let changed = self.entries[number].clone();
        self.write_or_undo(|all| all.entries[number] = before)?;
        Ok(changed)
    }

    /// Gives one at least `bytes`, if what lies behind it is free. Returns how many it has then.
    ///
    /// # Errors
    /// See [`PartitionError`].
    pub fn grow(&mut self, name: &str, bytes: u64) -> Result<u64, PartitionError> {
        let number = self.number(name)?;
        let Partition { start, length, .. } = self.entries[number];
        if bytes <= length {
            return Ok(length);
        }
        let end_max = self.entries.get(number + 1).map_or(self.end_bytes(), |next| next.start);
        let wanted = bytes.checked_next_multiple_of(LENGTH_UNIT_BYTES).unwrap_or(u64::MAX);
        if wanted > end_max - start {
            let needed_bytes = wanted - length;
            return Err(PartitionError::NoSpace { needed_bytes, free_bytes: end_max - start - length });
        }
        self.change(name, |partition| partition.length = wanted).map(|changed| changed.length)
    }

    fn number(&self, name: &str) -> Result<usize, PartitionError> {
        self.entries.iter().position(|entry| entry.name == name).ok_or(PartitionError::NotFound)
    }

    fn end_bytes(&self) -> u64 {
        self.capacity_bytes / UNIT_BYTES * UNIT_BYTES
    }

    fn write_or_undo(&mut self, undo: impl FnOnce(&mut Partitions)) -> Result<(), PartitionError> {
        self.write().map_err(|error| {
            undo(self);
            PartitionError::Io(error)
        })
    }

    /// A whole table can still tell of places that are not there.
    fn check(&self) -> io::Result<()> {
        let mut free_from = UNIT_BYTES;
        for entry in &self.entries {
            let end = entry.start.checked_add(entry.length);
            let is_whole = entry.start % UNIT_BYTES == 0 && entry.length % LENGTH_UNIT_BYTES == 0 && entry.length > 0;
            if !is_whole || entry.start < free_from || end.is_none_or(|end| end > self.end_bytes()) {
                let name = &entry.name;
                return Err(io::Error::other(format!("its table has the partition {name} where none can be")));
            }
            free_from = entry.end();
        }
        Ok(())
    }

    fn read(&mut self, place: u64) -> io::Result<Vec<u8>> {
        let buffer = self.buffer()?;
        let (local, length) = (buffer.offset(), TABLE_BYTES as u32);
        let read = Operation::Read { flash: place * TABLE_BYTES as u64, local, length };
        let buffer = self.run(read, buffer.into())?.into_buffer();
        Ok(self.pair.look(Purpose::Other, &buffer, 0..TABLE_BYTES).to_vec())
    }

    fn write(&mut self) -> io::Result<()> {
        let writings = self.writings + 1;
        let mut buffer = self.buffer()?;
        let table = encode(writings, &self.entries);
        self.pair.fill(Purpose::Other, &mut buffer, 0..TABLE_BYTES).copy_from_slice(&table);
        let (from, length) = (MemoryAddress::local(buffer.offset()), TABLE_BYTES as u32);
        let flash = writings % 2 * TABLE_BYTES as u64;
        self.run(Operation::Write { flash, from, length, fua: false }, buffer.into())?;
        self.run(Operation::Flush, Lease::Nothing)?;
        self.writings = writings;
        Ok(())
    }

    fn buffer(&self) -> io::Result<LocalBuffer> {
        self.pair.drive().local().allocate(TABLE_BYTES).ok_or_else(|| io::Error::other("no local memory"))
    }

    /// Waits for the command. Returns its lease.
    fn run(&mut self, operation: Operation, lease: Lease) -> io::Result<Lease> {
        self.pair.submit(Command::new(0, operation), lease).map_err(io::Error::other)?;
        let mut returned = Vec::new();
        self.pair.drain_into(&mut returned);
        let Some(Returned { completion, lease }) = returned.pop() else { return Err(io::Error::other("no answer")) };
        match completion.status {
            Status::Success => Ok(lease),
            Status::Failed => Err(io::Error::from_raw_os_error(completion.errno)),
            status => Err(io::Error::other(format!("{status:?}"))),
        }
    }
}

fn encode(writings: u64, entries: &[Partition]) -> [u8; TABLE_BYTES] {
    let mut table = [0; TABLE_BYTES];
    put(&mut table, 0, MAGIC.to_le_bytes());
    put(&mut table, 8, writings.to_le_bytes());
    put(&mut table, 16, (entries.len() as u32).to_le_bytes());
    for (entry, place) in entries.iter().zip(table[ENTRY_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        place[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        put(place, 64, entry.start.to_le_bytes());
        put(place, 72, entry.length.to_le_bytes());
        put(place, 80, entry.epoch.to_le_bytes());
        put(place, 88, entry.owner.to_le_bytes());
        put(place, 96, entry.host.to_le_bytes());
        put(place, 92, (if entry.is_made { FLAG_MADE } else { 0 }).to_le_bytes());
    }
    let crc = crc32c_append(0, &table);
    put(&mut table, CRC, crc.to_le_bytes());
    table
}

/// A whole table and its number; `None` for anything else.
fn decode(bytes: &[u8]) -> Option<(u64, Vec<Partition>)> {
    let mut table: [u8; TABLE_BYTES] = bytes.try_into().ok()?;
    let crc = u32::from_le_bytes(get(&table, CRC));
    put(&mut table, CRC, [0; 4]);
    let count = u32::from_le_bytes(get(&table, 16)) as usize;
    let is_whole = u64::from_le_bytes(get(&table, 0)) == MAGIC && crc == crc32c_append(0, &table);
    if !is_whole || count > PARTITIONS_MAX {
        return None;
    }
    let entry = |place: &[u8]| {
        let name = place[..NAME_BYTES_MAX].split(|byte| *byte == 0).next()?;
        Some(Partition {
            name: String::from_utf8(name.to_vec()).ok()?,
            start: u64::from_le_bytes(get(place, 64)),
            length: u64::from_le_bytes(get(place, 72)),
            epoch: u64::from_le_bytes(get(place, 80)),
            owner: u32::from_le_bytes(get(place, 88)),
            host: u64::from_le_bytes(get(place, 96)),
            is_made: u32::from_le_bytes(get(place, 92)) & FLAG_MADE != 0,
        })
    };
    let entries: Option<Vec<Partition>> =
        table[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(count).map(entry).collect();
    Some((u64::from_le_bytes(get(&table, 8)), entries?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, Flash, LocalMemory, MemoryFlash};
    use std::sync::Arc;

    fn partitions(flash: &Arc<MemoryFlash>) -> io::Result<Partitions> {
        let local = LocalMemory::new(1 << 16).unwrap();
        let flash: Arc<dyn Flash> = flash.clone();
        Partitions::open(&Drive::new(flash, local, Vec::new(), Env::simulated(1).0))
    }

    fn flash(mebibytes: u64) -> Arc<MemoryFlash> {
        Arc::new(MemoryFlash::new(mebibytes << 20))
    }

    #[test]
    fn partitions_are_apart_and_there_again() {
        let flash = flash(20);
        let mut all = partitions(&flash).unwrap();
        all.make("a", 5 << 20, 7).unwrap();
        all.make("b", 4097, 8).unwrap();
        all.change("a", |partition| (partition.epoch, partition.host) = (3, 77)).unwrap();
        all.change("b", |partition| partition.is_made = true).unwrap();
        let before = all.all().to_vec();
        assert_eq!((before[0].start, before[0].length, before[1].start), (UNIT_BYTES, 5 << 20, 6 << 20));
        drop(all);
        assert_eq!(partitions(&flash).unwrap().all(), before);
    }

    #[test]
    fn room_is_found_between_and_behind() {
        let mut all = partitions(&flash(12)).unwrap();
        all.make("a", 4 << 20, 0).unwrap();
        all.make("b", 2 << 20, 0).unwrap();
        assert!(matches!(all.make("c", 6 << 20, 0), Err(PartitionError::NoSpace { .. })));
        assert!(matches!(all.grow("a", 5 << 20), Err(PartitionError::NoSpace { .. })));
        assert_eq!(all.grow("b", (2 << 20) + 1).unwrap(), (2 << 20) + 4096);
        assert!(matches!(all.grow("none", 1), Err(PartitionError::NotFound)));
        all.make("c", 4 << 20, 0).unwrap();
        assert!(all.grow("b", 4 << 20).is_err());
        all.entries.remove(1);
        all.make("d", 3 << 20, 0).unwrap();
        let starts: Vec<u64> = all.all().iter().map(|entry| entry.start >> 20).collect();
        assert_eq!(starts, [1, 5, 8]);
        all.check().unwrap();
    }

    #[test]
    fn names_are_names() {
        let mut all = partitions(&flash(4)).unwrap();
        for name in ["", "a/b", "a\0", &"x".repeat(65)] {
            assert!(matches!(all.make(name, 1, 0), Err(PartitionError::BadName)), "{name:?}");
        }
    }

    #[test]
    fn a_table_that_was_cut_short_leaves_the_one_before() {
        let flash = flash(8);
        let mut all = partitions(&flash).unwrap();
        all.make("a", 1, 0).unwrap();
        let before = all.all().to_vec();
        all.make("b", 1, 0).unwrap();
        let last = all.writings % 2 * TABLE_BYTES as u64;
        let mut buffer = all.buffer().unwrap();
        buffer.bytes_mut().fill(0xff);
        let (from, length) = (MemoryAddress::local(buffer.offset()), 512);
        all.run(Operation::Write { flash: last + 2048, from, length, fua: false }, buffer.into()).unwrap();
        drop(all);
        assert_eq!(partitions(&flash).unwrap().all(), before);
    }

    #[test]
    fn what_holds_something_else_is_not_taken() {
        let flash = flash(8);
        let mut all = partitions(&flash).unwrap();
        for place in 0..2 {
            let mut buffer = all.buffer().unwrap();
            buffer.bytes_mut().fill(1);
            let (from, length) = (MemoryAddress::local(buffer.offset()), TABLE_BYTES as u32);
            let at = place * TABLE_BYTES as u64;
            all.run(Operation::Write { flash: at, from, length, fua: false }, buffer.into()).unwrap();
        }
        drop(all);
        assert!(partitions(&flash).is_err());
    }
}
