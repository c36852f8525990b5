//! The data layer of ordered keyspaces: nodes against a map, pages of anything, and extensions.

use std::collections::BTreeMap;
use tapetum::fuzzing::Input;
use tapetum_drive::Status;
use tapetum_drive::program::{Context, Program, ProgramResult, TaskState};
use tapetum_drive::programs::node::{
    GetRequests, ItemReader, NodeArguments, NodeFlags, NodeGet, NodePut, NodeRealign, NodeScan, NodeScanRequest,
    PutCondition, PutRequests, ScanBound,
};
use tapetum_kernels::checksum::checksum;
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::mib_sums::{MibSums, STATIONS_BYTES_MAX, stations_bytes};
use tapetum_kernels::ordered::extension::{
    EXTENSION_PREFIX_BYTES_MAX, ExtensionClass, ExtensionHead, ExtensionReference, front_bytes,
};
use tapetum_kernels::ordered::{
    Arrival, HEAD_BYTES, ImageSeal, NODE_BYTES, NewNode, NodeCut, NodeError, NodeMut, NodeOrder, NodePage, NodeRef,
    SlotAddress, SlotSalt, merge, node_record_bytes, split_off, split_rest,
};
use tapetum_kernels::record::{Header, Record};

fn salt() -> SlotSalt {
    SlotSalt { store: 5, slot: SlotAddress::new(ExtentAddress::new(0, 3), 7), version: 11 }
}

/// A key of one to 1024 bytes: many are prefixes of each other.
fn key(input: &mut Input<'_>) -> Vec<u8> {
    let shape = input.u8();
    let stem = [0, b'a', 0xff, b'a'][usize::from(shape & 3)];
    let length = [1, 2, 3, 9, 40, 300, 1000, 1024][usize::from(shape >> 2 & 7)];
    let mut key = vec![stem; length];
    let tail = input.bytes(usize::from(shape >> 5).min(length));
    key[length - tail.len()..].copy_from_slice(tail);
    key
}

/// Puts, removals, compactions and splits of one node, against a map. A split is undone by a merge.
pub fn node(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut fences = [key(&mut input), key(&mut input)];
    fences.sort();
    let high_fence = (input.u8() & 1 == 0).then_some(&fences[1][..]);
    let new = NewNode { keyspace: 3, id: 17, low_fence: &fences[0], high_fence };
    let mut page: Box<NodePage> = Box::new([0; NODE_BYTES]);
    let formatted = NodeMut::format(&mut page, &new).is_ok();
    assert_eq!(formatted, high_fence.is_none_or(|high| *fences[0] < *high));
    let mut map: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
    let mut stamp = 0;
    while formatted && !input.is_empty() && stamp < 200 {
        stamp += 1;
        let what = input.u8();
        let key = if what & 8 == 0 || map.is_empty() {
            key(&mut input)
        } else {
            let place = input.below(map.len());
            map.keys().nth(place).cloned().unwrap_or_default()
        };
        let mut node = NodeMut::look(&mut page[..]).expect("it was formatted");
        match what & 7 {
            0 => {
                let removed = node.remove(&key).expect("it is whole").map(|removed| removed.stamp);
                assert_eq!(removed, map.remove(&key).map(|(stamp, _)| stamp));
            }
            1 => node.compact().expect("it is whole"),
            _ => {
                let length = [0, 1, 20, 127, 128, 500, 1500, 1940][usize::from(what >> 5)];
                let value = vec![stamp as u8; length];
                let record = Record { header: Header::value(stamp, key.len(), length), key: &key, stored: &value };
                match node.put(&record) {
                    Ok(replaced) => {
                        let before = map.insert(key, (stamp, value)).map(|(stamp, _)| stamp);
                        assert_eq!(replaced.map(|replaced| replaced.stamp), before);
                    }
                    Err(NodeError::NoRoom) => split_for(&page, &record),
                    Err(error) => assert!(matches!(error, NodeError::OutsideFences | NodeError::Unfit), "{error:?}"),
                }
            }
        }
    }
    if formatted {
        check(&mut page, &map);
    }
}

