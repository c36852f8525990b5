//! Histories of an ordered keyspace in which nodes are written, split and merged, and extensions come and go.

use super::{Begin, Case, ORDERED, Open, PATIENCE, Step, Strikes, noise, put};
use crate::model::operation::{Item, Kind, Told};
use std::collections::BTreeMap;
use tapetum::{Condition, KeyRange, KeyspaceHandle, KeyspaceKind, KeyspaceWish, ScanReply, Store};

const NAME: &str = "ordered";

/// In their order; some are prefixes of others.
pub const KEYS: [&[u8]; 6] = [b"a", b"aa", b"ab", b"b", b"c", b"ca"];

/// Each history one by one and all at once.
pub fn cases() -> Vec<Case> {
    use Step::{PutInExtension, PutInNode, Remove};
    let histories: [(Begin, Vec<Step>); 6] = [
        // The node is split, by a key at its end, in its middle, and by a longer record of one that it has.
        (Begin::FullNode, vec![PutInNode(5), PutInNode(0), Remove(5)]),
        (Begin::FullNode, vec![PutInNode(2), PutInNode(1), Remove(2), PutInNode(2)]),
        // An extension comes, is replaced, becomes a value in the node again, and goes.
        (Begin::FullNode, vec![PutInExtension(0), PutInExtension(0), PutInNode(0), Remove(0)]),
        (Begin::SparseNodes, vec![PutInExtension(1), PutInExtension(2), Remove(1), PutInExtension(3), Remove(3)]),
        // Nodes are merged, and the one that comes of it is changed and split.
        (Begin::SparseNodes, vec![Remove(4), PutInNode(4), PutInNode(3)]),
        (Begin::SparseNodes, vec![Remove(4), PutInExtension(0), Remove(0), PutInNode(1), PutInNode(2)]),
    ];
    let both = |(begins, steps): (Begin, Vec<Step>)| {
        [false, true].map(|at_once| Case { steps: steps.clone(), at_once, begins, strikes: Strikes::Anywhere })
    };
    histories.into_iter().flat_map(both).collect()
}

/// The ordered keyspace of a store.
pub(super) fn keyspace(store: &Store) -> Option<KeyspaceHandle> {
    store.keyspace(NAME).ok()
}

fn create(open: &mut Open) -> Result<(), String> {
    let (name, kind, options) = (NAME.as_bytes().to_vec(), KeyspaceKind::Ordered, Vec::new());
    let change = open.store.begin_keyspace_change(KeyspaceWish::Create { name, kind, options });
    let change = change.map_err(|error| format!("no ordered keyspace: {error}"))?;
    for _ in 0..PATIENCE {
        open.store.maintain();
        if let Some(made) = change.result() {
            open.ordered = keyspace(&open.store);
            return made.map_err(|error| format!("no ordered keyspace: {error}"));
        }
    }
    Err("an ordered keyspace is never made".into())
}

/// Puts values of a third of a node under these keys.
fn put_all(open: &mut Open, keys: &[usize]) -> Result<(), String> {
    for &key in keys {
        let value = noise(200 + key as u64, 1000);
        open.submit(1 + key as u64, vec![(ORDERED + key, put(value, Condition::Always))], &mut |_| Ok(()))?;
        open.drain(&mut |_| Ok(()))?;
    }
    Ok(())
}

fn remove(open: &mut Open, key: usize) -> Result<(), String> {
    open.submit(50 + key as u64, vec![(ORDERED + key, Kind::Delete { stamp: None })], &mut |_| Ok(()))?;
    open.drain(&mut |_| Ok(()))
}

pub(super) fn fill_node(open: &mut Open) -> Result<(), String> {
    create(open)?;
    put_all(open, &[0, 2, 4])?;
    open.rest(&mut |_| Ok(()))
}

pub(super) fn make_sparse(open: &mut Open) -> Result<(), String> {
    create(open)?;
    put_all(open, &[0, 1, 2, 3, 4, 5])?;
    [1, 2, 5].into_iter().try_for_each(|key| remove(open, key))?;
    open.rest(&mut |_| Ok(()))
}

impl Open {
    /// Scans the ordered keyspace: it shows what gets show.
    pub(super) fn scan_all(&mut self) -> Result<(), String> {
        const ID: u64 = 2000;
        let keyspace = self.keyspace_of(ORDERED).ok_or("there is no ordered keyspace")?;
        self.model.submit_scan(ID, (0..KEYS.len()).map(|key| ORDERED + key).collect());
        let begun = self.session.submit_scan(keyspace, ID, KeyRange::default(), KEYS.len() + 1);
        begun.map_err(|error| format!("a scan is not begun: {error}"))?;
        let mut scanned: Vec<ScanReply> = Vec::new();
        let mut patience = PATIENCE;
        while scanned.is_empty() && patience > 0 {
            self.poll(&mut |_| Ok(()))?;
            self.session.take_scanned(&mut scanned);
            patience -= 1;
        }
        let part = scanned.pop().ok_or("a scan gets no reply")?.part;
        let part = part.map_err(|error| format!("a scan failed: {error}"))?;
        if part.rest.is_some() || !part.items.is_sorted_by(|one, other| one.key < other.key) {
            return Err("a scan is out of order, or not over".into());
        }
        let mut told: BTreeMap<usize, Told> = (0..KEYS.len()).map(|key| (ORDERED + key, Told::Missing)).collect();
        for item in part.items {
            let key = KEYS.iter().position(|key| **key == item.key[..]).ok_or("a scan shows a key that never was")?;
            let (value, stamp) = (item.value.into(), Some(item.stamp));
            let (flags, expiry) = (item.flags, item.expiry);
            told.insert(ORDERED + key, Told::Value(Item { value, flags, expiry, stamp, marks: None, writer: 0 }));
        }
        self.model.reply_scan(ID, &told)
    }
}
