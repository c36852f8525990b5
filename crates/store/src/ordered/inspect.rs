//! The facts about ordered keyspaces for tools: the trees, the number of slots in use, and the data node of a key.

use super::check::read_value;
use super::engine::{OrderedEngine, OrderedShared};
use super::node_table::{NodeHome, NodeId};
use super::search::AnchorKey;
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::tree::{OrderedState, OrderedTree, of_search};
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::cache::{PageLook, lost};
use tapetum_base::base::Base;
use tapetum_base::engine::inspection::{Inspection, TreeInspection};
use tapetum_base::engine::key_place::{ExtensionPlace, ImagePlace, KeyPlace, NodePlace, RecordFacts};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::ordered::{NODE_BYTES, NodeRecord, NodeRef};
use tapetum_kernels::record::Header;

/// Adds the trees, and the slots in use of the groups.
pub fn inspect(engine: &OrderedEngine, inspection: &mut Inspection) -> Result<(), Error> {
    let Some(OrderedShared { state, .. }) = engine.shared() else { return Ok(()) };
    let all: Vec<KeyspaceSlots> = lock(&engine.slots).values().cloned().collect();
    for slots in &all {
        for space in slots.spaces() {
            let named = (u64::from(slots.keyspace().0), u64::from(space.options().class.code()));
            let counts = space.counts();
            let groups = inspection.groups.iter_mut().find(|groups| (groups.keyspace, groups.class) == named);
            groups.into_iter().for_each(|groups| groups.slots_used = u64::from(counts.slots - counts.slots_free));
        }
        if let Some(tree) = state.tree(slots.keyspace()) {
            inspection.trees.push(tree_inspection(state, &tree)?);
        }
    }
    Ok(())
}

fn tree_inspection(state: &OrderedState, tree: &OrderedTree) -> Result<TreeInspection, Error> {
    let mut search = tree.search.handle().map_err(of_search)?;
    let mut found = TreeInspection {
        keyspace: tree.keyspace.0.into(),
        items: tree.items(),
        search_bytes: tree.search.bytes() as u64,
        ..TreeInspection::default()
    };
    let (mut anchor, mut depths) = (AnchorKey::new(), 0);
    let mut next = Some(search.floor(&[], &mut anchor));
    while let Some(node) = next {
        let depth = u64::from(search.depth(&anchor));
        found.nodes += 1;
        found.nodes_unwritten += u64::from(state.cache.table.home(NodeId(node as u32)).is_none());
        found.depth_max = found.depth_max.max(depth);
        depths += depth;
        next = search.next(&mut anchor);
    }
    found.depth_mean_tenths = depths * 10 / found.nodes.max(1);
    Ok(found)
}

/// The present page of a node, from the cache or from flash.
struct SeenNode {
    node: NodeId,
    depth: u32,
    bytes: Vec<u8>,
    home: Option<NodeHome>,
    is_cached: bool,
    is_dirty: bool,
}

/// Finds the data node of a key.
pub async fn locate(engine: &OrderedEngine, io: &Io, keyspace: KeyspaceId, key: &[u8]) -> Result<KeyPlace, Error> {
    let tree = engine.tree(keyspace)?;
    let OrderedShared { state, .. } = engine.shared().expect("a tree was made");
    loop {
        let Some(seen) = see(state, &tree, io, key).await? else {
            io.step().await;
            continue;
        };
        let node = NodeRef::look(&seen.bytes).map_err(|error| damaged(&tree, &seen, &format!("{error:?}")))?;
        if node.covers(key) {
            return place(&engine.base, &tree, io, &seen, node, key).await.map(KeyPlace::Node);
        }
        // The node was split or removed between the two steps.
        io.step().await;
    }
}

