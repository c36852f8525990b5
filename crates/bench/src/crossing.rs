//! Bytes that cross between the host and the drive, operation by operation, by the drive's own counters: what each engine has the drive do.
//!
//! Bytes count when the host writes into the drive's memory, reads there, or has the drive read the host's region (the log's arenas). What
//! crosses for an operation itself has a bound; log, structure and background are beside it.

use std::path::Path;

use tapetum::{KeyRange, KeyspaceHandle, KeyspaceKind, QuerySide, Store, Sync, Write};
use tapetum_drive::{Purpose, PurposeAccount};
use tapetum_kernels::scan::Scalar;

use crate::Failure;
use crate::embedded::{Pipe, create_as, keep_full, ordered_options, settle, usable};
use crate::fields::PairReader;
use crate::queries::{FieldsGet, keep_below};
use crate::random::{Random, key16, mix};

const KEY_BYTES: u64 = 16;
/// Arguments, request and head of one record beside its key and value.
const WRITE_BESIDE_BYTES: u64 = 136;
/// A get sends its arguments and key, and takes the item's head and value back.
const GET_BESIDE_BYTES: u64 = 160;
const BATCH_WRITES: usize = 32;
const SCAN_ITEMS: u64 = 100;
/// A query keeps one of so many rows.
const KEPT_ONE_IN: u64 = 100;
const FORMAT: &str = "key: name bytes; value: number u64le, rest bytes";

/// The size of the load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub items: u64,
    pub value_bytes: u64,
    pub capacity_bytes: u64,
    pub memory_bytes: u64,
}

/// The bytes that crossed for one operation.
#[derive(Clone, Debug)]
pub struct Crossing {
    pub name: String,
    /// Keys and values that the caller gave or got.
    pub user: f64,
    /// For the operation itself, to the drive and back.
    pub own: [f64; 2],
    pub log: f64,
    /// Splits, merges and purges.
    pub structure: f64,
    /// Flushes, collections, images of nodes, and all else.
    pub background: f64,
    /// The most that `own` may be; none, where it is only reported.
    pub bound: Option<f64>,
}

impl Crossing {
    pub fn own_total(&self) -> f64 {
        self.own[0] + self.own[1]
    }

    pub fn is_met(&self) -> bool {
        self.bound.is_none_or(|most| self.own_total() <= most)
    }
}

/// Runs every operation over a new store in `folder`.
pub fn measure(folder: &Path, load: Load) -> Result<Vec<Crossing>, Failure> {
    let capacity = usable(load.capacity_bytes);
    let options = ordered_options(capacity, load.memory_bytes, load.memory_bytes, Sync::EverySecond);
    let store = create_as(&folder.join("data"), capacity, &options)?;
    let mut table = Vec::new();
    for (engine, kind) in [("hashed", KeyspaceKind::Hashed), ("ordered", KeyspaceKind::Ordered)] {
        Operations { store: &store, engine, kind, load, table: &mut table }.run()?;
    }
    store.close()?;
    Ok(table)
}

struct Operations<'a> {
    store: &'a Store,
    engine: &'static str,
    kind: KeyspaceKind,
    load: Load,
    table: &'a mut Vec<Crossing>,
}

/// The number of operations of a step, and the bytes of one for its caller.
struct Step<'a> {
    name: &'a str,
    operations: u64,
    user_bytes: u64,
    bound: Option<u64>,
}

