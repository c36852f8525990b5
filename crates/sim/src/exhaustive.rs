//! Exhaustive where small: every sequence of at most three operations out of six, every moment at which the power may fail,
//! and every choice of what survives of the sectors that no flush covers.
//!
//! Each sequence runs on two stores: an empty one, and one whose write buffer is nearly full, so that a sequence makes it flush. Its
//! operations are submitted one by one, or all at once. Maintenance runs beside them, and then until it is idle. At every event of the
//! drive the state is kept ([`Cut`]); states that are the same for drive and client are tried once. Of up to eight sectors every subset is
//! tried. Of more, every prefix (in the order of writing) is tried, and all sectors except one. Each outcome is opened, and every
//! key is read beside a copy of the model. One outcome of each state is opened read-only, too.
//!
//! For ordered keyspaces, whose operations change one or two nodes, some histories are tried in the same way ([`ordered`]), and some with a
//! flush that fails ([`failed_flush`]).

mod failed_flush;
mod ordered;

use crate::model::Model;
use crate::model::operation::Kind;
use crate::workload::{request, told, write};
use std::rc::Rc;
use std::sync::Arc;
use tapetum::Expiry;
use tapetum::{
    Condition, Error, KeyspaceHandle, KeyspaceRef, Phase, Reply, Session, Step as MaintenanceStep, Store, StoreOptions,
};
use tapetum_drive::{Cut, Drive, Env, FaultyFlash, LocalMemory, Opcode, SplitMix64, programs};

const SEGMENT_BYTES: u64 = 64 << 10;
const CAPACITY_BYTES: u64 = 5 << 18;
const MEMORY_BYTES: u64 = 16 << 20;
/// Up to this many sectors, every subset is tried.
const SUBSETS_SECTORS_MAX: usize = 8;
const STEPS_MAX: usize = 3;
/// After so many steps without work, maintenance is idle.
const IDLE_STEPS: u32 = 20;
const PATIENCE: u32 = 20_000;

/// The keys of the default keyspace come first.
const KEYS: [&[u8]; 3 + ordered::KEYS.len()] = {
    let mut keys: [&[u8]; 3 + ordered::KEYS.len()] = [b"one"; 3 + ordered::KEYS.len()];
    (keys[1], keys[FILLER]) = (b"two", b"filler");
    let mut number = 0;
    while number < ordered::KEYS.len() {
        keys[ORDERED + number] = ordered::KEYS[number];
        number += 1;
    }
    keys
};
const FILLER: usize = 2;
/// The first key of the ordered keyspace.
const ORDERED: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    PutOne,
    PutLargeTwo,
    AppendOne,
    AddTwo,
    DeleteOne,
    BatchBoth,
    /// In the ordered keyspace, whose keys have numbers.
    PutInNode(usize),
    PutInExtension(usize),
    Remove(usize),
}

/// The steps of which every sequence is tried.
pub const STEPS: [Step; 6] =
    [Step::PutOne, Step::PutLargeTwo, Step::AppendOne, Step::AddTwo, Step::DeleteOne, Step::BatchBoth];

/// Numbers of cases tried.
#[derive(Clone, Copy, Default, Debug)]
pub struct Count {
    pub cases: u64,
    pub cuts: u64,
    /// Stores opened: from cuts with at most eight sectors in doubt, and from others.
    pub outcomes: u64,
    pub outcomes_of_many: u64,
}

impl Count {
    pub fn merge(&mut self, other: &Count) {
        self.cases += other.cases;
        self.cuts += other.cuts;
        self.outcomes += other.outcomes;
        self.outcomes_of_many += other.outcomes_of_many;
    }
}

/// A sequence, and how it is run.
#[derive(Clone, Debug)]
pub struct Case {
    pub steps: Vec<Step>,
    /// All operations are submitted before the first is answered.
    pub at_once: bool,
    pub begins: Begin,
    pub strikes: Strikes,
}

/// When the power may fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strikes {
    /// At any moment.
    Anywhere,
    /// The flush with this number fails, and the process ends. Then the power may fail at any moment of the recovery.
    RecoveryAfterFlush(u64),
}

/// The state of the store before the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    Empty,
    /// The write buffer is nearly full.
    NearlyFull,
    /// An ordered keyspace with one full node.
    FullNode,
    /// An ordered keyspace with two nodes, one of them nearly empty.
    SparseNodes,
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut sequences: Vec<Vec<Step>> = vec![Vec::new()];
    for _ in 0..STEPS_MAX {
        sequences = sequences.iter().flat_map(|steps| STEPS.map(|step| [&steps[..], &[step]].concat())).collect();
        for steps in &sequences {
            for at_once in [false, true].into_iter().filter(|at_once| !at_once || steps.len() > 1) {
                let begins = [Begin::Empty, Begin::NearlyFull];
                let strikes = Strikes::Anywhere;
                cases.extend(begins.map(|begins| Case { steps: steps.clone(), at_once, begins, strikes }));
            }
        }
    }
    cases.extend(ordered_cases());
    cases
}

