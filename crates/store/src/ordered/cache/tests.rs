//! Tests of the cache's pages: who has them, and which are evicted.

use super::page_meta::{FlyingImage, SplitPromises};
use super::*;
use crate::ordered::slabs::group_table::Group;
use crate::ordered::slabs::slot_class::SlotClass;
use crate::ordered::slabs::slot_map::SlotMap;
use crate::ordered::slabs::{SlotSpace, SpaceOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::geometry::Geometry;

const KEYSPACE: u16 = 3;

fn cache(pages: usize) -> (MirrorCache, LocalMemory) {
    let local = LocalMemory::new((pages + 8 * WAYS) * NODE_BYTES).unwrap();
    (MirrorCache::new(&local, pages, 1000).unwrap(), local)
}

/// A node that is durable and not cached.
fn durable_node(cache: &MirrorCache) -> (NodeId, NodeHome) {
    let node = cache.table.give().unwrap();
    let home = NodeHome { slot: 100 + node.0, stamp: 50 };
    cache.table.set(node, home);
    (node, home)
}

fn page(local: &LocalMemory) -> LocalBuffer {
    local.allocate(NODE_BYTES).unwrap()
}

fn install(cache: &MirrorCache, local: &LocalMemory, (node, home): (NodeId, NodeHome), used: PageUse) -> bool {
    matches!(cache.install(node, home, page(local), PageMeta::new(KEYSPACE, used)), Installed::Done(_))
}

fn is_cached(cache: &MirrorCache, node: NodeId) -> bool {
    cache.with(node, |_| ()).is_some()
}

#[test]
fn a_page_has_one_taker_at_a_time() {
    let (cache, local) = cache(WAYS);
    let node = durable_node(&cache);
    assert!(matches!(cache.take(node.0, KEYSPACE, PageUse::ByKey), PageLook::Absent(home) if home == node.1));
    assert!(install(&cache, &local, node, PageUse::ByKey));
    let PageLook::Taken(buffer) = cache.take(node.0, KEYSPACE, PageUse::ByKey) else { panic!("it is there") };
    assert!(matches!(cache.take(node.0, KEYSPACE, PageUse::ByKey), PageLook::Busy));
    assert!(matches!(cache.take_if(node.0, |_| true), PageLook::Busy));
    cache.give_back(node.0, buffer, |_| ());
    assert!(matches!(cache.take_if(node.0, |_| false), PageLook::Gone));
    assert!(matches!(cache.take_if(node.0, |_| true), PageLook::Taken(_)));
    assert!(matches!(cache.take(node.0, KEYSPACE + 1, PageUse::ByKey), PageLook::Gone), "another keyspace's");
    assert!(matches!(cache.take(cache.table.give().unwrap(), KEYSPACE, PageUse::ByKey), PageLook::Gone));
}

#[test]
fn what_was_read_is_installed_only_if_it_is_the_node_as_it_is() {
    let (cache, local) = cache(WAYS);
    let (node, home) = durable_node(&cache);
    let meta = || PageMeta::new(KEYSPACE, PageUse::ByKey);
    let newer = NodeHome { stamp: 60, ..home };
    cache.table.set(node, newer);
    assert!(!cache.is_current(node, home) && cache.is_current(node, newer));
    assert!(matches!(cache.install(node, home, page(&local), meta()), Installed::Stale(_)));
    assert!(matches!(cache.install(node, newer, page(&local), meta()), Installed::Done(_)));
    assert!(!cache.is_current(node, newer), "the cached page may be newer");
    assert!(matches!(cache.install(node, newer, page(&local), meta()), Installed::Stale(_)));
    cache.with(node, |meta| assert_eq!((meta.slot, meta.durable_stamp), (Some(newer.slot), 60)));
}

#[test]
fn pages_that_are_not_durable_or_taken_stay() {
    let (cache, local) = cache(WAYS);
    let nodes: Vec<_> = (0..WAYS + 1).map(|_| durable_node(&cache)).collect();
    nodes[..WAYS].iter().for_each(|node| assert!(install(&cache, &local, *node, PageUse::ByKey)));
    nodes[..WAYS].iter().for_each(|(node, _)| cache.with(*node, |meta| meta.changed(70, false)).unwrap());
    let last = nodes[WAYS];
    assert!(!install(&cache, &local, last, PageUse::ByKey), "all are dirty");
    let new = cache.table.give().unwrap();
    assert!(cache.reserve(new, KEYSPACE).is_none());
    let flying = FlyingImage { stamp: 80, is_home: false, ticket: None };
    cache.with(nodes[0].0, |meta| (meta.is_dirty, meta.flying) = (false, Some(flying))).unwrap();
    assert!(!install(&cache, &local, last, PageUse::ByKey), "the image is not durable");
    let home = NodeHome { slot: 7, stamp: 80 };
    cache.landed(nodes[0].0, home, |_| ());
    let PageLook::Taken(buffer) = cache.take(nodes[0].0, KEYSPACE, PageUse::ByKey) else { panic!("it is there") };
    assert!(!install(&cache, &local, last, PageUse::ByKey), "somebody has it");
    cache.give_back(nodes[0].0, buffer, |_| ());
    assert!(install(&cache, &local, last, PageUse::ByKey));
    assert!(!is_cached(&cache, nodes[0].0) && cache.table.home(nodes[0].0) == Some(home));
}

#[test]
fn scans_do_not_drive_out_what_is_read_by_key() {
    let (cache, local) = cache(WAYS);
    let hot: Vec<_> = (0..WAYS / 2).map(|_| durable_node(&cache)).collect();
    hot.iter().for_each(|node| assert!(install(&cache, &local, *node, PageUse::ByKey)));
    for _ in 0..100 {
        hot.iter().for_each(|(node, _)| {
            let PageLook::Taken(buffer) = cache.take(*node, KEYSPACE, PageUse::ByKey) else { panic!("it went") };
            cache.give_back(*node, buffer, |_| ());
        });
        assert!(install(&cache, &local, durable_node(&cache), PageUse::ByScan));
    }
}

#[test]
fn the_id_of_a_node_that_is_evicted_while_its_keyspace_is_dropped_is_free_again() {
    let (cache, local) = cache(WAYS);
    let nodes: Vec<_> = (0..WAYS).map(|_| durable_node(&cache)).collect();
    nodes.iter().for_each(|node| assert!(install(&cache, &local, *node, PageUse::ByKey)));
    let taken = nodes[0].0;
    let PageLook::Taken(buffer) = cache.take(taken, KEYSPACE, PageUse::ByKey) else { panic!("it is there") };
    let left = cache.forget(KEYSPACE, &BTreeSet::new());
    assert_eq!(left, BTreeSet::from([taken]), "somebody has it");
    cache.give_back(taken, buffer, |_| ());
    for _ in 0..4 * WAYS {
        let (node, home) = durable_node(&cache);
        let meta = PageMeta::new(KEYSPACE + 1, PageUse::ByKey);
        assert!(matches!(cache.install(node, home, page(&local), meta), Installed::Done(_)));
    }
    assert!(!is_cached(&cache, taken));
    assert!(cache.forget(KEYSPACE, &left).is_empty());
    assert_eq!(cache.table.give(), Some(taken));
}

#[test]
fn a_new_nodes_place_is_given_back_or_discarded() {
    let (cache, _local) = cache(WAYS);
    let node = cache.table.give().unwrap();
    let buffer = cache.reserve(node, KEYSPACE).unwrap();
    assert!(matches!(cache.take(node, KEYSPACE, PageUse::ByKey), PageLook::Busy));
    cache.discard(node, buffer);
    assert!(!is_cached(&cache, node));
    assert_eq!(cache.table.give(), Some(node), "its id is free");
    let buffer = cache.reserve(node, KEYSPACE).unwrap();
    cache.give_back(node, buffer, |meta| meta.is_dirty = true);
    assert!(matches!(cache.take(node, KEYSPACE, PageUse::ByKey), PageLook::Taken(_)));
}

#[test]
fn a_look_waits_for_the_image_that_has_what_it_saw() {
    let mut meta = PageMeta { durable_stamp: 10, ..PageMeta::new(KEYSPACE, PageUse::ByKey) };
    meta.changed(12, false);
    let first = meta.ticket();
    assert!(meta.wait_for(10).is_none());
    assert!(Arc::ptr_eq(&meta.wait_for(12).unwrap(), &first));
    meta.flying = Some(FlyingImage { stamp: 13, is_home: false, ticket: meta.tickets.pop() });
    meta.is_dirty = false;
    assert!(Arc::ptr_eq(&meta.wait_for(12).unwrap(), &first), "on its way");
    meta.changed(14, true);
    let second = meta.ticket();
    assert!(Arc::ptr_eq(&meta.wait_for(14).unwrap(), &second) && !Arc::ptr_eq(&first, &second));
}

#[test]
fn what_was_changed_before_a_split_is_durable_when_both_halves_are() {
    let mut lower = PageMeta::new(KEYSPACE, PageUse::ByKey);
    lower.changed(12, false);
    let ticket = lower.ticket();
    let mut upper = lower.split(|_| unreachable!("it has no slot"), promises(&space().0));
    assert!(lower.is_dirty && upper.is_dirty);
    lower.tickets.drain(..).for_each(|ticket| ticket.image_done());
    assert!(!ticket.is_done());
    upper.tickets.drain(..).for_each(|ticket| ticket.image_done());
    assert!(ticket.is_done());
}

#[test]
fn what_was_changed_before_a_merge_is_durable_with_the_merged_page() {
    let mut left = PageMeta::new(KEYSPACE, PageUse::ByKey);
    left.changed(12, false);
    let (before, mut right) = (left.ticket(), left.split(|_| unreachable!("it has no slot"), promises(&space().0)));
    right.changed(15, true);
    let mut other = PageMeta { durable_stamp: 20, ..PageMeta::new(KEYSPACE, PageUse::ByKey) };
    other.changed(22, false);
    let of_other = other.ticket();
    left.merge(right, |_| unreachable!("it has no slot"));
    left.merge(other, |_| unreachable!("it has no slot"));
    assert_eq!((left.tickets.len(), left.durable_stamp, left.removed_stamp), (2, 0, 15));
    left.tickets.drain(..).for_each(|ticket| ticket.image_done());
    assert!(before.is_done() && of_other.is_done());
}

/// A space of four extents, and the slots that it has.
fn space() -> (SlotSpace, u32) {
    let geometry = Geometry::new(8 << 20, 64 << 10, 2, 512).unwrap();
    let group =
        Group { first: 0, extents: 4, keyspace: KeyspaceId(KEYSPACE), class: SlotClass::Nodes, version: 1, open: true };
    let options =
        SpaceOptions { store_id: 1, keyspace: group.keyspace, class: group.class, open_groups: 1, group_extents: 4 };
    let space = SlotSpace::new(SlotMap::new(&geometry).unwrap(), options, [&group], None);
    space.turn_round(0);
    let slots = space.counts().slots;
    (space, slots)
}

fn promises(space: &SlotSpace) -> SplitPromises {
    SplitPromises { lower: space.promise(), upper: space.promise().unwrap() }
}

#[test]
fn the_slot_of_a_node_that_was_split_stays_until_both_halves_have_given_it_up() {
    let (space, slots) = space();
    let mut lower = PageMeta { slot: Some(space.take(None).unwrap().keep()), ..PageMeta::default() };
    let resume = |slot| space.resume(slot);
    let upper = lower.split(resume, promises(&space));
    let top = PageMeta { shared: upper.shared.clone(), ..PageMeta::default() };
    assert_eq!((lower.slot, space.counts().slots_free), (None, slots - 1));
    drop(lower);
    drop(top);
    assert_eq!(space.counts().slots_free, slots - 1);
    let mut left = PageMeta { slot: Some(space.take(None).unwrap().keep()), ..PageMeta::default() };
    left.merge(upper, resume);
    assert_eq!((left.shared.len(), space.counts().slots_free), (1, slots - 2));
    left.shared.clear();
    assert_eq!(space.counts().slots_free, slots - 1);
}

#[test]
fn both_halves_of_a_split_have_a_slot_however_many_others_ask_for_one() {
    let (space, slots) = space();
    let mut lower = PageMeta { slot: Some(space.take(None).unwrap().keep()), ..PageMeta::default() };
    let mut upper = lower.split(|slot| space.resume(slot), promises(&space));
    let others: Vec<_> = std::iter::from_fn(|| space.take(None)).collect();
    assert_eq!((others.len() as u32, space.counts().slots_free, space.promise().is_none()), (slots - 3, 2, true));
    for half in [&mut lower, &mut upper] {
        half.slot = Some(space.take_promised(None).unwrap().keep());
        half.promise = None;
    }
    assert!(space.take_promised(None).is_none());
    // An evicted page gives up its promise.
    lower.shared.clear();
    upper.shared.clear();
    assert_eq!(space.spare_slots(), 1);
    let promise = space.promise().unwrap();
    assert_eq!(space.spare_slots(), 0);
    drop(promise);
    assert_eq!(space.spare_slots(), 1);
}