impl Operations<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let Load { items, value_bytes, .. } = self.load;
        let item_bytes = KEY_BYTES + value_bytes;
        let (name, is_ordered) = (self.engine, self.kind == KeyspaceKind::Ordered);
        // A hashed keyspace's writes cross with the log alone.
        let write_bound = |user_bytes| Some(if is_ordered { user_bytes + WRITE_BESIDE_BYTES } else { 0 });
        let rising = self.store.create_keyspace_of(&format!("{name}-rising"), self.kind)?;
        let keyspace = self.store.create_keyspace_of(name, self.kind)?;
        let put = |name| Step { name, operations: items, user_bytes: item_bytes, bound: write_bound(item_bytes) };
        self.step(put("insert, keys in order"), |load| {
            write(&rising, 0..load.items, |index| format!("{index:016}").into_bytes().try_into().expect("16"), load)
        })?;
        self.step(put("insert, keys at random"), |load| write(&keyspace, 0..load.items, key16, load))?;
        let mut random = Random::new(mix(3));
        self.step(put("overwrite, keys at random"), |load| {
            let drawn: Vec<u64> = (0..load.items).map(|_| random.below(load.items)).collect();
            write(&keyspace, drawn, key16, load)
        })?;
        self.step(put("write of a batch of 32"), |load| batches(&keyspace, load))?;
        let item_bound = Some(item_bytes + GET_BESIDE_BYTES);
        let get = Step { name: "get", operations: items, user_bytes: item_bytes, bound: item_bound };
        self.step(get, |load| gets(&keyspace, load))?;
        let fields = Step { name: "two fields of a value", operations: items, user_bytes: 16, bound: None };
        self.step(fields, |load| {
            let mut reader = FieldsGet::new(&keyspace, QuerySide::Drive)?;
            (0..load.items).try_for_each(|index| reader.read(&key16(index)).map(|_| ()))
        })?;
        let row = Step {
            name: "a row looked at by a query, 1 % kept",
            operations: items,
            user_bytes: 24 / KEPT_ONE_IN,
            bound: None,
        };
        self.step(row, |load| query(&keyspace, load))?;
        if is_ordered {
            let scan =
                Step { name: "an item of a scan of 100", operations: items, user_bytes: item_bytes, bound: item_bound };
            self.step(scan, |load| scans(&keyspace, load))?;
        }
        // It answers whether the key was there.
        let gone_bound = if is_ordered { write_bound(KEY_BYTES) } else { Some(KEY_BYTES + GET_BESIDE_BYTES) };
        let gone = Step { name: "delete", operations: items * 3 / 4, user_bytes: KEY_BYTES, bound: gone_bound };
        self.step(gone, |load| deletes(&keyspace, load))?;
        self.store.drop_keyspace(&format!("{name}-rising"))?;
        Ok(())
    }

    /// Runs a step and waits until nothing goes on in the background; what crossed meanwhile is its own.
    fn step(&mut self, step: Step<'_>, run: impl FnOnce(Load) -> Result<(), Failure>) -> Result<(), Failure> {
        settle(self.store)?;
        let before = self.store.stats().drive_bytes;
        run(self.load)?;
        settle(self.store)?;
        let after = self.store.stats().drive_bytes;
        let moved = |purpose: Purpose| {
            let at = purpose.index();
            let of =
                |of: fn(&PurposeAccount) -> u64| (of(&after[at]) - of(&before[at])) as f64 / step.operations as f64;
            [of(|bytes| bytes.host_to_local), of(|bytes| bytes.local_to_host)]
        };
        let mut crossing = Crossing {
            name: format!("{}: {}", self.engine, step.name),
            user: step.user_bytes as f64,
            own: [0.0; 2],
            log: 0.0,
            structure: 0.0,
            background: 0.0,
            bound: step.bound.map(|bound| bound as f64),
        };
        for purpose in Purpose::ALL {
            let [to_drive, to_host] = moved(purpose);
            match purpose {
                Purpose::Get | Purpose::Put | Purpose::Scan | Purpose::Pipeline => {
                    crossing.own[0] += to_drive;
                    crossing.own[1] += to_host;
                }
                Purpose::Log => crossing.log += to_drive + to_host,
                Purpose::Structure => crossing.structure += to_drive + to_host,
                _ => crossing.background += to_drive + to_host,
            }
        }
        self.table.push(crossing);
        Ok(())
    }
}

