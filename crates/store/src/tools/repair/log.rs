//! The log of a store that may be damaged: which groups are the store's, and the zones written anew without the others.
//!
//! A group after a hole may be a stale one, which a crash cut off before the store went on without it. So it counts only if it
//! was written since the store was last opened, as its generation says, if it was the last one then, or if groups that count go
//! back to it, each naming the checksum of the one before. A hole below which nothing is said to be durable is where a crash cut the log: it ends there.

use super::report::Loss;
use tapetum_base::error::Error;
use tapetum_base::log::group::{self, GroupHeader, HEADER_BYTES};
use tapetum_base::log::group_salt;
use tapetum_base::manifest::base_marks::BaseMarks;
use tapetum_base::media::geometry::{BUFFERS, Geometry};
use tapetum_base::media::io::Io;
use tapetum_base::recover::read_zone;
use tapetum_kernels::range_checksums::RangeChecksums;
use tapetum_kernels::record::{Header, Record, STAMP_MAX};

/// Bytes written at once.
const STAGE_BYTES: usize = 256 << 10;

pub struct FoundGroup {
    pub header: GroupHeader,
    /// Stamp of its last record: between records there may be stamps of writes that are not in the log.
    stamp_last: u64,
    /// Its records, if they are not those of the zone any more.
    edited: Option<Vec<u8>>,
}

impl FoundGroup {
    fn start(&self) -> usize {
        self.header.position as usize
    }
}

/// A group that holds.
struct SeenGroup {
    header: GroupHeader,
    stamp_last: u64,
}

/// The stamp of the last of these records; the stamp before the first one, if there is none.
fn stamp_last(header: &GroupHeader, mut records: &[u8]) -> u64 {
    let mut last = header.stamp_first.saturating_sub(1);
    while let Ok(record) = Record::parse(records) {
        last = last.max(record.header.stamp);
        records = &records[record.header.record_bytes()..];
    }
    last
}

pub struct FoundLog {
    zones: [Vec<u8>; BUFFERS as usize],
    /// Groups that count, in the order of their stamps.
    pub kept: Vec<FoundGroup>,
    /// Starts of groups that hold but do not count: buffer and position.
    stale: Vec<(u64, usize)>,
    pub losses: Vec<Loss>,
    /// It is to be written anew.
    pub is_damaged: bool,
    /// The highest stamp that any group speaks of.
    pub stamp_seen: u64,
    pub generation_seen: u64,
    buffer_seen: u64,
}

/// Reads both zones. `is_damaged`: the log does not hold as it is.
pub async fn read_log(
    io: &Io,
    geometry: &Geometry,
    store_id: u64,
    marks: &BaseMarks,
    is_damaged: bool,
) -> Result<FoundLog, Error> {
    let mut zones = [(); BUFFERS as usize].map(|()| vec![0; geometry.segment_bytes as usize]);
    let mut seen: Vec<SeenGroup> = Vec::new();
    for (zone, image) in (0..).zip(&mut zones) {
        read_zone(io, geometry, zone, image).await?;
        seen.extend(groups_of(geometry, store_id, zone, image));
    }
    seen.retain(|seen| seen.header.buffer >= marks.trim.buffer_next);
    seen.sort_by_key(|seen| (seen.header.buffer, seen.header.position));
    let buffer_seen = seen.last().map_or(marks.trim.buffer_next, |last| last.header.buffer);
    let said = |seen: &SeenGroup| seen.stamp_last.max(seen.header.durable_stamp);
    let stamp_seen = seen.iter().map(said).max().unwrap_or(0).max(marks.stamp_durable());
    let generation_seen =
        seen.iter().map(|seen| seen.header.generation.into()).max().unwrap_or(0).max(marks.opening.generation);
    let mut log = FoundLog {
        zones,
        kept: Vec::new(),
        stale: Vec::new(),
        losses: Vec::new(),
        is_damaged,
        stamp_seen,
        generation_seen,
        buffer_seen,
    };
    log.choose(geometry, marks, seen);
    Ok(log)
}