/// Reads the page of a key's node. `None`: somebody has it, or it moved meanwhile.
async fn see(state: &OrderedState, tree: &OrderedTree, io: &Io, key: &[u8]) -> Result<Option<SeenNode>, Error> {
    let (node, depth) = {
        let mut search = tree.search.handle().map_err(of_search)?;
        (NodeId(search.floor(key, &mut AnchorKey::new()) as u32), search.depth(key))
    };
    let mut seen = SeenNode { node, depth, bytes: Vec::new(), home: None, is_cached: true, is_dirty: false };
    match state.cache.take(node, tree.keyspace.0, PageUse::Again) {
        PageLook::Taken(page) => {
            seen.bytes = io.look(&page, 0..NODE_BYTES).to_vec();
            seen.is_dirty = state.cache.give_back(node, page, |meta| !meta.is_clean());
            seen.home = state.cache.table.home(node);
            Ok(Some(seen))
        }
        PageLook::Busy | PageLook::Gone => Ok(None),
        PageLook::Lost => Err(lost(node)),
        PageLook::Absent(home) => {
            let mut buffer = io.allocate(NODE_BYTES).await?;
            let map = tree.nodes.map();
            let was_read = io.read(map.flash(home.slot), &mut buffer, 0, NODE_BYTES).await;
            seen.bytes = io.look(&buffer, 0..NODE_BYTES).to_vec();
            (seen.home, seen.is_cached) = (Some(home), false);
            let holds = tree
                .nodes
                .salt(map.address(home.slot))
                .is_some_and(|salt| NodeRef::check(&seen.bytes, salt).is_ok_and(|node| node.stamp() == home.stamp));
            match state.cache.is_current(node, home) {
                false => Ok(None),
                true if holds => Ok(Some(seen)),
                true => Err(was_read.err().unwrap_or_else(|| damaged(tree, &seen, "its checksum is another one"))),
            }
        }
    }
}

fn damaged(tree: &OrderedTree, seen: &SeenNode, amiss: &str) -> Error {
    let place = match seen.home {
        Some(home) => format!("at byte {} of the drive", tree.nodes.map().flash(home.slot)),
        None => "in memory".into(),
    };
    Error::Corrupt(format!("the data node of ordered keyspace {} {place}: {amiss}", tree.keyspace.0))
}

async fn place(
    base: &Base,
    tree: &OrderedTree,
    io: &Io,
    seen: &SeenNode,
    node: NodeRef<'_>,
    key: &[u8],
) -> Result<NodePlace, Error> {
    let map = tree.nodes.map();
    let record = node.get(key).map_err(|error| damaged(tree, seen, &format!("{error:?}")))?;
    let facts = |record: &NodeRecord<'_>| {
        let header = Header { keyspace: tree.keyspace.0, ..record.header };
        RecordFacts::of(base, &header)
    };
    let extension = match &record {
        Some(record) => extension_place(tree, io, record).await?,
        None => None,
    };
    let image = seen.home.map(|NodeHome { slot, stamp }| {
        let address = map.address(slot);
        let (extent, page) = (address.extent().number(), address.page());
        ImagePlace { extent, page, flash_bytes: map.flash(slot), stamp }
    });
    Ok(NodePlace {
        node: seen.node.0,
        depth: seen.depth,
        image,
        is_cached: seen.is_cached,
        is_dirty: seen.is_dirty,
        low: node.low_fence().to_vec(),
        high: node.high_fence().map(<[u8]>::to_vec),
        records: node.count() as u64,
        used_bytes: node.used_bytes() as u64,
        record: record.as_ref().map(facts),
        extension,
    })
}

async fn extension_place(
    tree: &OrderedTree,
    io: &Io,
    record: &NodeRecord<'_>,
) -> Result<Option<ExtensionPlace>, Error> {
    let Ok(Some(reference)) = record.extension() else { return Ok(None) };
    let (extent, page, stamp) = (reference.slot.extent().number(), reference.slot.page(), reference.stamp);
    let class = reference.class(record.key.len());
    let is_whole = read_value(io, tree.slots(), &reference, record.key, record.header.raw_bytes, |_| ()).await?;
    Ok(Some(ExtensionPlace {
        extent,
        page,
        flash_bytes: class.and_then(|class| tree.extensions(class).flash_offset(reference.slot)),
        length_bytes: class.map_or(0, |class| class.bytes()),
        stamp,
        is_whole,
    }))
}