fn fill(index: u64, load: Load, value: &mut Vec<u8>) {
    value.resize(load.value_bytes as usize, 0);
    Random::new(mix(index)).fill(value);
    if let Some(number) = value.first_chunk_mut::<8>() {
        *number = index.to_le_bytes();
    }
}

fn write(
    keyspace: &KeyspaceHandle,
    indexes: impl IntoIterator<Item = u64>,
    key: impl Fn(u64) -> [u8; 16],
    load: Load,
) -> Result<(), Failure> {
    let (mut indexes, mut value) = (indexes.into_iter(), Vec::new());
    let next = |pipe: &mut Pipe, now| {
        let Some(index) = indexes.next() else { return false };
        fill(index, load, &mut value);
        pipe.put(now, &key(index), &value);
        true
    };
    keep_full(keyspace.store(), keyspace.keyspace(), next, |_| Ok(())).map(|_| ())
}

fn batches(keyspace: &KeyspaceHandle, load: Load) -> Result<(), Failure> {
    let mut random = Random::new(mix(4));
    let mut left = load.items as usize;
    while left > 0 {
        let count = left.min(BATCH_WRITES);
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let (index, mut value) = (random.below(load.items), Vec::new());
            fill(index, load, &mut value);
            items.push((key16(index), value));
        }
        let keyspace_ref = keyspace.keyspace();
        let put =
            |(key, value)| Write::Put { keyspace: keyspace_ref, key, value, flags: 0, expiry: tapetum::Expiry::NONE };
        let writes: Vec<Write<'_>> = items.iter().map(|(key, value)| put((&key[..], &value[..]))).collect();
        keyspace.store().batch(&writes)?;
        left -= count;
    }
    Ok(())
}

fn gets(keyspace: &KeyspaceHandle, load: Load) -> Result<(), Failure> {
    let mut indexes = 0..load.items;
    let next = |pipe: &mut Pipe, now| {
        let Some(index) = indexes.next() else { return false };
        pipe.get(now, &key16(index));
        true
    };
    keep_full(keyspace.store(), keyspace.keyspace(), next, |_| Ok(())).map(|_| ())
}

fn deletes(keyspace: &KeyspaceHandle, load: Load) -> Result<(), Failure> {
    let mut indexes = (0..load.items).filter(|index| index % 4 != 0);
    let next = |pipe: &mut Pipe, now| {
        let Some(index) = indexes.next() else { return false };
        pipe.delete(now, &key16(index));
        true
    };
    keep_full(keyspace.store(), keyspace.keyspace(), next, |_| Ok(())).map(|_| ())
}

fn query(keyspace: &KeyspaceHandle, load: Load) -> Result<(), Failure> {
    let query = keep_below(FORMAT, load.items / KEPT_ONE_IN, vec![4, 0])?;
    let mut kept = 0;
    let mut take = |_: &[Option<Scalar<'_>>]| kept += 1;
    keyspace.query_range(&query, QuerySide::Drive, &KeyRange::default(), &mut take)?;
    if kept != load.items / KEPT_ONE_IN {
        return Err(format!("a query kept {kept} rows").into());
    }
    Ok(())
}

fn scans(keyspace: &KeyspaceHandle, load: Load) -> Result<(), Failure> {
    let mut left = load.items.div_ceil(SCAN_ITEMS);
    let mut random = Random::new(mix(5));
    let mut pipe = Pipe::new(keyspace.store(), keyspace.keyspace(), 16)?;
    while left > 0 || !pipe.is_idle() {
        while left > 0 && pipe.room() > 0 {
            pipe.scan(std::time::Instant::now(), &key16(random.below(load.items)), SCAN_ITEMS as usize)?;
            left -= 1;
        }
        if pipe.poll(|_, _, _| Ok(()))? == 0 {
            pipe.wait();
        }
    }
    Ok(())
}
