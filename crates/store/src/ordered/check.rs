//! Checks an ordered keyspace: reads each data node from flash with its checksum, fences and stamp, and each extension that a record names.

use super::engine::{OrderedEngine, OrderedShared};
use super::node_table::NodeId;
use super::search::{AnchorKey, SearchHandle};
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::slabs::slot_class::SlotClass;
use super::tree::{OrderedState, OrderedTree, of_search};
use tapetum_base::engine::check_report::{CheckPart, CheckPlace, CheckReport};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::piece_transfer::{PIECE_BYTES_MAX, Piece, cut};
use tapetum_kernels::mib_sums::MibCheck;
use tapetum_kernels::ordered::extension::{ExtensionHead, ExtensionReference, crc_of_none, front_bytes};
use tapetum_kernels::ordered::{NODE_BYTES, NodeRef};

/// Nodes that are checked before others have their turn: a MiB.
const NODES_OF_A_PART: u32 = 256;
/// Bytes of nodes and of values in extensions, likewise.
const PART_BYTES: u64 = 16 << 20;
/// How often a node is read before it counts as damaged: it may be being written.
const TRIES_OF_A_NODE: u32 = 4;

/// Checks all open keyspaces. Dirty pages are checked as they are on flash.
pub async fn check(engine: &OrderedEngine, io: &Io) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    let Some(OrderedShared { state, .. }) = engine.shared() else { return Ok(report) };
    let all: Vec<KeyspaceSlots> = lock(&engine.slots).values().cloned().collect();
    for slots in all {
        let Some(tree) = state.tree(slots.keyspace()) else { continue };
        let mut search = tree.search.handle().map_err(of_search)?;
        let mut anchor = AnchorKey::new();
        let mut next = Some(search.floor(&[], &mut anchor));
        while let Some(node) = next {
            if let Some(home) = state.cache.table.home(NodeId(node as u32)) {
                check_node(io, &tree, home.slot, |stamp| stamp == home.stamp, &mut report).await?;
            }
            next = search.next(&mut anchor);
        }
    }
    Ok(report)
}

/// Checks some nodes of a keyspace as they are on flash, while others read and write; then the next ones, and the next keyspace.
pub async fn check_part(engine: &OrderedEngine, io: &Io, from: CheckPlace) -> Result<CheckPart, Error> {
    let mut report = CheckReport::default();
    let Some(OrderedShared { state, .. }) = engine.shared() else { return Ok(CheckPart::default()) };
    let mut trees = state.trees();
    trees.retain(|tree| u32::from(tree.keyspace.0) >= from.number);
    trees.sort_unstable_by_key(|tree| tree.keyspace);
    let Some(tree) = trees.first() else { return Ok(CheckPart::default()) };
    let number = u32::from(tree.keyspace.0);
    let mut search = tree.search.handle().map_err(of_search)?;
    let mut anchor = AnchorKey::new();
    let key = if number == from.number { &from.key[..] } else { &[] };
    let mut next = Some(search.floor(key, &mut anchor));
    let (mut nodes, mut read_bytes) = (0, 0);
    while let Some(node) = next.filter(|_| nodes < NODES_OF_A_PART && read_bytes < PART_BYTES) {
        read_bytes +=
            check_node_in_use(io, state, (tree, &mut search, &anchor), NodeId(node as u32), &mut report).await?;
        nodes += 1;
        next = search.next(&mut anchor);
    }
    let place = match next {
        Some(_) => CheckPlace { number, key: anchor.to_vec(), ..CheckPlace::default() },
        None => CheckPlace { number: number + 1, ..CheckPlace::default() },
    };
    Ok(CheckPart { report, next: Some(place) })
}

/// Checks a node that others may write, move or give up meanwhile. The node is damaged if it stays where it is and is never right there. Its image
/// may be a newer one than its home says. Gives the bytes that were read.
async fn check_node_in_use(
    io: &Io,
    state: &OrderedState,
    (tree, search, anchor): (&OrderedTree, &mut SearchHandle, &AnchorKey),
    node: NodeId,
    report: &mut CheckReport,
) -> Result<u64, Error> {
    let (mut tries, mut read_bytes) = (0, 0);
    while let Some(home) = state.cache.table.home(node) {
        let mut found = CheckReport::default();
        match check_node(io, tree, home.slot, |stamp| stamp >= home.stamp, &mut found).await {
            Ok(bytes) => read_bytes += bytes,
            Err(error @ Error::Io(_)) => found.problems.push(format!("{}: {error}", name_of(tree, home.slot))),
            Err(error) => return Err(error),
        }
        let is_its = search.floor(anchor, &mut AnchorKey::new()) == u64::from(node.0);
        let now = state.cache.table.home(node).filter(|_| is_its && !tree.is_dropped());
        let stays = now.is_some_and(|now| (now.slot, now.stamp) == (home.slot, home.stamp));
        tries += u32::from(stays);
        if found.problems.is_empty() || tries >= TRIES_OF_A_NODE {
            report.add(found);
            break;
        }
        if now.is_none() {
            break;
        }
    }
    Ok(read_bytes)
}

