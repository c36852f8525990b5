//! The log: zones that were written, cut by a crash or damaged; and groups of anything.

use super::Input;
use tapetum_base::log::group::{self, GroupHeader, HEADER_BYTES};
use tapetum_base::log::group_salt;
use tapetum_base::log::replay::{Chain, ZoneReader};
use tapetum_base::media::geometry::Geometry;
use tapetum_kernels::checksum::Salt;
use tapetum_kernels::record::{Header, Record};

const STORE: u64 = 7;
const BUFFER: u64 = 5;
const GENERATION: u32 = 3;
const ZONE_BYTES: usize = 64 << 10;

fn geometry() -> Geometry {
    Geometry::new(2 << 20, ZONE_BYTES as u64, 2, 512).expect("a small store")
}

/// A group in the zone.
struct Group {
    start: usize,
    /// Bytes without its padding.
    length: usize,
    /// The last stamp in it, and in all before it.
    stamp_last: u64,
    durable_stamp: u64,
    /// Records of all groups up to this one.
    records: usize,
}

struct Zone {
    geometry: Geometry,
    bytes: Vec<u8>,
    groups: Vec<Group>,
    /// Each record's place, stamp and key.
    records: Vec<(u32, u64, Vec<u8>)>,
    end: usize,
    chain: Chain,
}

impl Zone {
    fn new() -> Zone {
        let chain = Chain::new(11, 100);
        let (groups, records) = (Vec::new(), Vec::new());
        Zone { geometry: geometry(), bytes: vec![0; ZONE_BYTES], groups, records, end: 0, chain }
    }

    fn salt(&self, position: usize) -> Salt {
        group_salt(&self.geometry, STORE, BUFFER, position)
    }

    /// Appends a group of records from the input, if there is room.
    fn append(&mut self, input: &mut Input<'_>) {
        let shape = input.u8();
        let mut body = Vec::new();
        let mut records = Vec::new();
        let stamp_first = self.chain.stamp_last + 1;
        for number in 0..=u64::from(shape & 3) {
            let more = input.below(8);
            let key = [&[shape], input.bytes(more)].concat();
            let stored = vec![shape; input.below(300)];
            let header = Header::value(stamp_first + number, key.len(), stored.len());
            let place = body.len();
            body.resize(place + header.record_bytes(), 0);
            Record { header, key: &key, stored: &stored }.encode(&mut body[place..]);
            records.push(((self.end + HEADER_BYTES + place) as u32, header.stamp, key));
        }
        let length = HEADER_BYTES + body.len();
        if self.end + length > ZONE_BYTES {
            return;
        }
        // The stamp that was durable when the group was sent: the last one before it, or an earlier one.
        let durable_stamp = self.chain.stamp_last - u64::from(shape >> 2 & 7);
        let header = GroupHeader {
            crc: 0,
            buffer: BUFFER,
            position: self.end as u32,
            length: length as u32,
            stamp_first,
            records: records.len() as u32,
            generation: GENERATION,
            previous_crc: self.chain.previous_crc,
            durable_stamp,
        };
        let (head, crc) = group::seal(&header, self.salt(self.end), &body);
        self.bytes[self.end..][..HEADER_BYTES].copy_from_slice(&head);
        self.bytes[self.end + HEADER_BYTES..][..body.len()].copy_from_slice(&body);
        self.records.append(&mut records);
        let stamp_last = stamp_first + u64::from(shape & 3);
        let records = self.records.len();
        self.groups.push(Group { start: self.end, length, stamp_last, durable_stamp, records });
        self.end += length.next_multiple_of(self.geometry.sector_bytes as usize);
        (self.chain.previous_crc, self.chain.stamp_last) = (crc, stamp_last);
    }

    /// Replays, and looks for damage behind the end, as recovery does: the records, and whether all is well.
    fn replay(&self) -> (Vec<(u32, u64, Vec<u8>)>, bool) {
        let reader = ZoneReader { geometry: &self.geometry, store_id: STORE };
        let mut chain = Chain::new(11, 100);
        let mut records = Vec::new();
        let take = |place, record: Record<'_>| records.push((place, record.header.stamp, record.key.to_vec()));
        let end = reader.replay(&self.bytes, BUFFER, &mut chain, take);
        let well = end.and_then(|end| reader.refuse_gap(&self.bytes, BUFFER, end.position, &chain));
        (records, well.is_ok())
    }
}

pub fn log(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8() & 7 != 0 { written(&mut input) } else { sealed(&mut input) }
}

/// Whatever a crash cuts off or damage strikes, replay gives the records written before it. Damage to durable records is an error.
fn written(input: &mut Input<'_>) {
    let (what, at, damage) = (input.u8(), usize::from(input.u16()), input.array::<3>());
    let mut zone = Zone::new();
    while !input.is_empty() {
        zone.append(input);
    }
    let at = if zone.end == 0 { 0 } else { at % zone.end };
    if what & 1 == 0 {
        // A crash: from here on there are older bytes, of no buffer that is read.
        let filler = if what & 2 == 0 { 0 } else { what };
        zone.bytes[at..zone.end].fill(filler);
    } else {
        zone.bytes[at..].iter_mut().zip(damage).for_each(|(byte, damage)| *byte ^= damage);
    }
    let burst = at + damage.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let first = at + damage.iter().position(|byte| *byte != 0).unwrap_or(0);
    let struck = |group: &Group| {
        let end = group.start + group.length;
        if what & 1 == 0 { at < end } else { first < burst && first < end && burst > group.start }
    };
    let (records, well) = zone.replay();
    match zone.groups.iter().position(struck) {
        // Filled with the very bytes that were there, or struck beyond the last group.
        _ if what & 1 == 0 && records.len() == zone.records.len() => assert!(well && records == zone.records),
        None => assert!(well && records == zone.records),
        Some(number) => {
            let (stamp_last, count) = match number.checked_sub(1) {
                Some(before) => (zone.groups[before].stamp_last, zone.groups[before].records),
                None => (100, 0),
            };
            if what & 1 == 0 {
                assert!(records.len() >= count && zone.records.starts_with(&records), "a crash is no damage");
                assert!(well);
            } else {
                assert_eq!(records, zone.records[..count]);
                // The burst may have struck the next group too.
                let whole = zone.groups[number..].iter().filter(|group| !struck(group));
                let hole = whole.into_iter().any(|group| group.durable_stamp > stamp_last);
                assert_eq!(well, !hole);
            }
        }
    }
}

/// Groups of anything, whose checksums hold: no record is read beyond its group.
fn sealed(input: &mut Input<'_>) {
    let mut zone = Zone::new();
    let (stamp_first, records, body) = (input.u64(), input.u32(), input.rest());
    let header = GroupHeader {
        crc: 0,
        buffer: BUFFER,
        position: 0,
        length: (HEADER_BYTES + body.len()) as u32,
        stamp_first,
        records,
        generation: GENERATION,
        previous_crc: 11,
        durable_stamp: stamp_first,
    };
    let (head, _) = group::seal(&header, zone.salt(0), body);
    zone.bytes[..HEADER_BYTES].copy_from_slice(&head);
    zone.bytes[HEADER_BYTES..][..body.len()].copy_from_slice(body);
    let (read, well) = zone.replay();
    assert!(read.len() <= records as usize);
    assert!(!well || read.len() == records as usize);
    assert!(read.iter().all(|(place, ..)| (*place as usize) < HEADER_BYTES + body.len()));
}
