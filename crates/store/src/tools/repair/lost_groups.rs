//! Groups of data nodes that a damaged manifest does not name any more, found by the nodes in them.
//!
//! A node says whose it is. Its checksum is bound to its place and to the version of its group, which stands in the manifest alone. But a
//! CRC is linear: a node's checksum, and the one it would have in a group of version 0, differ by what depends on the version and on
//! nothing else. So a table of these differences gives the version, and with it the whole node is checked.
//!
//! 1. Versions that the readable part of the manifest has given are not looked for: groups that it has given up stay given up.
//! 2. Extents are looked at that no segment has. One with a node that holds is a group's, of that node's version and keyspace. A group that the
//!    manifest names there has gone since.
//!
//! Groups that are older than the lost ones may be among them. A damaged manifest is reported as a loss for all keys of a keyspace.

use crate::ordered::slabs::group_table::{Group, GroupEdit, GroupTable};
use crate::ordered::slabs::slot_class::{PAGE_BYTES, SlotClass};
use crate::ordered::slabs::slot_map::SlotMap;
use crate::tools::repair::tree_mend::trees;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Catalogue;
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::superblock::Superblock;
use tapetum_kernels::checksum::{Salt, checksum};
use tapetum_kernels::ordered::{NODE_BYTES, NodeRef, SlotSalt};

/// How many versions are looked for: more groups than frames of a manifest name between two snapshots. The table takes 0.1 s.
const VERSIONS: u64 = 1 << 18;
/// The end of a node's checksum, and the start of the bytes that it covers.
const CRC_BYTES: usize = 4;
/// Pages that are read at once.
const PIECE_PAGES: u32 = 64;

/// Versions by their effect on a node's checksum.
struct VersionTable(HashMap<u32, u64>);

impl VersionTable {
    fn new(first: u64) -> VersionTable {
        let nothing = [0; NODE_BYTES - CRC_BYTES];
        let sum = |version| checksum(Salt { store: 0, address: 0, version }, &[&nothing]);
        let of_none = sum(0);
        VersionTable((first..first.saturating_add(VERSIONS)).map(|version| (sum(version) ^ of_none, version)).collect())
    }

    /// The version and the keyspace of a page's group, if the page is a node that holds. `salt` is that of version 0.
    fn find(&self, page: &[u8], salt: SlotSalt) -> Option<(u64, KeyspaceId)> {
        // Most pages are none: their heads do not hold together.
        NodeRef::look(page).ok()?;
        let (crc, covered) = page.split_first_chunk::<CRC_BYTES>()?;
        let difference = u32::from_le_bytes(*crc) ^ checksum(salt.of_node(), &[covered]);
        let version = *self.0.get(&difference)?;
        let node = NodeRef::check(page, SlotSalt { version, ..salt }).ok()?;
        Some((version, KeyspaceId(node.keyspace())))
    }
}

/// Adds to `groups` the groups of data nodes of its keyspaces that it does not name any more, and takes their extents; how many groups. A group in
/// whose extents a newer one lies is not there any more.
pub async fn find_lost_groups(
    io: &Io,
    superblock: &Superblock,
    keyspaces: &Catalogue,
    groups: &mut GroupTable,
    extents: &Mutex<Extents>,
) -> Result<usize, Error> {
    let wanted: BTreeSet<KeyspaceId> = trees(keyspaces).iter().map(|keyspace| keyspace.id).collect();
    if wanted.is_empty() {
        return Ok(0);
    }
    let (map, table) = (SlotMap::new(&superblock.geometry)?, VersionTable::new(groups.version_next()));
    let owners = owners(groups);
    let (mut found, mut replaced) = (Vec::<Group>::new(), BTreeSet::new());
    let count = lock(extents).count();
    for extent in 0..count {
        let owner = owners.get(&extent);
        if owner.is_none() && !lock(extents).is_free(extent) {
            continue;
        }
        let node = look_at_extent(io, superblock.store_id, &map, extent, &table).await?;
        let Some((version, keyspace)) = node.filter(|(_, keyspace)| wanted.contains(keyspace)) else { continue };
        replaced.extend(owner);
        let goes_on =
            |last: &&mut Group| (last.version, last.keyspace, last.first + last.extents) == (version, keyspace, extent);
        match found.last_mut().filter(goes_on) {
            Some(last) => last.extents += 1,
            None => {
                found.push(Group { first: extent, extents: 1, keyspace, class: SlotClass::Nodes, version, open: false })
            }
        }
    }
    let mut extents = lock(extents);
    owners.iter().filter(|(_, owner)| replaced.contains(*owner)).for_each(|(extent, _)| extents.release(*extent));
    groups.edit(&GroupEdit::Remove(replaced.into_iter().collect())).map_err(Error::Corrupt)?;
    for group in &found {
        groups.edit(&GroupEdit::Add(*group)).map_err(Error::Corrupt)?;
        for extent in group.first..group.first + group.extents {
            // It is free: that was looked at, or it was released.
            extents.claim(ExtentOwner::Slots, extent);
        }
    }
    Ok(found.len())
}

/// By extent, the first extent of the group that has it.
fn owners(groups: &GroupTable) -> BTreeMap<u32, u32> {
    groups
        .iter()
        .flat_map(|group| (group.first..group.first + group.extents).map(|extent| (extent, group.first)))
        .collect()
}

/// The version and the keyspace of the first node of an extent that holds.
async fn look_at_extent(
    io: &Io,
    store: u64,
    map: &SlotMap,
    extent: u32,
    table: &VersionTable,
) -> Result<Option<(u64, KeyspaceId)>, Error> {
    let (first, pages) = (map.first_of(extent), map.pages(1));
    let mut buffer = io.allocate(PIECE_PAGES.min(pages) as usize * PAGE_BYTES as usize).await?;
    for from in (0..pages).step_by(PIECE_PAGES as usize) {
        let bytes = PIECE_PAGES.min(pages - from) as usize * PAGE_BYTES as usize;
        if io.read(map.flash(first + from), &mut buffer, 0, bytes).await.is_err() {
            // Nothing names it. Nodes that could be read beside a bad page are in the next piece, if at all.
            continue;
        }
        let all = (first + from..).zip(io.look(&buffer, 0..bytes).chunks_exact(PAGE_BYTES as usize));
        for (slot, page) in all {
            let salt = SlotSalt { store, slot: map.address(slot), version: 0 };
            if let Some(found) = table.find(page, salt) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
