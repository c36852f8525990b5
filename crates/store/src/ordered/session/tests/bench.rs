//! An ordered tree over the base of a store in memory, its sessions, and a reader of all its slots.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options};
use crate::ordered::search::SearchLimits;
use crate::ordered::session::OrderedSession;
use crate::ordered::slabs::group_table::{Group, GroupEdit, GroupTable};
use crate::ordered::slabs::keyspace_slots::{KeyspaceSlots, SlabOptions};
use crate::ordered::slabs::slot_class::SlotClass;
use crate::ordered::slabs::tending::open_more;
use crate::ordered::tree::{OrderedLimits, OrderedState, OrderedTree, TreeSource};
use crate::{Store, StoreOptions};
use std::collections::HashMap;
use std::sync::Arc;
use tapetum_base::base::Base;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::media::extents::{ExtentOwner, ExtentShape};
use tapetum_base::media::io::{Io, Task, lock, poll_once};
use tapetum_base::request::key_range::{KeyRange, ScanPart, ScanReply};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot, EngineWait};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Drive, Env, FaultyFlash, Flash, LocalMemory, programs};
use tapetum_kernels::ordered::NodeRef;
use tapetum_kernels::ordered::extension::{ExtensionHead, front_bytes};

const KEYSPACE: KeyspaceRef = KeyspaceRef::DEFAULT;
/// More slots than any test has nodes.
const MANY_SLOTS: u32 = 900;
/// Steps after which a waiting operation counts as stuck.
const PATIENCE: u32 = 100_000;

pub struct Bench {
    // First, so that nobody has it when its store goes.
    pub state: Arc<OrderedState>,
    pub tree: Arc<OrderedTree>,
    pub base: Arc<Base>,
    pub group: Group,
    pub slots: KeyspaceSlots,
    store: Store,
}

pub fn new_flash(seed: u64) -> FaultyFlash {
    FaultyFlash::new(SMALL_BYTES, seed)
}

/// A bench has its trees before there are sessions.
impl TreeSource for OrderedState {
    fn find_tree(&self, keyspace: KeyspaceId) -> Result<Arc<OrderedTree>, Error> {
        self.tree(keyspace).ok_or(Error::Keyspace(KeyspaceError::Gone))
    }
}

impl Bench {
    /// A new tree on `flash`, over a cache of `cache_pages` pages.
    pub fn new(flash: Arc<dyn Flash>, cache_pages: usize, sync: Sync) -> Bench {
        Bench::over(flash, cache_pages, sync, (Env::simulated(1).0, MANY_SLOTS, false))
    }

    /// As [`Bench::new`], with the clock of `env`.
    pub fn timed(flash: Arc<dyn Flash>, cache_pages: usize, sync: Sync, env: Env) -> Bench {
        Bench::over(flash, cache_pages, sync, (env, MANY_SLOTS, false))
    }

    /// As [`Bench::with_slots`], with images written over those that they replace.
    pub fn in_place(flash: Arc<dyn Flash>, cache_pages: usize, slots: u32) -> Bench {
        Bench::over(flash, cache_pages, Sync::Always, (Env::simulated(1).0, slots, true))
    }

    /// As [`Bench::new`], with few slots, so that each is reused soon.
    pub fn with_slots(flash: Arc<dyn Flash>, cache_pages: usize, slots: u32) -> Bench {
        Bench::over(flash, cache_pages, Sync::Always, (Env::simulated(1).0, slots, false))
    }

    pub fn on_threads(flash: Arc<dyn Flash>, cache_pages: usize, sync: Sync) -> Bench {
        Bench::over(flash, cache_pages, sync, (Env::system(), MANY_SLOTS, false))
    }