/// A node that has no room is split, and one of the halves takes the record, or can be split again.
fn split_for(page: &NodePage, record: &Record<'_>) {
    let node = NodeRef::look(&page[..]).expect("it is whole");
    let mut order = NodeOrder::new();
    order.sort(&node).expect("it is whole");
    let arrival = Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) };
    let (mut left, mut right): (Box<NodePage>, Box<NodePage>) = (Box::new([0; NODE_BYTES]), Box::new([0; NODE_BYTES]));
    let done = split_off(&node, &order, NodeCut::For(Some(arrival)), 18, &mut right).expect("it can be split");
    let upper = NodeRef::look(&right[..]).expect("it was just made");
    split_rest(&node, &upper, &mut left).expect("the right page is its upper half");
    let lower = NodeRef::look(&left[..]).expect("it was just made");
    assert_eq!(lower.count() + upper.count(), node.count());
    let mut merged: Box<NodePage> = Box::new([0; NODE_BYTES]);
    merge(&lower, &upper, &mut merged).expect("it was one node");
    let again = NodeRef::look(&merged[..]).expect("it was one node");
    assert_eq!((again.low_fence(), again.high_fence()), (node.low_fence(), node.high_fence()));
    assert_eq!(again.live_bytes(), node.live_bytes());
    let half = if lower.covers(record.key) { left } else { right };
    let mut half = half;
    let put = NodeMut::look(&mut half[..]).expect("it is whole").put(record);
    assert_eq!(put.is_ok(), done.has_room);
    assert!(put.is_ok() || NodeRef::look(&half[..]).expect("it is whole").count() < node.count());
}

/// A sealed node holds what the map holds, and no bit of it can be changed.
fn check(page: &mut NodePage, map: &BTreeMap<Vec<u8>, (u64, Vec<u8>)>) {
    NodeMut::look(page).expect("it is whole").seal(salt(), ImageSeal { stamp: 1, durable: 0, round_images: 0 });
    let node = NodeRef::check(page, salt()).expect("it was sealed");
    let mut order = NodeOrder::new();
    order.sort(&node).expect("it is whole");
    assert_eq!(order.count(), map.len());
    for ((key, (stamp, value)), record) in map.iter().zip(order.records(node, 0..map.len())) {
        let record = record.expect("it is whole");
        assert_eq!((record.key, record.header.stamp, record.stored), (&key[..], *stamp, &value[..]));
        assert_eq!(node.get(key).map(|found| found.map(|found| found.header.stamp)), Ok(Some(*stamp)));
    }
    let at = map.len() * 37 % NODE_BYTES;
    page[at] ^= 1 << (map.len() % 8);
    assert!(NodeRef::check(page, salt()).is_err());
}