/// The groups of a zone that hold.
fn groups_of(geometry: &Geometry, store_id: u64, zone: u64, bytes: &[u8]) -> Vec<SeenGroup> {
    let (sums, sector) = (RangeChecksums::of(bytes), geometry.sector_bytes as usize);
    let (mut groups, mut position) = (Vec::new(), 0);
    while position < bytes.len() {
        let is_here = |header: &GroupHeader| {
            header.buffer % BUFFERS == zone
                && header.position as usize == position
                && header.length as usize <= bytes.len() - position
        };
        let salt = |header: &GroupHeader| group_salt(geometry, store_id, header.buffer, position);
        let found = group::parse(&bytes[position..]).filter(is_here);
        match found.filter(|header| group::holds(header, salt(header), &sums, position)) {
            Some(header) => {
                let records = &bytes[position + HEADER_BYTES..position + header.length as usize];
                let stamp_last = stamp_last(&header, records);
                position += (header.length as usize).next_multiple_of(sector);
                groups.push(SeenGroup { header, stamp_last });
            }
            None => position += sector,
        }
    }
    groups
}

impl FoundLog {
    /// Chooses those that count of the groups that hold, which come in order.
    fn choose(&mut self, geometry: &Geometry, marks: &BaseMarks, seen: Vec<SeenGroup>) {
        let sector = geometry.sector_bytes as usize;
        let end = |header: &GroupHeader| (header.position as usize + header.length as usize).next_multiple_of(sector);
        let follows = |one: &GroupHeader, next: &GroupHeader| {
            let is_next = next.buffer == one.buffer && next.position as usize == end(one)
                || next.buffer == one.buffer + 1 && next.position == 0;
            is_next && next.previous_crc == one.crc
        };
        let is_first = |header: &GroupHeader| {
            (header.buffer, header.position, header.previous_crc) == (marks.trim.buffer_next, 0, marks.trim.log_crc)
        };
        let mut counts = vec![false; seen.len()];
        // From the front, as a recovery goes.
        if let Some(first) = seen.iter().position(|seen| is_first(&seen.header)) {
            counts[first] = true;
            let mut last = first;
            for next in first + 1..seen.len() {
                if follows(&seen[last].header, &seen[next].header) {
                    (counts[next], last) = (true, next);
                }
            }
        }
        if self.is_damaged {
            let mut next = None::<usize>;
            for number in (0..seen.len()).rev() {
                // The zones hold two buffers; any other group that holds is older.
                let SeenGroup { header, stamp_last } = &seen[number];
                let is_current = header.buffer + 1 >= self.buffer_seen;
                let is_named = next.is_some_and(|next| follows(header, &seen[next].header));
                let is_of_now = u64::from(header.generation) == self.generation_seen;
                let was_last = *stamp_last == marks.opening.stamp_opened;
                counts[number] = is_current && (counts[number] || is_of_now || was_last || is_named);
                if counts[number] {
                    next = Some(number);
                }
            }
        }
        let stamp_before = marks.trim.stamp_max;
        let durable_max =
            seen.iter().map(|seen| seen.header.durable_stamp).max().unwrap_or(0).max(marks.stamp_durable());
        let (mut last, mut has_ended) = (None::<GroupHeader>, false);
        for (SeenGroup { header, stamp_last: own_last }, counts) in seen.into_iter().zip(counts) {
            let stamp_last = self.kept.last().map_or(stamp_before, |group| group.stamp_last);
            let is_linked = last.as_ref().map_or(is_first(&header), |last| follows(last, &header));
            has_ended |= counts && !is_linked && durable_max <= stamp_last;
            if !counts || has_ended || header.stamp_first <= stamp_last {
                self.stale.push((header.buffer, header.position as usize));
                continue;
            }
            if !is_linked {
                self.lose(stamp_last + 1, header.stamp_first - 1);
            }
            last = Some(header);
            self.kept.push(FoundGroup { header, stamp_last: own_last, edited: None });
        }
        match self.kept.last().map(|group| group.stamp_last) {
            Some(last) if self.is_damaged => self.lose(last + 1, self.stamp_seen),
            // Nobody knows how far it went.
            None if self.is_damaged => self.lose(stamp_before + 1, STAMP_MAX),
            _ => {}
        }
    }

    fn lose(&mut self, first: u64, last: u64) {
        if first <= last {
            self.losses.push(Loss::Writes { stamps: first..=last, place: "damaged groups of the commit log".into() });
        }
    }