/// Like [`cases`], but with only one in `one_in` of the sequences of [`STEPS_MAX`] operations, which are the most; `draw` decides which.
pub fn cases_drawn(one_in: u64, draw: u64) -> Vec<Case> {
    let mut cases = cases();
    let mut chance = SplitMix64::new(draw);
    cases.retain(|case| {
        let is_long = case.steps.len() == STEPS_MAX && matches!(case.begins, Begin::Empty | Begin::NearlyFull);
        // Drawn for each case, so that no kind of case is always left out.
        chance.one_in(one_in) || !is_long
    });
    cases
}

/// The cases of ordered keyspaces.
pub fn ordered_cases() -> Vec<Case> {
    failed_flush::cases().chain(ordered::cases()).collect()
}

/// Stores to begin with, and memory to run them in.
pub struct Bench {
    options: StoreOptions,
    /// For the running store, and for stores opened after a cut.
    local: [LocalMemory; 2],
    /// The stores to begin with, each with its model.
    bases: Vec<(Begin, FaultyFlash, Model)>,
}

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: SEGMENT_BYTES, partition_bits: 0, ..StoreOptions::new(CAPACITY_BYTES, MEMORY_BYTES) }
}

fn noise(seed: u64, bytes: usize) -> Rc<[u8]> {
    let mut value = vec![0; bytes];
    SplitMix64::new(seed).fill(&mut value);
    value.into()
}

fn put(value: Rc<[u8]>, condition: Condition) -> Kind {
    Kind::Put { value, flags: 0, expiry: Expiry::NONE, condition }
}

/// The operation of the step at `place`, for each of its keys.
fn parts(step: Step, place: u64) -> Vec<(usize, Kind)> {
    let small = |salt: u64| noise(place * 8 + salt, 4000);
    match step {
        Step::PutOne => vec![(0, put(small(0), Condition::Always))],
        Step::PutLargeTwo => vec![(1, put(noise(place * 8 + 1, 12 << 10), Condition::Always))],
        Step::AppendOne => vec![(0, Kind::Append { value: noise(place * 8 + 2, 10), stamp: None })],
        Step::AddTwo => vec![(1, put(small(3), Condition::Absent))],
        Step::DeleteOne => vec![(0, Kind::Delete { stamp: None })],
        Step::PutInNode(key) => vec![(ORDERED + key, put(noise(place * 8 + 6, 1000), Condition::Always))],
        Step::PutInExtension(key) => vec![(ORDERED + key, put(noise(place * 8 + 7, 3000), Condition::Always))],
        Step::Remove(key) => vec![(ORDERED + key, Kind::Delete { stamp: None })],
        Step::BatchBoth => {
            vec![(0, put(noise(place * 8 + 4, 200), Condition::Always)), (1, put(small(5), Condition::Always))]
        }
    }
}

/// A store beside its model.
struct Open {
    store: Store,
    session: Session,
    model: Model,
    /// The ordered keyspace, if there is one.
    ordered: Option<KeyspaceHandle>,
    replies: Vec<Reply>,
    in_flight: usize,
    /// A flush will fail, and then the store reports that it has failed.
    may_fail: bool,
    has_failed: bool,
}

impl Open {
    fn new(drive: &Drive, options: &StoreOptions, mut model: Model) -> Result<Open, String> {
        let store = Store::open_with(drive, options, || false).map_err(|error| format!("it does not open: {error}"))?;
        let session = store.session().map_err(|error| format!("no session: {error}"))?;
        model.set_value_bytes_max(store.value_bytes_max());
        let ordered = ordered::keyspace(&store);
        let (replies, may_fail, has_failed) = (Vec::new(), false, false);
        Ok(Open { store, session, model, ordered, replies, in_flight: 0, may_fail, has_failed })
    }

    fn keyspace_of(&self, key: usize) -> Option<KeyspaceRef> {
        if key < ORDERED { Some(KeyspaceRef::DEFAULT) } else { self.ordered.as_ref().map(KeyspaceHandle::keyspace) }
    }