/// A page of anything whose checksum holds: what the programs make of it stays within bounds.
pub fn node_page(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut page: Box<NodePage> = Box::new([0; NODE_BYTES]);
    let (shape, output_bytes) = (input.u8(), usize::from(input.u16()) % (2 * NODE_BYTES));
    let key = key(&mut input);
    page[4..HEAD_BYTES - 6].copy_from_slice(&input.array::<{ HEAD_BYTES - 10 }>());
    (page[4], page[5]) = (1, page[5] & 1);
    let slots = input.bytes(96);
    page[HEAD_BYTES..HEAD_BYTES + slots.len()].copy_from_slice(slots);
    // Records at the end, where offsets are likely to lead.
    let rest = input.rest();
    let rest = &rest[..rest.len().min(NODE_BYTES - HEAD_BYTES - 96)];
    page[NODE_BYTES - rest.len()..].copy_from_slice(rest);
    let crc = checksum(salt().of_node(), &[&page[4..]]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    let Ok(node) = NodeRef::look(&page[..]) else { return };
    let is_right = NodeRef::check(&page[..], salt()).is_ok();
    let flags = if shape & 1 == 0 { NodeFlags::NONE } else { NodeFlags::CHECK };
    let arguments = NodeArguments {
        salt: salt(),
        id: node.id(),
        stamp: 0,
        watermark: 0,
        seal: ImageSeal { stamp: 2, durable: 1, round_images: 0 },
        now_ms: 7,
        flags,
    };
    let mut parameters = Vec::new();
    GetRequests::new(&arguments, &mut parameters).push(&key);
    let mut output = vec![0; output_bytes];
    let status = run(&NodeGet, &parameters, &page, &mut output).0;
    assert!(status != Status::Success || output_bytes >= 32);
    let reverse = if shape & 2 == 0 { flags } else { flags.with(NodeFlags::REVERSE) };
    let request =
        NodeScanRequest { from: ScanBound::Included(&key), to: ScanBound::Unbounded, limit: 1 + u16::from(shape >> 2) };
    request.encode(&NodeArguments { flags: reverse, ..arguments }, &mut parameters);
    if let (Status::Success, [filled, items]) = run(&NodeScan, &parameters, &page, &mut output) {
        assert_eq!(ItemReader::new(&output[..filled as usize]).count() as u64, items & 0xffff_ffff);
    }
    let mut changed = vec![0; NODE_BYTES + 100];
    let value = vec![9; usize::from(shape) * 7];
    let mut requests =
        PutRequests::new(&NodeArguments { flags: flags.with(NodeFlags::SEAL), ..arguments }, &mut parameters);
    requests.push(
        PutCondition::Always,
        &Record { header: Header::value(9, key.len(), value.len()), key: &key, stored: &value },
    );
    requests.push(PutCondition::Present, &Record { header: Header::tombstone(9, key.len()), key: &key, stored: &[] });
    let status = run(&NodePut, &parameters, &page, &mut changed).0;
    if is_right {
        assert_eq!(status, Status::Success);
        assert!(NodeRef::check(&changed[..NODE_BYTES], salt()).is_ok(), "what is right stays right");
    }
    parameters.clear();
    NodeArguments { flags: flags.with(NodeFlags::SEAL), ..arguments }.encode(&mut parameters);
    let mut changed = vec![0; NODE_BYTES + output_bytes];
    let status = run(&NodeRealign, &parameters, &page, &mut changed).0;
    if is_right && status == Status::Success {
        assert!(NodeRef::check(&changed[..NODE_BYTES], salt()).is_ok(), "what is right stays right");
    }
}

fn run(program: &dyn Program, parameters: &[u8], page: &NodePage, output: &mut [u8]) -> ProgramResult {
    let inputs: &[&[u8]] = &[page];
    (0..2).for_each(|round| program.prefetch(round, parameters, inputs));
    program.run(Context { parameters, inputs, output, task: &mut TaskState::default() })
}

/// An extension that parses fits its class; one that is written is read back; a reference that parses is written the same.
pub fn extension(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let key = key(&mut input);
    if let Ok(reference) = ExtensionReference::parse(input.bytes(20)) {
        let again = ExtensionReference::parse(&reference.encode());
        assert_eq!(again, Ok(reference));
        let class = reference.class(key.len()).expect("its lengths are within the limits");
        assert!(
            class.bytes()
                >= u64::from(reference.stored_bytes) + front_bytes(key.len(), reference.stored_bytes as usize) as u64
        );
        let stored_bytes = reference.stored_bytes;
        let raw_bytes = stored_bytes / 2 * 2;
        let raw_bytes = if reference.codec == tapetum_kernels::record::Codec::Raw { stored_bytes } else { raw_bytes };
        let (stamp, codec) = (reference.stamp, reference.codec);
        let stations = [7; STATIONS_BYTES_MAX];
        let sums =
            MibSums::from_flash(&stations[..stations_bytes(stored_bytes as usize)], 9).expect("as many as it has");
        let head = ExtensionHead { keyspace: 3, stamp, codec, raw_bytes, stored_bytes, sums };
        let mut written = vec![0; EXTENSION_PREFIX_BYTES_MAX];
        let length = head.encode(&key, salt(), &mut written);
        assert_eq!(ExtensionHead::parse(&written[..length], salt()), Ok((head, &key[..])));
        assert_eq!(head.check(&reference, raw_bytes), Ok(()));
    }
    let mut any = input.rest().to_vec();
    any.resize(EXTENSION_PREFIX_BYTES_MAX, 0);
    let stored_bytes = u32::from_le_bytes([any[20], any[21], any[22], any[23]]) as usize;
    let length = front_bytes(u16::from_le_bytes([any[28], any[29]]).into(), stored_bytes);
    if length <= any.len() {
        let crc = checksum(salt().of_extension(), &[&any[4..length]]);
        any[..4].copy_from_slice(&crc.to_le_bytes());
    }
    if let Ok((head, key)) = ExtensionHead::parse(&any, salt()) {
        assert!(ExtensionClass::of(key.len(), head.stored_bytes as usize).is_some());
        let mut again = vec![0; EXTENSION_PREFIX_BYTES_MAX];
        let length = head.encode(key, salt(), &mut again);
        assert_eq!(again[..length], any[..length]);
    }
}
