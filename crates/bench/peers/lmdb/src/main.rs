//! LMDB as a contender: a memory map, so the system's page cache is its memory, confined to the budget with a control group
//! where the machine has them. `get`: a read transaction for each; a write is a transaction too.

use std::ops::Range;
use std::process::ExitCode;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};
use tapetum_bench::Failure;
use tapetum_bench::blocking::{self, Client};
use tapetum_bench::confine::Confined;
use tapetum_bench::contend::{Contender, contend};
use tapetum_bench::latencies::Latencies;
use tapetum_bench::random::{Random, mix};
use tapetum_bench::turn::{Setup, Turn};
use tapetum_bench::workload::{Key, Population, Values, key};

/// Its writers are one at a time: a load in transactions of so many items is its best.
const LOAD_BATCH: usize = 1000;
const READERS_MAX: u32 = 256;

struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
    population: Population,
    _confined: Confined,
}

impl Lmdb {
    fn open(setup: &Setup) -> Result<Lmdb, Failure> {
        let confined = Confined::new(std::process::id(), setup.memory_bytes)?;
        let mut options = EnvOpenOptions::new();
        options.map_size((setup.capacity_bytes as usize * 4).next_multiple_of(1 << 21)).max_readers(READERS_MAX);
        let flags = if setup.sync { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
        // Random reads are not helped by the pages around them.
        let flags = flags | EnvFlags::NO_READ_AHEAD;
        // SAFETY: the folder is this process's alone, and without sync a crash may cost the data, which nobody keeps.
        let env = unsafe { options.flags(flags).open(&setup.data)? };
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        let values = Values::new(setup.value_bytes as usize, setup.random_percent);
        Ok(Lmdb { env, database, population: Population::new(setup.items, values), _confined: confined })
    }
}

impl Contender for Lmdb {
    fn load(&mut self, indexes: Range<u64>) -> Result<(), Failure> {
        let mut random = Random::new(mix(indexes.start));
        let mut value = Vec::new();
        let mut indexes = indexes.peekable();
        while indexes.peek().is_some() {
            let mut transaction = self.env.write_txn()?;
            for index in indexes.by_ref().take(LOAD_BATCH) {
                self.population.values().fill(index, &mut random, &mut value);
                self.database.put(&mut transaction, &key(index), &value)?;
            }
            transaction.commit()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        Ok(self.env.force_sync()?)
    }

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure> {
        if turn.api != "get" {
            return Err(format!("LMDB has get, not {}", turn.api).into());
        }
        blocking::run(turn, &self.population, || Ok(Thread { env: &self.env, database: self.database }))
    }

    fn close(self) -> Result<(), Failure> {
        Ok(self.env.force_sync()?)
    }
}

struct Thread<'a> {
    env: &'a Env,
    database: Database<Bytes, Bytes>,
}

impl Client for Thread<'_> {
    fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure> {
        let transaction = self.env.read_txn()?;
        for (place, key) in keys.iter().enumerate() {
            if let Some(value) = self.database.get(&transaction, key)? {
                found(place, value);
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure> {
        let mut transaction = self.env.write_txn()?;
        self.database.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn scan(&mut self, from: &Key, items: u64) -> Result<u64, Failure> {
        let transaction = self.env.read_txn()?;
        let from: (std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>) =
            (std::ops::Bound::Included(&from[..]), std::ops::Bound::Unbounded);
        let mut seen = 0;
        for item in self.database.range(&transaction, &from)?.take(items as usize) {
            std::hint::black_box(item?);
            seen += 1;
        }
        Ok(seen)
    }
}

fn main() -> ExitCode {
    contend(Lmdb::open)
}