    /// Submits an operation. A batch that finds the buffers busy is submitted when there is room. `before` checks the drive's events.
    fn submit(
        &mut self,
        id: u64,
        parts: Vec<(usize, Kind)>,
        before: &mut impl FnMut(&Model) -> Result<(), String>,
    ) -> Result<(), String> {
        if let [(key, kind)] = &parts[..] {
            let keyspace = self.keyspace_of(*key).ok_or("the ordered keyspace is gone")?;
            self.model.submit(id, 0, *key, kind.clone());
            self.session.submit_to(keyspace, id, request(KEYS[*key], kind)).expect("a session has room for a few");
        } else {
            let writes: Vec<_> =
                parts.iter().map(|(key, kind)| write(tapetum::KeyspaceRef::DEFAULT, KEYS[*key], kind)).collect();
            let mut patience = PATIENCE;
            while self.session.submit_batch(id, &writes).is_err() {
                before(&self.model)?;
                self.poll(before)?;
                self.store.maintain();
                patience -= 1;
                if patience == 0 {
                    return Err("a batch is never taken".into());
                }
            }
            drop(writes);
            self.model.submit_group(id, 0, parts);
        }
        self.in_flight += 1;
        before(&self.model)
    }

    /// Polls. `before` checks the drive's events before the replies count.
    fn poll(&mut self, before: &mut impl FnMut(&Model) -> Result<(), String>) -> Result<(), String> {
        let mut replies = std::mem::take(&mut self.replies);
        self.session.poll(&mut replies);
        before(&self.model)?;
        for reply in replies.drain(..) {
            let id = reply.token;
            self.in_flight -= 1;
            match told(&self.session, reply.outcome) {
                Ok(told) => self.model.reply(id, &told)?,
                Err(Error::Poisoned(_)) if self.may_fail => {
                    self.has_failed = true;
                    self.model.doubt(id);
                }
                Err(error) => return Err(format!("operation {id} failed: {error}")),
            }
        }
        self.replies = replies;
        Ok(())
    }

    /// Polls until every operation is answered.
    fn drain(&mut self, before: &mut impl FnMut(&Model) -> Result<(), String>) -> Result<(), String> {
        let mut patience = PATIENCE;
        while self.in_flight > 0 {
            self.poll(before)?;
            self.store.maintain();
            before(&self.model)?;
            patience -= 1;
            if patience == 0 {
                return Err("an operation gets no reply".into());
            }
        }
        Ok(())
    }

    fn read_all(&mut self) -> Result<(), String> {
        let keys = if self.ordered.is_some() { KEYS.len() } else { ORDERED };
        for key in 0..keys {
            self.submit(1000 + key as u64, vec![(key, Kind::Get)], &mut |_| Ok(()))?;
        }
        let mut patience = PATIENCE;
        while self.in_flight > 0 && patience > 0 {
            self.poll(&mut |_| Ok(()))?;
            patience -= 1;
        }
        if self.in_flight > 0 {
            return Err("a read gets no reply".into());
        }
        if self.ordered.is_some() {
            self.scan_all()?;
        }
        self.model.all_read()
    }

    /// Runs maintenance until it is idle.
    fn rest(&mut self, before: &mut impl FnMut(&Model) -> Result<(), String>) -> Result<(), String> {
        let mut idle = 0;
        while idle < IDLE_STEPS {
            // Merges continue in polls.
            self.poll(before)?;
            let is_idle = self.store.maintain() == MaintenanceStep::Idle || self.ordered.is_none();
            before(&self.model)?;
            let rests = self.store.phases().iter().all(|phase| *phase == Phase::Idle) && !self.store.log_is_busy();
            idle = if is_idle && rests { idle + 1 } else { 0 };
        }
        Ok(())
    }
}

impl Bench {
    pub fn new() -> Result<Bench, String> {
        let options = options();
        let memory = || LocalMemory::new(options.local_memory_bytes() as usize);
        let local = [memory(), memory()].map(|local| local.map_err(|error| format!("no local memory: {error}")));
        let [one, other] = local;
        let flash = FaultyFlash::new(CAPACITY_BYTES, 1);
        let model = Model::new(KEYS.len(), false, Env::simulated(0).0.unix_millis());
        let mut bench = Bench { options, local: [one?, other?], bases: Vec::new() };
        bench.fill(&flash, model)?;
        Ok(bench)
    }

    fn drive(&self, flash: &FaultyFlash, local: usize) -> Drive {
        Drive::new(Arc::new(flash.clone()), self.local[local].clone(), programs::built_in(), Env::simulated(1).0)
    }

    /// Makes the stores to begin with.
    fn fill(&mut self, flash: &FaultyFlash, model: Model) -> Result<(), String> {
        let drive = self.drive(flash, 0);
        Store::create_with(&drive, &self.options, || false).map_err(|error| format!("no store: {error}"))?;
        drop(drive);
        self.bases.push((Begin::Empty, flash.fork_durable(1), model));
        self.fill_one(Begin::NearlyFull, |open| {
            (0..7).try_for_each(|place| {
                let parts = vec![(FILLER, put(noise(100 + place, 8100), Condition::Always))];
                open.submit(1 + place, parts, &mut |_| Ok(()))?;
                open.drain(&mut |_| Ok(()))
            })
        })?;
        self.fill_one(Begin::FullNode, ordered::fill_node)?;
        self.fill_one(Begin::SparseNodes, ordered::make_sparse)
    }

