//! Sweeps: maintenance makes the merges that sessions wished and did not make at once.
//!
//! ```text
//! a wish not carried out at once ─► the tree wants a sweep ── some time later ──► walk over its nodes ─► wishes ─► merges
//! ```
//! A session that ends, or that nobody polls, leaves its wishes behind, and each session has a limit of them. What nodes use is known of those that
//! were changed since the store was opened: a sweep passes the others, and what was wanted before that is forgotten.
//!
//! Threads: the maintenance thread.

use super::engine::OrderedEngine;
use super::session::OrderedSession;
use super::session::node_walk::NodeWalk;
use super::tree::{OrderedState, OrderedTree};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::engine_session::{EngineSession, EngineSlot};
use tapetum_base::session::session_core::SessionCore;

/// Microseconds from the wish for a sweep until it begins. Sessions make most merges themselves meanwhile.
const DELAY_US: u64 = 1_000_000;
/// The time without sweeps after one that found little, in times of that one, and at most.
const PAUSE_TIMES: u64 = 20;
const PAUSE_US_MAX: u64 = 60_000_000;
const QUEUE_DEPTH: u32 = 64;

pub struct Sweeps {
    sweep: Option<Box<Sweep>>,
    /// Since when a sweep has been wanted.
    wanted_us: Option<u64>,
    /// No sweep begins before.
    rests_until_us: u64,
    /// The keyspace that was swept last.
    last: KeyspaceId,
}

struct Sweep {
    // First: the drive works on nothing of the session after its queue pair has gone.
    core: SessionCore,
    session: OrderedSession,
    state: Arc<OrderedState>,
    walk: NodeWalk,
    began_us: u64,
}

impl Sweep {
    fn begin(engine: &Arc<OrderedEngine>, tree: &OrderedTree, began_us: u64) -> Option<Box<Sweep>> {
        let base = &engine.base;
        let state = engine.shared()?.state.clone();
        let core = SessionCore::new(base.clone(), base.drive.queue_pair(QUEUE_DEPTH).ok()?);
        // Any slot will do: it is the only part of its session.
        let slot = EngineSlot::HASHED;
        let session = OrderedSession::new(state.clone(), engine.clone(), engine.batches.clone(), slot);
        Some(Box::new(Sweep { core, session, state, walk: NodeWalk::new(tree.keyspace), began_us }))
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.core.base.log.unregister(&self.core.notifier);
        self.session.leave(&mut self.core);
        self.state.is_sweeping.store(false, Ordering::SeqCst);
    }
}

impl Sweeps {
    pub fn new() -> Sweeps {
        Sweeps { sweep: None, wanted_us: None, rests_until_us: 0, last: KeyspaceId(0) }
    }

    /// Begins a sweep that is due, and takes a step of the one in progress.
    pub fn step(&mut self, engine: &Arc<OrderedEngine>, now_us: u64) {
        let Some(sweep) = &mut self.sweep else {
            self.sweep = self.next(engine, now_us);
            return;
        };
        if sweep.session.walk(&mut sweep.core, &mut sweep.walk) {
            let pause_us = ((now_us - sweep.began_us) * PAUSE_TIMES).min(PAUSE_US_MAX);
            self.rests_until_us = if sweep.walk.found_much() { now_us } else { now_us + pause_us };
            self.sweep = None;
        }
    }

    fn next(&mut self, engine: &Arc<OrderedEngine>, now_us: u64) -> Option<Box<Sweep>> {
        let state = &engine.shared()?.state;
        if !state.is_sweep_wanted() {
            return None;
        }
        let wanted_us = *self.wanted_us.get_or_insert(now_us);
        if now_us < (wanted_us + DELAY_US).max(self.rests_until_us) {
            return None;
        }
        self.wanted_us = None;
        let tree = state.take_tree_to_sweep(self.last)?;
        self.last = tree.keyspace;
        let sweep = Sweep::begin(engine, &tree, now_us);
        if sweep.is_none() {
            state.want_sweep(&tree);
            state.is_sweeping.store(false, Ordering::SeqCst);
        }
        sweep
    }

    pub fn are_at_rest(&self) -> bool {
        self.sweep.is_none()
    }

    pub fn give_up(&mut self) {
        self.sweep = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::store_bench::Bench;
    use super::{DELAY_US, PAUSE_TIMES};
    use crate::StoreOptions;
    use crate::hashed::collect::victim::tests::small_options;
    use tapetum_base::keyspace::states::KeyspaceRef;
    use tapetum_base::log::Sync;
    use tapetum_base::request::{Condition, Outcome, Request};
    use tapetum_kernels::expiry::Expiry;

    const FLASH_BYTES: u64 = 32 << 20;
    const KEYS: usize = 3000;
    /// The cache has a fraction of the nodes.
    const CACHE_BYTES: u64 = 128 << 10;
    /// Steps of maintenance after which all that was due is done.
    const STEPS: usize = 3000;
    const VALUE: [u8; 1000] = [7; 1000];

    /// Does operations, as many at once as the session takes.
    fn do_all<'a>(bench: &mut Bench, orders: KeyspaceRef, requests: impl Iterator<Item = Request<'a>>) {
        let mut requests = requests.peekable();
        let (mut replies, mut in_flight) = (Vec::new(), 0);
        while requests.peek().is_some() || in_flight > 0 {
            while bench.session.has_room() {
                let Some(request) = requests.next() else { break };
                bench.session.submit_to(orders, 1, request).unwrap();
                in_flight += 1;
            }
            bench.store.maintain();
            bench.session.poll(&mut replies);
            in_flight -= replies.len();
            for reply in replies.drain(..) {
                assert!(matches!(reply.outcome, Outcome::Stored { .. } | Outcome::Deleted), "{:?}", reply.outcome);
            }
        }
    }

    fn nodes(bench: &Bench) -> u32 {
        bench.store.ordered().shared().expect("it has a tree").state.cache.table.count()
    }

    /// Lets maintenance do all that comes due.
    fn settle(bench: &mut Bench) {
        for _ in 0..8 {
            bench.clock.advance_us(DELAY_US * PAUSE_TIMES);
            for _ in 0..STEPS {
                bench.store.maintain();
            }
        }
    }

    #[test]
    fn nodes_are_merged_after_the_session_that_emptied_them_has_gone() {
        let options = StoreOptions { sync: Sync::No, node_cache_bytes_max: CACHE_BYTES, ..small_options() };
        let mut bench = Bench::with_options(FLASH_BYTES, options, 1);
        let orders = bench.orders();
        // In an order that has nothing to do with that of the keys.
        let keys: Vec<Vec<u8>> =
            (0..KEYS).map(|number| format!("key {:08}", number * 0x9e37_79b9 % 100_000_000).into_bytes()).collect();
        do_all(
            &mut bench,
            orders,
            keys.iter().map(|key| Request::Put {
                key,
                value: &VALUE,
                flags: 0,
                expiry: Expiry::NONE,
                condition: Condition::Always,
            }),
        );
        let full = nodes(&bench);
        let (left, gone) = keys.split_at(KEYS / 10);
        do_all(&mut bench, orders, gone.iter().map(|key| Request::Delete { key, stamp: None }));
        let before = nodes(&bench);
        drop(std::mem::replace(&mut bench.session, bench.store.session().unwrap()));
        settle(&mut bench);
        assert!(nodes(&bench) * 24 <= left.len() as u32 * 10, "{} nodes of {before}, which were {full}", nodes(&bench));
        for key in left {
            assert_eq!(bench.get(orders, key).as_deref(), Some(&VALUE[..]));
        }
    }
}