    fn bytes_of<'a>(&'a self, group: &'a FoundGroup) -> &'a [u8] {
        let zone = &self.zones[(group.header.buffer % BUFFERS) as usize];
        let whole = &zone[group.start() + HEADER_BYTES..group.start() + group.header.length as usize];
        group.edited.as_deref().unwrap_or(whole)
    }

    /// Shows every record that counts, in the order of writing, and the number of its group.
    pub fn each(&self, mut visit: impl FnMut(usize, Record<'_>)) {
        for (number, group) in self.kept.iter().enumerate() {
            let mut bytes = self.bytes_of(group);
            while let Ok(record) = Record::parse(bytes) {
                visit(number, record);
                bytes = &bytes[record.header.record_bytes()..];
            }
        }
    }

    /// Turns the record with this stamp into the deletion of its key.
    pub fn delete(&mut self, number: usize, stamp: u64) {
        let mut edited = Vec::new();
        let mut bytes = self.bytes_of(&self.kept[number]);
        while let Ok(mut record) = Record::parse(bytes) {
            bytes = &bytes[record.header.record_bytes()..];
            if record.header.stamp == stamp {
                let keyspace = record.header.keyspace;
                record.header = Header { keyspace, ..Header::tombstone(stamp, record.key.len()) };
                record.stored = &[];
            }
            let at = edited.len();
            edited.resize(at + record.header.record_bytes(), 0);
            record.encode(&mut edited[at..]);
        }
        self.kept[number].edited = Some(edited);
        self.is_damaged = true;
    }

    /// The buffer with which the log begins when it is written anew.
    pub fn buffer_first(&self) -> u64 {
        self.kept.first().map_or(self.buffer_seen + 1, |first| first.header.buffer)
    }

    /// The last stamp that counts, if any does.
    pub fn stamp_last(&self) -> u64 {
        self.kept.last().map_or(0, |group| group.stamp_last)
    }

    /// Writes the groups that count one behind the other, as a log that follows `crc`.
    pub async fn write(&self, io: &Io, geometry: &Geometry, store_id: u64, crc: u32) -> Result<(), Error> {
        let sector = geometry.sector_bytes as usize;
        let mut ends = [0; BUFFERS as usize];
        let (mut previous_crc, mut durable_stamp) = (crc, 0);
        for group in &self.kept {
            let end = &mut ends[(group.header.buffer % BUFFERS) as usize];
            let records = self.bytes_of(group);
            let is_as_it_was =
                group.edited.is_none() && (group.start(), group.header.previous_crc) == (*end, previous_crc);
            if is_as_it_was {
                previous_crc = group.header.crc;
                *end += (group.header.length as usize).next_multiple_of(sector);
            } else {
                let length = HEADER_BYTES + records.len();
                let header = GroupHeader {
                    position: *end as u32,
                    length: length as u32,
                    previous_crc,
                    durable_stamp,
                    ..group.header
                };
                let (head, crc) = group::seal(&header, group_salt(geometry, store_id, header.buffer, *end), records);
                let mut bytes = [&head[..], records].concat();
                bytes.resize(length.next_multiple_of(sector), 0);
                write(io, geometry.zone_offset(header.buffer) + *end as u64, &bytes).await?;
                previous_crc = crc;
                *end += bytes.len();
            }
            durable_stamp = group.stamp_last;
        }
        // Nothing may be found any more at the starts of other groups that hold.
        let starts = self.kept.iter().map(|group| (group.header.buffer, group.start()));
        for (buffer, start) in starts.chain(self.stale.iter().copied()) {
            if start >= ends[(buffer % BUFFERS) as usize] {
                write(io, geometry.zone_offset(buffer) + start as u64, &vec![0; sector]).await?;
            }
        }
        Ok(())
    }
}

async fn write(io: &Io, flash: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut buffer = io.allocate(STAGE_BYTES.min(bytes.len())).await?;
    for (number, piece) in bytes.chunks(STAGE_BYTES).enumerate() {
        io.fill(&mut buffer, 0..piece.len()).copy_from_slice(piece);
        io.write(flash + (number * STAGE_BYTES) as u64, &mut buffer, piece.len()).await?;
    }
    Ok(())
}