    /// Makes one of them out of the empty store.
    fn fill_one(&mut self, begin: Begin, fill: impl FnOnce(&mut Open) -> Result<(), String>) -> Result<(), String> {
        let (_, flash, model) = &self.bases[0];
        let (flash, model) = (flash.fork_durable(2), model.clone());
        let drive = self.drive(&flash, 0);
        let mut open = Open::new(&drive, &self.options, model)?;
        fill(&mut open)?;
        let Open { model, .. } = open;
        self.bases.push((begin, flash.fork_durable(2), model));
        Ok(())
    }

    /// Runs a case, and tries every way in which the power may fail in it.
    pub fn run(&self, case: &Case) -> Result<Count, String> {
        let base = self.bases.iter().find(|(begin, ..)| *begin == case.begins);
        let (_, base, model) = base.ok_or("there is no such store")?;
        if let Strikes::RecoveryAfterFlush(nth) = case.strikes {
            return self.run_failed_flush(case, nth, base, model);
        }
        let mut count = Count { cases: 1, ..Count::default() };
        let flash = base.fork_durable(3);
        let drive = self.drive(&flash, 0);
        let mut open = Open::new(&drive, &self.options, model.clone())?;
        flash.keep_cuts();
        let mut judge = |model: &Model| {
            let cuts = flash.take_cuts();
            cuts.iter().try_for_each(|cut| self.try_cut(cut, model, &mut count))
        };
        for (place, step) in (0..).zip(&case.steps) {
            open.submit(100 + place, parts(*step, place), &mut judge)?;
            if !case.at_once {
                open.drain(&mut judge)?;
            }
        }
        open.drain(&mut judge)?;
        open.rest(&mut judge)?;
        let (end, model) = (flash.cut(), open.model.clone());
        self.try_cut(&end, &model, &mut count)?;
        Ok(count)
    }

    fn try_cut(&self, cut: &Cut, model: &Model, count: &mut Count) -> Result<(), String> {
        count.cuts += 1;
        let mut model = model.clone();
        model.crash();
        let sectors = cut.doubtful();
        let read_only = self.try_reader(&cut.flash(1, |place| place < sectors / 2));
        read_only
            .map_err(|why| format!("cut {}, half of {sectors} sectors kept, opened to read: {why}", count.cuts))?;
        if sectors <= SUBSETS_SECTORS_MAX {
            count.outcomes += 1 << sectors;
            return (0..1u32 << sectors).try_for_each(|kept| {
                let outcome = self.try_outcome(cut.flash(1, |place| kept >> place & 1 == 1), &model);
                outcome.map_err(|why| format!("cut {}, sectors {kept:0sectors$b} kept: {why}", count.cuts))
            });
        }
        count.outcomes_of_many += 2 * sectors as u64 + 1;
        for end in 0..=sectors {
            let outcome = self.try_outcome(cut.flash(1, |place| place < end), &model);
            outcome.map_err(|why| format!("cut {}, the first {end} of {sectors} sectors kept: {why}", count.cuts))?;
        }
        for missing in 0..sectors {
            let outcome = self.try_outcome(cut.flash(1, |place| place != missing), &model);
            outcome.map_err(|why| format!("cut {}, sector {missing} of {sectors} lost: {why}", count.cuts))?;
        }
        Ok(())
    }

    /// A store that is opened read-only must give the same answers as one opened to write, and must not write to flash.
    fn try_reader(&self, flash: &FaultyFlash) -> Result<(), String> {
        let answers = |store: Result<Store, Error>| {
            let store = store.map_err(|error| format!("it does not open: {error}"))?;
            let ordered = ordered::keyspace(&store);
            let get = |number: usize| match &ordered {
                _ if number < ORDERED => store.get(KEYS[number]),
                Some(keyspace) => keyspace.get(KEYS[number]),
                None => Ok(None),
            };
            let got = (0..KEYS.len()).map(|number| get(number).map(|item| item.map(|item| (item.value, item.stamp))));
            Ok::<_, String>(got.collect::<Vec<_>>())
        };
        let read = answers(Store::open_read_only_on(&self.drive(flash, 1), &self.options))?;
        let opcodes = [Opcode::Write, Opcode::Flush, Opcode::Discard];
        if let Some(opcode) = opcodes.into_iter().find(|opcode| flash.submitted(*opcode) > 0) {
            return Err(format!("the drive is told to {}", opcode.name()));
        }
        let written = answers(Store::open_with(&self.drive(flash, 1), &self.options, || false))?;
        if read != written { Err("it says something else than to a writer".into()) } else { Ok(()) }
    }

    fn try_outcome(&self, flash: FaultyFlash, model: &Model) -> Result<(), String> {
        let drive = self.drive(&flash, 1);
        Open::new(&drive, &self.options, model.clone())?.read_all()
    }
}