    fn over(
        flash: Arc<dyn Flash>,
        cache_pages: usize,
        sync: Sync,
        (env, extents, in_place): (Env, u32, bool),
    ) -> Bench {
        let options = StoreOptions { sync, ..small_options() };
        let local = LocalMemory::new(32 << 20).unwrap();
        let drive = Drive::new(flash, local, programs::built_in(), env);
        Store::create_on(&drive, &options).unwrap();
        let store = Store::open_with(&drive, &options, || false).unwrap();
        let base = store.hashed().base.clone();
        let mut groups = GroupTable::default();
        let mut add = |class, extents| {
            let runs = lock(&base.extents).take(ExtentOwner::Large, extents, ExtentShape::Any).unwrap();
            assert_eq!(runs.len(), 1);
            let (first, keyspace, version) = (runs[0].first, KEYSPACE.id(), groups.version_next());
            let group = Group { first, extents, keyspace, class, version, open: true };
            groups.edit(&GroupEdit::Add(group)).unwrap();
            groups.edit(&GroupEdit::Open(vec![first])).unwrap();
            group
        };
        let group = add(SlotClass::Nodes, extents);
        for size in 0..5 {
            add(SlotClass::Extensions(size), 160);
        }
        let slabs = SlabOptions::new(&base.geometry, base.store_id).unwrap();
        let slots = KeyspaceSlots::new(&slabs, KEYSPACE.id(), &groups);
        let limits = OrderedLimits {
            cache_pages,
            nodes_max: 10_000,
            in_place,
            search: SearchLimits { bytes_max: 8 << 20, handles_max: 16 },
        };
        let state = OrderedState::new(base.clone(), limits).unwrap();
        let tree = state.add_empty(slots.clone()).unwrap();
        Bench { state, tree, base, group, slots, store }
    }

    pub fn client(&self) -> Client {
        let slot = EngineSlot::of(u64::MAX >> 5);
        let queue = self.base.drive.queue_pair(64).unwrap();
        let core = SessionCore::new(self.base.clone(), queue);
        let session = OrderedSession::new(self.state.clone(), self.state.clone(), Arc::default(), slot);
        let (slots, io) = (self.slots.clone(), Io::new(self.base.drive.queue_pair(8).unwrap()));
        let (answers, scanned) = (HashMap::new(), HashMap::new());
        let (state, store) = (self.state.clone(), self.store.clone());
        Client { state, core, session, slots, store, io, tends: None, failed: None, answers, scanned, token_next: 0 }
    }
}

/// An answer, with its value.
pub type Answer = (Outcome, Vec<u8>);

pub struct Client {
    state: Arc<OrderedState>,
    pub core: SessionCore,
    pub session: OrderedSession,
    slots: KeyspaceSlots,
    store: Store,
    io: Io,
    /// Makes slots beyond the slabs, as maintenance does.
    tends: Option<Task<Result<(), Error>>>,
    failed: Option<Error>,
    answers: HashMap<u64, Answer>,
    scanned: HashMap<u64, ScanPart>,
    token_next: u64,
}

impl Client {
    /// Starts an operation. Returns its token.
    pub fn start(&mut self, request: Request<'_>) -> u64 {
        self.token_next += 1;
        let hash = self.core.base.hasher.hash(KeyspaceId::DEFAULT, request.key());
        let target = OpTarget { token: self.token_next, keyspace: KEYSPACE, hash, value_bytes_allowed: usize::MAX };
        self.session.start(&mut self.core, target, &request);
        self.token_next
    }

    fn tend(&mut self) {
        self.slots.nodes().turn_round(self.core.base.log.give_stamp());
        let large = self.slots.of_class(SlotClass::Large);
        if self.tends.is_none() && large.wants_change() {
            let (base, io, large) = (self.core.base.clone(), self.io.clone(), large.clone());
            self.tends = Some(Box::pin(async move { open_more(&base, &io, &large).await }));
        }
        if self.tends.is_none() {
            return;
        }
        self.io.pump();
        // The task uses the manifest's I/O.
        self.store.maintain();
        if let Some(done) = self.tends.as_mut().and_then(poll_once) {
            self.tends = None;
            // A power failure ends it.
            self.failed = self.failed.take().or(done.err());
        }
    }

    pub fn step(&mut self) {
        self.tend();
        let mut completions = std::mem::take(&mut self.core.completions);
        self.core.queue.poll(&mut completions);
        completions.drain(..).for_each(|returned| self.session.complete(&mut self.core, returned));
        completions.append(&mut self.core.completions);
        self.core.completions = completions;
        // As in a real session: operations that wait only for commands are not polled. Maintenance advances the write-back.
        if self.session.waits() > EngineWait::Commands || self.state.write_back.has_work() {
            self.session.poll(&mut self.core);
        }
        self.core.release_held(false);
        for reply in std::mem::take(&mut self.core.ready) {
            let value = reply.outcome.value().map(|value| self.core.values.bytes(value).to_vec());
            self.answers.insert(reply.token, (reply.outcome, value.unwrap_or_default()));
        }
        self.core.values.turn();
        let mut scanned: Vec<ScanReply> = Vec::new();
        self.session.take_scanned(&mut scanned);
        self.scanned.extend(scanned.into_iter().map(|reply| (reply.token, reply.part.unwrap())));
    }

