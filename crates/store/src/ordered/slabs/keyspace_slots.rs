//! All slots of one ordered keyspace: a space for each class.

use super::SlotShare;
use super::group_table::GroupTable;
use super::slot_class::{PAGE_BYTES, SlotClass};
use super::slot_map::SlotMap;
use super::space::{SlotSpace, SpaceOptions};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::geometry::Geometry;

/// Limits of the free slots for nodes in all open groups together. There are enough to find slots close to their neighbours, and not to run out
/// while the manifest opens other groups; and few enough that few slots can be torn.
const OPEN_SLOTS_MIN: u64 = 128;
const OPEN_SLOTS_MAX: u64 = 8192;
/// One in this many of the store's pages at creation.
const OPEN_PART: u64 = 64;
/// The least number of pages of a group, for small extents: one slot of the largest slab.
const GROUP_PAGES_MIN: u32 = 16;

/// The layout of the slots of a store's keyspaces.
#[derive(Clone, Copy, Debug)]
pub struct SlabOptions {
    pub map: SlotMap,
    pub store_id: u64,
    /// The number of open groups of nodes, if all their slots are free.
    pub open_groups: u32,
    /// The least number of pages of a group of slabs.
    pub group_pages_min: u32,
}

#[derive(Clone)]
pub struct KeyspaceSlots {
    keyspace: KeyspaceId,
    /// The spaces in the order of [`SlotClass::SLABS`], then that of large slots.
    spaces: Vec<SlotSpace>,
}

impl SlabOptions {
    /// The options of a store.
    ///
    /// # Errors
    /// As [`SlotMap::new`].
    pub fn new(geometry: &Geometry, store_id: u64) -> Result<SlabOptions, Error> {
        let map = SlotMap::new(geometry)?;
        let group_pages_min = GROUP_PAGES_MIN;
        let group_pages = map.pages(map.extents_of(GROUP_PAGES_MIN));
        let open_slots = (geometry.created_bytes / PAGE_BYTES / OPEN_PART).clamp(OPEN_SLOTS_MIN, OPEN_SLOTS_MAX);
        let open_groups = (open_slots as u32 / group_pages).max(1);
        Ok(SlabOptions { map, store_id, open_groups, group_pages_min })
    }

    fn of(&self, keyspace: KeyspaceId, class: SlotClass) -> SpaceOptions {
        let (open_groups, pages) = match class {
            SlotClass::Nodes => (self.open_groups, self.group_pages_min),
            SlotClass::Extensions(_) => (1, class.slot_pages(1).max(self.group_pages_min)),
            // Each group is as large as its extension.
            SlotClass::Large => (1, 1),
        };
        let group_extents = self.map.extents_of(pages);
        let SlabOptions { store_id, .. } = *self;
        SpaceOptions { store_id, keyspace, class, open_groups, group_extents }
    }
}

impl KeyspaceSlots {
    /// The slots of the keyspace's groups, all free.
    pub fn new(options: &SlabOptions, keyspace: KeyspaceId, table: &GroupTable) -> KeyspaceSlots {
        let classes = SlotClass::SLABS.into_iter().chain([SlotClass::Large]);
        let space = |class| {
            let groups = table.of_keyspace(keyspace).filter(|group| group.class == class);
            let round = table.round(keyspace).filter(|_| class == SlotClass::Nodes);
            SlotSpace::new(options.map, options.of(keyspace, class), groups, round)
        };
        KeyspaceSlots { keyspace, spaces: classes.map(space).collect() }
    }

    pub fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    pub fn nodes(&self) -> &SlotSpace {
        self.of_class(SlotClass::Nodes)
    }

    pub fn of_class(&self, class: SlotClass) -> &SlotSpace {
        &self.spaces[usize::from(class.code())]
    }

    /// Claims the slot of an extension of `pages` pages for the one live record that names it ([`SlotSpace::claim`]). `None`: there is no such slot,
    /// or another record has it.
    pub fn claim_extension(&self, pages: u32, number: u32) -> Option<SlotShare> {
        let space = self.of_class(SlotClass::of_extension_pages(pages));
        space.claim(number).filter(|share| share.is_only() && share.pages() >= pages)
    }

    /// Whether slots of a class run short, or there are groups to remove.
    pub fn want_change(&self) -> bool {
        self.spaces().any(SlotSpace::wants_change)
    }

    /// Whether some class had no room for slots in the last search.
    pub fn is_full(&self) -> bool {
        self.spaces().any(SlotSpace::is_full)
    }

    /// The spaces, the nodes' first.
    pub fn spaces(&self) -> impl Iterator<Item = &SlotSpace> {
        self.spaces.iter()
    }
}