fn name_of(tree: &OrderedTree, slot: u32) -> String {
    let (keyspace, flash) = (tree.keyspace.0, tree.nodes.map().flash(slot));
    format!("a data node of ordered keyspace {keyspace} at byte {flash} of the drive")
}

/// Gives the bytes that were read.
async fn check_node(
    io: &Io,
    tree: &OrderedTree,
    slot: u32,
    is_its_stamp: impl Fn(u64) -> bool,
    report: &mut CheckReport,
) -> Result<u64, Error> {
    let mut read_bytes = NODE_BYTES as u64;
    let map = tree.nodes.map();
    let mut buffer = io.allocate(NODE_BYTES).await?;
    io.read(map.flash(slot), &mut buffer, 0, NODE_BYTES).await?;
    let bytes = io.look(&buffer, 0..NODE_BYTES).to_vec();
    drop(buffer);
    let salt = tree.nodes.salt(map.address(slot));
    let checked = salt.map(|salt| NodeRef::check(&bytes, salt));
    let Some(Ok(node)) = checked.filter(|node| node.as_ref().is_ok_and(|node| is_its_stamp(node.stamp()))) else {
        report.problems.push(name_of(tree, slot));
        return Ok(read_bytes);
    };
    for record in node.records().filter_map(Result::ok) {
        report.records += 1;
        let reference = record.extension().ok().flatten();
        let is_whole = match &reference {
            None => true,
            Some(reference) => {
                read_value(io, tree.slots(), reference, record.key, record.header.raw_bytes, |_| ()).await?
            }
        };
        report.valid_records += u64::from(is_whole);
        read_bytes += reference.as_ref().map_or(0, |reference| u64::from(reference.stored_bytes));
        if let Some(ExtensionReference { slot, stored_bytes, .. }) = reference.filter(|_| !is_whole) {
            let (keyspace, extent, page) = (tree.keyspace.0, slot.extent().number(), slot.page());
            report.problems.push(format!(
                "a value of {stored_bytes} bytes of ordered keyspace {keyspace} in page {page} of extent {extent}"
            ));
        }
    }
    Ok(read_bytes)
}

/// Checks that the extension that a record names exists and is whole. Passes its stored bytes on, part by part.
pub async fn read_value(
    io: &Io,
    slots: &KeyspaceSlots,
    reference: &ExtensionReference,
    key: &[u8],
    raw_bytes: u32,
    mut show: impl FnMut(&[u8]),
) -> Result<bool, Error> {
    let Some(class) = reference.class(key.len()) else { return Ok(false) };
    let space = slots.of_class(SlotClass::of_extension(class));
    let (Some(flash), Some(salt)) = (space.flash_offset(reference.slot), space.salt(reference.slot)) else {
        return Ok(false);
    };
    let stored_bytes = reference.stored_bytes as usize;
    let front_bytes = front_bytes(key.len(), stored_bytes);
    let bytes = (front_bytes + stored_bytes) as u64;
    let mut buffer = io.allocate(PIECE_BYTES_MAX.min(class.bytes()) as usize).await?;
    let (mut head, mut check) = (None, MibCheck::new(crc_of_none(salt)));
    for Piece { flash, bytes, length } in cut(flash, bytes, PIECE_BYTES_MAX, NODE_BYTES as u64) {
        io.read(flash, &mut buffer, 0, length as usize).await?;
        let piece = io.look(&buffer, 0..bytes as usize);
        let (sums, stored_at) = match head {
            Some(sums) => (sums, 0),
            None => {
                let parsed = ExtensionHead::parse(piece, salt).ok();
                let right = parsed.filter(|(head, its)| *its == key && head.check(reference, raw_bytes).is_ok());
                let Some((found, _)) = right else { return Ok(false) };
                head = Some(found.sums);
                (found.sums, front_bytes)
            }
        };
        check.take(&sums, &piece[stored_at..]);
        show(&piece[stored_at..]);
    }
    Ok(head.is_some_and(|sums| check.damaged(&sums).is_none()))
}