    pub fn take_answer(&mut self, token: u64) -> Option<Answer> {
        self.answers.remove(&token)
    }

    pub fn answer(&mut self, token: u64) -> Answer {
        for _ in 0..PATIENCE {
            if let Some(answer) = self.take_answer(token) {
                return answer;
            }
            self.step();
        }
        let (tokens, failed) = (self.session.tokens(), &self.failed);
        panic!("no answer to {token}; {tokens:?} are on their way; {failed:?}");
    }

    pub fn run(&mut self, request: Request<'_>) -> Answer {
        let token = self.start(request);
        self.answer(token)
    }

    pub fn start_scan(&mut self, range: KeyRange, items_max: usize) -> u64 {
        self.token_next += 1;
        self.session.start_scan(KEYSPACE, self.token_next, range, items_max);
        self.token_next
    }

    pub fn take_part(&mut self, token: u64) -> Option<ScanPart> {
        self.scanned.remove(&token)
    }

    /// All items of a range, in parts of `items_max` items.
    pub fn scan(&mut self, range: KeyRange, items_max: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut items, mut rest) = (Vec::new(), Some(range));
        while let Some(range) = rest {
            let token = self.start_scan(range, items_max);
            let part = (0..PATIENCE).find_map(|_| {
                self.step();
                self.take_part(token)
            });
            let part = part.expect("an answer to a scan");
            assert!(part.items.len() <= items_max);
            items.extend(part.items.into_iter().map(|item| (item.key, item.value)));
            rest = part.rest;
        }
        items
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.leave(&mut self.core);
        self.tends = None;
        self.io.drain();
        self.core.base.log.unregister(&self.core.notifier);
    }
}

/// All images of a tree on a flash, read by the live rule.
pub struct Images {
    flash: FaultyFlash,
    slots: KeyspaceSlots,
    /// Images, the newest first.
    images: Vec<Vec<u8>>,
}

impl Images {
    pub fn read(bench: &Bench, flash: &FaultyFlash) -> Images {
        let (flash, slots, group) = (flash.clone(), bench.slots.clone(), &bench.group);
        let (space, map) = (slots.nodes(), slots.nodes().map());
        let mut images = Vec::new();
        for number in map.first_of(group.first)..map.first_of(group.first + group.extents) {
            let bytes = flash.peek(map.flash(number), 4096);
            let salt = space.salt(map.address(number)).unwrap();
            if let Ok(node) = NodeRef::check(&bytes, salt) {
                images.push((node.stamp(), bytes));
            }
        }
        images.sort_by_key(|(stamp, _)| std::cmp::Reverse(*stamp));
        let images = images.into_iter().map(|(_, bytes)| bytes).collect();
        Images { flash, slots, images }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let nodes = self.images.iter().map(|bytes| NodeRef::look(bytes).unwrap());
        let node = nodes.into_iter().find(|node| node.covers(key))?;
        let record = node.get(key).unwrap()?;
        let Some(reference) = record.extension().unwrap() else { return Some(record.stored.to_vec()) };
        let class = reference.class(key.len()).unwrap();
        let space = self.slots.of_class(SlotClass::of_extension(class));
        let bytes = self.flash.peek(space.flash_offset(reference.slot).unwrap(), class.bytes());
        let salt = space.salt(reference.slot).unwrap();
        let (head, its_key) = ExtensionHead::parse(&bytes, salt).unwrap();
        assert_eq!((its_key, head.check(&reference, record.header.raw_bytes)), (key, Ok(())));
        let stored_at = front_bytes(key.len(), head.stored_bytes as usize);
        let stored = &bytes[stored_at..stored_at + head.stored_bytes as usize];
        assert!(head.holds(salt, stored));
        Some(stored.to_vec())
    }
}
